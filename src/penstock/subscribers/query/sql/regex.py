"""Regular expressions: a pattern becomes the program that the evaluator runs in linear time.

The syntax is that part of RE2's (which DuckDB has) that decides whether a text matches: no back-references, no looking
around, and so no pattern that takes exponential time. The program is a Thompson NFA over the bytes of UTF-8. The
evaluator turns it into a DFA as texts need it; nothing here is done for a message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MOST_INSTRUCTIONS = 5_000
MOST_REPEATS = 1_000
LONGEST_PATTERN = 10_000
DEEPEST_GROUPS = 100
_MOST_WORK = 50_000
LAST = 0x10FFFF

# An instruction is (operation, low byte, high byte, target, other target).
MATCH, RANGE, SPLIT, ASSERT = range(4)
# The kind of an assertion, in place of the low byte.
BEGIN, END, WORD_EDGE, NO_WORD_EDGE = range(4)
_INSTRUCTION = struct.Struct("<BBBxHH")

Ranges = list[tuple[int, int]]
Node = tuple[Any, ...]
Instruction = tuple[int, int, int, int, int]

_DIGIT: Ranges = [(48, 57)]
_WORD: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE: Ranges = [(9, 10), (12, 13), (32, 32)]
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alnum": [(48, 57), (65, 90), (97, 122)],
    "alpha": [(65, 90), (97, 122)],
    "ascii": [(0, 127)],
    "blank": [(9, 9), (32, 32)],
    "cntrl": [(0, 31), (127, 127)],
    "digit": _DIGIT,
    "graph": [(33, 126)],
    "lower": [(97, 122)],
    "print": [(32, 126)],
    "punct": [(33, 47), (58, 64), (91, 96), (123, 126)],
    "space": [(9, 13), (32, 32)],
    "upper": [(65, 90)],
    "word": _WORD,
    "xdigit": [(48, 57), (65, 70), (97, 102)],
}
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_ASSERTIONS = {"A": BEGIN, "z": END, "b": WORD_EDGE, "B": NO_WORD_EDGE}
# First and last code points by the length of their UTF-8; surrogates never occur in texts.
_FOLLOWING = (0x80, 0xBF)
_BY_SIZE: tuple[tuple[int, int], ...] = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST))


class BadRegex(ValueError):
    """A pattern that cannot be compiled. The message says what is wrong and what to do."""


def compile_regex(pattern: str, options: str = "", *, is_full: bool = False) -> bytes:
    """Compile a pattern to the program of the evaluator. `options` as DuckDB's: c i l m n p s. With `is_full` the whole
    text has to match, else a part of it. Raises BadRegex."""
    if len(pattern) > LONGEST_PATTERN:
        raise BadRegex(f"a pattern has at most {LONGEST_PATTERN} characters")
    flags = {"i": False, "s": False}
    is_literal = False
    for option in options:
        if option not in "cilmnps":
            raise BadRegex(f"{option!r} is not an option of regular expressions: use c, i, l, m, n, p or s")
        is_literal = is_literal or option == "l"
        if option in "ci":
            flags["i"] = option == "i"
        elif option in "mnps":
            flags["s"] = option == "s"
    if is_literal:
        tree: Node = ("cat", [_letter(ord(sign), flags["i"]) for sign in pattern])
    else:
        tree = _Parser(pattern, flags).parse()
    if is_full:
        tree = ("cat", [("assert", BEGIN), tree, ("assert", END)])
    return _Program().build(tree, is_anchored=is_full)


def _letter(code: int, folds: bool) -> Node:
    return ("set", _folded([(code, code)]) if folds else [(code, code)])


class _Parser:
    """Recursive descent. Flags that a group changes hold until its end."""

    def __init__(self, pattern: str, flags: dict[str, bool]) -> None:
        self._text = pattern
        self._at = 0
        self._flags = flags
        self._depth = 0

    def parse(self) -> Node:
        tree = self._alternatives()
        if self._at < len(self._text):
            raise BadRegex(f"there is a ) too many, at character {self._at + 1}: write \\) for the sign itself")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST_GROUPS:
            raise BadRegex(f"groups are nested deeper than {DEEPEST_GROUPS}")
        branches = [self._branch()]
        while self._skip("|"):
            branches.append(self._branch())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else ("alt", branches)

    def _branch(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))
        return ("cat", parts)

    def _repeated(self, node: Node) -> Node:
        start = self._at
        bounds = self._bounds()
        if bounds is None:
            return node
        self._skip("?")  # as few as possible or as many: what matches is the same
        operator = self._text[start : self._at]
        if self._bounds() is not None:
            raise BadRegex(f"there is nothing to repeat after {operator!r}: put what is repeated into ( )")
        return ("repeat", node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return bounds
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        is_count = low.isdecimal() and low.isascii() and (not high or (high.isdecimal() and high.isascii()))
        if not is_count:
            return None  # a brace like any other sign
        least = int(low) if len(low) < 5 else MOST_REPEATS + 1
        most = None if comma and not high else (int(high) if len(high) < 5 else MOST_REPEATS + 1) if comma else least
        if least > MOST_REPEATS or (most is not None and (most > MOST_REPEATS or most < least)):
            raise BadRegex(
                f"{self._text[self._at : end + 1]} repeats from 0 to {MOST_REPEATS} times, the smaller first"
            )
        self._at = end + 1
        return least, most

    def _atom(self) -> Node | None:
        sign = self._text[self._at]
        self._at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return ("set", self._class())
        if sign == ".":
            return ("set", [(0, LAST)] if self._flags["s"] else [(0, 9), (11, LAST)])
        if sign == "^":
            return ("assert", BEGIN)
        if sign == "$":
            return ("assert", END)
        if sign in "*+?":
            raise BadRegex(f"there is nothing to repeat before {sign!r}, at character {self._at}: write \\{sign}")
        if sign == "\\":
            letter = self._peek()
            if letter in _ASSERTIONS and letter:
                self._at += 1
                return ("assert", _ASSERTIONS[letter])
            ranges = self._escape()
            return ("set", _folded(ranges) if self._flags["i"] else ranges)
        return _letter(ord(sign), self._flags["i"])

    def _group(self) -> Node | None:
        before = dict(self._flags)
        if self._skip("?"):
            if self._skip("P<") or (not self._text.startswith(("<=", "<!"), self._at) and self._skip("<")):
                end = self._text.find(">", self._at)
                if end < 0 or not self._text[self._at : end].isidentifier():
                    raise BadRegex("the name of a group is made of letters, digits and _: (?P<name>…)")
                self._at = end + 1
            elif self._set_flags():
                return None  # for the rest of the group around it
        tree = self._alternatives()
        if not self._skip(")"):
            raise BadRegex("a ) is missing: write \\( for the sign itself")
        self._flags = before
        return tree

    def _set_flags(self) -> bool:
        """Parse the flags of (?i) or (?i:…); return whether it was the first form."""
        value = True
        while (sign := self._peek()) not in (":", ")"):
            if sign == "-" and value:
                value = False
            elif sign and sign in self._flags:
                self._flags = {**self._flags, sign: value}
            else:
                raise BadRegex(
                    f"(?{sign} is not supported: use (?:…), (?P<name>…) or the flags i and s. Looking ahead or behind "
                    "would not be linear in the length of the text"
                )
            self._at += 1
        self._at += 1
        return sign == ")"

    def _escape(self) -> Ranges:
        """Parse the character or class after a backslash."""
        letter = self._peek()
        self._at += 1
        if not letter:
            raise BadRegex("the pattern ends with a backslash: write \\\\ for the sign itself")
        if letter.lower() in _PERL:
            found = _PERL[letter.lower()]
            return found if letter.islower() else _others(found)
        if letter in _CONTROLS:
            return [(_CONTROLS[letter], _CONTROLS[letter])]
        if letter == "x":
            return self._hexadecimal()
        if letter.isascii() and letter.isalnum():
            why = "refers back to a group, which is not linear" if letter.isdigit() else "is not supported"
            raise BadRegex(f"\\{letter} {why}: see the list in docs/data-subscription-sql.md")
        return [(ord(letter), ord(letter))]

    def _hexadecimal(self) -> Ranges:
        if self._skip("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end > 0 else ""
            self._at = end + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
        if not 0 < len(digits) <= 6 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise BadRegex("\\x is followed by two hexadecimal digits, or by up to six in braces: \\x41, \\x{1F600}")
        code = int(digits, 16)
        if code > LAST:
            raise BadRegex(f"\\x{{{digits}}} is larger than the largest character, \\x{{10FFFF}}")
        return [(code, code)]

    def _class(self) -> Ranges:
        """Parse a class in brackets, after its [ and including its ]."""
        is_negated = self._skip("^")
        found: Ranges = []
        is_first = True
        while is_first or self._peek() != "]":
            if not self._peek():
                raise BadRegex("a ] is missing: write \\[ for the sign itself")
            is_first = False
            if self._skip("[:"):
                found += self._posix()
                continue
            ranges = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member()
                if len(ranges) != 1 or len(last) != 1 or ranges[0][0] != ranges[0][1] or last[0][0] < ranges[0][0]:
                    raise BadRegex("a range in [ ] goes from one character to a later one: [a-z]")
                ranges = [(ranges[0][0], last[0][1])]
            found += ranges
        self._at += 1
        if self._flags["i"]:
            found = _folded(found)
        return _others(found) if is_negated else _merged(found)

    def _posix(self) -> Ranges:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : end] if end > 0 else ""
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise BadRegex(f"[:{name}:] is not a class of characters: one of {', '.join(_POSIX)}")
        self._at = end + 2
        return _others(ranges) if name.startswith("^") else ranges

    def _member(self) -> Ranges:
        sign = self._peek()
        self._at += 1
        if sign == "\\":
            return self._escape()
        if not sign:
            raise BadRegex("a ] is missing: write \\[ for the sign itself")
        return [(ord(sign), ord(sign))]


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort the ranges and join neighbours."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _others(ranges: Ranges) -> Ranges:
    found: Ranges = []
    at = 0
    for low, high in _merged(ranges):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return [*found, (at, LAST)] if at <= LAST else found


@lru_cache(maxsize=1)
def _cases() -> dict[int, list[int]]:
    """Characters that differ only in case, by Unicode's simple folding."""
    groups: dict[str, list[int]] = {}
    for code in range(0x1E944):
        sign = chr(code)
        folded = sign.casefold()
        key = folded if len(folded) == 1 else sign.lower()
        if len(key) == 1 and (key != sign or sign.upper() != sign or sign.lower() != sign):
            groups.setdefault(key, []).append(code)
    for key, codes in groups.items():
        if ord(key) not in codes:
            codes.append(ord(key))
    return {code: codes for codes in groups.values() if len(codes) > 1 for code in codes}


def _folded(ranges: Ranges) -> Ranges:
    cases = _cases()
    found = list(ranges)
    for low, high in ranges:
        if high - low < len(cases):
            codes: Iterable[int] = (code for code in range(low, high + 1) if code in cases)
        else:
            codes = (code for code in cases if low <= code <= high)
        found += [(other, other) for code in codes for other in cases[code]]
    return _merged(found)


class _Program:
    """Written from the end to the beginning: each part knows what follows it."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._work = 0

    def build(self, tree: Node, *, is_anchored: bool) -> bytes:
        start = self._emit(tree, self._add(MATCH))
        if not is_anchored:  # a match may begin after any byte
            loop = self._add(SPLIT)
            self._instructions[loop] = (SPLIT, 0, 0, start, self._add(RANGE, 0, 255, loop))
            start = loop
        return struct.pack("<HH", len(self._instructions), start) + b"".join(
            _INSTRUCTION.pack(*each) for each in self._instructions
        )

    def _add(self, operation: int, low: int = 0, high: int = 0, target: int = 0, other: int = 0) -> int:
        if len(self._instructions) >= MOST_INSTRUCTIONS:
            raise BadRegex("the pattern is too large: repeat less in { }, or use fewer classes of characters")
        self._instructions.append((operation, low, high, target, other))
        return len(self._instructions) - 1

    def _emit(self, node: Node, after: int) -> int:
        self._work += 1
        if self._work > _MOST_WORK:
            raise BadRegex("the pattern is too large: repeat less in { }")
        kind = node[0]
        if kind == "set":
            after = self._emit_set(node[1], after)
        elif kind == "assert":
            after = self._add(ASSERT, node[1], 0, after)
        elif kind == "cat":
            for part in reversed(node[1]):
                after = self._emit(part, after)
        elif kind == "alt":
            after = self._any_of([self._emit(part, after) for part in node[1]])
        else:
            after = self._emit_repeat(node[1], node[2], node[3], after)
        return after

    def _emit_repeat(self, node: Node, least: int, most: int | None, after: int) -> int:
        if most is None:
            loop = self._add(SPLIT)
            body = self._emit(node, loop)
            self._instructions[loop] = (SPLIT, 0, 0, body, after)
            after = body if least else loop
            least = max(least - 1, 0)
        else:
            end = after
            for _ in range(most - least):
                after = self._add(SPLIT, 0, 0, self._emit(node, after), end)
        for _ in range(least):
            after = self._emit(node, after)
        return after

    def _any_of(self, entries: list[int]) -> int:
        found = entries[-1]
        for entry in reversed(entries[:-1]):
            found = self._add(SPLIT, 0, 0, entry, found)
        return found

    def _emit_set(self, ranges: Ranges, after: int) -> int:
        """One path of byte ranges for each sequence; those that end alike share their ends."""
        known: dict[tuple[int, int, int], int] = {}
        entries: list[int] = []
        for sequence in (sequence for low, high in ranges for sequence in _sequences(low, high)):
            at = after
            for low, high in reversed(sequence):
                key = (low, high, at)
                if key not in known:
                    known[key] = self._add(RANGE, low, high, at)
                at = known[key]
            entries.append(at)
        # [^\x00-\x{10FFFF}] matches nothing: a byte that no UTF-8 has
        return self._any_of(list(dict.fromkeys(entries))) if entries else self._add(RANGE, 0xFF, 0xFF, after)


def _sequences(low: int, high: int) -> list[Ranges]:
    """The code points from low to high as sequences of ranges of bytes."""
    found: list[Ranges] = []
    sizes = _BY_SIZE
    # texts are valid UTF-8, so the bytes after the first of a complete range need no distinction
    if low <= 0x800 and high >= 0xFFFF:
        found.append([(0xE0, 0xEF), _FOLLOWING, _FOLLOWING])
        sizes = tuple(size for size in sizes if size[1] not in (0xD7FF, 0xFFFF))
    if low <= 0x10000 and high == LAST:
        found.append([(0xF0, 0xF4), _FOLLOWING, _FOLLOWING, _FOLLOWING])
        sizes = sizes[:-1]
    for first, last in sizes:
        start, end = max(low, first), min(high, last)
        if start <= end:
            _split(start, end, found)
    return found


def _split(low: int, high: int, found: list[Ranges]) -> None:
    """Split a range until the bytes after the first that differs are complete ranges."""
    for size in (1, 2, 3):
        mask = (1 << 6 * size) - 1
        if high > 0x7F and low & ~mask != high & ~mask:
            if low & mask:
                _split(low, low | mask, found)
                _split((low | mask) + 1, high, found)
                return
            if high & mask != mask:
                _split(low, (high & ~mask) - 1, found)
                _split(high & ~mask, high, found)
                return
    found.append(list(zip(chr(low).encode(), chr(high).encode(), strict=True)))
