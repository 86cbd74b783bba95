# A queue's messages on their way to consumers.


# The published topic when it is one of the queue, else below the queue's address.
cdef const uint8_t* delivered_topic(DurableQueue queue, const EnvelopeView* view, uint32_t* size) except NULL:
    cdef const uint8_t* address = <const uint8_t*> PyBytes_AS_STRING(queue._address)
    cdef uint32_t n = <uint32_t> PyBytes_GET_SIZE(queue._address)
    cdef Buffer* scratch = &queue.hub.queues._topic
    cdef uint8_t* p
    if view.topic_size >= n and memcmp(view.topic, address, n) == 0 and (view.topic_size == n
                                                                         or view.topic[n] == c"/"):
        size[0] = view.topic_size
        return view.topic
    if n + 1 + view.topic_size > LONGEST_TOPIC:
        size[0] = n
        return address
    size[0] = n + 1 + view.topic_size
    scratch.start = scratch.end = 0
    p = buffer_reserve(scratch, n + 1 + view.topic_size)
    memcpy(p, address, n)
    p[n] = c"/"
    memcpy(p + n + 1, view.topic, view.topic_size)
    return p


# A message whose consumer is written down; it may have lost it meanwhile.
cdef int send_planned(QueueGroup group, const Planned* item) except -1:
    cdef const PendingEntry* entry = group.pending.find(item.record.offset)
    cdef QueueConsumer consumer = <QueueConsumer> item.consumer
    cdef EnvelopeView view
    if consumer.waiting:
        consumer.waiting -= 1                   # sent or not: its room is free again
    if entry == NULL or entry.state != ENTRY_CLAIMED or entry.consumer != consumer.number or consumer.is_gone:
        return 0
    if not has_all_rights(consumer) and not may_have(consumer, &item.view):
        return give_back(consumer, item.record.offset, NULL, 0)
    if item.view.props_size == 0:
        return consumer.send(&item.record, &item.view, item.deliveries)
    if get_envelope(item.record.value, item.record.value_size, &view, &group.queue.hub.record_props):
        return 0                                # it was read before: only a broken memory gets here
    return consumer.send(&item.record, &view, item.deliveries)
