# Which consumers of a group may receive a message, and what happens if no consumer with room may receive it.
#
# Classic queue: the message is held. It becomes a pending entry without a consumer and is kept under the set of
# consumers that may receive it, a number with one bit for each place. When one of them has room, the message is read
# again and delivered. Later messages are not held up. The bits hold for the rules they were computed with, so a new
# consumer or new rules release everything that is held.
#
# Stream: a group has one place, so nothing can be held.
#     1. A consumer that may receive the record is connected but has no room: the group waits for it.
#     2. No connected consumer may receive it: the group passes it over. If a consumer of the group's owner is
#        connected, that is all: the owner reads what it may. Otherwise the committed offset stays before the record
#        (`barrier`), and the group returns to it as soon as a consumer that may receive it connects.
from heapq import heappop, heappush


cdef enum:
    VERDICTS = 16               # remembered topics of a consumer
    LONGEST_JUDGED = 96         # bytes of a topic that is remembered
    NO_BARRIER = -1


cdef class ConsumerRights(Outlet):
    """Rights of a consumer."""

    def __dealloc__(self):
        free(self.verdicts)


cdef class GroupRights:
    """Messages of a group that some of its consumers may not receive."""

    def __cinit__(self):
        self.held = {}
        self.released = {}
        self.barrier = NO_BARRIER


# Messages that the same consumers may receive, lowest offset first.
@final
cdef class HeldMessages:
    cdef list offsets           # heap; may have offsets that are not held any more
    cdef uint32_t under_way     # released and not given yet

    def __cinit__(self):
        self.offsets = []


cdef inline bint has_all_rights(QueueConsumer consumer) noexcept:
    return consumer.client.acl is None or (consumer.has_all and consumer.rules is consumer.client.acl)


# Rare: judge a new consumer, or one whose rules have changed.
cdef int judge(QueueConsumer consumer) except -1:
    cdef QueueGroup group = consumer.group
    cdef AclProgram rules = consumer.client.acl
    consumer.rules = rules
    consumer.has_all = rules is None or rules.covers_filter(
        group._filter if group._filter is not None else group.queue._address + b"/#")
    if consumer.verdicts != NULL:
        memset(consumer.verdicts, 0, VERDICTS * sizeof(Verdict))
    return 0


cdef bint may_have_topic(QueueConsumer consumer, const uint8_t* topic, uint32_t size) except -1:
    cdef Verdict* verdict
    cdef uint64_t hash
    if consumer.client.acl is None:
        return True
    if consumer.rules is not consumer.client.acl:
        judge(consumer)
    if consumer.has_all:
        return True
    if size > LONGEST_JUDGED:
        return consumer.rules.allows(topic, size, ACL_RECEIVE)
    if consumer.verdicts == NULL:
        consumer.verdicts = <Verdict*> calloc(VERDICTS, sizeof(Verdict))
        if consumer.verdicts == NULL:
            raise MemoryError()
    hash = hash_bytes(topic, size, consumer.group.queue.hub.queues.bindings.seed)
    verdict = &consumer.verdicts[hash & (VERDICTS - 1)]
    if verdict.hash != hash or verdict.size != size or memcmp(verdict.topic, topic, size) != 0:
        verdict.hash = hash
        verdict.size = size
        memcpy(verdict.topic, topic, size)
        verdict.is_allowed = consumer.rules.allows(topic, size, ACL_RECEIVE)
    return verdict.is_allowed


cdef bint may_have(QueueConsumer consumer, const EnvelopeView* view) except -1:
    cdef const uint8_t* topic
    cdef uint32_t size = 0
    topic = delivered_topic(consumer.group.queue, view, &size)
    return may_have_topic(consumer, topic, size)


# Whether the consumer may move the place of its stream group: it may receive everything the group reads, or the group
# is its own.
cdef bint may_move(QueueConsumer consumer) except -1:
    if consumer.is_owner or consumer.client.acl is None:
        return True
    if consumer.rules is not consumer.client.acl:
        judge(consumer)
    return consumer.has_all


# ---- classic queues: held messages ----

# The set of consumers that may receive the message.
cdef object allowed_set(QueueGroup group, const EnvelopeView* view):
    cdef QueueConsumer consumer
    found = 0
    for item in group.consumers:
        consumer = <QueueConsumer> item
        if may_have(consumer, view):
            found |= 1 << consumer.bit
    return found


# Whether earlier messages wait for the same consumers: then this one waits as well.
cdef bint comes_later(QueueGroup group, const EnvelopeView* view) except -1:
    cdef HeldMessages waiting = <HeldMessages> group.held.get(allowed_set(group, view))
    return waiting is not None and (waiting.under_way or waiting.offsets)


cdef int hold_message(QueueGroup group, int64_t offset, const EnvelopeView* view) except -1:
    cdef HeldMessages waiting
    cdef int64_t due = 0
    if view.expires_at:
        due = group.clock() + max(view.expires_at - group.queue.hub.wall, <int64_t> 1)
    group.pending.hold(offset, due)
    group.has_held = True
    allowed = allowed_set(group, view)
    if not allowed:
        return 0                # a new consumer or new rules release it, from the pending list
    if group.held_count > 2 * group.pending.count + 64:
        release_everything(group)           # mostly offsets that are settled or expired
        return 0
    waiting = <HeldMessages> group.held.get(allowed)
    if waiting is None:
        waiting = group.held[allowed] = HeldMessages()
    heappush(waiting.offsets, offset)
    group.held_count += 1
    return 0


# A message that was released is given, held again or settled.
cdef int take_up(QueueGroup group, int64_t offset) except -1:
    cdef HeldMessages waiting = <HeldMessages> group.released.pop(offset, None)
    if waiting is not None and waiting.under_way:
        waiting.under_way -= 1
        group.held_count -= 1
    return 0


# As many as the consumers that may receive them have room for.
cdef int release_some(QueueGroup group) except -1:
    cdef HeldMessages waiting
    cdef QueueConsumer consumer
    cdef int64_t room, offset
    cdef bint has_changed = False
    for allowed, item in list(group.held.items()):
        waiting = <HeldMessages> item
        if not waiting.offsets:
            if not waiting.under_way:
                del group.held[allowed]
            continue
        room = -<int64_t> waiting.under_way
        for member in group.consumers:
            consumer = <QueueConsumer> member
            if allowed >> consumer.bit & 1 and consumer.has_room():
                room += min(<int64_t> consumer.prefetch - consumer.unsettled, <int64_t> GIVEN_AT_ONCE)
        while room > 0 and waiting.offsets:
            offset = heappop(waiting.offsets)
            if not group.pending.release_held(offset):
                group.held_count -= 1       # settled, expired or read again since
                continue
            group.released[offset] = waiting
            waiting.under_way += 1
            room -= 1
            has_changed = True
    return group.call() if has_changed else 0


# The sets are not valid any more.
cdef int release_everything(QueueGroup group) except -1:
    group.held = {}
    group.released = {}
    group.held_count = 0
    if group.has_held:
        group.has_held = False
        if group.pending.release_all_held():
            group.call()
            group.note()
    return 0


# A consumer joins: the sets of another member with the same rules, or, without one, everything held is released.
cdef int enter_rights(QueueGroup group, QueueConsumer consumer) except -1:
    cdef QueueConsumer other
    cdef QueueConsumer twin = None
    taken = set()
    for item in group.consumers:
        other = <QueueConsumer> item
        if other is not consumer:
            taken.add(other.bit)
            if other.held_rules is consumer.client.acl:
                twin = other
    consumer.bit = 0
    while consumer.bit in taken:
        consumer.bit += 1
    consumer.held_rules = consumer.client.acl
    if twin is None:
        return release_everything(group)
    return change_sets(group, consumer.bit, twin.bit)


# Put the place into the sets that `model` is in, or, if they are the same, take it out of all sets.
cdef int change_sets(QueueGroup group, uint32_t place, uint32_t model) except -1:
    cdef HeldMessages waiting, known
    held, group.held = group.held, {}
    for allowed, item in held.items():
        waiting = <HeldMessages> item
        is_in = place != model and allowed >> model & 1
        allowed = allowed | 1 << place if is_in else allowed & ~(1 << place)
        known = <HeldMessages> group.held.get(allowed)
        if known is None:
            group.held[allowed] = waiting
            continue
        for offset in waiting.offsets:
            heappush(known.offsets, offset)
        known.under_way += waiting.under_way
        for offset in [offset for offset, owner in group.released.items() if owner is waiting]:
            group.released[offset] = known
    return 0


# See QueueGroup.review.
cdef object review_rights(QueueGroup group):
    cdef QueueConsumer consumer
    cdef bint has_changed = False
    cdef bytes topic = group.barrier_topic
    for item in group.consumers:
        consumer = <QueueConsumer> item
        if consumer.held_rules is not consumer.client.acl:
            consumer.held_rules = consumer.client.acl
            has_changed = True
    if has_changed:
        release_everything(group)
        group.note()
    if group.barrier == NO_BARRIER:
        return None
    for item in group.consumers:
        consumer = <QueueConsumer> item
        if consumer.is_online() and may_have_topic(consumer, <const uint8_t*> PyBytes_AS_STRING(topic),
                                                   <uint32_t> PyBytes_GET_SIZE(topic)):
            return group.barrier
    return None


# ---- streams: records that are passed over ----

# False: a consumer that may receive the record is connected and has no room, so the group waits.
cdef bint pass_over(QueueGroup group, int64_t offset, const EnvelopeView* view) except -1:
    cdef QueueConsumer consumer
    cdef const uint8_t* topic
    cdef uint32_t size = 0
    cdef bint has_owner = False
    for item in group.consumers:
        consumer = <QueueConsumer> item
        if not consumer.is_online():
            continue
        if may_have(consumer, view):
            return False
        has_owner = has_owner or consumer.is_owner
    if not has_owner and group.barrier == NO_BARRIER:
        topic = delivered_topic(group.queue, view, &size)
        group.barrier_topic = PyBytes_FromStringAndSize(<const char*> topic, size)
        group.barrier = offset
    group.pending.skip_to(offset + 1)
    return True


# The offset, but not after the first record that was passed over because no connected consumer may receive it.
cdef inline int64_t before_barrier(QueueGroup group, int64_t offset) noexcept:
    return offset if group.barrier == NO_BARRIER or offset < group.barrier else group.barrier


# ---- messages on their way when a right is taken away ----

# A message that was given to the consumer goes back to its group: the consumer may not receive it any more.
cdef int give_back(QueueConsumer consumer, int64_t offset, const uint8_t* topic, uint32_t size) except -1:
    cdef QueueGroup group = consumer.group
    cdef const PendingEntry* entry
    if group.queue.is_stream:
        if group.barrier == NO_BARRIER or offset < group.barrier:
            group.barrier_topic = PyBytes_FromStringAndSize(<const char*> topic, size)
            group.barrier = offset
        return 0
    entry = group.pending.find(offset)
    if entry == NULL or entry.state != ENTRY_CLAIMED or entry.consumer != consumer.number:
        return 0
    group.pending.give_up(offset)
    if consumer.unsettled:
        consumer.unsettled -= 1
    group.change()
    group.call()
    return group.note()


# Rare: a client has joined or left a group. If it is in several groups of one name in a stream, deliveries have to name
# the group exactly, because a settlement moves the place of only one of them.
cdef int name_groups(Session s, QueueGroup group) except -1:
    cdef QueueConsumer consumer
    cdef list same = []
    if not group.queue.is_stream:
        return 0
    for item in s.outlets or ():
        if (<Outlet> item).desk is not s.hub.queues:
            continue
        consumer = <QueueConsumer> item
        if consumer.group.queue is group.queue and consumer.group.name == group.name:
            same.append(consumer)
    several = len({(<QueueConsumer> item).group.id for item in same}) > 1
    for item in same:
        (<QueueConsumer> item).has_namesake = several
    return 0
