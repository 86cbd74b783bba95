"""What `penstock top` shows, made of two readings of the broker's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Number = int | float
QOS = ("qos0", "qos1", "qos2")
_DROPPED, _REFUSED = "messages_dropped_", "connections_refused_"


class Reading:
    """One answer of /overview."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.time = float(answer["time"])
        self.uptime = float(answer["uptime"])
        self.version = str(answer["version"])
        self.counters: dict[str, Number] = answer["counters"]
        self.process: dict[str, Number] = answer["process"]

    def get(self, name: str) -> Number:
        return self.counters.get(name, 0)

    def sum(self, beginning: str, names: Sequence[str]) -> Number:
        return sum(self.get(f"{beginning}{name}") for name in names)


class Figures:
    """Rates are of the time between the two readings; of a broker that was started meanwhile, since its start."""

    def __init__(self, now: Reading, before: Reading | None) -> None:
        is_same = before is not None and before.process.get("pid") == now.process.get("pid") and now.time > before.time
        if before is not None and now.uptime < before.uptime:
            is_same = False  # in a container every broker has the same pid
        self._now = now
        self._before = before if is_same else None
        self._seconds = now.time - before.time if is_same and before is not None else max(now.uptime, 0.001)

    def rate(self, name: str) -> float:
        return round(self._exact_rate(name), 1)

    def _exact_rate(self, name: str) -> float:
        before = 0 if self._before is None else self._before.get(name)
        return max(0.0, (self._now.get(name) - before) / self._seconds)

    def _rates(self, beginning: str, names: Sequence[str]) -> float:
        return round(sum(self.rate(f"{beginning}{name}") for name in names), 1)

    def _by_cause(self, beginning: str) -> dict[str, dict[str, Number]]:
        """Only those of which there was one."""
        return {
            name.removeprefix(beginning).removeprefix("total_"): {"total": total, "per_second": self.rate(name)}
            for name, total in sorted(self._now.counters.items())
            if name.startswith(beginning) and total
        }

    def describe(self) -> dict[str, Any]:
        """Everything, for people and scripts."""
        return {
            "version": self._now.version,
            "uptime": self._now.uptime,
            "interval": round(self._seconds, 3),
            "clients": self._describe_clients(),
            "messages": self._describe_messages(),
            "bytes": {
                "received_per_second": self.rate("bytes_received"),
                "sent_per_second": self.rate("bytes_sent"),
            },
            "waiting": self._describe_waiting(),
            "log": self._describe_log(),
            "applications": self._describe_applications(),
            "queues": self._describe_queues(),
            "query_topics": self._describe_query_topics(),
            "process": self._describe_process(),
        }

    def _describe_clients(self) -> dict[str, Any]:
        now = self._now
        return {
            "connections": now.get("connections_current"),
            "connects_per_second": self.rate("connections_total"),
            "sessions": now.get("sessions"),
            "sessions_connected": now.get("sessions_connected"),
            "subscriptions": now.get("subscriptions"),
            "shared_subscriptions": now.get("shared_subscriptions"),
            "refused": self._by_cause(_REFUSED),
            "protocol_errors": now.get("protocol_errors"),
        }

    def _describe_messages(self) -> dict[str, Any]:
        now = self._now
        return {
            "received_per_second": self._rates("messages_received_", QOS),
            "sent_per_second": self._rates("messages_sent_", QOS),
            "received": now.sum("messages_received_", QOS),
            "sent": now.sum("messages_sent_", QOS),
            "unmatched_per_second": self.rate("publish_unmatched"),
            "retained": now.get("retained_messages"),
            "retained_bytes": now.get("retained_bytes"),
            "dropped": self._by_cause(_DROPPED),
        }

    def _describe_waiting(self) -> dict[str, Any]:
        now = self._now
        return {
            "queued_messages": now.get("queued_messages"),
            "queued_bytes": now.get("queued_bytes"),
            "in_flight": now.get("inflight"),
            "congested_subscribers": now.get("congested_subscribers"),
            "device_waiting": now.get("device_waiting"),
            "device_backlogs": now.get("device_backlogs"),
        }

    def _describe_log(self) -> dict[str, Any]:
        now, commits = self._now, self.rate("log_commits")
        return {
            "records_per_second": self.rate("log_appended_records"),
            "bytes_per_second": self.rate("log_appended_bytes"),
            "commits_per_second": commits,
            "commit_milliseconds": round(1000 * self._exact_rate("log_commit_seconds") / commits, 2)
            if commits
            else 0.0,
            "pending_bytes": now.get("ingest_pending_bytes") + now.get("log_pending_bytes"),
            "bytes": now.get("log_bytes"),
            "failures": now.get("publish_log_failures"),
        }

    def _describe_applications(self) -> dict[str, Any]:
        now = self._now
        return {
            "clients": now.get("application_clients"),
            "connected": now.get("application_connected"),
            "lag": now.get("application_lag_total") + now.get("application_shared_lag_total"),
            "in_flight": now.get("application_in_flight"),
            "delivered_per_second": self.rate("application_delivered_total"),
            "given_up": now.get("application_given_up_total"),
        }

    def _describe_queues(self) -> dict[str, Any]:
        now = self._now
        return {
            "count": now.get("queues"),
            "consumers": now.get("queue_consumers"),
            "pending": now.get("queue_pending"),
            "published_per_second": self.rate("queue_published"),
            "delivered_per_second": self.rate("queue_delivered"),
            "dead_letters": now.get("queue_dead_letters"),
        }

    def _describe_query_topics(self) -> dict[str, Any]:
        now = self._now
        return {
            "count": now.get("datasub_topics"),
            "groups": now.get("datasub_groups"),
            "consumers": now.get("datasub_consumers"),
            "evaluated_per_second": self.rate("datasub_evaluated"),
            "rows_per_second": self.rate("datasub_rows"),
            "lag": now.get("datasub_lag"),
            "largest_lag": now.get("datasub_lag_max"),
        }

    def _describe_process(self) -> dict[str, Any]:
        process = self._now.process
        cpu = float(process.get("cpu_seconds", 0))
        if self._before is not None:
            cpu -= float(self._before.process.get("cpu_seconds", 0))
        return {
            "resident_bytes": process.get("resident_bytes", 0),
            "cpu_percent": round(100 * max(0.0, cpu) / self._seconds, 1),
            "loop_lag_seconds": round(float(self._now.get("loop_lag")), 4),
            "open_files": process.get("open_fds", 0),
            "most_files": process.get("max_fds", 0),
        }
