# Queues for front-ends that are written in Python: deliveries and publishes are handed over in batches, and a callback
# says when everything that was published or settled before is durable.
from collections import namedtuple

Delivered = namedtuple(
    "Delivered", ("offset", "topic", "payload", "properties", "deliveries", "timestamp", "expires_at")
)
Delivered.__doc__ = """A message that a consumer has: `offset` is its number for settling, `topic` the one it is
delivered under, `properties` are as record.envelope has them, times are in ms since 1970 (`expires_at` 0: never)."""

# Answers to a publish, as far as front-ends tell them apart; see answer_texts.pxi.
QUEUE_NONE = <int> TEXT_NO_QUEUES
QUEUE_TOO_LARGE = <int> TEXT_TOO_LARGE
QUEUE_WRONG_WORD = <int> TEXT_WRONG_WORD
QUEUE_CLOSED = <int> TEXT_CLOSED
QUEUE_LOG_TOO_LARGE = <int> TEXT_LOG_TOO_LARGE
QUEUE_DENIED = <int> TEXT_DENIED
QUEUE_BUSY = <int> TEXT_BUSY
QUEUE_BAD_TOPIC = <int> TEXT_BAD_TOPIC


@final
cdef class Confirmation:
    """A callback of a front-end, for when everything up to a ticket is durable."""


@final
cdef class BatchConsumer(QueueConsumer):
    """A consumer whose deliveries are handed to Python, all of an iteration at once. It gets as many as it has credit
    for, and has at most `prefetch` of a classic queue unsettled."""

    def __init__(self, QueueGroup group not None, Subscriber client not None, on_batch not None, *,
                 uint32_t prefetch=100, uint32_t number=0, bint settles=True):
        """`on_batch(consumer, [Delivered, ...])` is called after the iteration. `number` as for MqttConsumer."""
        cdef Hub hub = group.queue.hub
        self.group = group
        self.client = client
        self.desk = hub.queues
        self.number = number if number else next_number(hub)
        self.unsettled = group.pending.count_of(self.number) if number else 0
        self.prefetch = max(prefetch, 1)
        self.settles = settles
        self._open = {}
        self._batch = []
        self._on_batch = on_batch
        self._hand_over_soon = self._hand_over

    def grant(self, uint64_t credit):
        """Take this many deliveries more."""
        self.credit += credit
        self.group.note()

    def revoke(self):
        """Take no more deliveries, until credit is granted again. Return the credit that was not used."""
        credit, self.credit = self.credit, 0
        return credit

    def settle(self, int64_t offset, uint8_t outcome, int64_t delay=NO_TIME, str reason=None):
        if outcome == VERB_ACK or outcome == VERB_REJECT:
            self._open.pop(offset, None)
        return QueueConsumer.settle(self, offset, outcome, delay, reason)

    cdef bint is_online(self) noexcept:
        return not self.is_gone

    cdef bint has_room(self) noexcept:
        if self.is_gone or self.waiting >= self.credit:
            return False
        return self.group.queue.is_stream or self.unsettled < self.prefetch

    cdef int send(self, const RecordView* record, const EnvelopeView* view, uint32_t deliveries) except -1:
        cdef uint32_t size = 0
        cdef const uint8_t* topic = delivered_topic(self.group.queue, view, &size)
        if self.credit:
            self.credit -= 1
        self.group.delivered += 1
        self.delivered += 1
        if self.settles and self.group.queue.is_stream:
            self._open[record.offset] = None
        if not self._batch:
            self.group.queue.hub.loop.call_soon(self._hand_over_soon)
        self._batch.append(Delivered(
            record.offset,
            PyBytes_FromStringAndSize(<const char*> topic, size),
            PyBytes_FromStringAndSize(<const char*> view.payload, view.payload_size),
            PyBytes_FromStringAndSize(<const char*> view.props, view.props_size),
            deliveries,
            record.timestamp,
            view.expires_at,
        ))
        return 0

    def _hand_over(self):
        batch, self._batch = self._batch, []
        if not self.is_gone:
            self._on_batch(self, batch)

    cdef int64_t unacknowledged(self, int64_t lowest) except? -1:
        for offset in self._open:
            return min(lowest, <int64_t> offset)
        return lowest


# TEXT_NONE, or why the message is refused.
cdef uint8_t publish_entry(QueueDesk desk, Subscriber client, EnvelopeView* message) except 0xFF:
    cdef Hub hub = desk.hub
    cdef uint64_t hash
    cdef Match* match
    cdef uint8_t text
    if (check_topic_name(message.topic, message.topic_size, hub.limits.max_topic_levels)
            or message.topic_size > hub.limits.max_topic_length
            or not is_queue_topic(message.topic, message.topic_size)):
        return TEXT_BAD_TOPIC
    if verb_of(message.topic, message.topic_size) != VERB_NONE:
        return TEXT_WRONG_WORD
    if client.acl is not None and not client.acl.allows(message.topic, message.topic_size, ACL_PUBLISH):
        return TEXT_DENIED
    if hub.ingest.pending > hub.ingest.limit or (hub.rates.is_on and is_front_end_too_fast(hub, client)):
        return TEXT_BUSY
    hash = hash_bytes(message.topic, message.topic_size, desk.bindings.seed)
    match = desk.bindings.match(message.topic, message.topic_size, hash)
    try:
        text = TEXT_NONE
        if is_unmatched(match) and desk._find_queue is not None:
            found = desk._find_queue(PyBytes_FromStringAndSize(<const char*> message.topic, message.topic_size), False)
            if isinstance(found, int):
                text = why_not_made(match, found)
            match_unref(match)
            match = desk.bindings.match(message.topic, message.topic_size, hash)
        if text == TEXT_NONE and match.target_count == 0:
            text = TEXT_CLOSED if message.topic[QUEUE_PREFIX] == c"$" else TEXT_MANY
        if text == TEXT_NONE and hub.ingest.largest_record and (
                <uint64_t> message.topic_size + envelope_size(message) + origin_size(True) + received_size(UINT64_MAX)
                > hub.ingest.largest_record):
            text = TEXT_LOG_TOO_LARGE
        if text == TEXT_NONE:
            text = refusal_of(message, match)
        if text == TEXT_NONE:
            enqueue_all(message, match, 0)
    finally:
        match_unref(match)
    if text:
        hub.counters.dropped[<int> DROP_QUEUE_FULL] += 1
    return text


cdef list publish_entries(QueueDesk desk, Subscriber client, bytes client_id, bytes username, list entries):
    cdef Hub hub = desk.hub
    cdef EnvelopeView message
    cdef bytes topic, payload, properties
    cdef list answers = []
    if desk._find_queue is None:
        return [<int> TEXT_NO_QUEUES] * len(entries)
    hub.update_clock()
    for topic, payload, properties, expires_at in entries:
        memset(&message, 0, sizeof(EnvelopeView))
        message.topic = <const uint8_t*> PyBytes_AS_STRING(topic)
        message.topic_size = <uint32_t> PyBytes_GET_SIZE(topic)
        message.payload = <const uint8_t*> PyBytes_AS_STRING(payload)
        message.payload_size = <uint32_t> PyBytes_GET_SIZE(payload)
        message.props = <const uint8_t*> PyBytes_AS_STRING(properties)
        message.props_size = <uint32_t> PyBytes_GET_SIZE(properties)
        message.client_id = <const uint8_t*> PyBytes_AS_STRING(client_id)
        message.client_id_size = <uint32_t> PyBytes_GET_SIZE(client_id)
        if username is not None:
            message.username = <const uint8_t*> PyBytes_AS_STRING(username)
            message.username_size = <uint32_t> PyBytes_GET_SIZE(username)
        message.received_at = hub.wall
        message.expires_at = expires_at
        message.qos = 1
        answers.append(publish_entry(desk, client, &message))
    return answers


# The batch of the ticket has failed. Every front-end that waits for it or for a later one may have had a part in it.
cdef int note_failed(QueueDesk desk, uint64_t ticket) except -1:
    cdef Confirmation waiting
    for item in desk._confirmations:
        waiting = <Confirmation> item
        if waiting.ticket >= ticket:
            waiting.has_failed = True
    return 0


# Everything that was handed over up to the ticket is durable, or has failed.
cdef int confirm(QueueDesk desk, uint64_t ticket) except -1:
    cdef list all_waiting = desk._confirmations
    cdef Confirmation waiting
    desk._confirmations = [item for item in all_waiting if (<Confirmation> item).ticket > ticket]
    for item in all_waiting:
        waiting = <Confirmation> item
        if waiting.ticket <= ticket:
            try:
                waiting.on_done(not waiting.has_failed)
            except BaseException as error:
                desk.hub.loop.call_exception_handler({"message": "a confirmation failed", "exception": error})
    return 0
