"""What Redis answers when something is wrong, in words that say what to do."""

from __future__ import annotations

from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.base import StoreFull, StoreUnavailable

# Answers after which the same command can succeed a little later, perhaps at another server.
PASSING = frozenset(("TRYAGAIN", "CLUSTERDOWN", "LOADING", "BUSY", "READONLY", "MASTERDOWN"))
# What a script meets while its slot is moved, and some of its keys are gone already.
NOT_LOCAL = "attempted to access a non local key"

_HINTS = {
    "NOAUTH": "Redis wants a password: set redis.password, and redis.username for an ACL user",
    "WRONGPASS": "Redis does not accept redis.username and redis.password",
    "NOPERM": "the ACL user needs +@all on the keys of the prefix, or at least +evalsha +script and what scripts use",
    "DENIED": "Redis runs in protected mode: set a password there and in redis.password",
    "CROSSSLOT": "this Redis is a cluster: set redis.mode = cluster",
}


def word_of(error: BaseException) -> str:
    """The first word of an answer says what kind of error it is."""
    return str(error).partition(" ")[0]


def is_passing(error: BaseException) -> bool:
    text = str(error)
    return text.partition(" ")[0] in PASSING or NOT_LOCAL in text or "-TRYAGAIN" in text


def to_store_error(error: BaseException | str) -> StoreError:
    """The error for who made the call; `error` is an answer of Redis."""
    text = str(error)
    word = text.partition(" ")[0]
    # An error inside a script carries the script's position in front in some versions.
    if word == "OOM" or "OOM command not allowed" in text:
        return StoreFull(
            f"Redis is out of memory: {text}", "raise its maxmemory, or lower device.messages_limit or messages_ttl"
        )
    if word in ("MISCONF", "NOREPLICAS"):
        return StoreUnavailable(f"Redis cannot take writes now: {text}")
    return StoreError(f"Redis refused a command: {text}", _HINTS.get(word, ""))


def describe(error: BaseException) -> str:
    """Why a server cannot be used, for people."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"  # asyncio says it with a number and a pair, and names the address again
    text = str(error) or type(error).__name__
    hint = _HINTS.get(word_of(error), "")
    return f"{text} ({hint})" if hint else text
