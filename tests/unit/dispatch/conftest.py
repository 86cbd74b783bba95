from __future__ import annotations

import pytest

from penstock.dispatch import dispatcher


@pytest.fixture
def quick_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "LONGEST_PAUSE", 0.1)
