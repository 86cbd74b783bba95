# The depth of a durable queue: the messages that its slowest group has yet to settle, whatever their offsets. A message
# that is held for long, or waits for its next delivery, counts as one, however many were settled after it.


# Rare: number of offsets from this one on that an operator has taken out of the queue.
cdef int64_t removed_from(DurableQueue queue, int64_t offset) noexcept:
    if queue.removed is None:
        return 0
    return queue.removed.count_from(offset)


# Messages a group has not claimed yet, and those it has claimed and not settled.
cdef int64_t unsettled_of(DurableQueue queue, QueueGroup group) noexcept:
    cdef int64_t cursor = group.pending.cursor
    return queue.tail - cursor - removed_from(queue, cursor) + group.pending.count


# Without a group: all messages that are kept.
cdef int64_t depth_of(DurableQueue queue) noexcept:
    cdef int64_t depth = 0
    cdef Py_ssize_t i
    if not queue.groups:
        return max(queue.tail - queue.floor - removed_from(queue, queue.floor), <int64_t> 0)
    for i in range(len(queue.groups)):
        depth = max(depth, unsettled_of(queue, <QueueGroup> queue.groups[i]))
    return depth


# The span of offsets is never less than the depth, and it costs nothing. The depth of the
# groups is computed only if the span is over the limit. The result holds until enough messages have arrived to fill the
# queue, because each of them makes it deeper by at most one.
cdef inline bint is_full_queue(DurableQueue queue) noexcept:
    if queue.max_depth == 0 or queue.drops_oldest or queue.tail - queue.floor < <int64_t> queue.max_depth:
        return False
    if queue.tail < queue.room_to and queue.room_limit == queue.max_depth:
        return False
    return fills_up(queue)


cdef bint fills_up(DurableQueue queue) noexcept:
    queue.room_limit = queue.max_depth
    queue.room_to = queue.tail + <int64_t> queue.max_depth - depth_of(queue)
    return queue.tail >= queue.room_to
