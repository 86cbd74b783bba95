"""Unix sockets, and a process that has run out of file descriptors."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from penstock.listen.listener import ListenerError
from tests.support.brokers.listening import (
    V1_HEADER,
    assert_echo,
    run,
    started,
)


def test_unix_socket_is_private_and_removed_at_the_end(tmp_path):
    path = tmp_path / "mqtt.sock"

    async def test() -> None:
        async with started("unix", str(path)) as it:
            assert it.listener.address == str(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            await assert_echo(await it.connect())
        assert not path.exists()

    run(test())


def test_unix_socket_of_a_dead_process_is_replaced_and_of_a_living_one_is_not(tmp_path):
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def test() -> None:
        async with started("unix", str(path)) as it:
            with pytest.raises(ListenerError, match="in use"):
                async with started("unix", str(path)):
                    pass
            await assert_echo(await it.connect())

    run(test())


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")

    async def test() -> None:
        with pytest.raises(ListenerError, match="no socket"):
            async with started("unix", str(path)):
                pass

    run(test())
    assert path.read_text() == "data"


# Runs a listener with few descriptors left and prints the processor time it took while they were used up.
STARVED = """
    import asyncio, resource, sys, time
    import uvloop
    from penstock.settings.model import ListenerSettings
    from penstock.listen.listener import Listener
    from tests.support.clients.echo import EchoConnection

    async def main():
        made = []
        settings = ListenerSettings(address="127.0.0.1:0", proxy_protocol=sys.argv[1] == "proxy")
        listener = Listener(settings, lambda: EchoConnection(made))
        await listener.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        print(listener.address.rpartition(":")[2], flush=True)
        before = time.process_time()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(time.process_time() - before, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    uvloop.run(main())
"""


@pytest.mark.parametrize("mode", ["plain", "proxy"])
def test_no_descriptors_left_costs_no_processor_time_and_passes(mode):
    header = V1_HEADER if mode == "proxy" else b""
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARVED), mode],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
    ) as process:  # fmt: skip
        guard = threading.Timer(120, process.kill)
        guard.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(process.stdout.readline())
            crowd = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(60)]
            time.sleep(1.2)
            process.stdin.write("\n")
            process.stdin.flush()
            assert float(process.stdout.readline()) < 0.5
            for one in crowd:
                one.close()
            time.sleep(1.0)
            with socket.create_connection(("127.0.0.1", port), timeout=30) as later:
                later.sendall(header + b"x")
                assert later.recv(1) == b"x"
        finally:
            guard.cancel()
            process.kill()
