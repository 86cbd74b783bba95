"""The table of topics, the settings it is made from, and creating all of it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from penstock.core.errors import SettingsError
from penstock.services.model import QueueKey, ServiceType
from penstock.services.processing import change_queue, notification_queue, pack_queues
from penstock.services.topics import (
    INSTANCE_CHANNELS,
    check_services,
    create_topics,
    default_queues,
    delete_service_topics,
    find_spec,
    topic_table,
    topics_of,
)
from penstock.settings.services import AckStrategy, ServiceSettings, SubmitStrategy
from penstock.storage.log.memory import MemoryLog
from tests.support.worlds.service_settings import services

CORE, RULE_ENGINE = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE
DAYS = 86_400_000

# base, partitions, retention in ms; ThingsBoard's tables
SEED = [
    ("tb_core", 10, 7 * DAYS),
    ("tb_core.notifications", 1, 7 * DAYS),
    ("tb_rule_engine.main", 10, 7 * DAYS),
    ("tb_rule_engine.notifications", 1, 7 * DAYS),
    ("tb_transport.notifications", 1, 7 * DAYS),
    ("tb_transport.api.requests", 10, 7 * DAYS),
    ("tb_transport.api.responses", 10, 7 * DAYS),
    ("tb_edge", 10, 7 * DAYS),
    ("tb_edge.notifications", 1, 7 * DAYS),
    ("tb_usage_stats", 1, 7 * DAYS),
    ("tb_ota_package", 10, 7 * DAYS),
    ("tb_housekeeper", 10, 7 * DAYS),
    ("tb_housekeeper.reprocessing", 1, 90 * DAYS),
    ("tb_version_control", 10, 7 * DAYS),
    ("tb_cf_event", 10, 7 * DAYS),
    ("tb_cf_state", 10, -1),
    ("js_eval.requests", 30, DAYS),
    ("js_eval.responses", 1, DAYS),
    ("edqs.events", 12, DAYS),
    ("edqs.state", 12, -1),
    ("edqs.requests", 12, 180_000),
    ("edqs.responses", 12, 180_000),
    ("jobs.stats", 1, 7 * DAYS),
    ("export", 12, 7 * DAYS),
]


@pytest.mark.parametrize(("base", "partitions", "retention"), SEED)
def test_the_table_is_the_seeds(base: str, partitions: int, retention: int) -> None:
    settings = services({"tasks.types": ["export"]})
    found = [spec for spec in topic_table(settings) if spec.base == base]
    assert (partitions, retention) in [(spec.partitions, spec.retention_ms) for spec in found]
    is_state = base in ("edqs.state", "tb_cf_state")
    assert all(spec.is_compacted == is_state for spec in found)


def test_default_queues() -> None:
    queues = {str(queue.key): queue for queue in default_queues(services({"tasks": {"types": ["export"]}}))}
    assert {name: (queue.topic, queue.partitions, queue.use_internal_partition) for name, queue in queues.items()} == {
        "TB_CORE/Main": ("tb_core", 10, False),
        "TB_CORE/Edge": ("tb_edge", 10, False),
        "TB_CORE/Housekeeper": ("tb_housekeeper", 10, False),
        "TB_VC_EXECUTOR/Main": ("tb_version_control", 10, False),
        "EDQS/Main": ("edqs.events", 12, True),
        "TASK_PROCESSOR/export": ("export", 12, True),
        "TB_RULE_ENGINE/Main": ("tb_rule_engine.main", 10, False),
        "TB_RULE_ENGINE/HighPriority": ("tb_rule_engine.hp", 10, False),
        "TB_RULE_ENGINE/SequentialByOriginator": ("tb_rule_engine.sq", 10, False),
        "TB_RULE_ENGINE/CalculatedFields": ("tb_cf_event", 10, False),
    }


def create(settings: ServiceSettings, **options: object) -> MemoryLog:
    log = MemoryLog()

    async def scenario() -> None:
        await log.start()
        await create_topics(log.admin, settings, **options)
        await create_topics(log.admin, settings, **options)

    asyncio.run(scenario())
    return log


def test_create_topics() -> None:
    services = {CORE: ["core-1"], RULE_ENGINE: ["re-1", "re-2"], ServiceType.TB_TRANSPORT: ["t-1"]}
    log = create(ServiceSettings(prefix="prod"), service_ids=services)
    partitions = {name: topic.config.partitions for name, topic in log.topics.items()}
    assert {name for name in partitions if name.startswith("prod.tb_core.")} == {
        *(f"prod.tb_core.{i}" for i in range(10)),
        "prod.tb_core.notifications.core-1",
    }
    assert {name for name in partitions if name.startswith("prod.js_eval")} == {
        "prod.js_eval.requests",
        "prod.js_eval.responses.core-1",
        "prod.js_eval.responses.re-1",
        "prod.js_eval.responses.re-2",
    }
    assert partitions["prod.js_eval.requests"] == 30
    assert partitions["prod.edqs.state"] == 12
    assert partitions["prod.tb_core.0"] == 1
    assert partitions["prod.tb_transport.notifications.t-1"] == 1
    properties = log.topics["prod.tb_housekeeper.reprocessing"].config.properties
    assert properties["retention.ms"] == str(90 * DAYS)
    assert log.topics["prod.edqs.state"].config.properties["cleanup.policy"] == "compact"


def test_create_topics_of_an_isolated_tenant() -> None:
    tenant = UUID(int=7)
    log = create(
        services({"rule_engine": {"queues": [{"name": "Main", "topic": "main", "partitions": 2}]}}), tenant=tenant
    )
    assert sorted(log.topics) == [f"tb_rule_engine.main.isolated.{tenant}.{i}" for i in range(2)]


def test_properties_are_laid_over_the_defaults() -> None:
    overrides = {"tb_core": "retention.ms:1000;segment.bytes:4096", "tb_usage_stats": "partitions:3"}
    log = create(services({"topic_properties": overrides}))
    properties = log.topics["tb_core.4"].config.properties
    assert (properties["retention.ms"], properties["segment.bytes"]) == ("1000", "4096")
    assert log.topics["tb_usage_stats"].config.partitions == 3


@pytest.mark.parametrize("base", ["tb_core", "js_eval.requests"])
def test_partitions_without_effect_are_refused(base: str) -> None:
    with pytest.raises(SettingsError, match="no effect"):
        create(services({"topic_properties": {base: "partitions:5"}}))


@pytest.mark.parametrize(
    ("base", "text", "words"),
    [
        ("tb_core", "retention.ms", "'retention.ms' is not name:value"),
        ("tb_core", "retention.ms:soon", "retention.ms .soon. is not a number"),
        ("tb_core", "cleanup.policy:burn", "cleanup.policy 'burn'"),
        ("tb_usage_stats", "partitions:many", "partitions:many of tb_usage_stats"),
        ("tb_usage_stats", "partitions:0", "partitions:0 of tb_usage_stats"),
        ("tb_cor", "retention.ms:1000", "Did you mean 'tb_core'"),
        ("nosuch", "retention.ms:1000", "There are .*tb_core"),
    ],
)
def test_properties_that_make_no_topic_are_refused(base: str, text: str, words: str) -> None:
    settings = services({"topic_properties": {base: text}})
    with pytest.raises(SettingsError, match=words):
        check_services(settings)
    with pytest.raises(SettingsError, match=words):
        topics_of(settings)


def test_no_other_queue_is_called_as_that_of_calculated_fields() -> None:
    settings = services({"rule_engine.queues": [{"name": "calculatedfields", "topic": "cf"}]})
    with pytest.raises(SettingsError, match=r"calculatedfields is the queue of services\.calculated_fields"):
        check_services(settings)


def test_topics_of_a_service_that_is_gone_are_deleted() -> None:
    log = create(ServiceSettings(), service_ids={CORE: ["core-1", "core-2"]})
    before = set(log.topics)

    async def scenario() -> list[str]:
        await log.start()
        return await delete_service_topics(log.admin, ServiceSettings(), "core-1")

    gone = asyncio.run(scenario())
    assert before - set(log.topics) == set(gone)
    assert all(name.endswith(".core-1") for name in gone)
    assert "tb_core.notifications.core-1" in gone
    assert any(name.endswith(".core-2") for name in log.topics)


def test_find_spec_tells_a_service_topic_from_a_shared_one() -> None:
    settings = ServiceSettings(prefix="p")
    assert find_spec(settings, "p.edqs.responses").kind == "internal"
    assert find_spec(settings, "p.edqs.responses.core-1").kind == "per-service"
    assert find_spec(settings, "p.tb_rule_engine.hp").base == "tb_rule_engine.hp"
    assert find_spec(settings, "other") is None


def test_strategies_are_chosen_in_the_settings() -> None:
    settings = services(
        {
            "rule_engine": {
                "queues": [
                    {
                        "name": "Slow",
                        "topic": "slow",
                        "submit_strategy": {"type": "BATCH", "batch_size": 7},
                        "processing_strategy": {"type": "RETRY_ALL", "retries": 5, "pause_between_retries": 1},
                        "pack_processing_timeout": 4,
                    }
                ]
            },
            "notifications.processing_strategy.retries": 2,
            "changes.submit_strategy.type": "SEQUENTIAL",
        }
    )
    queues = pack_queues(settings)
    slow = queues[QueueKey(RULE_ENGINE, "Slow")]
    assert (slow.topic, slow.pack_seconds) == ("tb_rule_engine.slow", 4.0)
    assert (slow.submit.strategy, slow.submit.batch_size) == (SubmitStrategy.BATCH, 7)
    assert (slow.ack.strategy, slow.ack.retries, slow.ack.pause) == (AckStrategy.RETRY_ALL, 5, 1.0)
    told = notification_queue(settings, "tb_core.notifications")
    # What is not said stays as it was, the strategy too.
    assert (told.ack.strategy, told.ack.retries) == (AckStrategy.RETRY_FAILED_AND_TIMED_OUT, 2)
    assert told.submit.strategy is SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR
    assert change_queue(settings, "sessions").submit.strategy is SubmitStrategy.SEQUENTIAL
    assert queues[QueueKey(ServiceType.TB_VC_EXECUTOR)].pack_seconds == 180.0
    assert queues[QueueKey(CORE, "Edge")].pack_seconds == 10.0


def test_the_calls_between_brokers_are_in_the_table() -> None:
    settings = ServiceSettings(prefix="p")
    for base in INSTANCE_CHANNELS.values():
        for kind in ("notifications", "responses"):
            spec = find_spec(settings, f"p.{base}.{kind}.node-1")
            assert spec is not None
            assert spec.base == f"{base}.{kind}"
            assert (spec.retention_ms, spec.properties()["segment.bytes"]) == (600_000, "10485760")
