"""Calls to a service of which any instance answers: both sides of what `QueueFactory` says of a channel."""

from __future__ import annotations

from penstock.services.channels import RequestChannel
from penstock.services.rpc.responder import Handler, Responder
from penstock.services.rpc.settings import RequestSettings, ResponderSettings
from penstock.services.rpc.template import RequestTemplate
from penstock.storage.log.base import Log


def new_caller(log_provider: Log, channel: RequestChannel) -> RequestTemplate:
    """Of `QueueFactory.requests(…)`. The topic of the requests has to be there when it is started."""
    return RequestTemplate(
        log_provider,
        request_topic=channel.request_topic,
        response_topic=channel.response_topic,
        group=channel.response_group,
        service_id=channel.service_id,
        response_properties=channel.response_properties,
        settings=RequestSettings.of(channel.limits),
    )


def new_responder(log_provider: Log, channel: RequestChannel, handler: Handler) -> Responder:
    """Of `QueueFactory.responder(…)`. Shares the partitions of the requests with the other instances."""
    return Responder(
        log_provider,
        handler,
        request_topic=channel.request_topic,
        group=channel.request_group,
        service_id=channel.service_id,
        settings=ResponderSettings.of(channel.limits),
    )
