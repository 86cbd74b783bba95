"""`python -m penstock`, started in a tenth of the time: forked by a process that has its modules loaded already.

The imports take half a second of a core, and the tests start a thousand brokers and commands. What is started this way
is a process of its own as any other, with its own arguments, environment, directory and files; only its modules were
imported by another. Tests of the start itself use subprocess. PENSTOCK_TEST_FORK=no starts everything from scratch.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
SET_CHILD_SUBREAPER = 36
# What Python looks at when a process starts, and never again; as the library of shifted_clock.c does.
READ_AT_THE_START = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8")
OPTIONS = {"cwd", "env", "stdin", "stdout", "stderr", "text", "bufsize"}


def popen(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """subprocess.Popen, quicker where the command is `python -m penstock …`."""
    kind = Forked if _can_fork(command, options) else subprocess.Popen
    return kind(command, **options)


def run(
    command: list[str], *, timeout: float, given: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """subprocess.run with `given` for its standard input and what it prints, as text."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with popen(command, text=True, **pipes, **options) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _can_fork(command: list[str], options: dict[str, Any]) -> bool:
    if os.environ.get("PENSTOCK_TEST_FORK") == "no" or not options.keys() <= OPTIONS:
        return False
    environment = options.get("env") or os.environ
    if "SHIFTED_CLOCK" in environment or any(
        environment.get(name) != os.environ.get(name) for name in READ_AT_THE_START
    ):
        return False
    return command[:3] == [sys.executable, "-m", "penstock"]


class Forked(subprocess.Popen[Any]):
    """As any other Popen; only how the process comes about is different."""

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        _, _, _, _, directory, environment, _, _, _, *files = rest[:15]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = files
        request: dict[str, Any] = {
            "arguments": args[3:],
            "directory": str(directory or Path.cwd()),
            "environment": dict(environment or os.environ),
        }
        standard = enumerate((p2cread, c2pwrite, errwrite))
        files = [number if file == -1 else file for number, file in standard]
        self.pid = fork_server(request["environment"].get("LD_PRELOAD", "")).start(request, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


class ForkServer:
    """`preloaded`: the library that is put in front of others."""

    def __init__(self, preloaded: str) -> None:
        # What it forks has this process as its parent: it can be waited for, and its exit code is known.
        if ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "this process cannot be a parent of what its children leave behind")
        self._socket, theirs = socket.socketpair()
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-fork-")
        self.path = f"{self._directory.name}/socket"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "LD_"))}
        environment |= {"LD_PRELOAD": preloaded} if preloaded else {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.brokers.fork_server", str(theirs.fileno()), self.path],
                cwd=REPOSITORY,
                env={**environment, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.stop)

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        text = json.dumps(request).encode()
        socket.send_fds(self._socket, [f"{len(text):08x}".encode()], files)
        self._socket.sendall(text)
        answer = b""
        while len(answer) < 9:
            more = self._socket.recv(9 - len(answer))
            if not more:
                raise RuntimeError("the process that forks brokers has ended")
            answer += more
        return int(answer[:8], 16)

    def await_path(self) -> str:
        """The unix socket for scripts."""
        deadline = time.monotonic() + 60
        while not Path(self.path).exists():
            assert time.monotonic() < deadline, "the process that forks others does not start"
            time.sleep(0.01)
        return self.path

    def stop(self) -> None:
        self._socket.close()
        self._process.wait(60)
        self._directory.cleanup()


# A command for a shell: asks for a process, takes the signals that are meant for it along, and ends as it does.
SCRIPT = """#!{python} -SE
import json, os, signal, socket, sys
arguments = sys.argv[1:]
{changes}
connection = socket.socket(socket.AF_UNIX)
connection.connect("{path}")
request = dict(arguments=arguments, directory=os.getcwd(), environment=dict(os.environ))
text = json.dumps(request).encode()
socket.send_fds(connection, [b"%08x" % len(text)], [0, 1, 2])
connection.sendall(text)
def receive():
    got = b""
    while len(got) < 8:
        got += connection.recv(8 - len(got)) or sys.exit("the process that forks others is gone")
    return got
child = int(receive(), 16)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = int(receive())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
FROM_SCRATCH = """#!{python}
import os, runpy, sys
arguments = sys.argv[1:]
{changes}
sys.argv[1:] = arguments
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""


def write_command(file: Path, changes: str = "") -> None:
    """`penstock` for scripts of a shell. `changes` are lines of Python that may change the list `arguments`."""
    if os.environ.get("PENSTOCK_TEST_FORK") == "no":
        text = FROM_SCRATCH.format(python=sys.executable, changes=changes)
    else:
        text = SCRIPT.format(python=sys.executable, changes=changes, path=fork_server().await_path())
    file.write_text(text)
    file.chmod(0o755)


@functools.cache
def fork_server(preloaded: str = "") -> ForkServer:
    return ForkServer(preloaded)
