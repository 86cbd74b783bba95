"""A statement as words: what the hand-written part of the parser moves through."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.subscribers.query.sql.dialect import TopicSql
from penstock.subscribers.query.sql.names import BadName
from penstock.subscribers.query.sql.positions import refuse
from penstock_client.errors import SqlError

MAX_STATEMENT = 65_536  # characters
MAX_TOKENS = 8_000
MAX_DIGITS = 400  # no number of SQL has more
MAX_INTERVAL = 200  # characters: the parser's time grows with their square
MAX_NESTING = 64  # brackets in brackets: the parser recurses into them

_OPEN = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSE = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
# Strings, quoted names and comments that end, or else the beginning of one.
_PIECE = re.compile(
    r"""'[^']*(?:''[^']*)*'(?!') | "[^"]*(?:""[^"]*)*"(?!") | --[^\n]* | /\*.*?\*/ | (?P<open>'|"|/\*)""",
    re.DOTALL | re.VERBOSE,
)
_OPENERS = {"'": "string", '"': "quoted name", "/": "comment"}


def read_tokens(text: str) -> list[Token]:
    if len(text) > MAX_STATEMENT:
        raise SqlError(f"the statement has {len(text):,} characters, at most {MAX_STATEMENT:,} are allowed: shorten it")
    try:
        tokens = TopicSql().tokenize(text)
    except SqlglotError:
        start = _find_unclosed(text)
        if start is None:
            refuse(text, len(text), "the statement cannot be split into words: is a quote or a comment not closed?")
        refuse(text, start, f"the {_OPENERS[text[start]]} that begins here is not closed")
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if len(tokens) > MAX_TOKENS:
        refuse(text, tokens[MAX_TOKENS].start, f"the statement has more than {MAX_TOKENS:,} words: shorten it")
    depth = 0
    is_interval = False
    for token in tokens:
        if is_interval and len(token.text) > MAX_INTERVAL:
            refuse(text, token.start, f"the text of an INTERVAL has at most {MAX_INTERVAL} characters")
        is_interval = token.token_type is TokenType.INTERVAL
        if token.token_type is TokenType.SEMICOLON:
            refuse(text, token.start, "one statement at a time: remove what follows the semicolon")
        if token.token_type is TokenType.NUMBER and len(token.text) > MAX_DIGITS:
            refuse(text, token.start, f"a number has at most {MAX_DIGITS} digits")
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        if depth > MAX_NESTING:
            refuse(text, token.start, f"brackets are nested deeper than {MAX_NESTING}: simplify the expression")
    return tokens


def _find_unclosed(text: str) -> int | None:
    """Return where a quote or a comment begins that has no end."""
    for found in _PIECE.finditer(text):
        if found.lastgroup == "open":
            return found.start()
    return None


class Cursor:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = read_tokens(text)
        self.index = 0

    @property
    def offset(self) -> int:
        """Of the next word; behind the last one the end."""
        return self.tokens[self.index].start if self.index < len(self.tokens) else len(self.text)

    @property
    def is_at_end(self) -> bool:
        return self.index >= len(self.tokens)

    def fail(self, message: str, offset: int | None = None) -> NoReturn:
        refuse(self.text, self.offset if offset is None else offset, message)

    def shown(self) -> str:
        """The next word, for a message."""
        if self.is_at_end:
            return "the end"
        token = self.tokens[self.index]
        return repr(self.text[token.start : token.end + 1][:40])

    def word(self) -> str:
        """The next word in capitals if it is a bare one, else empty."""
        if self.is_at_end:
            return ""
        token = self.tokens[self.index]
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        return token.text.upper()

    def accept(self, *words: str) -> bool:
        """Moves over these words if they are next."""
        before = self.index
        for word in words:
            if self.word() != word:
                self.index = before
                return False
            self.index += 1
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail(f"{word} is expected here, not {self.shown()}")

    def expect_end(self) -> None:
        if not self.is_at_end:
            self.fail(f"the statement should end here, but {self.shown()} follows: remove it")

    def name(self, kind: str, check: Callable[[str], None]) -> str:
        """A bare or quoted name, checked."""
        start = self.offset
        name = self._raw_name(kind)
        try:
            check(name)
        except BadName as error:
            self.fail(str(error), start)
        return name

    def _raw_name(self, kind: str) -> str:
        if self.is_at_end:
            self.fail(f"the name of a {kind} is expected here, not the end")
        token = self.tokens[self.index]
        if token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) and not _is_bare(token.text):
            self.fail(f"the name of a {kind} is expected here, not {self.shown()}: write odd names in double quotes")
        self.index += 1
        if not self.is_at_end and self.tokens[self.index].start == token.end + 1:
            follower = self.tokens[self.index]
            if not _is_separator(follower):
                self.fail(f"the name of the {kind} goes on with {follower.text!r}: write it in double quotes")
        return str(token.text)

    def string(self, what: str) -> str:
        """A text in quotes of either kind."""
        if self.is_at_end or self.tokens[self.index].token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
            self.fail(f"{what} is expected here in quotes, not {self.shown()}")
        self.index += 1
        return str(self.tokens[self.index - 1].text)

    def whole_number(self, what: str, low: int, high: int) -> int:
        if self.is_at_end or self.tokens[self.index].token_type is not TokenType.NUMBER:
            self.fail(f"{what} is expected here, not {self.shown()}")
        text = self.tokens[self.index].text
        if not text.isdigit() or not low <= int(text) <= high:
            self.fail(f"{what} is a whole number from {low:,} to {high:,}, not {text}")
        self.index += 1
        return int(text)


def _is_bare(text: str) -> bool:
    return text.isidentifier()


def _is_separator(token: Token) -> bool:
    return token.token_type in (*_OPEN, *_CLOSE, TokenType.COMMA)
