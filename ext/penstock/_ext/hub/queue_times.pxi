# Settlements with a time: `$nack` with a `delay`, and `$extend`, with which a consumer that is still working keeps its
# message for longer.

cdef enum:
    NO_TIME = -1            # the settlement has none
    BAD_TIME = -2
    MOST_DIGITS = 9


# Milliseconds of `90`, `1.5`, `1500ms`, `90s`, `5m`, `2h` or `1d`; a number alone is seconds.
cdef int64_t read_duration(const uint8_t* p, uint32_t size) noexcept:
    cdef int64_t value = 0, scale = 1
    cdef uint32_t i = 0, digits = 0
    cdef bint has_point = False
    while (i < size and digits <= MOST_DIGITS
           and (c"0" <= p[i] <= c"9" or (p[i] == c"." and digits and not has_point))):
        if p[i] == c".":
            has_point = True
        else:
            value = value * 10 + (p[i] - c"0")
            digits += 1
            if has_point:
                scale *= 10
        i += 1
    if digits == 0 or digits > MOST_DIGITS or p[i - 1] == c".":
        return BAD_TIME
    if i == size or is_named(p + i, size - i, "s"):
        return value * 1_000 // scale
    if is_named(p + i, size - i, "ms"):
        return value // scale
    if is_named(p + i, size - i, "m"):
        return value * 60_000 // scale
    if is_named(p + i, size - i, "h"):
        return value * 3_600_000 // scale
    if is_named(p + i, size - i, "d"):
        return value * 86_400_000 // scale
    return BAD_TIME


# The time a settlement asks for, in ms: NO_TIME if it has none, BAD_TIME if it is not a duration or over the limit.
cdef int64_t time_of(const SettleView* found, uint8_t verb, QueueGroup group) noexcept:
    cdef int64_t wanted
    if verb == VERB_EXTEND:
        wanted = read_duration(found.timeout, found.timeout_size) if found.timeout != NULL else group.visibility
    elif verb == VERB_NACK and found.delay != NULL:
        wanted = read_duration(found.delay, found.delay_size)
    else:
        return NO_TIME
    return <int64_t> BAD_TIME if wanted > group.max_delay and found.timeout_size + found.delay_size else wanted


# As QueueGroup.settle_one.
cdef int settle_at(QueueConsumer consumer, int64_t offset, uint8_t verb, int64_t delay) except -1:
    cdef QueueGroup group = consumer.group
    cdef const PendingEntry* entry
    cdef Settlement result
    if group.queue.is_stream:
        return group.settle_stream(consumer, offset, verb)
    if verb == VERB_EXTEND:
        result = group.pending.extend(offset, consumer.number, group.clock() + delay)
    else:
        entry = group.pending.find(offset)
        if entry != NULL and entry.deliveries >= group.max_deliveries:
            return group.settle_one(consumer, offset, verb)     # there is no further delivery to wait for
        result = group.pending.nack_until(offset, consumer.number, group.clock() + delay)
    if result != SETTLED:
        return UNKNOWN_MESSAGE if result == NOT_PENDING else OTHERS_MESSAGE
    if verb == VERB_NACK:
        group.nacked += 1
        if consumer.unsettled:
            consumer.unsettled -= 1
    group.call()                                # its timer may have to fire sooner
    group.change()
    return group.note() or RESOLVED
