# What is done for all queues at the end of a loop iteration, and small helpers of their groups.


# Rare: once per queue and iteration.
cdef int open_queue_pack(DurableQueue queue) except -1:
    queue.pack = RecordPack()
    queue.hub._open_queues.append(queue)
    return schedule_flush(queue.hub)


# Rare: only of queues an operator has taken messages out of.
cdef bint is_removed(DurableQueue queue, int64_t offset) except -1:
    return offset in queue.removed


# The offset of a waiting item if it is this consumer's, else `otherwise`.
cdef int64_t queued_offset(const Queue* queue, uint32_t at, uint32_t number, int64_t otherwise) noexcept:
    cdef const Queued* item = &queue.items[(queue.head + at) & (queue.capacity - 1)]
    if item.flags & SLOT_QUEUE and item.message.source_partition == number:
        return item.message.source_offset
    return otherwise


# At the end of the iteration: everything that was read is given out, as far as it goes.
cdef int work_queues(Hub hub) except -1:
    cdef list news = hub._queue_news
    hub._queue_news = []
    for group in news:
        try:
            (<QueueGroup> group).work()
        except BaseException as error:
            hub.loop.call_exception_handler({"message": "a queue cannot be delivered", "exception": error})
    return 0


cdef list take_changed(Hub hub):
    cdef list groups = hub._changed_groups
    hub._changed_groups = []
    for group in groups:
        (<QueueGroup> group).is_listed = False
    return groups


cdef list take_queue_packs(Hub hub):
    cdef list packs = []
    cdef DurableQueue queue
    for item in hub._open_queues:
        queue = <DurableQueue> item
        packs.append((queue, queue.pack))
        queue.under_way += queue.pack.count
        if queue.max_memory:
            queue.memory += buffer_size(&queue.pack._body)
        queue.pack = None
    hub._open_queues = []
    return packs


cdef int call_queues(Hub hub) except -1:
    cdef list groups = hub._queue_calls
    hub._queue_calls = []
    for group in groups:
        (<QueueGroup> group).wants_call = False
    try:
        hub._on_queues(groups)
    except BaseException as error:
        hub.loop.call_exception_handler({"message": "queues cannot be served", "exception": error})
    return 0
