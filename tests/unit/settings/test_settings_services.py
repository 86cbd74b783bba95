"""The sections [services], [cluster] and [durable_queues], and their former names [queue] and [queue_manager]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.errors import SettingsError
from penstock.settings.aliases import OLD_SECTIONS, RENAMED, current
from penstock.settings.loader import Loaded, load_settings
from penstock.settings.reload import diff
from penstock.settings.schema import sections
from penstock.settings.services import AckStrategy, SubmitStrategy

Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, environ: dict[str, str] | None = None, **flags: str) -> Loaded:
        path = tmp_path / "penstock.toml"
        path.write_text(text)
        return load_settings(path, environ or {}, flags)

    return load


NEW = """
[cluster]
heartbeat_interval = "500ms"
[durable_queues]
max_queues = 7
[services]
prefix = "prod"
max_message_size = "2MiB"
tasks.types = ["export", "import"]
[services.core]
partitions = 3
ota.topic = "ota"
[services.core.housekeeper.processing_strategy]
retries = 4
[services.changes]
submit_strategy.type = "SEQUENTIAL"
[services.topic_properties]
tb_usage_stats = "retention.ms:1000"
"tb_core" = "retention.ms:2000"
[[services.rule_engine.queues]]
name = "Slow"
topic = "slow"
pack_processing_timeout = "4s"
submit_strategy = { type = "BATCH", batch_size = 7 }
processing_strategy = { type = "RETRY_ALL", pause_between_retries = 1 }
"""

OLD = """
[queue]
prefix = "prod"
max_message_size = 2097152
"core.partitions" = 3
"tasks.types" = ["export", "import"]
[queue.core]
ota = { topic = "ota" }
housekeeper = { processing-strategy = { retries = "4" } }
[queue.cluster]
heartbeat_interval = 0.5
[queue.cluster.changes]
submit-strategy = { type = "SEQUENTIAL" }
[queue.topic-properties]
tb_usage_stats = "retention.ms:1000"
"tb_core" = "retention.ms:2000"
[[queue.rule-engine.queues]]
name = "Slow"
topic = "slow"
pack-processing-timeout = 4
submit-strategy = { type = "BATCH", batch-size = 7 }
processing-strategy = { type = "RETRY_ALL", pause-between-retries = 1 }
[queue_manager]
max_queues = 7
"""


@pytest.mark.parametrize("text", [NEW, OLD], ids=["new", "old"])
def test_settings_are_read_under_either_name(load: Load, text: str) -> None:
    settings = load(text).settings
    services = settings.services
    assert (services.prefix, services.max_message_size, services.tasks.types) == ("prod", 2 << 20, ("export", "import"))
    assert (services.core.partitions, services.core.ota.topic) == (3, "ota")
    patient = services.core.housekeeper.processing_strategy
    assert (patient.retries, patient.strategy) == (4, AckStrategy.RETRY_FAILED_AND_TIMED_OUT)
    assert services.changes.submit_strategy.strategy is SubmitStrategy.SEQUENTIAL
    assert services.topic_properties == {"tb_usage_stats": "retention.ms:1000", "tb_core": "retention.ms:2000"}
    (slow,) = services.rule_engine.queues
    assert (slow.name, slow.topic, slow.pack_seconds, slow.partitions) == ("Slow", "slow", 4.0, 10)
    assert (slow.submit_strategy.strategy, slow.submit_strategy.batch_size) == (SubmitStrategy.BATCH, 7)
    assert (slow.processing_strategy.strategy, slow.processing_strategy.pause) == (AckStrategy.RETRY_ALL, 1.0)
    assert (settings.cluster.heartbeat_interval, settings.durable_queues.max_queues) == (0.5, 7)


def test_the_settings_are_the_same_under_either_name(load: Load) -> None:
    assert load(NEW).settings == load(OLD).settings


def test_old_names_say_once_what_they_are_called_now(load: Load) -> None:
    assert load(NEW).warnings == []
    of_queue, of_manager = load(OLD).warnings
    assert of_queue.startswith("[queue] has a new name, the old one still works: ")
    assert "queue.core.partitions is services.core.partitions" in of_queue
    assert "queue.cluster.heartbeat_interval is cluster.heartbeat_interval" in of_queue
    assert "queue.cluster.changes.submit-strategy.type is services.changes.submit_strategy.type" in of_queue
    assert "queue.topic-properties.tb_core is services.topic_properties.tb_core" in of_queue
    assert "queue_manager.max_queues is durable_queues.max_queues" in of_manager


def test_old_names_of_the_environment_and_of_flags(load: Load) -> None:
    environ = {"PENSTOCK_QUEUE__CORE__PARTITIONS": "4", "PENSTOCK_QUEUE_MANAGER__MAX_QUEUES": "9"}
    loaded = load("", environ, **{"queue.cluster.adopt_after": "5s", "queue.js.topic": "js"})
    settings = loaded.settings
    assert (settings.services.core.partitions, settings.durable_queues.max_queues) == (4, 9)
    assert (settings.cluster.adopt_after, settings.services.js.topic) == (5.0, "js")
    assert loaded.origins["services.core.partitions"] == "environment PENSTOCK_QUEUE__CORE__PARTITIONS"
    assert loaded.origins["cluster.adopt_after"] == "flag --set"
    assert len(loaded.warnings) == 2


def test_the_present_name_wins_over_the_old_one(load: Load) -> None:
    text = "[cluster]\nadopt_after = 3\n[queue.cluster]\nadopt_after = 4\n"
    assert load(text).settings.cluster.adopt_after == 3
    environ = {"PENSTOCK_CLUSTER__ADOPT_AFTER": "5", "PENSTOCK_QUEUE__CLUSTER__ADOPT_AFTER": "6"}
    assert load(text, environ).settings.cluster.adopt_after == 5
    assert load(text, {"PENSTOCK_QUEUE__CLUSTER__ADOPT_AFTER": "6"}).settings.cluster.adopt_after == 6, "a later source"


def test_a_value_may_come_in_a_file_under_either_name(load: Load, tmp_path: Path) -> None:
    (tmp_path / "prefix").write_text("site\n")
    for name in ("PENSTOCK_SERVICES__PREFIX_FILE", "PENSTOCK_QUEUE__PREFIX_FILE"):
        assert load("", {name: str(tmp_path / "prefix")}).settings.services.prefix == "site"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[services]\ncore.partitions = 0", r":2: services\.core\.partitions = 0 is not allowed.*from 1 to 10,000"),
        ("[services.core]\ntopics = 'x'", r":2: services\.core\.topics is not a setting: did you mean services\.core"),
        ("[services]\ntype = 'rabbit'", r'one of "", "kafka", "in-memory"'),
        ("[services]\nprefix = 'a b'", "prefix"),
        ("[services]\npartitions.hash_function_name = 'md5'", "murmur3_32"),
        ("[services]\ncore.topic = 'a..b'", "topic"),
        ("[services.notifications]\nsubmit_strategy.type = 'RANDOM'", "BURST"),
        ("[services.notifications]\nprocessing_strategy.retries = -1", "from 0"),
        ("[services.notifications]\nprocessing_strategy.failure_percentage = 101", "from 0 to 100"),
        ("[services.changes]\npack_processing_timeout = 2000", "above 0, up to 600"),
        ("[services.changes]\npack_processing_timeout = 0", "above 0, up to 600"),
        ("[services.changes]\nsubmit_strategy.size = 1", "not a setting"),
        ("[services]\nrule_engine.queues = 'Main'", r"a list of tables, \[\[services\.rule_engine\.queues\]\]"),
        ("[[services.rule_engine.queues]]\nname = 'a'", r"queues\.0: topic is missing"),
        ("[[services.rule_engine.queues]]\nname = 'a'\ntopic = 'a'\npartition = 3", "partition is not a setting"),
        ("[[services.rule_engine.queues]]\nname = 'a'\ntopic = 'a'\npartitions = 0", r"queues\.0\.partitions = 0"),
        ("[queue]\ncore.partitions = 0", r":2: queue\.core\.partitions = 0 is not allowed"),
        ("[queue]\ncore.topics = 'x'", r":2: queue\.core\.topics is not a setting: did you mean services\.core\.topic"),
        ("queue = 3", "must be a table"),
        ("[cluster]\nheartbeat_interval = 6", r"cluster\.member_timeout = 10 is not allowed"),
        ("[cluster]\nmember_timeout = '1s'", r":2: cluster\.member_timeout = 1 is not allowed"),
        ("[cluster]\nrelay_advertised = 'host'", r":2: cluster\.relay_advertised = 'host' is not allowed"),
        ("[queue.cluster]\nrelay_address = 'a:b:c'", r":2: queue\.cluster\.relay_address = 'a:b:c' is not allowed"),
    ],
)
def test_bad_settings_are_refused(load: Load, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(text)


@pytest.mark.parametrize("section", ["services", "queue"])
def test_the_queues_are_where_the_log_is(load: Load, section: str) -> None:
    load(f'[{section}]\ntype = "kafka"\n[log]\nprovider = "kafka"')
    load(f'[{section}]\ntype = "in-memory"\n')
    load("")
    for kind, provider in (("kafka", "embedded"), ("in-memory", "kafka")):
        with pytest.raises(SettingsError, match=rf"{section}\.type = {kind}, but log\.provider = {provider}"):
            load(f'[{section}]\ntype = "{kind}"\n[log]\nprovider = "{provider}"')


def test_a_change_needs_a_restart(load: Load) -> None:
    live, needs_restart = diff(load("").settings, load(NEW.replace("max_queues = 7", "")).settings)
    assert live == {}
    assert {"services.prefix", "services.rule_engine.queues", "cluster.heartbeat_interval"} <= set(needs_restart)


def test_every_new_name_is_a_section() -> None:
    assert {new.partition(".")[0] for new in RENAMED.values()} <= set(sections())
    assert {old.partition(".")[0] for old in RENAMED} == set(OLD_SECTIONS)
    assert not set(OLD_SECTIONS) & set(sections())


def test_names_of_topics_keep_their_hyphens() -> None:
    assert current("queue.topic-properties.my-topic", "x") == ("services.topic_properties.my-topic", "x")
    assert current("queue.rule-engine.topic", "a-b") == ("services.rule_engine.topic", "a-b")
