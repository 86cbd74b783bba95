# Part of connection.pxd: what all connections of the process share.

# See settings/model.py; set by Hub.configure().
cdef struct Limits:
    uint32_t max_packet_size, connect_packet_size, max_topic_levels, max_topic_length, max_user_properties
    uint32_t receive_maximum, max_inflight, max_queued_messages, max_queued_bytes, topic_alias_maximum
    uint32_t high_watermark, low_watermark
    uint32_t flush_size         # output that is not kept for the end of the iteration
    uint64_t max_retained_messages, max_retained_bytes
    uint32_t retained_share     # percent of both for one user
    bint shares_anonymous       # clients without a name are together one user
    int64_t connect_timeout, patience       # ms
    uint8_t maximum_qos
    bint retain_available, drop_oldest
    ShareStrategy strategy


# The ingest log and the batch for it that publishes are being added to, see ingest.pxi.
cdef struct Ingest:
    IngestMode mode
    HashFunction hash
    uint32_t partitions
    uint64_t pending            # bytes handed over and not yet durable
    uint64_t limit              # above which publishers wait
    uint64_t largest_record     # of key and value, 0 = any
    bint keeps_state            # QoS 2 packet ids and retained messages are kept across a restart
    uint64_t ticket             # of the last batch submitted
    uint64_t committed          # every batch up to this one is durable, or has failed
    void** packs                # the pack being filled of each partition, or NULL: strong references
    uint32_t* open_packs        # partitions that have one
    uint32_t open_count
    uint64_t open_bytes
    uint32_t open_desks         # packs of desks that leave with the batch
    uint32_t open_changes       # state of desks and sessions that does
    Gathering gathering         # when the batch leaves


cdef class Hub:
    cdef readonly Trie trie
    cdef readonly Turns turns
    cdef readonly RetainedTree retained
    cdef list desks                     # of the kinds of subscribers, in the order they were made
    cdef readonly QueueDesk queues
    cdef object loop
    cdef object _flush_soon             # bound method, made once
    cdef object _read_view              # the shared read buffer as get_buffer gives it
    cdef uint8_t* _read_buffer          # HEADROOM bytes for what was partial, then READ_SIZE
    cdef Counters counters
    cdef Limits limits
    cdef RateLimits rates
    # coarse clocks, moved once a read and once a tick
    cdef int64_t now                    # monotonic ms
    cdef int64_t wall                   # ms since the epoch
    # connections with output to send this iteration: strong references
    cdef void** _dirty
    cdef uint32_t _dirty_count, _dirty_capacity
    cdef bint _flush_scheduled
    cdef uint32_t _room_given           # in this iteration, see ROOM_AT_ONCE
    # all connections, for the sweep: borrowed
    cdef void** _connections
    cdef readonly uint32_t connection_count
    cdef uint32_t _connection_capacity
    cdef readonly uint32_t session_count
    cdef readonly uint32_t attached_count    # sessions with a connection
    cdef uint32_t congested_count       # sessions that make their publishers wait
    cdef uint32_t outlet_numbers        # given to outlets so far
    cdef bint groups_from_log           # share groups with a member that is served from the log are served from there
    cdef dict _impatience               # users or addresses whose readers have used up the patience: until when
    cdef uint64_t random_state
    # scratch: properties of the publish under way, its encoded shapes, properties of the record under way
    cdef Buffer _props, _templates, record_props
    # the ingest log, see ingest.pxi
    cdef Ingest ingest
    cdef object _submit                         # takes (ticket, [(partition, pack)], bytes), once per iteration
    cdef object _submit_soon, _submit_timer     # bound method, made once; TimerHandle or None
    cdef object _collect                        # reports the batch under way, see log_to; None = the log does it anyway
    cdef RecordPack _retained_pack              # retained messages that changed in this iteration
    cdef list _received                         # sessions whose QoS 2 packet ids did, of those that are kept
    cdef list _awaiting                         # connections with answers that wait for the log
    cdef list _log_waiters                      # connections that wait for room in it
    cdef list open_feeds                        # outlets with packs that are being filled, see Outlet.take_filled
    # several brokers on one log
    cdef uint32_t node                          # this one, 0 = alone by its settings
    cdef readonly bint is_spread                # others are there: share groups are served from the log
    cdef int64_t joined_at                      # ms since the epoch
    cdef TopicCounts own_retained               # retained messages on their way into the log and not read yet
    # reports at a bounded rate
    cdef public object on_retained_full     # takes (session or None, topic, whether it is the user's share)
    cdef int64_t _retained_warned       # ms
    cdef int64_t _denials_since         # of the second in which denied publishes were last reported
    cdef uint32_t _denials              # reported in it

    cdef int open_output(self, Connection c) except -1
    cdef int await_log(self, Connection c) except -1
    cdef int add_connection(self, Connection c) except -1
    cdef void remove_connection(self, Connection c) noexcept
    cdef void update_clock(self) noexcept
