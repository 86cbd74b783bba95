"""The administrative client ends with the log, in a thread of ours: ended by one of its own it aborts the process."""

from __future__ import annotations

import asyncio
import gc

from confluent_kafka.admin import AdminClient

from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.kafka.log import KafkaLog


def clients() -> int:
    return sum(isinstance(each, AdminClient) for each in gc.get_objects())


def test_nothing_is_left_for_the_collector() -> None:
    async def scenario() -> None:
        gc.collect()
        before = clients()
        gc.disable()  # whatever goes, goes because nobody has it any more
        try:
            log = KafkaLog(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
            assert clients() == before + 1
            await log.close()
            assert clients() == before
            await log.close()
        finally:
            gc.enable()

    asyncio.run(scenario())
