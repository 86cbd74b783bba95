"""The load generator built once for the tests, and real brokers for it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_bench.brokers import COMMANDS, Broker

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def proxy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes a broker far away."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("proxy")
    done = subprocess.run(
        [ROOT / "bench" / "build.sh", target], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "it builds without warnings"
    return target / "delay"


@pytest.fixture(scope="module", params=["mosquitto", "penstock"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    name = request.param
    if name == "mosquitto" and not shutil.which("mosquitto"):
        pytest.skip("mosquitto is not installed")
    started = Broker(name, COMMANDS[name])
    started.start()
    yield started
    started.stop()
