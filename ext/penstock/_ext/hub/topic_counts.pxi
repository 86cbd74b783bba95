# How many times each topic is under way, by the hash of the topic.


cdef inline uint32_t counts_find(const TopicCounts* t, uint64_t hash) noexcept:
    cdef uint32_t i = <uint32_t> hash & (t.capacity - 1)
    while t.items[i].hash and t.items[i].hash != hash:
        i = (i + 1) & (t.capacity - 1)
    return i


cdef int counts_add(TopicCounts* t, uint64_t hash) except -1:
    cdef TopicCounts larger
    cdef uint32_t i
    hash |= 1
    if t.used * 2 >= t.capacity:
        larger.capacity = t.capacity * 2 if t.capacity else 64
        larger.used = t.used
        larger.items = <TopicCount*> calloc(larger.capacity, sizeof(TopicCount))
        if larger.items == NULL:
            raise MemoryError()
        for i in range(t.capacity):
            if t.items[i].hash:
                larger.items[counts_find(&larger, t.items[i].hash)] = t.items[i]
        free(t.items)
        t[0] = larger
    i = counts_find(t, hash)
    if t.items[i].hash == 0:
        t.items[i].hash = hash
        t.used += 1
    t.items[i].count += 1
    return 0


cdef bint counts_has(const TopicCounts* t, uint64_t hash) noexcept:
    return t.used != 0 and t.items[counts_find(t, hash | 1)].hash != 0


cdef void counts_take(TopicCounts* t, uint64_t hash) noexcept:
    cdef uint32_t i, j, mask = t.capacity - 1
    if t.used == 0:
        return
    i = counts_find(t, hash | 1)
    if t.items[i].hash == 0:
        return
    t.items[i].count -= 1
    if t.items[i].count:
        return
    # what was pushed aside by it moves up
    j = i
    while True:
        j = (j + 1) & mask
        if t.items[j].hash == 0:
            break
        if ((j - <uint32_t> t.items[j].hash) & mask) >= ((j - i) & mask):
            t.items[i] = t.items[j]
            i = j
    memset(&t.items[i], 0, sizeof(TopicCount))
    t.used -= 1
