# The hot unit: connections, sessions and the hub they share. One compilation unit (connection.pyx includes the .pxi
# files), because a message passes through all three and calls across units are not inlined.
#
# Who may change what: everything here belongs to the event loop's thread. Routing a message (route.pxi) never calls a
# handler and never closes a connection, so subscriptions and sessions stand still while a match is walked.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.buffer cimport Buffer
from penstock._ext.codec cimport PublishView
from penstock._ext.envelope cimport EnvelopeView
from penstock._ext.inflight cimport Hold, IdSet, Queue, Queued, Window
from penstock._ext.partition cimport HashFunction
from penstock._ext.pack cimport PackTracker
from penstock._ext.pending cimport PendingList
from penstock._ext.retained cimport RetainedTree
from penstock._ext.segment cimport RecordPack, RecordView
from penstock._ext.trie cimport Match, ShareGroup, Subscriber, Trie
from penstock._ext.websocket cimport WsReader


cdef enum ConnectionState:
    WAITING = 0             # for CONNECT
    DECIDING = 1            # CONNECT read, the handler has not answered yet: what follows is kept unread
    AUTHENTICATING = 2      # an AUTH exchange runs: only AUTH and DISCONNECT are read
    CONNECTED = 3
    CLOSING = 4             # ended for the session; the transport still sends what it holds
    CLOSED = 5


include "drop_causes.pxi"


cdef enum:
    MOST_RATES = 4


# So many messages in so long, for several times at once; none = no limit.
cdef struct Rates:
    uint32_t count
    int64_t period[4]       # ns; MOST_RATES of them
    int64_t each[4]         # ns of it that a message takes up


cdef enum ShareStrategy:
    SHARE_ROUND_ROBIN = 0
    SHARE_RANDOM = 1
    SHARE_STICKY = 2
    SHARE_HASH_CLIENT = 3
    SHARE_HASH_TOPIC = 4


cdef enum IngestMode:
    INGEST_NONE = 0
    INGEST_PERSISTENT = 1   # QoS 1 and 2
    INGEST_ALL = 2


# An answer to a publish that waits until the log has it.
cdef struct PendingAck:
    uint64_t ticket         # of the batch the publish is in; RELAYED: another node has yet to answer
    uint16_t packet_id
    uint8_t packet_type     # PUBACK or PUBREC
    uint8_t reason          # DUPLICATE: of a QoS 2 publish that came again before the log had it
    uint8_t text            # why, in words: index of ANSWER_TEXTS


cdef struct Counters:
    uint64_t received[3]    # PUBLISH by QoS
    uint64_t sent[3]
    uint64_t payload_received
    uint64_t payload_sent
    uint64_t bytes_received
    uint64_t bytes_sent
    uint64_t packets_received
    uint64_t packets_sent
    uint64_t reads
    uint64_t writes
    uint64_t flushes
    uint64_t connects       # transports opened
    uint64_t unmatched
    uint64_t protocol_errors
    uint64_t paused         # times a publisher was made to wait
    uint64_t inflight       # of all sessions, now; so are the two below
    uint64_t queued
    uint64_t queued_bytes
    uint64_t logged         # publishes handed to the log
    uint64_t log_failures   # publishes the log did not take
    uint64_t foreign        # messages that another broker took, with a subscriber here
    uint64_t dispatched     # copies written to the logs of APPLICATION clients
    uint64_t dropped[12]    # DROP_CAUSES of them


# A publisher's recent topics: who gets them, and whether it may publish there.
cdef struct TopicSlot:
    Match* match
    uint32_t partition      # of the ingest log
    bint allowed


# The same for topics under $queue/: the queues that get the message, or what is to be settled.
cdef struct QueueSlot:
    Match* match
    void* queue             # of a settlement: strong reference to DurableQueue, NULL = there is none
    uint8_t verb            # QueueVerb
    bint allowed


cdef struct Alias:
    uint8_t* topic
    uint64_t hash
    uint32_t size


# How many times each topic is under way, by the hash of the topic: see cluster.pxi.
cdef struct TopicCount:
    uint64_t hash           # 0 = free
    uint32_t count

cdef struct TopicCounts:
    TopicCount* items
    uint32_t used
    uint32_t capacity       # a power of 2


cdef class Hub:
    cdef readonly Trie trie
    cdef readonly RetainedTree retained
    cdef object loop
    cdef object _flush_soon             # bound method, made once
    cdef object _read_view              # the shared read buffer as get_buffer gives it
    cdef uint8_t* _read_buffer          # HEADROOM bytes for what was partial, then READ_SIZE
    cdef Counters counters
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
    cdef uint64_t random_state
    # scratch of the publish under way
    cdef Buffer _props
    cdef Buffer _templates
    # the ingest log, see ingest.pxi
    cdef IngestMode ingest_mode
    cdef HashFunction ingest_hash
    cdef uint32_t ingest_partitions
    cdef readonly uint64_t ingest_pending       # bytes handed over and not yet durable
    cdef uint64_t ingest_limit, largest_record  # above which publishers wait; of key and value, 0 = any
    cdef readonly uint64_t ticket               # of the last batch submitted
    cdef readonly uint64_t committed            # every batch up to this one is durable, or has failed
    cdef object _submit                         # takes (ticket, [(partition, pack)], bytes), once per iteration
    cdef void** _packs                          # the pack being filled of each partition, or NULL: strong references
    cdef uint32_t* _open_packs                  # partitions that have one
    cdef uint32_t _open_count
    cdef uint64_t _open_bytes
    cdef RecordPack _retained_pack              # retained messages that changed in this iteration
    cdef list _received                         # sessions whose QoS 2 packet ids did, of those that are kept
    cdef bint keeps_state                       # both are kept across a restart
    cdef list _awaiting                         # connections with answers that wait for the log
    cdef list _log_waiters                      # connections that wait for room in it
    # the logs of APPLICATION clients, see dispatch.pxi and lanes.pxi
    cdef list _open_feeds                       # feeds with packs that are being filled
    cdef uint64_t _round                        # of dispatching
    cdef bint _is_replay                        # what was in the log when the broker started
    # several brokers on one log, see cluster.pxi
    cdef uint32_t node                          # this one, 0 = alone by its settings
    cdef readonly bint is_spread                # others are there: share groups are served from the log
    cdef bint _is_adoption                      # only for sessions that came from another broker
    cdef readonly int64_t dispatch_position     # where dispatch() stopped in a pack, -1 = at its end
    cdef int64_t _dispatch_until                # the offset it stops at, -1 = none
    cdef Session _stalled_by                    # the subscriber it stopped for
    cdef int64_t _joined_at                     # ms since the epoch
    cdef TopicCounts _own_retained              # retained messages on their way into the log and not read yet
    cdef list _lane_news                        # lanes that want something of Python, told once per iteration
    cdef list _dirty_lanes                      # lanes whose stored context is behind
    cdef bint _lanes_scheduled
    cdef object _tell_soon                      # bound method, made once
    cdef object _on_lanes                       # takes the lanes with news
    cdef object _on_detach                      # takes a session whose lanes must be closed
    cdef Buffer _lane_props
    # persistent DEVICE clients, see device.pxi
    cdef list _stashed                          # sessions with records for the store
    cdef dict _group_stash                      # packs for share groups without a member here, by $share/name/filter
    cdef list _unsaved                          # sessions with messages sent that are neither acknowledged nor stored
    cdef list _device_news                      # sessions with something acknowledged that is stored, or with room
    cdef bint _devices_scheduled
    cdef object _devices_soon                   # bound method, made once
    cdef object _on_devices
    cdef object _on_device_detach
    cdef int64_t persist_after                  # ms
    # durable queues, see queues.pxi
    cdef readonly Trie bindings                 # which queues get what: its subscribers are DurableQueues
    cdef uint32_t capturing                     # queues that take ordinary topics as well
    cdef list _open_queues                      # queues that were published to in this iteration
    cdef list _queue_news                       # groups with something to do in this iteration
    cdef list _changed_groups                   # groups whose state has to be stored
    cdef list _queue_calls                      # groups that want something of Python
    cdef object _on_queues                      # takes them
    cdef object _find_queue                     # takes (topic, is_settlement): the queue of a settlement, or makes one
    cdef object _on_queue_detach                # takes a session with consumers whose connection goes
    cdef object _on_relay                       # takes settlements of queues that another node serves; None = alone
    cdef uint32_t consumer_numbers
    cdef int64_t queue_epoch                    # what is added to `now` to make times that can be stored
    cdef Buffer _queue_props, _queue_topic
    cdef bint limits_rates
    cdef Rates incoming_rates, outgoing_rates, total_rates, stored_rates
    cdef int64_t total_turns[4]
    cdef int64_t stored_turns[4]
    cdef uint32_t packs_in_flight
    cdef uint32_t application_flush             # messages of a lane after which its output is sent
    # limits, see core/settings/model.py; set by configure()
    cdef uint32_t max_packet_size, connect_packet_size, max_topic_levels, max_topic_length, max_user_properties
    cdef uint32_t receive_maximum, max_inflight, max_queued_messages, max_queued_bytes, topic_alias_maximum
    cdef uint32_t high_watermark, low_watermark
    cdef uint32_t flush_size             # output that is not kept for the end of the iteration
    cdef uint64_t max_retained_messages, max_retained_bytes
    cdef int64_t connect_timeout, patience
    cdef uint8_t maximum_qos
    cdef bint retain_available, drop_oldest
    cdef ShareStrategy strategy

    cdef int open_output(self, Connection c) except -1
    cdef int await_log(self, Connection c) except -1
    cdef int add_connection(self, Connection c) except -1
    cdef void remove_connection(self, Connection c) noexcept
    cdef void update_clock(self) noexcept


# What one subscriber gets of a record that is dispatched.
cdef struct Delivery:
    Hold* hold
    const ShareGroup* group     # NULL = not through a shared subscription
    const uint32_t* ids
    uint32_t partition          # of the log it was read from
    uint16_t id_count
    uint8_t qos
    bint retain


cdef class Round:
    cdef Hold hold


# A topic that is filled with the messages of one APPLICATION client, or of one filter that such clients share.
cdef class Feed:
    cdef readonly str topic
    cdef readonly uint32_t partitions
    cdef void** _packs              # the pack being filled of each partition, or NULL: strong references
    cdef bint _is_open
    # the record it got last: one that several share groups match is written once
    cdef int64_t _last_offset
    cdef uint32_t _last_partition
    cdef uint64_t _round

    cdef RecordPack open(self, Hub hub, uint32_t partition)


# What a client had in flight when its last connection ended, until the record is read again.
cdef struct Saved:
    int64_t offset
    uint16_t packet_id      # 0 = it has to get a new one
    uint8_t state           # as in pack.Entry
    bint is_new             # PUBREC came on this connection, and no context that says so is durable yet


# A PUBREL that may leave when the snapshot with this number is durable.
cdef struct Release:
    uint64_t mark
    uint16_t packet_id


cdef class Lane:
    cdef readonly Session session
    cdef readonly str topic
    cdef readonly uint32_t partition
    cdef readonly bint is_shared
    cdef readonly bint is_closed
    cdef readonly bytes context         # when it is closed
    cdef uint8_t qos_limit
    cdef uint32_t identifier            # of the shared subscription
    cdef bint keeps_retain
    cdef void** trackers                # the packs under way, oldest first: strong references to PackTracker
    cdef uint32_t tracker_count, tracker_capacity
    cdef uint32_t sending               # the pack whose records are sent next
    cdef uint32_t pack_size             # records of a full pack
    cdef uint32_t planned               # records of all packs
    cdef uint64_t planned_bytes         # what these packs hold in memory
    cdef uint32_t ahead                 # those of them that are sent, or done
    cdef uint32_t unflushed
    cdef readonly int64_t committed     # everything before it is acknowledged
    cdef readonly int64_t position      # the next offset that is planned
    cdef public int64_t until           # only records before it are this lane's; -1 = all
    cdef int64_t* seen                  # per source partition: the highest source offset planned, -1 = none
    cdef uint32_t seen_count
    cdef Saved* kept                    # in flight on an earlier connection and not read again yet, by offset
    cdef uint32_t kept_count, kept_capacity, kept_at
    cdef int64_t kept_end               # before it, what is not kept is done
    cdef uint64_t mark                  # of the last snapshot
    cdef uint64_t durable               # every snapshot up to this one is durable
    cdef Release* releases              # ring would be more: moved to the front when full
    cdef uint32_t release_at, release_count, release_capacity
    cdef bint is_dirty, is_listed, has_news
    cdef public bint is_paused          # the caller does not read it now
    cdef public bint is_live            # what is in flight was sent on the connection that the client has
    cdef public set unsent              # except these packet ids; of a lane that is closed: those not sent on it
    cdef bint is_resumed                # PUBRELs of an earlier connection were sent again
    cdef public list peers              # sessions of the share: one of them may have what this client may not
    cdef readonly bytes denied_topic    # of the record at `position`, which is for one of them; None = no such record
    cdef readonly uint64_t delivered, acknowledged, expired, duplicates, retried, skipped, damaged

    cdef int keep(self, int64_t offset, uint16_t packet_id, uint8_t state) except -1
    cdef int put_runs(self, Buffer* out) except -1
    cdef int plan(self, PackTracker tracker, const RecordView* record, uint16_t part, uint32_t at) except -1
    cdef bint note_seen(self, uint32_t partition, int64_t offset) except -1
    cdef Saved* take_kept(self, int64_t offset) noexcept
    cdef void drop_kept(self, int64_t offset) noexcept
    cdef bint plan_parts(self, PackTracker tracker) except -1
    cdef int add_tracker(self, PackTracker tracker) except -1
    cdef int change(self) except -1
    cdef int call(self) except -1
    cdef inline uint32_t done_ahead(self) noexcept
    cdef int advance(self) except -1
    cdef int finish(self, PackTracker tracker, uint32_t index) except -1
    cdef int await_release(self, uint16_t packet_id) except -1
    cdef uint32_t give_up(self, PackTracker tracker) except? 0xFFFFFFFF
    cdef uint32_t send_again(self, PackTracker tracker, uint32_t place) except? 0xFFFFFFFF


# A durable queue where messages come in; penstock.queues has the rest of it.
cdef class DurableQueue(Subscriber):
    cdef readonly Hub hub
    cdef readonly str name
    cdef bytes _address                 # `$queue/<name>`
    cdef const uint8_t* name_text
    cdef uint32_t name_size
    cdef readonly bint is_stream
    cdef public object owner            # penstock.queues' side of it
    cdef RecordPack pack                # being filled in this iteration
    cdef public uint32_t max_message_size
    cdef public int64_t message_ttl     # ms, 0 = for ever
    cdef public uint64_t max_depth      # 0 = no limit
    cdef public bint drops_oldest       # at max_depth, instead of refusing
    cdef public bint is_closed          # to publishers: a dead-letter queue
    cdef public bint is_spare           # the reserved queue: when it is full, others do without it
    cdef public bint is_elsewhere       # another node serves its consumers
    cdef readonly int64_t tail          # the offset of the next message
    cdef readonly int64_t under_way     # messages handed to the log that it has not answered for
    cdef public uint64_t max_memory, memory     # of a queue in memory: limit (0 = none), and its packs not removed
    cdef public int64_t floor           # what is before it, every group has done with
    cdef list groups
    cdef public QueueGroup primary      # the group whose progress streams tell, or None
    cdef public bytes primary_name      # empty = none is configured
    cdef public object removed          # offsets an operator has taken out, or None
    cdef readonly uint64_t published, refused

    cdef public bint has_ids            # of QoS 2 in messages since it was last set to False
    cdef int take(self, const PublishView* view, Session origin, int64_t expires_at, bint is_alone) except -1


cdef class QueueConsumer:
    cdef readonly Session session
    cdef readonly QueueGroup group
    cdef readonly uint32_t number       # among all of the process, from 1
    cdef public uint32_t prefetch       # messages it may have unsettled
    cdef readonly uint32_t unsettled
    cdef uint32_t waiting               # of them: given to it, and not sent yet
    cdef public uint8_t qos
    cdef public uint32_t identifier     # of the subscription
    cdef public bint settles_by_ack     # MQTT 3, or asked for: PUBACK and PUBCOMP settle
    cdef readonly uint64_t delivered
    cdef readonly bint is_gone

    cdef bint has_room(self) noexcept


cdef class Courier:
    cdef readonly Session session
    cdef readonly uint32_t number       # among those of consumers of queues
    cdef readonly uint32_t carried      # sent and not acknowledged
    cdef readonly uint8_t qos
    cdef readonly bint is_closed
    cdef uint32_t identifier
    cdef bint _is_told
    cdef object _on_news, _tell_soon
    cdef list _acked

    cdef int note(self) except -1
    cdef bint carry(self, const PublishView* view, int64_t token) except -1


# A message that was given to a consumer, and is sent when that is durable.
cdef struct Planned:
    void* pack              # strong references: what the record lies in, and who it was given to
    void* consumer
    RecordView record
    EnvelopeView view       # of it, but for properties: they were only there while it was read
    uint64_t mark           # of the change that has to be durable
    uint32_t deliveries


cdef class QueueGroup:
    cdef readonly DurableQueue queue
    cdef readonly str name
    cdef readonly str id                # name, or name@filter
    cdef const uint8_t* name_text
    cdef const uint8_t* id_text
    cdef uint32_t name_size, id_size
    cdef bytes _filter                  # the whole filter, or None: everything
    cdef bytes _names                   # the properties group-id and queue of every delivery
    cdef public object owner
    cdef readonly PendingList pending
    cdef public bint auto_commit
    cdef public bint is_paused
    cdef public bint is_reading         # its records are being read: there is room for more
    cdef int64_t _committed             # of a stream
    cdef list consumers
    cdef uint32_t turn
    # what was read and is not given to anybody yet; what is read again
    cdef list packs, again
    cdef size_t pack_at, again_at
    cdef readonly uint64_t buffered     # bytes of packs
    cdef Planned* planned
    cdef uint32_t planned_at, planned_count, planned_capacity
    cdef uint64_t mark                  # of the last change that was taken for storing
    cdef readonly bint is_changed
    cdef bint has_news, is_listed, wants_call
    cdef public int64_t visibility      # ms
    cdef public uint32_t max_deliveries
    cdef public double backoff, max_backoff, multiplier     # ms
    cdef readonly dict reasons          # of rejected messages, by offset
    cdef public dict reason_changes     # of them: what is not stored yet, None = settled
    cdef readonly uint64_t delivered, redelivered, acknowledged, nacked, rejected, expired, damaged, filtered

    cdef int64_t clock(self) noexcept
    cdef int note(self) except -1
    cdef int call(self) except -1
    cdef int change(self) except -1
    cdef int work(self) except -1
    cdef int give(self) except -1
    cdef int note_moved(self, int64_t cursor) except -1
    cdef int give_again(self) except -1
    cdef bint is_wanted(self, const EnvelopeView* view) except -1
    cdef bint is_readable(self, const RecordView* record, EnvelopeView* view) except -1
    cdef int64_t delay_after(self, uint32_t nacks) noexcept
    cdef int settle_stream(self, int64_t offset, uint8_t verb) except -1
    cdef QueueConsumer choose(self)
    cdef QueueConsumer find_consumer(self, uint32_t number)
    cdef int plan(self, RecordPack pack, const RecordView* record, const EnvelopeView* view, QueueConsumer consumer,
                  uint32_t deliveries) except -1
    cdef void drop_planned(self) noexcept
    cdef int drop_pack(self) except -1
    cdef int settle_one(self, QueueConsumer consumer, int64_t offset, uint8_t verb) except -1


cdef class Session(Subscriber):
    cdef readonly Hub hub
    cdef readonly str client_id
    cdef readonly object username       # str or None
    cdef const uint8_t* id_text         # UTF-8 of client_id and username, borrowed from them
    cdef const uint8_t* user_text       # NULL without a user name
    cdef uint32_t id_size, user_size
    cdef public object will             # penstock.session's business
    cdef public object timer            # the same: when the session ends, when its will is due
    cdef public uint32_t expiry_interval
    cdef public int64_t since           # ms since the epoch: a replay of the log is not for sessions that are younger
    cdef public str client_type         # "device" or "application", by its credentials
    cdef public Feed feed               # where messages with QoS > 0 for it are written; None: they are sent at once
    cdef public bint via_log            # a persistent DEVICE: messages with QoS > 0 come from the log
    cdef public bint is_adopted         # came from another broker; what that one has not dispatched is repeated for it
    cdef public bint live               # nothing waits in its store: they are sent as they come
    cdef bint is_unsaved, has_device_news, wants_more
    cdef bint received_changed
    cdef readonly uint32_t left_unreleased      # QoS 2 packet ids it still held when it ended
    cdef readonly list left_shares              # filters of the share groups it was in when it ended
    cdef RecordPack stash               # records for its store
    cdef uint32_t stash_sent            # those at its front that were sent already
    cdef Buffer settled                 # packet ids acknowledged that are stored
    cdef Buffer released                # packet ids of stored QoS 2 messages whose PUBREC came
    cdef void** lanes                   # what of the log is on its way to it: strong references to Lane
    cdef uint32_t lane_count, lane_capacity
    cdef public uint8_t version
    cdef readonly uint32_t generation   # moves with every attach and detach
    cdef readonly Connection connection     # None while offline
    cdef bint _keeps                    # outlives its connection: what is in flight may have to be sent again
    cdef bint _ended
    cdef uint64_t _client_hash
    cdef Window window
    cdef Queue queue
    cdef IdSet received                 # QoS 2 packet ids awaiting PUBREL
    cdef readonly uint32_t received_sequence    # of the newest QoS 2 message that is logged with its packet id
    cdef uint32_t limit                 # of the client's receive maximum and ours
    cdef uint32_t outstanding           # sent on this connection and not acknowledged
    cdef uint32_t backlog               # retained messages waiting in the queue: everything live waits behind them
    cdef uint64_t backlog_bytes
    cdef uint16_t* resend               # packet ids to be sent again on this connection, in order
    cdef uint32_t resend_at, resend_count
    cdef readonly uint64_t delivered    # messages sent to it
    cdef uint32_t _dropped[12]          # DROP_CAUSES of them
    cdef int64_t* turns                 # until when its share of the rates is used up, in and out; NULL = not at all
    cdef bint congested                 # makes its publishers wait
    cdef int64_t congested_since
    cdef int64_t forgiven_at            # until then it may not make anybody wait
    cdef list waiters                   # connections waiting for it, or None
    cdef list consumers                 # of durable queues, or None
    cdef list couriers                  # of query topics and of queues served elsewhere, or None

    cdef inline bint is_full(self) noexcept
    cdef inline bint take(self, Queued* item) noexcept
    cdef int pump(self) except -1
    cdef bint take_retained(self, Queued* item) noexcept
    cdef int enqueue(self, void* message, void* extras, uint8_t qos, uint16_t flags) except -1
    cdef inline bint over(self, uint32_t part) noexcept
    cdef int _plan_resend(self) except -1
    cdef int resend_one(self, Connection c) except -1
    cdef int watch(self) except -1
    cdef int maybe_ease(self) except -1
    cdef int ease(self) except -1
    cdef int give_up(self) except -1
    cdef int release_waiters(self) except -1
    cdef void remove_lane(self, Lane lane) noexcept


cdef class Connection:
    cdef Hub hub
    cdef readonly object handler
    cdef readonly object listener
    cdef readonly object transport
    cdef readonly Session session
    cdef public object context          # the handler's, while CONNECT is decided or AUTH runs
    cdef object _peer
    cdef public object certificate
    cdef public object authentication   # the handler's: the AUTH method of a connected client
    cdef public bint listener_refused   # the handler's: it was never admitted
    cdef readonly str close_reason
    cdef int fd                         # of a plain socket, -1 when only the transport may write
    cdef readonly uint8_t version
    cdef uint8_t state
    cdef bint ended                     # on_closed was called
    cdef bint writable                  # below the high watermark
    cdef bint transport_busy            # the transport holds bytes of ours
    cdef bint dirty
    cdef bint broken                    # the socket failed; the transport will tell
    cdef bint blocked                   # waits for a subscriber: what was read is kept
    cdef bint reading
    cdef bint clean_close               # the client said DISCONNECT
    cdef public bint explains           # the client wants reasons in words [MQTT-3.1.2-29]
    cdef uint32_t index                 # in the hub's list
    cdef uint32_t keep_alive            # ms after which silence ends it, 0 = never
    cdef int64_t last_packet            # hub.now of the last whole packet, or of a state that limits time
    cdef Buffer out
    cdef uint32_t usual_output          # bytes sent at once of late, FLUSH_SIZE at most
    cdef uint32_t transport_pending     # bytes of ours that the transport holds
    cdef uint32_t max_out_packet        # the client's Maximum Packet Size
    cdef uint8_t* partial               # an incomplete packet, only while there is one
    cdef uint32_t partial_size, partial_capacity
    cdef TopicSlot* topics              # made at the first PUBLISH
    cdef QueueSlot* queue_topics        # made at the first PUBLISH under $queue/
    cdef Alias* aliases_in              # made at the first alias, topic_alias_maximum of them
    cdef Alias* aliases_out
    cdef uint16_t aliases_in_max, aliases_out_max, aliases_out_count
    cdef WsReader* websocket
    cdef PendingAck* acks               # ring of answers that wait for the log, in order
    cdef uint32_t acks_capacity, acks_head, acks_count
    cdef uint32_t acks_qos1             # PUBACKs among them: they take part of our receive maximum
    cdef bint awaits_log
    cdef Session acks_session           # whose publishes they answer, also after the connection has ended

    cdef int feed(self, uint8_t* data, uint32_t size) except -1
    cdef int feed_partial(self) except -1
    cdef void drop_partial(self) noexcept
    cdef int keep_partial(self, const uint8_t* data, uint32_t size) except -1
    cdef Py_ssize_t parse(self, uint8_t* data, uint32_t size) except -1
    cdef int dispatch(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int dispatch_control(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int feed_websocket(self, uint8_t* data, uint32_t size) except -1
    cdef inline void frame_output(self) noexcept
    cdef inline void note_output(self, uint32_t size) noexcept
    cdef int make_room(self) except -1
    cdef int flush(self) except -1
    cdef int watch_output(self) except -1
    cdef int settle(self) except -1
    cdef int wait_for(self, Session subscriber) except -1
    cdef int wait_for_log(self) except -1
    cdef int violation(self, int reason, str text) except -1
    cdef void release(self) noexcept
    cdef void drop_acks(self) noexcept
