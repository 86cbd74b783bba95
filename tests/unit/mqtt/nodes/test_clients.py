"""Is the identity of a client at another node the one it has at its own?"""

import pytest

from penstock._ext.match.acl import PUBLISH
from penstock._ext.wire.packets import build_connect, parse_connect
from penstock.access.base import Grant, Identity
from penstock.mqtt.nodes.clients import describe_client, read_client

MANY = tuple(Grant(True, PUBLISH, f"\U0001f50c{number}/#") for number in range(5_000))


@pytest.mark.parametrize(
    "identity",
    [
        Identity(),
        Identity("ada"),
        Identity("ada", "jwt", ("lab", "staff"), (), attributes={"rate": 5}),
        Identity(None, "badges", ("visitors",)),
        Identity("ada", "http", grants=MANY),
    ],
)
def test_it_arrives_as_it_was(identity: Identity) -> None:
    packet = build_connect("c", user_properties=describe_client(identity))
    size = next(number for number in range(1, 5) if packet[number] < 128)  # bytes of the remaining length
    assert read_client(parse_connect(packet[1 + size :]).user_properties) == identity


def test_a_user_name_alone_is_sent_as_ever() -> None:
    assert describe_client(Identity("ada", "password_file")) == [("user", "ada")]
    assert describe_client(Identity(None, "anonymous")) == []
