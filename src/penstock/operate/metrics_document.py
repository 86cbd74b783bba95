"""Writes the reference of all metrics: `python -m penstock.operate.metrics_document > docs/metrics.md`."""

from __future__ import annotations

import sys

from penstock.core.metrics import BY_BEGINNING, BY_CLIENT, BY_QUEUE, BY_SHARE, EXACT, PREFIX, Meaning

_HEAD = """\
# Metrics

<!-- Made by `python -m penstock.operate.metrics_document`: edit src/penstock/core/metrics.py instead. -->

What `/metrics` of the [admin address](monitoring.md) shows, for Prometheus. Counters only rise, from 0 at every start;
gauges go both ways; a histogram `x` is read as `x_bucket`, `x_sum` and `x_count`.
No metric has a topic as label; those with a client, share or queue are of a bounded number of
them (`admin.per_client_metrics`, `admin.per_queue_metrics`: the ones furthest behind), so the number of time series
does not grow with the traffic.
A metric with a label is there from its first sample on, and one of a part that is switched off (the log, Kafka, a
cluster) is not there at all.
"""

# Named as in the document that the calls come from, where everything else of them begins with `calls_`.
_OF_CALLS = ("pending_requests_", "request_timeout_", "response_lag_")
# Title and the beginnings of the names in it; the first that fits takes a metric.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "APPLICATION clients": ("application_",),
    "DEVICE clients": ("device_",),
    "Dispatch to persistent clients": ("dispatch_",),
    "Durable queues": ("queue_", "queues"),
    "Data subscriptions": ("datasub", "query", "queries"),
    "The log": ("log_", "ingest_", "messages_log", "events_"),
    "Several brokers": ("cluster_", "take_over_", "messages_foreign", "calls_", "pack_", *_OF_CALLS),
    "Connections and sessions": ("connections", "session", "subscriptions", "shared_", "protocol_"),
    "Messages": ("messages", "publish", "retained", "inflight", "queued", "packets", "received", "sent", "congested"),
    "The process": ("",),
}
_LAST = "The process"
_CAUSES = {
    "connections_refused": "`connections`, `listener_connections`, `rate`, `handshake_limit`, `tls_handshake`,\n"
    "`websocket_handshake`, `proxy_header`, `proxy_timeout`, `reset` (gone before it began), `descriptors` (times\n"
    "accepting had to rest)",
    "messages_dropped": "`queue_full`, `not_writable`, `expired`, `too_large` (for its receiver, or for the log),\n"
    "`denied` (the publisher may not publish there, or the subscriber lost its right),\n"
    "`retained_full` (not retained),\n"
    "`session_ended`, `rate_incoming`, `rate_outgoing`, `rate_all`, `rate_stored`\n"
    "([rate limits](flow-control.md#rate-limits)), `store_full` (stored for a DEVICE client or group, it gave way to\n"
    "newer ones)",
}
_NOTES = {
    "Several brokers": "`channel` is what the brokers call each other about: `sessions` or `data-subscription`\n"
    "([request and response](queue-architecture.md#request-and-response)). What ThingsBoard calls\n"
    "`pending_requests_count`, `request_timeout_count`, `response_lag` and `pending_requests_memory` has these names\n"
    "here, with `penstock_` before them and their unit or `_total` behind them. The 99th percentile of the last five\n"
    "minutes:\n"
    "`histogram_quantile(0.99, sum by (channel, le) (rate(penstock_response_lag_seconds_bucket[5m])))`.\n",
    "The log": "The `kind` of a Kafka client is `producer`, `consumer` or `admin`: the sum of all clients of the kind\n"
    "in this process, or the slowest of them, from what librdkafka reports every `kafka.statistics_interval_ms`\n"
    "(consumers and admin: every second at most). A kind is there after its first report. Consumers have no\n"
    "answer time: a fetch is answered when there are records, after 100 ms at the latest.\n",
}
# Of the Prometheus client and of the build.
_OTHERS = (
    ("penstock_build_info", "gauge", "version", "The version that runs; always 1."),
    ("process_cpu_seconds_total", "counter", "", "CPU time of the process, user and system."),
    ("process_resident_memory_bytes", "gauge", "", "Memory the process has in RAM."),
    ("process_virtual_memory_bytes", "gauge", "", "Memory it has mapped; LMDB maps more than it uses."),
    ("process_open_fds", "gauge", "", "Open file descriptors; each connection is one."),
    ("process_max_fds", "gauge", "", "Their limit."),
    ("process_start_time_seconds", "gauge", "", "When the process was started."),
)


def exported_name(meaning: Meaning) -> str:
    """As Prometheus sees it."""
    return f"{PREFIX}{meaning.name}{'_total' if meaning.kind == 'counter' else ''}"


def _section_of(name: str) -> str:
    return next(title for title, beginnings in _SECTIONS.items() if name.startswith(beginnings))


def render() -> str:
    """The whole page."""
    meanings = [*EXACT.values(), *BY_BEGINNING.values(), *BY_CLIENT.values(), *BY_SHARE.values(), *BY_QUEUE.values()]
    sections: dict[str, list[tuple[str, str, str, str]]] = {title: [] for title in reversed(_SECTIONS)}
    for meaning in sorted(meanings):
        row = (exported_name(meaning), meaning.kind, meaning.label, meaning.help)
        sections[_section_of(meaning.name)].append(row)
    sections[_LAST] += _OTHERS
    # Most people look for messages first, and for the process last.
    titles = [*(title for title in sections if title != _LAST), _LAST]
    parts = [_HEAD]
    for title in titles:
        if sections[title]:
            parts.append(f"\n## {title}\n\n| metric | type | label | meaning |\n|---|---|---|---|\n")
            parts += [f"| `{name}` | {kind} | {label} | {text} |\n" for name, kind, label, text in sections[title]]
            parts += [
                f"\nCauses of `{PREFIX}{name}_total`: {causes}.\n"
                for name, causes in _CAUSES.items()
                if _section_of(name) == title
            ]
            parts += [f"\n{note}" for about, note in _NOTES.items() if about == title]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(render())
