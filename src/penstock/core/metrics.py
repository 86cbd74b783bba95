"""What the broker counts, under the names operators see: the counters of the hub as families of metrics.

The hub keeps plain numbers under plain keys; this table gives each its name, meaning and labels. Labels are a QoS or a
cause, never a topic: the number of time series does not grow with the traffic. Only APPLICATION clients, their shared
subscriptions and groups of consumers have numbers of their own, and of each only as many as a setting allows, those
furthest behind.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

PREFIX = "penstock_"
Kind = Literal["counter", "gauge", "histogram"]
Number = int | float


class Meaning(NamedTuple):
    """How one key, or all keys with one beginning, are shown. Counters get `_total` when they are written out."""

    name: str
    kind: Kind
    help: str
    label: str = ""  # what the rest of the key is, for keys with one beginning


@dataclass(slots=True)
class Family:
    """A metric with its samples: (value of its label, number). Those of a histogram say behind the label which of its
    numbers they are, see histogram_counters."""

    meaning: Meaning
    samples: list[tuple[str, Number]] = field(default_factory=list)


class ClientSample(NamedTuple):
    """The numbers of one APPLICATION client: messages it has not acknowledged and those under way, and what happened
    to its session since the broker started."""

    client_id: str
    lag: int
    in_flight: int
    retries: int
    expired: int
    given_up: int = 0


class ShareSample(NamedTuple):
    """The numbers of one shared subscription of APPLICATION clients."""

    share: str
    lag: int
    in_flight: int
    members: int


class GroupSample(NamedTuple):
    """How far one group of consumers is behind in one query topic: `group:topic`."""

    name: str
    lag: int


class QueueSample(NamedTuple):
    """The numbers of one durable queue; what is called lag elsewhere is its depth."""

    queue: str
    lag: int
    unsettled: int
    consumers: int
    dead_letters: int
    held_back: int = 0


EXACT: dict[str, Meaning] = {
    "connections_total": Meaning("connections", "counter", "Connections accepted since the start."),
    "connections_current": Meaning("connections_open", "gauge", "Connections open now."),
    "sessions": Meaning("sessions", "gauge", "Sessions, of connected and disconnected clients."),
    "sessions_expired": Meaning("sessions_expired", "counter", "Sessions that ended because their client stayed away."),
    "subscriptions": Meaning("subscriptions", "gauge", "Subscriptions of all sessions."),
    "shared_subscriptions": Meaning("shared_subscriptions", "gauge", "Subscriptions that are members of a shared one."),
    "subscription_bytes": Meaning(
        "subscription_bytes", "gauge", "Bytes that the filters of all subscriptions count for."
    ),
    "retained_messages": Meaning("retained_messages", "gauge", "Retained messages held."),
    "retained_bytes": Meaning("retained_bytes", "gauge", "Bytes of the retained messages held."),
    "bytes_received": Meaning("received_bytes", "counter", "Bytes of MQTT read from clients."),
    "bytes_sent": Meaning("sent_bytes", "counter", "Bytes of MQTT written to clients."),
    "packets_received": Meaning("packets_received", "counter", "MQTT packets of every type received."),
    "packets_sent": Meaning("packets_sent", "counter", "MQTT packets of every type sent."),
    "publish_bytes_received": Meaning("publish_received_bytes", "counter", "Payload bytes of messages received."),
    "publish_bytes_sent": Meaning("publish_sent_bytes", "counter", "Payload bytes of messages sent."),
    "publish_unmatched": Meaning("messages_unmatched", "counter", "Messages received that no subscription matched."),
    "inflight": Meaning("inflight_messages", "gauge", "QoS 1 and 2 messages sent and not yet acknowledged."),
    "queued_messages": Meaning("queued_messages", "gauge", "Messages waiting for their clients."),
    "queued_bytes": Meaning("queued_bytes", "gauge", "Bytes of the messages waiting for their clients."),
    "protocol_errors": Meaning("protocol_errors", "counter", "Connections closed for a malformed or wrong packet."),
    "sessions_connected": Meaning("sessions_connected", "gauge", "Sessions whose client is connected."),
    "sessions_taken_over": Meaning("sessions_taken_over", "counter", "Connections that took a session over."),
    "publishers_paused": Meaning("publishers_paused", "counter", "Times a publisher was made to wait."),
    "congested_subscribers": Meaning("congested_subscribers", "gauge", "Subscribers their publishers wait for now."),
    "match_steps": Meaning("match_steps", "counter", "Filter nodes and subscriptions looked at to match topics."),
    "match_pauses": Meaning(
        "match_pauses", "counter", "Times a publisher waited for its turn because matching its topics takes long."
    ),
    "match_long": Meaning("long_matches", "counter", "Matches over limits.match_steps, made in slices."),
    "match_waiting": Meaning("match_waiting", "gauge", "Publishers waiting for their turn to match a topic."),
    "socket_reads": Meaning("socket_reads", "counter", "Reads from sockets."),
    "socket_writes": Meaning("socket_writes", "counter", "Writes to sockets."),
    "flushes": Meaning("flushes", "counter", "Loop iterations that had output."),
    "publish_logged": Meaning("messages_logged", "counter", "Messages handed to the ingest log."),
    "publish_log_failures": Meaning("messages_log_failed", "counter", "Messages the ingest log did not take."),
    "ingest_pending_bytes": Meaning("ingest_pending_bytes", "gauge", "Bytes of publishes on their way into the log."),
    "log_appended_records": Meaning("log_appended_records", "counter", "Records the log has made durable."),
    "log_appended_bytes": Meaning("log_appended_bytes", "counter", "Bytes the log has made durable."),
    "log_failed_appends": Meaning("log_failed_appends", "counter", "Appends the log did not take."),
    "log_failed_records": Meaning("log_failed_records", "counter", "Records the log did not take."),
    "log_commits": Meaning("log_commits", "counter", "Commits of the embedded log."),
    "log_commit_seconds": Meaning("log_commit_seconds", "counter", "Time commits took, writing and fdatasync."),
    "log_disk_reads": Meaning("log_disk_reads", "counter", "Reads of segment files."),
    "log_offset_commits": Meaning("log_offset_commits", "counter", "Commits of the offsets of groups."),
    "log_segments_removed": Meaning("log_segments_removed", "counter", "Segments removed by retention."),
    "log_segments_held": Meaning(
        "log_segments_held", "gauge", "Segments over a limit that are kept for a group that has not read them."
    ),
    "log_compactions": Meaning("log_compactions", "counter", "Segments compacted."),
    "log_maintenance_failures": Meaning(
        "log_maintenance_failures", "counter", "Times a topic could not be compacted, or its old segments not removed."
    ),
    "log_damaged_partitions": Meaning(
        "log_damaged_partitions", "gauge", "Partitions with damaged records that a reader waits before."
    ),
    "log_pending_bytes": Meaning("log_pending_bytes", "gauge", "Bytes appended to the log and not yet durable."),
    "log_pending_records": Meaning("log_pending_records", "gauge", "Records appended to Kafka and not yet durable."),
    "log_cached_bytes": Meaning("log_cached_bytes", "gauge", "Bytes of the newest records kept in memory."),
    "log_topics": Meaning("log_topics", "gauge", "Topics of the log."),
    "log_segments": Meaning("log_segments", "gauge", "Segment files of the embedded log."),
    "log_bytes": Meaning("log_bytes", "gauge", "Bytes of all topics of the log, in memory or on the disk."),
    "log_journal_rounds": Meaning("log_journal_rounds", "counter", "Commits of many topics that shared the journal."),
    "log_consumers": Meaning("log_consumers", "gauge", "Consumers of Kafka this broker has open."),
    "log_kafka_client_errors": Meaning("log_kafka_client_errors", "counter", "Errors librdkafka has reported."),
    "log_kafka_queue_bytes": Meaning("log_kafka_queue_bytes", "gauge", "Bytes waiting in librdkafka to be sent."),
    "log_kafka_sent_records": Meaning("log_kafka_sent_records", "counter", "Records librdkafka has sent."),
    "log_kafka_sent_bytes": Meaning("log_kafka_sent_bytes", "counter", "Bytes librdkafka has sent."),
    "log_kafka_received_records": Meaning("log_kafka_received_records", "counter", "Records librdkafka has read."),
    "log_kafka_received_bytes": Meaning("log_kafka_received_bytes", "counter", "Bytes librdkafka has read."),
    "log_kafka_rebalances": Meaning(
        "log_kafka_rebalances", "counter", "Rebalances of groups, as our members saw them."
    ),
    "log_kafka_topics_recreated": Meaning(
        "log_kafka_topics_recreated",
        "counter",
        "Topics that somebody else deleted and made again while they were read.",
    ),
    "events_recorded": Meaning("events_recorded", "counter", "Events of clients written to tbmq.events."),
    "events_lost": Meaning("events_lost", "counter", "Events the log did not take."),
    "application_clients": Meaning("application_clients", "gauge", "Persistent APPLICATION clients."),
    "application_connected": Meaning("application_connected", "gauge", "Those that are connected here."),
    "application_lag_total": Meaning("application_lag", "gauge", "Messages in their topics not yet acknowledged."),
    "application_shared_lag_total": Meaning(
        "application_shared_lag", "gauge", "Messages of their shared subscriptions not yet acknowledged."
    ),
    "application_in_flight": Meaning("application_in_flight", "gauge", "Messages sent to them, not yet acknowledged."),
    "application_dispatched": Meaning("application_dispatched", "counter", "Messages put into their topics."),
    "application_retries_total": Meaning("application_retries", "counter", "Messages not acknowledged in time."),
    "application_expired_total": Meaning("application_expired", "counter", "Messages that expired in their topics."),
    "application_given_up_total": Meaning(
        "application_given_up", "counter", "Messages that were never acknowledged and are lost for their client."
    ),
    "application_delivered_total": Meaning("application_delivered", "counter", "Messages sent to them."),
    "application_acknowledged_total": Meaning("application_acknowledged", "counter", "Messages they acknowledged."),
    "application_duplicates_skipped_total": Meaning(
        "application_duplicates_skipped", "counter", "Messages dispatched again after a crash and recognised."
    ),
    "device_stored": Meaning("device_stored", "counter", "Messages stored for persistent DEVICE clients and groups."),
    "device_stored_messages": Meaning(
        "device_stored_messages", "gauge", "Messages in the store now, for all of them; not known of Redis."
    ),
    "device_stored_bytes": Meaning(
        "device_stored_bytes", "gauge", "Bytes of these messages; unknown with a Redis Cluster."
    ),
    "device_fetched": Meaning("device_fetched", "counter", "Messages read from their store."),
    "device_removed": Meaning("device_removed", "counter", "Messages removed from it because they were acknowledged."),
    "device_trimmed": Meaning("device_trimmed", "counter", "Messages that gave way to newer ones over the limit."),
    "device_store_failures": Meaning("device_store_failures", "counter", "Calls of the store that failed."),
    "device_store_commits": Meaning("device_store_commits", "counter", "Transactions of LMDB, or commands to Redis."),
    "device_waiting": Meaning("device_waiting", "gauge", "Additions on their way into the store."),
    "device_backlogs": Meaning("device_backlogs", "gauge", "Connected clients that get what is stored for them first."),
    "dispatch_rounds": Meaning("dispatch_rounds", "counter", "Rounds of reading the log for persistent clients."),
    "dispatch_damaged": Meaning("dispatch_damaged", "counter", "Records of the log that could not be read."),
    "dispatch_retries": Meaning("dispatch_retries", "counter", "Appends to topics of clients that were tried again."),
    "dispatch_lag": Meaning("dispatch_lag", "gauge", "Records of the log not yet read for persistent clients."),
    "dispatch_too_large": Meaning(
        "dispatch_too_large", "counter", "Messages larger than the topic of an APPLICATION client takes, lost for it."
    ),
    "dispatch_open_rounds": Meaning(
        "dispatch_open_rounds", "gauge", "Rounds of which something is neither acknowledged nor stored yet."
    ),
    "queues": Meaning("queues", "gauge", "Durable queues, dead letters and ephemeral ones included."),
    "queues_held_back": Meaning(
        "queues_held_back", "gauge", "Queues whose slowest group has unsettled messages and no connected consumer."
    ),
    "queue_groups": Meaning("queue_groups", "gauge", "Groups of consumers of durable queues."),
    "queue_consumers": Meaning("queue_consumers", "gauge", "Consumers of durable queues."),
    "queue_relays": Meaning("queue_relays", "gauge", "Subscriptions to queues that another broker serves for us."),
    "queue_pending": Meaning("queue_pending", "gauge", "Messages delivered to consumers and not settled."),
    "queue_published": Meaning("queue_published", "counter", "Messages put into durable queues, once for each."),
    "queue_refused": Meaning("queue_refused", "counter", "Publishes a queue refused: too large, or the queue full."),
    "queue_dropped": Meaning("queue_dropped", "counter", "Messages of queues that were removed without being settled."),
    "queue_dead_letters": Meaning("queue_dead_letters", "counter", "Messages rejected, or delivered too often."),
    "queue_delivered": Meaning("queue_delivered", "counter", "Deliveries of durable queues."),
    "queue_redelivered": Meaning(
        "queue_redelivered", "counter", "Deliveries that were not the first of their message."
    ),
    "queue_acknowledged": Meaning("queue_acknowledged", "counter", "Deliveries their consumers acknowledged."),
    "queue_nacked": Meaning("queue_nacked", "counter", "Deliveries their consumers gave back."),
    "queue_rejected": Meaning("queue_rejected", "counter", "Deliveries their consumers rejected."),
    "queue_expired": Meaning("queue_expired", "counter", "Messages that expired before a group was given them."),
    "datasub_topics": Meaning("datasub_topics", "gauge", "Query topics."),
    "datasub_connections": Meaning("datasub_connections", "gauge", "Connections of consumers."),
    "datasub_groups": Meaning("datasub_groups", "gauge", "Groups of consumers with members at this node."),
    "datasub_consumers": Meaning("datasub_consumers", "gauge", "Consumers in these groups."),
    "datasub_consumers_rebalancing": Meaning(
        "datasub_consumers_rebalancing", "gauge", "Those of them that wait for their partitions."
    ),
    "datasub_rebalances_total": Meaning("datasub_rebalances", "counter", "Rebalances of groups."),
    "datasub_consumers_removed_total": Meaning(
        "datasub_consumers_removed", "counter", "Consumers removed because they were not heard or did not poll."
    ),
    "datasub_commits_total": Meaning("datasub_commits", "counter", "Commits of groups."),
    "datasub_commits_refused_total": Meaning(
        "datasub_commits_refused", "counter", "Commits refused, most because another consumer has the partition."
    ),
    "datasub_lag": Meaning("datasub_lag", "gauge", "Messages that groups have not read, of all groups and topics."),
    "datasub_lag_max": Meaning("datasub_lag_max", "gauge", "The same of the group that is furthest behind."),
    "datasub_retention_suspended": Meaning(
        "datasub_retention_suspended", "gauge", "1 while the limits of Kafka's retention are lifted for a group."
    ),
    "datasub_retention_removed": Meaning(
        "datasub_retention_removed", "counter", "Messages over these limits that the broker removed meanwhile."
    ),
    "datasub_retention_failures": Meaning(
        "datasub_retention_failures", "counter", "Times that the log could not be told what groups need."
    ),
    "datasub_queries": Meaning("datasub_queries", "gauge", "Distinct queries evaluated now."),
    "datasub_evaluated": Meaning("datasub_evaluated", "counter", "Messages that went through these queries."),
    "datasub_catch_up_records": Meaning(
        "datasub_catch_up_records", "counter", "Messages read from the log again for consumers that were behind."
    ),
    "datasub_feed_bytes": Meaning("datasub_feed_bytes", "gauge", "Bytes of rows kept in memory."),
    "datasub_parked": Meaning("datasub_parked_fetches", "gauge", "Fetches that wait for rows."),
    "datasub_readers": Meaning("datasub_readers", "gauge", "Consumers that read the log now because they are behind."),
    "datasub_requests": Meaning("datasub_requests", "counter", "Requests of consumers answered."),
    "datasub_failures": Meaning("datasub_failures", "counter", "Requests answered with an error."),
    "datasub_refused": Meaning("datasub_refused", "counter", "Connections of consumers refused."),
    "datasub_bad_frames": Meaning("datasub_bad_frames", "counter", "Connections ended for a request that was none."),
    "datasub_stalled": Meaning("datasub_stalled", "counter", "Connections ended because answers were not read."),
    "datasub_unsent": Meaning(
        "datasub_unsent", "counter", "Fetches refused because the answers before them were not read yet."
    ),
    "datasub_fetches": Meaning("datasub_fetches", "counter", "Fetches answered."),
    "datasub_rows": Meaning("datasub_rows", "counter", "Rows sent."),
    "datasub_overdue": Meaning("datasub_overdue", "counter", "Fetches answered long after their deadline."),
    "datasub_out_of_range": Meaning(
        "datasub_out_of_range", "counter", "Fetches of what the log does not have any more, or not yet."
    ),
    "datasub_dead_letters": Meaning("datasub_dead_letters", "counter", "Rows with errors written to the error topic."),
    "datasub_dead_letters_lost": Meaning(
        "datasub_dead_letters_lost", "counter", "Rows with errors that could not be written there."
    ),
    "cluster_members": Meaning("cluster_members", "gauge", "Brokers of the cluster that are alive, this one too."),
    "publish_foreign": Meaning("messages_foreign", "counter", "Messages of other brokers with a subscriber here."),
    "cluster_links": Meaning("cluster_links", "gauge", "Consumers at other brokers that are served by this one."),
    "take_over_asked": Meaning("take_over_asked", "counter", "Questions to other brokers who has a client."),
    "take_over_adopted": Meaning("take_over_adopted", "counter", "Sessions taken up from other brokers."),
    "take_over_given_away": Meaning("take_over_given_away", "counter", "Sessions given to other brokers."),
    "housekeeper_noted": Meaning(
        "housekeeper_noted", "counter", "Topics of ended sessions written down as tasks of the housekeeper."
    ),
    "housekeeper_put_off": Meaning(
        "housekeeper_put_off", "counter", "Tasks that failed again and again, tried again an hour later."
    ),
    "housekeeper_unsent": Meaning("housekeeper_unsent", "gauge", "Tasks that wait for the log to take them."),
    "take_over_told": Meaning(
        "take_over_told", "counter", "Notices to brokers that did not answer that a client is here now."
    ),
    "take_over_lost": Meaning(
        "take_over_lost", "counter", "Clients of this broker that another one has, though it was not given them."
    ),
    "take_over_pending": Meaning("take_over_pending", "gauge", "Questions to other brokers that wait for an answer."),
    "take_over_timeouts": Meaning("take_over_timeouts", "counter", "Questions nobody answered in time."),
    "loop_lag": Meaning("loop_lag_seconds", "gauge", "How late the event loop ran its last timer."),
}

BY_BEGINNING: dict[str, Meaning] = {
    "connections_refused_": Meaning(
        "connections_refused", "counter", "Connections closed before MQTT began, by cause.", "cause"
    ),
    "messages_received_qos": Meaning("messages_received", "counter", "PUBLISH packets received, by QoS.", "qos"),
    "messages_sent_qos": Meaning("messages_sent", "counter", "PUBLISH packets sent, by QoS.", "qos"),
    "messages_dropped_": Meaning(
        "messages_dropped", "counter", "Messages not delivered to a subscriber, by cause.", "cause"
    ),
    "log_kafka_queue_messages_": Meaning(
        "log_kafka_queue_messages", "gauge", "Records waiting in librdkafka: to be sent, or read ahead.", "kind"
    ),
    "log_kafka_brokers_known_": Meaning("log_kafka_brokers_known", "gauge", "Kafka brokers known.", "kind"),
    "log_kafka_brokers_up_": Meaning("log_kafka_brokers_up", "gauge", "Kafka brokers with a connection.", "kind"),
    "log_kafka_requests_waiting_": Meaning(
        "log_kafka_requests_waiting", "gauge", "Requests to Kafka without an answer.", "kind"
    ),
    "log_kafka_request_errors_": Meaning(
        "log_kafka_request_errors", "counter", "Requests to Kafka that failed.", "kind"
    ),
    "log_kafka_request_retries_": Meaning(
        "log_kafka_request_retries", "counter", "Requests to Kafka sent again.", "kind"
    ),
    "log_kafka_request_timeouts_": Meaning(
        "log_kafka_request_timeouts", "counter", "Requests not answered in time.", "kind"
    ),
    "log_kafka_rtt_avg_ms_": Meaning(
        "log_kafka_rtt_avg_ms", "gauge", "Answer time of the slowest broker, mean, in ms.", "kind"
    ),
    "log_kafka_rtt_p99_ms_": Meaning(
        "log_kafka_rtt_p99_ms", "gauge", "Answer time of the slowest broker, 99th percentile, in ms.", "kind"
    ),
    "log_kafka_throttle_avg_ms_": Meaning(
        "log_kafka_throttle_avg_ms", "gauge", "How long Kafka makes us wait, in ms.", "kind"
    ),
    "pending_requests_count_": Meaning(
        "pending_requests_count", "gauge", "Calls to other brokers that wait.", "channel"
    ),
    "pending_requests_memory_": Meaning(
        "pending_requests_memory_bytes", "gauge", "Bytes of the calls that wait and of their bookkeeping.", "channel"
    ),
    "request_timeout_count_": Meaning("request_timeout_count", "counter", "Calls nobody answered in time.", "channel"),
    "response_lag_seconds_": Meaning(
        "response_lag_seconds", "histogram", "Time from a call to its answer, of those that were answered.", "channel"
    ),
    "calls_completed_": Meaning("calls_completed", "counter", "Calls to other brokers that were answered.", "channel"),
    "calls_failed_": Meaning("calls_failed", "counter", "Calls that could not be sent.", "channel"),
    "calls_rejected_": Meaning(
        "calls_rejected", "counter", "Calls refused at once: too many wait, or too large.", "channel"
    ),
    "calls_ignored_": Meaning(
        "calls_ignored", "counter", "Answers nobody waited for: late, or second ones.", "channel"
    ),
    "calls_lag_": Meaning("calls_lag", "gauge", "Calls and answers in the log that were not read yet.", "channel"),
    "calls_answered_": Meaning("calls_answered", "counter", "Calls of other brokers answered.", "channel"),
    "calls_expired_": Meaning(
        "calls_expired", "counter", "Calls of other brokers read too late to be answered.", "channel"
    ),
    "calls_undecodable_": Meaning(
        "calls_undecodable", "counter", "Records that were no calls, or no answers.", "channel"
    ),
    "pack_messages_": Meaning(
        "pack_messages", "counter", "Messages to this broker handled, once for each round (totalMsgs).", "queue"
    ),
    "pack_successful_": Meaning("pack_successful", "counter", "Those that succeeded (successfulMsgs).", "queue"),
    "pack_failed_": Meaning("pack_failed", "counter", "Those that failed and were given up (failedMsgs).", "queue"),
    "pack_timed_out_": Meaning(
        "pack_timed_out", "counter", "Those that took too long and were given up (timeoutMsgs).", "queue"
    ),
    "pack_retried_failed_": Meaning(
        "pack_retried_failed", "counter", "Those that failed and were tried again (tmpFailed).", "queue"
    ),
    "pack_retried_timed_out_": Meaning(
        "pack_retried_timed_out", "counter", "Those that took too long and were tried again (tmpTimeout).", "queue"
    ),
    "pack_rounds_successful_": Meaning(
        "pack_rounds_successful", "counter", "Rounds of packs without a failure (successfulIterations).", "queue"
    ),
    "pack_rounds_failed_": Meaning(
        "pack_rounds_failed", "counter", "Rounds of packs with failures (failedIterations).", "queue"
    ),
    "pack_late_": Meaning("pack_late", "counter", "Those given up that succeeded after all.", "queue"),
    "pack_undecodable_": Meaning("pack_undecodable", "counter", "Records set aside: they were no messages.", "queue"),
    "pack_dead_letter_failures_": Meaning(
        "pack_dead_letter_failures", "counter", "Records set aside that could not be kept as dead letters.", "queue"
    ),
}

# A field of ClientSample to its family.
BY_CLIENT: dict[str, Meaning] = {
    "lag": Meaning("application_client_lag", "gauge", "Messages in its topic not yet acknowledged.", "client"),
    "in_flight": Meaning("application_client_in_flight", "gauge", "Messages sent, not yet acknowledged.", "client"),
    "retries": Meaning("application_client_retries", "counter", "Messages not acknowledged in time.", "client"),
    "expired": Meaning("application_client_expired", "counter", "Messages that expired in its topic.", "client"),
    "given_up": Meaning("application_client_given_up", "counter", "Messages lost: never acknowledged.", "client"),
}
# A field of ShareSample to its family.
BY_SHARE: dict[str, Meaning] = {
    "lag": Meaning("application_share_lag", "gauge", "Messages of the share not yet acknowledged.", "share"),
    "in_flight": Meaning("application_share_in_flight", "gauge", "Messages sent, not yet acknowledged.", "share"),
    "members": Meaning("application_share_members", "gauge", "Clients in the share, connected or not.", "share"),
}
# A field of GroupSample to its family.
BY_GROUP: dict[str, Meaning] = {
    "lag": Meaning("datasub_group_lag", "gauge", "Messages the group has not read in the topic.", "group"),
}
# A field of QueueSample to its family.
BY_QUEUE: dict[str, Meaning] = {
    "lag": Meaning("queue_depth", "gauge", "Messages of the queue that some group has yet to settle.", "queue"),
    "unsettled": Meaning("queue_unsettled", "gauge", "Messages of the queue delivered and not settled.", "queue"),
    "consumers": Meaning("queue_members", "gauge", "Consumers of the queue, of all its groups.", "queue"),
    "dead_letters": Meaning("queue_dead", "counter", "Messages of the queue that became dead letters.", "queue"),
    "held_back": Meaning(
        "queue_held_back", "gauge", "1 while the slowest group of the queue has no consumer.", "queue"
    ),
}
LONGEST_LABEL = 128

SUM = "sum"
_PART = "|le="

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


def describe(counters: Mapping[str, Number]) -> list[Family]:
    """The families of one reading of the counters, in the order of their names; every number is in exactly one."""
    families: dict[str, Family] = {}
    for key, number in counters.items():
        meaning, label = _meaning_of(key)
        family = families.get(meaning.name)
        if family is None:
            family = families[meaning.name] = Family(meaning)
        family.samples.append((label, number))
    for family in families.values():
        family.samples.sort()
    return [families[name] for name in sorted(families)]


def histogram_counters(key: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> dict[str, Number]:
    """A histogram as plain numbers, which is what counters are everywhere: how many were at most as large as each
    bound, and the sum of all. `counts` are those of each bucket alone, one more than there are bounds."""
    edges = [*map(str, bounds), "+Inf"]
    at_most = dict(zip((f"{key}{_PART}{edge}" for edge in edges), accumulate(counts), strict=True))
    return {**at_most, f"{key}{_PART}{SUM}": total}


def histograms_of(family: Family) -> dict[str, tuple[list[tuple[str, Number]], Number]]:
    """By the value of the label: the upper edges of the buckets with how many there are up to each, and the sum."""
    parts: dict[str, dict[str, Number]] = {}
    for label, number in family.samples:
        name, _, part = label.rpartition(_PART)
        parts.setdefault(name, {})[part] = number
    sums = {name: numbers.pop(SUM) for name, numbers in parts.items()}
    return {
        name: (sorted(numbers.items(), key=lambda part: float(part[0])), sums[name]) for name, numbers in parts.items()
    }


def _meaning_of(key: str) -> tuple[Meaning, str]:
    meaning = EXACT.get(key)
    if meaning is not None:
        return meaning, ""
    for beginning, labelled in BY_BEGINNING.items():
        if key.startswith(beginning) and len(key) > len(beginning):
            return labelled, key.removeprefix(beginning).removeprefix("total_")
    # A counter the table does not know yet is shown all the same, under a name made from its key.
    name = _NOT_IN_A_NAME.sub("_", key)
    if name.endswith("_total"):
        return Meaning(name.removesuffix("_total"), "counter", f"The broker's counter {name}."), ""
    return Meaning(name, "gauge", f"The broker's value {name}."), ""


def describe_clients(clients: Iterable[ClientSample], most: int) -> list[Family]:
    """The families of at most so many clients: those with the largest lag, by name where it is the same."""
    named = ((client.client_id, client) for client in clients)
    return _describe_furthest(named, most, BY_CLIENT)


def describe_shares(shares: Iterable[ShareSample], most: int) -> list[Family]:
    """The same for shared subscriptions."""
    return _describe_furthest(((share.share, share) for share in shares), most, BY_SHARE)


def describe_groups(groups: Iterable[GroupSample], most: int) -> list[Family]:
    """The same for groups of consumers of query topics."""
    return _describe_furthest(((group.name, group) for group in groups), most, BY_GROUP)


def describe_queues(queues: Iterable[QueueSample], most: int) -> list[Family]:
    """The same for durable queues: the deepest."""
    return _describe_furthest(((queue.queue, queue) for queue in queues), most, BY_QUEUE)


Sample = ClientSample | ShareSample | GroupSample | QueueSample


def _describe_furthest(
    samples: Iterable[tuple[str, Sample]], most: int, meanings: Mapping[str, Meaning]
) -> list[Family]:
    chosen = heapq.nsmallest(most, samples, key=lambda named: (-named[1].lag, named[0]))
    # Two samples under one label would make the whole page unreadable, so a label is given once.
    labelled = {_short_label(name): sample for name, sample in reversed(chosen)}
    return [
        Family(meaning, sorted((label, getattr(sample, name)) for label, sample in labelled.items()))
        for name, meaning in meanings.items()
        if labelled
    ]


def _short_label(name: str) -> str:
    """The name; a very long one as its beginning and a digest of all of it."""
    if len(name) <= LONGEST_LABEL:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[: LONGEST_LABEL - 33]}~{digest}"
