"""Questions about groups while Kafka is unreachable.

librdkafka aborts the whole process if a request to the coordinator of a group times out and Kafka comes back. So the
questions are asked in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.support.servers.kafka_cluster import KafkaCluster

WAITS = 120
ASKS = """
    import asyncio, sys
    from penstock.storage.log.base import Committed, LogUnavailable, TopicPartition
    from penstock.storage.log.kafka import KafkaLog, KafkaSettings
    from penstock.storage.log.kafka import admin, group_requests, questions

    admin.REQUEST_SECONDS = group_requests.ANSWER_SECONDS = questions.QUERY_SECONDS = 1.0

    async def fails(question):
        try:
            await question
        except LogUnavailable:
            return True
        return False

    async def main():
        log = KafkaLog(KafkaSettings(bootstrap_servers=sys.argv[1]))
        await log.start()
        place = TopicPartition("t", 1)
        await log.admin.create("t", 2)
        await log.admin.create("other", 1)
        committer = log.consumer("g")
        await committer.commit({place: Committed(7, "a note"), TopicPartition("other", 0): Committed(3)})
        await committer.close()
        print("ready", flush=True)
        sys.stdin.readline()
        questions = [log.admin.group_offsets(f"g{number}", ["t"]) for number in range(5)]
        questions += [log.admin.delete_group(f"g{number}") for number in range(5)]
        print(all(await asyncio.gather(*map(fails, questions))), flush=True)
        sys.stdin.readline()
        while await fails(log.admin.group_offsets("g", ["t"])):
            await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)
        print(await log.admin.group_offsets("g", ["t"]) == {place: Committed(7, "a note")}, flush=True)
        while await fails(log.admin.delete_group("g")):
            await asyncio.sleep(0.1)
        print(await log.admin.group_offsets("g") == {}, flush=True)
        await log.close()

    asyncio.run(main())
"""


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """Of its own: it is killed."""
    cluster = KafkaCluster(1).start()
    yield cluster
    cluster.stop()


def test_a_question_that_was_not_answered_does_not_abort_the_process(kafka: KafkaCluster) -> None:
    command = [sys.executable, "-c", textwrap.dedent(ASKS), kafka.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            kafka.kill(1)
            process.stdin.write("away\n")
            process.stdin.flush()
            assert process.stdout.readline() == "True\n"
            kafka.restart(1)
            kafka.wait_until_ready()
            rest, _ = process.communicate("back\n", timeout=WAITS)
            assert (process.returncode, rest) == (0, "True\nTrue\n")
        finally:
            process.kill()
