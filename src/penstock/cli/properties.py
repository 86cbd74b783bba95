"""`-D command identifier value`: MQTT 5 properties as mosquitto_pub and mosquitto_sub take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.core.errors import UsageError

SEPARATOR = "\x1f"
COMMANDS = ("connect", "publish", "subscribe", "unsubscribe", "disconnect", "will")
USER_PROPERTY = "user-property"


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


class Property(NamedTuple):
    """The codec's name of a property, how its text is read, and where it may stand."""

    name: str
    read: Callable[[str], Any]
    commands: tuple[str, ...]


PROPERTIES = {
    "payload-format-indicator": Property("payload_format", _integer, ("publish", "will")),
    "message-expiry-interval": Property("message_expiry", _integer, ("publish", "will")),
    "content-type": Property("content_type", str, ("publish", "will")),
    "response-topic": Property("response_topic", str, ("publish", "will")),
    "correlation-data": Property("correlation_data", str.encode, ("publish", "will")),
    "topic-alias": Property("topic_alias", _integer, ("publish",)),
    "subscription-identifier": Property("subscription_identifiers", _integer, ("subscribe",)),
    "session-expiry-interval": Property("session_expiry", _integer, ("connect", "disconnect")),
    "authentication-method": Property("authentication_method", str, ("connect",)),
    "authentication-data": Property("authentication_data", str.encode, ("connect",)),
    "request-problem-information": Property("request_problem_information", _integer, ("connect",)),
    "request-response-information": Property("request_response_information", _integer, ("connect",)),
    "receive-maximum": Property("receive_maximum", _integer, ("connect",)),
    "topic-alias-maximum": Property("topic_alias_maximum", _integer, ("connect",)),
    "maximum-packet-size": Property("maximum_packet_size", _integer, ("connect",)),
    "will-delay-interval": Property("will_delay", _integer, ("will",)),
}


def join_arguments(arguments: list[str]) -> list[str]:
    """`-D publish user-property k v` as one option with one value: its length depends on the identifier."""
    joined: list[str] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return [*joined, *arguments[index:]]
        if word not in ("-D", "--property"):
            joined.append(word)
            index += 1
            continue
        count = 4 if arguments[index + 2 : index + 3] == [USER_PROPERTY] else 3
        joined += [word, SEPARATOR.join(arguments[index + 1 : index + 1 + count])]
        index += 1 + count
    return joined


def parse_properties(given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Command to properties by the codec's names; raises UsageError that says what is allowed."""
    properties: dict[str, dict[str, Any]] = {command: {} for command in COMMANDS}
    for text in given:
        command, identifier, *values = [*text.split(SEPARATOR), "", ""][:4]
        shown = text.replace(SEPARATOR, " ")
        if command not in COMMANDS:
            raise UsageError(f"-D {shown}: {command!r} is not one of {', '.join(COMMANDS)}")
        if identifier == USER_PROPERTY:
            if text.count(SEPARATOR) != 3:
                raise UsageError(f"-D {shown}: write -D {command} user-property NAME VALUE")
            properties[command].setdefault("user_properties", []).append((values[0], values[1]))
            continue
        known = PROPERTIES.get(identifier)
        if known is None or command not in known.commands:
            allowed = [name for name, entry in PROPERTIES.items() if command in entry.commands]
            raise UsageError(f"-D {shown}: for {command} there are {', '.join([*allowed, USER_PROPERTY])}")
        try:
            properties[command][known.name] = known.read(values[0])
        except ValueError:
            raise UsageError(f"-D {shown}: {identifier} takes a whole number") from None
    return properties
