"""Topics that are never removed, and clients that get none."""

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.application import running_app_broker, topic_of


@pytest.fixture
def module_broker(request, provider, tmp_path_factory):
    settings = request.param
    with running_app_broker(tmp_path_factory.mktemp("broker"), provider, settings) as broker:
        yield broker


def with_settings(**settings):
    named = {f"application.{name}": value for name, value in settings.items()}
    return pytest.mark.parametrize("module_broker", [named], indirect=True)


@with_settings(remove_topics="never")
def test_topics_that_stay(*, broker, open_app, backlog, connect, app_id, version):
    """remove_topics = never: the topic outlives the session; its old records are not for the next one."""
    backlog(version, 3)
    broker.await_records(topic_of(app_id), 3)
    connect(version, app_id, clean_start=True).disconnect()
    assert len(broker.records(topic_of(app_id))) == 3
    open_app(version).expect_nothing(0.2)
    broker.command("app", "delete", app_id, options=["--yes"])
    broker.await_topic(topic_of(app_id), exists=False)


@with_settings(client_id_validation=False)
def test_without_validation_special_ids_get_no_topic(*, broker, open_app, publisher, topic, new_name, version):
    """Seed: TB_APP_PERSISTED_MSG_CLIENT_ID_VALIDATION off; such a client is served as a DEVICE, and it is said."""
    before = broker.topics()
    plain, special = new_name("app"), f"app-{new_name('x')}"
    for name in (plain, special):
        client = open_app(version, name)
        client.subscribe(topic, qos=1)
        client.disconnect()
    assert broker.topics() - before == {topic_of(plain)}
    publisher.publish(topic, b"x", qos=1)
    for name in (plain, special):
        open_app(version, name).expect_publish(topic, b"x", qos=1, ack=True)
    broker.await_log(special)


@with_settings(shared_topic_validation=False)
def test_without_validation_special_filters_get_no_topic(broker, open_app, publisher, new_name):
    base = new_name("filter")
    before = broker.topics()
    client = open_app(V5)
    client.subscribe(f"$share/group/{base}/ü", qos=1)
    publisher.publish(f"{base}/ü", b"x", qos=1)
    client.expect_publish(f"{base}/ü", b"x", qos=1, ack=True)
    assert not {name for name in broker.topics() - before if ".shared." in name}
