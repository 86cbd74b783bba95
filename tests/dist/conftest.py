"""The executable, made by the first test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.executable import UNPACKED, Alone, build


@pytest.fixture(scope="session")
def binary() -> Path:
    return build()


@pytest.fixture
def alone(binary: Path, tmp_path: Path) -> Iterator[Alone]:
    place = Alone(binary, tmp_path)
    yield place
    while place.started:
        place.stop()


@pytest.fixture
def unpacked(alone: Alone) -> Alone:
    alone.binary = UNPACKED
    return alone
