# What the hub counts, by the names that metrics and $SYS know.


def count_trimmed(Hub hub not None, Session session, uint32_t count):
    """Messages stored for a DEVICE client, or for a share group (session None), that gave way to newer ones."""
    hub.counters.dropped[<int> DROP_STORE_FULL] += count
    if session is not None:
        session._dropped[<int> DROP_STORE_FULL] += count


def count_denied(Session session not None, uint32_t count):
    """Messages stored for a share group that no member may read any more, found when this client connected."""
    session.hub.counters.dropped[<int> DROP_DENIED] += count
    session._dropped[<int> DROP_DENIED] += count


cdef dict counters_of(Hub hub):
    cdef Counters* c = &hub.counters
    values = {
        "connections_total": c.connects,
        "connections_current": hub.connection_count,
        "sessions": hub.session_count,
        "sessions_connected": hub.attached_count,
        "subscriptions": hub.trie.filter_count,
        "shared_subscriptions": hub.trie.group_count,
        "retained_messages": hub.retained.count,
        "retained_bytes": hub.retained.bytes,
        "publish_bytes_received": c.payload_received,
        "publish_bytes_sent": c.payload_sent,
        "bytes_received": c.bytes_received,
        "bytes_sent": c.bytes_sent,
        "packets_received": c.packets_received,
        "packets_sent": c.packets_sent,
        "socket_reads": c.reads,
        "socket_writes": c.writes,
        "flushes": c.flushes,
        "publish_unmatched": c.unmatched,
        "protocol_errors": c.protocol_errors,
        "publishers_paused": c.paused,
        "congested_subscribers": hub.congested_count,
        "inflight": c.inflight,
        "queued_messages": c.queued,
        "queued_bytes": c.queued_bytes,
        "publish_foreign": c.foreign,
        "publish_logged": c.logged,
        "publish_log_failures": c.log_failures,
        "application_dispatched": c.dispatched,
        "subscription_bytes": hub.trie.subscription_bytes,
        "match_steps": hub.trie.steps,
        "match_pauses": hub.turns.pauses,
        "match_long": hub.turns.long_matches,
        "match_waiting": hub.turns.waiting,
        "ingest_pending_bytes": hub.ingest.pending,
    }
    for qos in range(3):
        values[f"messages_received_qos{qos}"] = c.received[<int> qos]
        values[f"messages_sent_qos{qos}"] = c.sent[<int> qos]
    for i, name in enumerate(DROP_NAMES):
        values[f"messages_dropped_{name}"] = c.dropped[<int> i]
    return values
