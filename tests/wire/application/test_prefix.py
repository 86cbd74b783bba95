"""`services.prefix` stands before every topic and group, so that installations may share a Kafka."""

from tests.support.clients.packets import V5
from tests.support.servers.kafka_topics import own_topics
from tests.support.worlds.application import until

PREFIX = "penstock.site"
SETTINGS = {"services.prefix": PREFIX}
TOPICS = {
    "tbmq.client.app.context",
    "tbmq.client.received",
    "tbmq.client.session",
    "tbmq.client.subscriptions",
    "tbmq.client.will",
    "tbmq.events",
    "tbmq.msg.all",
    "tbmq.msg.retained",
}


def test_every_topic_and_group_has_the_prefix(*, broker, open_app, publisher, topic, app_id, new_name):
    client = open_app(V5)
    shared = new_name("shared")
    client.subscribe(topic, qos=1)
    client.subscribe(f"$share/s/{shared}", qos=1)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    client.expect_publish(topic, b"kept", qos=1, ack=True)
    publisher.publish(shared, b"x", qos=1)
    client.expect_publish(shared, b"x", qos=1, ack=True)
    wanted = TOPICS | {f"tbmq.msg.app.{app_id}", f"tbmq.msg.app.shared.{shared}"}
    if broker.cluster is None:
        found = {path.name for path in (broker.data_dir / "log").iterdir() if path.is_dir()}
        wanted -= {name for name in wanted if name.startswith("tbmq.client.")}  # they are in LMDB
        assert found >= {f"{PREFIX}.{name}" for name in wanted}
        assert all(name.startswith(f"{PREFIX}.") for name in found if "tbmq." in name)
    else:
        found = own_topics(broker.cluster.bootstrap)
        assert found >= {f"{PREFIX}.{name}" for name in wanted}
        assert not {name for name in found if not name.startswith(f"{PREFIX}.")}

    node = "" if broker.cluster is None else f"-{broker.settings.get('server.node_id', 'penstock')}"
    wanted = {
        f"{PREFIX}.msg-all-consumer-group{node}",
        f"{PREFIX}.application-persisted-msg-consumer-group",
        f"{PREFIX}.application-shared-msg-consumer-group-s-{PREFIX}.tbmq.msg.app.shared.{shared}",
    }

    def find_groups():
        # groups of killed brokers stay in a Kafka that tests share: only those that read our topics are asked about
        entries = broker.command_json("log", "offsets")
        groups = {entry["group"] for entry in entries if entry["topic"].startswith(f"{PREFIX}.")}
        return groups if groups >= wanted else None

    # in a cluster there are also those by which brokers ask each other
    assert all(name.startswith(f"{PREFIX}.") for name in until(find_groups, 60, "the offsets of three groups"))
