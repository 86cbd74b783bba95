# The match cache: bounded in topics and in bytes. Part of trie.pyx.
#
# An entry whose version is not the trie's is void: it is replaced when its topic comes again and is the first to go
# when room is needed. Otherwise a clock hand takes out what was not used since it last came by, so topics that are
# published once do not push out those that are published often.

cdef inline uint32_t cache_find(const MatchCache* cache, const uint8_t* topic, uint32_t size,
                                uint64_t hash) noexcept nogil:
    cdef uint32_t tag = <uint32_t> (hash >> 32)
    cdef uint32_t at = tag & cache.table.mask
    cdef const Slot* slot
    cdef const Match* match
    if cache.count == 0:
        return 0
    while True:
        slot = cache.table.slots + at
        if slot.value == 0:
            return 0
        if slot.tag == tag:
            match = cache.entries[slot.value - 1]
            if match.hash == hash and match.topic_size == size and memcmp(match.topic, topic, size) == 0:
                return slot.value
        at = (at + 1) & cache.table.mask


# The last entry takes the place of the one that goes.
cdef void cache_drop(MatchCache* cache, uint32_t entry) noexcept nogil:
    cdef Match* match = cache.entries[entry]
    cdef Match* last = cache.entries[cache.count - 1]
    table_remove(&cache.table, <uint32_t> (match.hash >> 32), entry + 1)
    if match != last:
        table_slot(&cache.table, <uint32_t> (last.hash >> 32), cache.count).value = entry + 1
        cache.entries[entry] = last
    cache.count -= 1
    cache.bytes -= match.weight
    match_unref(match)


cdef void cache_evict(MatchCache* cache, uint64_t version) noexcept nogil:
    cdef Match* match
    while True:
        if cache.hand >= cache.count:
            cache.hand = 0
        match = cache.entries[cache.hand]
        if match.version != version or not match.recent:
            cache_drop(cache, cache.hand)
            return
        match.recent = 0
        cache.hand += 1


# Keeps a reference to the match if there is room for it; a cache without memory is just a smaller cache.
cdef void cache_put(MatchCache* cache, Match* match) noexcept nogil:
    cdef uint32_t entry, capacity
    cdef Match** entries
    if cache.max_topics == 0 or match.weight > cache.max_bytes / 2:
        return
    entry = cache_find(cache, match.topic, match.topic_size, match.hash)
    if entry:
        cache.bytes -= cache.entries[entry - 1].weight
        match_unref(cache.entries[entry - 1])
        cache.entries[entry - 1] = match_ref(match)
        cache.bytes += match.weight
    else:
        if cache.count >= cache.max_topics:
            cache_evict(cache, match.version)
        if cache.count == cache.capacity:
            capacity = min(cache.max_topics, max(<uint32_t> 64, 2 * cache.capacity))
            entries = <Match**> realloc(cache.entries, capacity * sizeof(Match*))
            if entries == NULL:
                return
            cache.entries = entries
            cache.capacity = capacity
        if table_reserve(&cache.table) < 0:
            return
        cache.entries[cache.count] = match_ref(match)
        cache.count += 1
        cache.bytes += match.weight
        table_add(&cache.table, <uint32_t> (match.hash >> 32), cache.count)
    while cache.bytes > cache.max_bytes:
        cache_evict(cache, match.version)


cdef void cache_free(MatchCache* cache) noexcept nogil:
    cdef uint32_t i
    for i in range(cache.count):
        match_unref(cache.entries[i])
    free(cache.entries)
    table_free(&cache.table)
