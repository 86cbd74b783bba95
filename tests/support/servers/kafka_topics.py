"""A Kafka that several brokers use one after the other: nothing of the last may be found by the next."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

OWN_TOPICS = ("tbmq.", "tb_", "penstock.")
OWN_GROUPS = ("msg-all-", "application-", "tb_", "tb-", "penstock")
SECONDS = 120.0


def forget_topics(bootstrap: str) -> None:
    """Deletes the topics and the consumer groups of Penstock; no broker may be running on them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=SECONDS).result().valid]
    mine = [group for group in groups if group.startswith(OWN_GROUPS)]
    if mine:
        _finish(admin.delete_consumer_groups(mine, request_timeout=SECONDS))
    if found := own_topics(bootstrap):
        _finish(admin.delete_topics(sorted(found), operation_timeout=SECONDS))
    deadline = time.monotonic() + SECONDS
    while own_topics(bootstrap):
        assert time.monotonic() < deadline, "Kafka keeps topics that were deleted"
        time.sleep(0.05)


def own_topics(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return {name for name in admin.list_topics(timeout=SECONDS).topics if name.startswith(OWN_TOPICS)}


def _finish(futures: dict[str, Future[Any]]) -> None:
    for future in futures.values():
        try:
            future.result()
        except KafkaException:
            continue  # gone already, or the group of a member that was killed and has not timed out yet
