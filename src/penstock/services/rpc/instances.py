"""Calls between the instances of one service: a question goes to the topic of the instance that is meant."""

from __future__ import annotations

import asyncio

from penstock.services.channels import InstanceChannel
from penstock.services.rpc.responder import Handler, Responder
from penstock.services.rpc.settings import RequestSettings, ResponderSettings
from penstock.services.rpc.template import RequestTemplate
from penstock.storage.log.base import Log
from penstock.storage.log.lag_watch import LagWatch

DRAIN_SECONDS = 0.5


class InstanceCalls:
    """Both sides of it, at one instance. `handler` answers what others ask."""

    def __init__(self, log_provider: Log, channel: InstanceChannel, handler: Handler) -> None:
        self._log = log_provider
        self._channel = channel
        self._is_started = False
        self._template = RequestTemplate(
            log_provider,
            request_topic=None,
            response_topic=channel.response_topic,
            group=channel.response_group,
            service_id=channel.service_id,
            response_properties=channel.response_properties,
            settings=RequestSettings.of(channel.limits),
        )
        self._responder = Responder(
            log_provider,
            handler,
            request_topic=channel.topic,
            group=channel.group,
            service_id=channel.service_id,
            partitions=[0],
            settings=ResponderSettings.of(channel.limits),
        )
        self.lag = LagWatch(self._measure_lag)

    async def start(self) -> None:
        """Raises LogError; may then be called again."""
        await self._log.admin.create(self._channel.topic, 1, self._channel.properties)
        if not self._is_started:
            await self._template.start()
            self._is_started = True
            await self._responder.start()
            self.lag.start()

    async def stop(self) -> None:
        if self._is_started:
            await self.lag.stop()
            await self._responder.close(drain_seconds=DRAIN_SECONDS)
            await self._template.close()

    def ask(self, service_id: str, question: bytes, timeout: float) -> asyncio.Future[bytes]:
        """The answer, later; raises RpcError, at once or through the future."""
        return self._template.send(question, timeout=timeout, to=self._channel.topic_of(service_id))

    async def _measure_lag(self) -> int:
        return await self._template.lag() + sum((await self._responder.lag()).values())

    def counters(self, name: str) -> dict[str, int | float]:
        """Under `calls_<count>_<name>`; counters that ThingsBoard has a name for, under that name."""
        asked, answered = self._template.counters(), self._responder.counters()
        return {
            f"pending_requests_count_{name}": asked["pending_requests_count"],
            f"pending_requests_memory_{name}": asked["pending_requests_memory"],
            f"request_timeout_count_{name}": asked["request_timeout_count"],
            **self._template.latency.counters(f"response_lag_seconds_{name}"),
            f"calls_completed_{name}": asked["requests_completed_total"],
            f"calls_failed_{name}": asked["requests_failed_total"],
            f"calls_rejected_{name}": asked["requests_rejected_total"],
            f"calls_ignored_{name}": asked["responses_ignored_total"],
            f"calls_lag_{name}": self.lag.records,
            f"calls_answered_{name}": answered["requests_answered_total"],
            f"calls_expired_{name}": answered["requests_expired_total"],
            f"calls_undecodable_{name}": answered["requests_undecodable_total"] + asked["responses_undecodable_total"],
        }
