"""The JSON scanner against json.loads: what is JSON, and which value is at a path."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock._ext.query.evaluator import Block
from tests.support.worlds.queries import ERROR, path, value_of

NAMES = st.sampled_from(["a", "b", "c", "", "long name of a member", "é", 'q"\\', "\n"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
DOCUMENTS = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES, below, max_size=5), max_leaves=12
)
STEPS = NAMES | st.integers(-3, 3)
MISSING = object()
DEEPEST = 128


def refuse(_: str) -> Any:
    raise ValueError("no JSON number")


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def naive_parse(text: bytes) -> Any:
    """What the scanner should understand; ValueError for all else."""
    decoded = text.decode()
    value = json.loads(decoded, parse_constant=refuse, object_pairs_hook=first_wins)
    json.dumps(value, ensure_ascii=False).encode()  # lone surrogates are no text
    if decoded.startswith("\ufeff"):
        raise ValueError("a byte order mark is no JSON")
    return value


def naive_find(value: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return MISSING
            value = value[step]
        else:
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return MISSING
            value = value[step]
    return value


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, st.lists(STEPS, max_size=3), st.booleans(), st.sampled_from([None, 1]))
def test_value_at_path(document: Any, steps: list[str | int], is_ascii: bool, indent: int | None) -> None:
    payload = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode(errors="surrogatepass")
    try:
        expected = naive_find(naive_parse(payload), tuple(steps))
    except ValueError:
        expected = ERROR
    found = value_of(path(*steps), payload)
    assert found == (None if expected is MISSING else expected)
    assert type(found) is type(None if expected is MISSING else expected)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30) | st.text(alphabet='{}[]",:\\u0123456789abcdefDEtrulsn.-+ \n\t\x00é', max_size=30))
@example(b'{"a":1}x')
@example(b'{"a":01}')
@example(b'"\\ud83d\\ude00"')
@example(b'"\\ud83d"')
@example(b"[1,]")
@example(b"-")
@example(b"1e")
@example(b'"\x01"')
@example(b"NaN")
def test_what_is_json(text: bytes | str) -> None:
    payload = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        expected = naive_parse(payload)
    except ValueError:
        expected = ERROR
    found = value_of(path(), payload)
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 140))
def test_nesting_is_bounded(depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = "1" if opening != "[" else ""
        found = value_of(path("x"), opening * depth + inner + closing * depth)
        assert found is (None if depth <= DEEPEST else ERROR)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_blocks_are_refused_or_read(data: st.DataObject) -> None:
    """Any bytes may arrive: ValueError or a block whose every value can be asked for."""
    good = b"PQB1" + struct.pack("<III", 2, 2, 2) + struct.pack("<BBHI", 4, 1, 1, 3) + struct.pack("<BBHI", 2, 0, 1, 0)
    good += b"ab".ljust(8, b"\0") + struct.pack("<4q", 5, 6, 7, 8)
    good += b"\x01".ljust(8, b"\0") + struct.pack("<3I4x", 0, 3, 3) + b"xyz".ljust(8, b"\0") + struct.pack("<2q", 1, 2)
    assert Block.decode(good).to_pylist() == [{"a": "xyz", "b": 1}, {"a": None, "b": 2}]
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    try:
        block = Block.decode(bytes(damaged[:cut]))
        block.to_pylist()
        block.to_json()
        block.slice(block.last_offset).encode()
    except ValueError:
        pass
