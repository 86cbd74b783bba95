# What is done for all queues at the end of a loop iteration, and small helpers of their groups.


# Rare: once per queue and iteration.
cdef int open_queue_pack(DurableQueue queue) except -1:
    queue.pack = RecordPack()
    queue.hub.queues._open_queues.append(queue)
    queue.hub.ingest.open_desks += 1
    return schedule_flush(queue.hub)


# Rare: only of queues an operator has taken messages out of.
cdef bint is_removed(DurableQueue queue, int64_t offset) except -1:
    return offset in queue.removed


# The offset of a waiting item if it is this consumer's, else `otherwise`.
cdef int64_t queued_offset(const Queue* queue, uint32_t at, uint32_t number, int64_t otherwise) noexcept:
    cdef const Queued* item = &queue.items[(queue.head + at) & (queue.capacity - 1)]
    if item.flags & DELIVERY_NUMBERED and item.message.source_partition == number:
        return item.message.source_offset
    return otherwise


cdef list take_changed(QueueDesk desk):
    cdef list groups = desk._changed
    desk._changed = []
    for group in groups:
        (<QueueGroup> group).is_listed = False
    return groups


cdef list take_queue_packs(QueueDesk desk):
    cdef list packs = []
    cdef DurableQueue queue
    for item in desk._open_queues:
        queue = <DurableQueue> item
        packs.append((queue, queue.pack))
        queue.under_way += queue.pack.count
        if queue.max_memory:
            queue.memory += buffer_size(&queue.pack._body)
        queue.pack = None
    desk._open_queues = []
    return packs
