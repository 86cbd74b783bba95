"""What a queue can be: defaults of FluxMQ, mistakes named, what an edit may change, little memory each."""

import tracemalloc

import msgspec
import pytest

from penstock.broker.check import check as check_app
from penstock.core.errors import SettingsError, UsageError
from penstock.settings import diff, is_live, load_settings
from penstock.subscribers.queue.definitions import (
    BadDefinitionError,
    DeadLetters,
    Limits,
    QueueDefinition,
    QueueError,
    Replication,
    Retry,
    changed,
    check,
    configured,
    dead_letters,
    decode,
    define,
    encode,
    on_first_use,
)

SEED = """
[durable_queues]
auto_commit_interval = "5s"

[[queues]]
name = "orders"
topics = ["$queue/orders/#"]
type = "classic"
primary_group = ""

[queues.replication]
enabled = false
group = ""
mode = "sync"
ack_timeout = "5s"
replication_factor = 3
min_in_sync_replicas = 2

[queues.limits]
max_message_size = 10485760
max_depth = 100000
message_ttl = "168h"

[queues.retry]
max_retries = 10
initial_backoff = "5s"
max_backoff = "5m"
multiplier = 2.0

[queues.dlq]
enabled = true
topic = ""

[queues.retention]
max_age = "168h"
max_length_bytes = 0
max_length_messages = 0

[[queues]]
name = "events"
type = "stream"
limits.max_depth = 5
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_text(text, environ=None, overrides=None):
        (tmp_path / "penstock.toml").write_text(text)
        return load_settings(None, environ or {}, overrides)

    return load_text


def test_the_seeds_example_is_all_defaults_but_its_retention(load):
    settings = load(SEED).settings
    orders, events = configured(settings)
    assert settings.durable_queues.auto_commit_interval == 5.0
    assert orders.retention.max_age == 7 * 86_400
    plain = QueueDefinition(name="orders", topics=("$queue/orders/#",), retention=orders.retention, origin="config")
    assert orders == plain
    assert (events.type, events.limits) == ("stream", Limits(max_depth=5))


def test_a_queue_from_the_environment_and_flags(load):
    environ = {"PENSTOCK_QUEUES__1__LIMITS__MAX_DEPTH": "7", "PENSTOCK_QUEUES__0__RETRY__INITIAL_BACKOFF": "10ms"}
    loaded = load(SEED, environ, {"queues.0.topics": "$queue/a/#, $queue/b", "queues.2.name": "third"})
    orders, events, third = loaded.settings.queues
    assert (orders.retry.initial_backoff, orders.topics) == (0.01, ("$queue/a/#", "$queue/b"))
    assert (events.limits.max_depth, third.name) == (7, "third")
    assert loaded.origins["queues.1.limits.max_depth"] == "environment PENSTOCK_QUEUES__1__LIMITS__MAX_DEPTH"
    assert loaded.origins["queues.1.limits.message_ttl"] == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[queues]\nname = 'a'", r"must be written as \[\[queues\]\], once for each queue"),
        ("[[queues]]\nname = 'a'\nspeed = 1", r":3: queues\.0\.speed is not a setting"),
        ("[[queues]]\nname = 'a'\n[queues.limits]\nmax_deep = 1", r":4: queues\.0\.limits\.max_deep .*did you mean"),
        ("[[queues]]\nname = 'a'\nlimits = 3", r"queues\.0\.limits is not a setting"),
        (
            "[[queues]]\nname = 'a'\n[queues.retry]\nmultiplier = 0.5",
            r"multiplier = 0\.5 is not allowed: use a number, ",
        ),
        ("[[queues]]\nname = 'a'\ntype = 'quorum'", r'use one of "classic", "stream"'),
        ("[[queues]]\nname = 'a'\ntopics = 'a/#,b'", None),
        ("[[queues]]\nname = 'a'\ntopics = [1]", "use a list of strings"),
        ("[[queues]]\ntype = 'stream'", r"queues\.0\.name is missing"),
        ("[[queues]]\nname = 'a'\n[[queues]]\nname = 'a'", r":4: queues\.1\.name = 'a' is the name of queue 0 too"),
        ("[[queues]]\nname = 'a/b'", "use one topic level"),
        ("[[queues]]\nname = 'a'\ntopics = ['$queue/#/a']", "# stands alone in the last level"),
        ("[durable_queues]\nauto_commit = 1", "did you mean durable_queues.auto_commit_interval"),
        ("[[queue]]\nname = 'a'", r"write \[queue\]"),
    ],
)
def test_mistakes_in_the_file_are_named(load, text, message):
    if message is None:
        check_app(load(text).settings)
        return
    with pytest.raises(SettingsError, match=message):
        check_app(load(text).settings)


def test_without_queues_there_is_the_reserved_one(load):
    assert configured(load("").settings) == [
        QueueDefinition(name="mqtt", topics=("$queue/#",), origin="config"),
    ]
    assert configured(load("[durable_queues]\ndefault_queue = false").settings) == []
    assert [queue.name for queue in configured(load(SEED).settings)] == ["orders", "events"]


def test_queues_change_live_and_as_a_whole(load):
    old = load(SEED).settings
    new = load(SEED + "[[queues]]\nname = 'more'\n").settings
    assert diff(old, new) == ({"queues": new.queues}, [])
    assert diff(old, old) == ({}, [])
    assert is_live("queues.1.limits.max_depth")
    assert not is_live("queues.0.type")


def test_bindings():
    assert QueueDefinition(name="a").bindings == ("$queue/a/#",)
    bound = QueueDefinition(name="a", topics=("$queue/a/#", "$queue/b/+", "sensors/#"))
    assert bound.bindings == ("$queue/a/#", "$queue/b/+")
    capturing = msgspec.structs.replace(bound, capture=True)
    assert capturing.bindings == ("$queue/a/#", "$queue/b/+", "sensors/#")


def test_back_off():
    """min(max, initial x multiplier^(n-1)) after the n-th nack."""
    retry = Retry()
    assert [retry.delay(n) for n in (1, 2, 3, 6, 7, 8)] == [5, 10, 20, 160, 300, 300]
    assert retry.delay(1_000_000) == 300
    assert Retry(initial_backoff=0.0).delay(3) == 0
    assert Retry(multiplier=1.0).delay(9) == 5


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (QueueDefinition(name=""), "use one topic level"),
        (QueueDefinition(name="a/b"), "use one topic level"),
        (QueueDefinition(name="$SYS"), "the broker's own"),
        (QueueDefinition(name="a+"), "cannot have"),
        (QueueDefinition(name="\ud800"), "queue"),
        (QueueDefinition(name="a", topics=("$queue/#/a",)), "# stands alone"),
        (QueueDefinition(name="a", topics=("$queue/b/$ack",)), "never enters a queue"),
        (QueueDefinition(name="a", topics=("$share/g/b",)), "shared subscription"),
        (QueueDefinition(name="a", topics=("",)), "no topic filter"),
        (QueueDefinition(name="a", limits=Limits(max_depth=-1)), "max_depth"),
        (QueueDefinition(name="a", retry=Retry(max_backoff=1.0)), "less than retry.initial_backoff"),
        (QueueDefinition(name="a", dlq=DeadLetters(topic="dead/letters")), r"use \$queue/<queue>"),
        (QueueDefinition(name="a", dlq=DeadLetters(topic="$queue/a/dead")), "the queue itself"),
        (QueueDefinition(name="a", dlq=DeadLetters(topic="$queue/b/+")), "no topic to publish to"),
        (QueueDefinition(name="a", replication=Replication(enabled=True, min_in_sync_replicas=4)), "is more than"),
        (QueueDefinition(name="a", visibility_timeout=0.0), "visibility_timeout"),
    ],
)
def test_a_bad_definition_says_why(definition, message):
    with pytest.raises(BadDefinitionError, match=message) as caught:
        check(definition)
    assert isinstance(caught.value, QueueError)
    assert isinstance(caught.value, UsageError)


def test_a_table_of_a_command_is_read_like_the_file():
    table = {"name": "a", "type": "stream", "retention": {"max_age": "2h"}, "limits.max_message_size": "1MiB"}
    definition = define(table)
    assert (definition.retention.max_age, definition.limits.max_message_size) == (7_200, 1 << 20)
    assert definition.origin == "admin"
    for bad, message in (
        ({"name": "a", "origin": "auto"}, "'origin' is no setting of a queue"),
        ({"name": "a", "retry": {"speed": 1}}, r"'retry\.speed' is no setting"),
        ({"name": "a", "durable": "perhaps"}, "use true or false"),
        ({"name": 7}, "use a string"),
        ({"name": "a", "limits": 7}, "'limits' is no setting"),
        ({}, "use one topic level"),
    ):
        with pytest.raises(BadDefinitionError, match=message):
            define(bad)


def test_an_edit_applies_but_not_to_the_type():
    old = QueueDefinition(name="a", paused=True, origin="config")
    edited = changed(old, QueueDefinition(name="a", limits=Limits(max_depth=3), topics=("$queue/b",), origin="config"))
    assert (edited.limits.max_depth, edited.topics, edited.paused) == (3, ("$queue/b",), True)
    with pytest.raises(BadDefinitionError, match=r"type = classic and cannot become stream.*\n.*penstock queue delete"):
        changed(old, QueueDefinition(name="a", type="stream"))
    with pytest.raises(BadDefinitionError, match="durable = true and cannot become false"):
        changed(old, QueueDefinition(name="a", durable=False))


def test_queues_the_broker_makes_itself():
    made = on_first_use("new", durable=False)
    assert (made.durable, made.origin, made.bindings) == (False, "auto", ("$queue/new/#",))
    with pytest.raises(QueueError):
        on_first_use("$new", durable=False)
    orders = QueueDefinition(name="orders", durable=True)
    dead = dead_letters(orders)
    check(dead)
    assert (dead.name, dead.durable, dead.dlq.enabled, dead.limits.message_ttl) == ("$dlq/orders", True, False, 0.0)
    assert orders.dead_letter_topic == "$queue/$dlq/orders"
    assert QueueDefinition(name="a", dlq=DeadLetters(topic="$queue/b/x")).dead_letter_topic == "$queue/b/x"


def test_stored_and_read_again():
    definition = QueueDefinition(name="ä", topics=("$queue/b",), retry=Retry(max_retries=1), paused=True)
    again = decode(encode(definition))
    assert again == definition
    assert again.limits is decode(encode(QueueDefinition(name="b"))).limits
    for broken in (b"", b"{}x", b'{"name": 1}', b'{"name": "a", "speed": 1}'):
        with pytest.raises(QueueError, match="cannot be read"):
            decode(broken)


def test_queues_of_a_file_share_what_they_do_not_say(load):
    text = "".join(f'[[queues]]\nname = "q{number}"\n' for number in range(2_000))
    settings = load(text).settings
    definitions = configured(settings)
    assert len(definitions) == 2_000
    assert len({id(definition.limits) for definition in definitions}) == 1


def test_ten_thousand_definitions_are_small():
    stored = [encode(QueueDefinition(name=f"queue-{number}")) for number in range(10_000)]
    tracemalloc.start()
    definitions = [decode(text) for text in stored]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(definitions) == 10_000
    assert used < 4 << 20
