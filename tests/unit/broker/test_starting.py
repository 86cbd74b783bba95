"""Garbage collections rest during a start, and go on behind it as they were."""

from __future__ import annotations

import gc

import pytest

from penstock.broker.starting import no_collections


def test_collections_rest_and_go_on() -> None:
    assert gc.isenabled()
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), no_collections():
        raise ImportError
    assert gc.isenabled()


def test_where_they_rest_already_they_stay_so() -> None:
    with no_collections():
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
