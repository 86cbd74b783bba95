"""Requests to the coordinator of a consumer group, through an administrative client of their own.

librdkafka (2.16 and before) cannot handle such a request that times out while it looks for the coordinator: it frees
the request, keeps the search, and aborts the process when Kafka answers again (its issue 4605). So the request gets the
longest timeout that librdkafka allows. The caller stops waiting long before that and ends the client, together with all
requests that are still in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.storage.log.base import LogError, LogUnavailable
from penstock.storage.log.kafka.errors import to_log_error

LONGEST_SECONDS = 3600.0
ANSWER_SECONDS = 10.0


class GroupRequests:
    """Opens a client with the first request, and another one after a request that was not answered in time."""

    def __init__(self, new_client: Callable[[], AdminClient], executor: Executor) -> None:
        self._new_client = new_client
        self._executor = executor
        # Nothing else refers to the client, so that it ends when, and in the thread where, this list is cleared.
        self._clients: list[AdminClient] = []

    async def close(self) -> None:
        await self._end(self._clients)

    def serve_callbacks(self) -> None:
        """Nothing else polls this client."""
        for client in self._clients:
            client.poll(0)

    async def delete(self, group: str) -> None:
        """Raises LogError."""
        doing = f"delete group {group!r}"
        clients = self._clients
        if not clients:
            clients.append(self._new_client())

        def send() -> Future[None]:
            return clients[0].delete_consumer_groups([group], request_timeout=LONGEST_SECONDS)[group]

        try:
            answer = asyncio.wrap_future(await asyncio.get_running_loop().run_in_executor(self._executor, send))
            # It is not cancelled: confluent-kafka sets its result, however late.
            await asyncio.wait([answer], timeout=ANSWER_SECONDS)
            if answer.done():
                answer.result()
                return
        except KafkaException as error:
            raise to_log_error(error, doing) from error
        except IndexError:
            raise LogUnavailable(f"{doing}: Kafka did not answer an earlier request") from None
        except (TypeError, ValueError) as error:
            raise LogError(f"{doing}: {error}") from error
        await self._end(clients)
        raise LogUnavailable(f"{doing}: no answer from Kafka within {ANSWER_SECONDS:g} s")

    async def _end(self, clients: list[AdminClient]) -> None:
        if clients is self._clients:
            self._clients = []
        await asyncio.to_thread(clients.clear)  # waits for librdkafka's threads
