# Part of connection.pxd: durable queues, their groups and consumers, and rows of query topics.


include "queue_rights_declarations.pxi"

cdef class QueueDesk(Desk):
    cdef readonly Trie bindings         # which queues get what: its subscribers are DurableQueues
    cdef uint32_t capturing             # queues that take ordinary topics as well
    cdef list _open_queues              # queues that were published to in this iteration
    cdef list _news                     # groups with something to do in this iteration
    cdef list _changed                  # groups whose state has to be stored
    cdef list _calls                    # groups that want something of Python
    cdef object _on_queues              # takes them
    cdef object _find_queue             # takes (topic, is_settlement): the queue of a settlement, or makes one
    cdef object _on_detach              # takes a session with consumers whose connection goes
    cdef object _on_relay               # takes settlements of queues that another node serves; None = alone
    cdef int64_t epoch                  # what is added to `now` to make times that can be stored
    cdef list _confirmations            # of front-ends in Python, see queue_batches.pxi
    cdef Buffer _props, _topic


cdef class Confirmation:
    cdef uint64_t ticket                # the last batch that it waits for
    cdef object on_done
    cdef bint has_failed                # a batch that it waited for has failed


# A durable queue where messages come in; penstock.subscribers.queue has the rest of it.
cdef class DurableQueue(Subscriber):
    cdef readonly Hub hub
    cdef readonly str name
    cdef bytes _address                 # `$queue/<name>`
    cdef const uint8_t* name_text
    cdef uint32_t name_size
    cdef readonly bint is_stream
    cdef public object owner            # penstock.subscribers.queue' side of it
    cdef RecordPack pack                # being filled in this iteration
    cdef public uint32_t max_message_size
    cdef public int64_t message_ttl     # ms, 0 = for ever
    cdef public uint64_t max_depth      # 0 = no limit
    cdef public bint drops_oldest       # at max_depth, instead of refusing
    cdef public bint is_closed          # to publishers: a dead-letter queue
    cdef public bint is_spare           # the reserved queue: it takes what no other queue takes
    cdef public bint is_elsewhere       # another node serves its consumers
    cdef readonly int64_t tail          # the offset of the next message
    cdef readonly int64_t under_way     # messages handed to the log that it has not answered for
    cdef public uint64_t max_memory, memory     # of a queue in memory: limit (0 = none), and its packs not removed
    cdef public int64_t floor           # what is before it, every group has done with
    cdef bytes full_words               # for publishers that are refused, or None; asked for at explained_at, ms
    cdef int64_t explained_at
    cdef int64_t room_to                # a tail below it is not over max_depth; 0: not known, ask the groups
    cdef uint64_t room_limit            # the max_depth that this was calculated for
    cdef list groups
    cdef public QueueGroup primary      # the group whose progress streams tell, or None
    cdef public bytes primary_name      # empty = none is configured
    cdef public object removed          # offsets an operator has taken out, or None
    cdef readonly uint64_t published, refused
    cdef public bint has_ids            # of QoS 2 in messages since it was last set to False
    cdef int take(self, EnvelopeView* message, uint64_t mark) except -1


# A member of a group, with identity, credit and rights. How it sends is its front-end's: MqttConsumer writes PUBLISH
# packets, BatchConsumer hands batches to Python, and a compiled front-end derives its own.
cdef class QueueConsumer(ConsumerRights):
    cdef readonly Subscriber client     # who consumes; its rules hold for each delivery
    cdef readonly QueueGroup group
    cdef public uint32_t prefetch       # messages it may have unsettled
    cdef readonly uint32_t unsettled
    cdef uint32_t waiting               # of them: given to it, and not sent yet
    cdef readonly uint64_t delivered
    cdef readonly bint is_gone

    # Whether the client is connected.
    cdef bint is_online(self) noexcept
    # Whether it can be given another message now.
    cdef bint has_room(self) noexcept
    # Send a message that it was given. The views are valid during the call only.
    cdef int send(self, const RecordView* record, const EnvelopeView* view, uint32_t deliveries) except -1
    # Of a stream: the lowest offset that was sent and is not acknowledged, if it is below `lowest`.
    cdef int64_t unacknowledged(self, int64_t lowest) except? -1
    # It has joined its group, or left it.
    cdef int on_member(self, bint is_member) except -1


cdef class MqttConsumer(QueueConsumer):
    cdef public uint8_t qos
    cdef public uint32_t identifier     # of the subscription
    cdef public bint settles_by_ack     # MQTT 3, or asked for: PUBACK and PUBCOMP settle


cdef class BatchConsumer(QueueConsumer):
    cdef readonly uint64_t credit       # deliveries it takes until more is granted
    cdef readonly bint settles          # False: a message is done when it is sent; streams only
    cdef dict _open                     # of a stream: offsets that are not settled, in their order
    cdef list _batch
    cdef object _on_batch, _hand_over_soon


cdef class Courier(Outlet):
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


cdef class QueueGroup(GroupRights):
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
    cdef public int64_t visibility, max_delay   # ms
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
    cdef int settle_stream(self, QueueConsumer consumer, int64_t offset, uint8_t verb) except -1
    cdef QueueConsumer choose(self, const EnvelopeView* view, bint* has_room)
    cdef QueueConsumer find_consumer(self, uint32_t number)
    cdef int plan(self, RecordPack pack, const RecordView* record, const EnvelopeView* view, QueueConsumer consumer,
                  uint32_t deliveries) except -1
    cdef void drop_planned(self) noexcept
    cdef int drop_pack(self) except -1
    cdef int settle_one(self, QueueConsumer consumer, int64_t offset, uint8_t verb) except -1
