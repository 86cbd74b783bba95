# The hot unit: connections, sessions and the hub they share. One compilation unit (connection.pyx includes the .pxi
# files), because a message passes through all three and calls across units are not inlined.
#
# Who may change what: everything here belongs to the event loop's thread. Routing a message (route.pxi) never calls a
# handler and never closes a connection, so subscriptions and sessions stand still while a match is walked.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.match.acl cimport AclProgram
from penstock._ext.wire.buffer cimport Buffer
from penstock._ext.wire.codec cimport PublishView
from penstock._ext.record.envelope cimport EnvelopeView
from penstock._ext.hub.gathering cimport Gathering
from penstock._ext.hub.inflight cimport Hold, IdSet, Queue, Queued, Window, WindowPart
from penstock._ext.match.partition cimport HashFunction
from penstock._ext.application.pack cimport PackTracker
from penstock._ext.queue.pending cimport PendingList
from penstock._ext.match.retained cimport RetainedTree
from penstock._ext.record.segment cimport RecordPack, RecordView
from penstock._ext.match.trie cimport Match, ShareGroup, Subscriber, Trie
from penstock._ext.wire.websocket cimport WsReader


cdef enum ConnectionState:
    WAITING = 0             # for CONNECT
    DECIDING = 1            # CONNECT read, the handler has not answered yet: what follows is kept unread
    AUTHENTICATING = 2      # an AUTH exchange runs: only AUTH and DISCONNECT are read
    CONNECTED = 3
    CLOSING = 4             # ended for the session; the transport still sends what it holds
    CLOSED = 5


include "drop_causes.pxi"
include "rate_declarations.pxi"


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
    uint8_t refusal         # AnswerText: why no queue was made for it
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


include "turns_declarations.pxi"


cdef class Hub:
    cdef readonly Trie trie
    cdef readonly Turns turns
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
    cdef dict _impatience               # users or addresses whose readers have used up the patience: until when
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
    cdef Gathering gathering                    # when the open batch leaves
    cdef object _submit_soon, _submit_timer     # bound method, made once; TimerHandle or None
    cdef object _collect                        # reports the batch under way, see log_to; None = the log does it anyway
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
    cdef int64_t _denials_since                 # of the second in which denied publishes were last reported
    cdef uint32_t _denials                      # reported in it
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
    # limits, see settings/model.py; set by configure()
    cdef uint32_t max_packet_size, connect_packet_size, max_topic_levels, max_topic_length, max_user_properties
    cdef uint32_t receive_maximum, max_inflight, max_queued_messages, max_queued_bytes, topic_alias_maximum
    cdef uint32_t high_watermark, low_watermark
    cdef uint32_t flush_size             # output that is not kept for the end of the iteration
    cdef uint64_t max_retained_messages, max_retained_bytes
    cdef uint32_t retained_share        # percent of both for one user
    cdef bint shares_anonymous          # clients without a name are together one user
    cdef public object on_retained_full     # takes (session or None, topic, whether it is the user's share)
    cdef int64_t _retained_warned       # ms
    cdef int64_t connect_timeout, patience
    cdef uint8_t maximum_qos
    cdef bint retain_available, drop_oldest
    cdef ShareStrategy strategy

    cdef int open_output(self, Connection c) except -1
    cdef int await_log(self, Connection c) except -1
    cdef int add_connection(self, Connection c) except -1
    cdef void remove_connection(self, Connection c) noexcept
    cdef void update_clock(self) noexcept


include "lane_declarations.pxi"
include "queue_declarations.pxi"


cdef class Session(Subscriber):
    cdef readonly Hub hub
    cdef readonly str client_id
    cdef readonly object username       # str or None
    cdef public object identity         # penstock.access.base.Identity: who has the session; None: nobody has said
    cdef const uint8_t* id_text         # UTF-8 of client_id and username, borrowed from them
    cdef const uint8_t* user_text       # NULL without a user name
    cdef uint32_t id_size, user_size
    cdef public object will             # penstock.sessions's business
    cdef public object timer            # the same: when the session ends, when its will is due
    cdef public uint32_t expiry_interval
    cdef public int64_t since           # ms since the epoch: a replay of the log is not for sessions that are younger
    cdef public str client_type         # "device" or "application", by its credentials
    cdef public bint is_assigned        # the broker assigned the client id: the client cannot come back with it
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
    cdef uint32_t lane_count, lane_capacity, first_lane     # the last one: whose turn it is to send first
    cdef dict parts                     # of the window, by name; None before there is a lane
    cdef uint32_t reserve_each, kept_free       # places reserved for each part, and those of all that are not taken
    cdef uint32_t plan_each             # records that a part may have planned
    cdef uint32_t in_lanes              # of `outstanding`, those of lanes
    cdef uint32_t round, log_round      # of turns at the last free place, see lane_parts.pxi; the log's last turn
    cdef uint8_t round_hops             # iterations until the round ends, 0 = no place is free
    cdef bint is_contended              # something has had its turn in this round
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
    cdef int remove_lane(self, Lane lane) except -1


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
    cdef bint is_resting                # in Turns.resting; so is the next in Turns.walkers
    cdef bint awaits_match
    cdef uint64_t steps                 # of matching that it has not paid for by waiting
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
    cdef bytes words                    # of answers with TEXT_HELD
    cdef PendingAck* acks               # ring of answers that wait for the log, in order
    cdef uint32_t acks_capacity, acks_head, acks_count
    cdef uint32_t acks_qos1             # PUBACKs among them: they take part of our receive maximum
    cdef bint awaits_log
    cdef uint32_t denials_held          # publishes denied since one was reported
    cdef int64_t denial_at             # when that was, 0 = never
    cdef uint32_t acked_at              # hub.now, cut to 32 bits, when the log last released answers
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
