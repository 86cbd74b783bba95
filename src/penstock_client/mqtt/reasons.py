"""The reason codes of MQTT 5.0 (2.4) in words."""

from __future__ import annotations

FIRST_FAILURE = 0x80

_NAMES = {
    0x00: "success",
    0x04: "disconnect with will",
    0x10: "no matching subscribers",
    0x11: "no subscription existed",
    0x18: "continue authentication",
    0x19: "re authenticate",
}
_FAILURES = (
    "unspecified error", "malformed packet", "protocol error", "implementation specific error",
    "unsupported protocol version", "client identifier not valid", "bad user name or password", "not authorized",
    "server unavailable", "server busy", "banned", "server shutting down", "bad authentication method",
    "keep alive timeout", "session taken over", "topic filter invalid", "topic name invalid",
    "packet identifier in use", "packet identifier not found", "receive maximum exceeded", "topic alias invalid",
    "packet too large", "message rate too high", "quota exceeded", "administrative action", "payload format invalid",
    "retain not supported", "qos not supported", "use another server", "server moved",
    "shared subscriptions not supported", "connection rate exceeded", "maximum connect time",
    "subscription identifiers not supported", "wildcard subscriptions not supported",
)  # fmt: skip
_RETURN_CODES = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorised",
}


def reason_name(code: int) -> str:
    """Return the name of a reason code."""
    if FIRST_FAILURE <= code < FIRST_FAILURE + len(_FAILURES):
        return _FAILURES[code - FIRST_FAILURE]
    return _NAMES.get(code, f"reason 0x{code:02x}")


def describe_refusal(reason: int, version: int, words: str = "") -> str:
    """Return the sentence for a CONNACK that refuses; `words` are its reason string."""
    text = _RETURN_CODES.get(reason, f"return code {reason}") if version < 5 else words or reason_name(reason)
    return f"the broker refused the connection: {text} ({reason})"
