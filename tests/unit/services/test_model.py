"""Partitions as topics: equality, full names, and where they lie in the log."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from penstock.services.model import Queue, QueueKey, ServiceInfo, ServiceType, TopicPartitionInfo
from penstock.storage.log.base import TopicPartition

TENANT = UUID("784f394c-42b6-435a-983c-b7beff2784f9")


def test_full_name_of_an_isolated_partition() -> None:
    info = TopicPartitionInfo("tb_rule_engine", TENANT, 5)
    assert info.full_topic_name == f"tb_rule_engine.isolated.{TENANT}.5"
    assert info.log_partition == TopicPartition(info.full_topic_name, 0)


def test_internal_partition_is_no_part_of_the_name() -> None:
    info = TopicPartitionInfo("edqs.events", partition=7, use_internal_partition=True)
    assert info.full_topic_name == "edqs.events"
    assert info.log_partition == TopicPartition("edqs.events", 7)


def test_equal_by_full_name_and_partition() -> None:
    info = TopicPartitionInfo("tb_core", partition=3, my_partition=True)
    assert info == TopicPartitionInfo("tb_core", partition=3, my_partition=False)
    assert len({info, TopicPartitionInfo("tb_core", partition=3)}) == 1
    assert info != TopicPartitionInfo("tb_core", partition=4)
    assert info != TopicPartitionInfo("tb_core", TENANT, 3)
    internal = [TopicPartitionInfo("edqs.events", None, i, use_internal_partition=True) for i in range(2)]
    assert internal[0] != internal[1]


def test_with_topic_keeps_the_rest() -> None:
    info = TopicPartitionInfo("tb_core", TENANT, 3, my_partition=True).with_topic("tb_housekeeper")
    assert info.full_topic_name == f"tb_housekeeper.isolated.{TENANT}.3"
    assert info.my_partition


def test_service_types_are_those_of_the_seed() -> None:
    assert [(kind.value, kind.label) for kind in ServiceType] == [
        ("TB_CORE", "TB Core"),
        ("TB_RULE_ENGINE", "TB Rule Engine"),
        ("TB_TRANSPORT", "TB Transport"),
        ("JS_EXECUTOR", "JS Executor"),
        ("TB_VC_EXECUTOR", "TB VC Executor"),
        ("EDQS", "TB Entity Data Query"),
        ("TASK_PROCESSOR", "Task Processor"),
    ]


def test_service_info_survives_json_and_newer_fields() -> None:
    info = ServiceInfo(service_id="re-1", service_types=frozenset([ServiceType.TB_RULE_ENGINE]), label="a")
    data = msgspec.json.encode(info)
    assert msgspec.json.decode(data, type=ServiceInfo) == info
    assert msgspec.json.decode(data[:-1] + b',"zone":"b"}', type=ServiceInfo) == info


def test_a_queue_has_partitions() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Queue(QueueKey(ServiceType.TB_CORE), "tb_core", 0)
