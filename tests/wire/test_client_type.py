"""Which client is an APPLICATION: its certificate, its password, its client id, or the settings, on the wire."""

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp, open_tls

ACL = """
[[types]]
type = "application"
certificates = ["etl-*"]

[[types]]
type = "application"
clients = ["report-*"]

[[rules]]
effect = "allow"
topics = ["#"]
"""


def types(broker, connections):
    connected = broker.await_events("client connected", connections)
    return {event["client_id"]: event["client_type"] for event in connected}


def connect(stream, client_id, **options):
    client = RawClient(stream, V5)
    client.connect(client_id, **options)
    client.disconnect()


def test_credentials_decide_and_a_reload_holds_for_the_next_connection(
    start_file_broker, authority, password_file, tmp_path
):
    acl, passwords = tmp_path / "acl.toml", tmp_path / "passwords"
    acl.write_text(ACL)
    alice, bob = password_file.read_text().splitlines()
    passwords.write_text(f"{alice}:application\n{bob}\n")
    identity = authority.issue("localhost")
    tls = Listener(
        "tls",
        {
            "certificate": str(identity.certificate),
            "key": str(identity.key),
            "client_ca": str(authority.path),
            "client_certificate": "required",
            "certificate_username": "cn",
        },
    )
    tcp = Listener("tcp")
    access = {"acl_file": str(acl), "password_file": str(passwords)}
    broker = start_file_broker({"access": access}, [tls, tcp])
    for name in ("etl-1", "sensor-1"):
        context = authority.client_context(authority.issue(name))
        connect(open_tls(tls.host_and_port, context), f"by-{name}")
    for client_id, options in {
        "alices": {"username": "alice", "password": b"alice-secret"},
        "bobs": {"username": "bob", "password": b"bob-secret"},
        "report-1": {"username": "bob", "password": b"bob-secret"},
        "nobodys": {},
    }.items():
        connect(open_tcp(tcp.host_and_port), client_id, **options)
    assert types(broker, 6) == {
        "by-etl-1": "application",
        "by-sensor-1": "device",
        "alices": "application",
        "bobs": "device",
        "report-1": "application",
        "nobodys": "device",
    }
    broker.write_settings(access={"anonymous_type": "application", "default_type": "application"})
    assert broker.reload()["needs_restart"] == []
    connect(open_tcp(tcp.host_and_port), "bobs", username="bob", password=b"bob-secret")
    connect(open_tcp(tcp.host_and_port), "nobodys")
    found = types(broker, 8)
    assert (found["bobs"], found["nobodys"]) == ("application", "application")
