# What is stored of a window. Part of pending.pyx, which describes the format.

cdef inline uint8_t* put_varint(uint8_t* out, uint64_t value) noexcept:
    while value >= 0x80:
        out[0] = <uint8_t> (value | 0x80)
        value >>= 7
        out += 1
    out[0] = <uint8_t> value
    return out + 1


cdef const uint8_t* get_varint(const uint8_t* data, const uint8_t* end, uint64_t* value) except NULL:
    cdef int shift = 0
    value[0] = 0
    while data < end and shift < 64:
        value[0] |= <uint64_t> (data[0] & 0x7F) << shift
        if not data[0] & 0x80:
            return data + 1
        data += 1
        shift += 7
    raise ValueError("a number in the stored window does not end")


# The first entry of a window: by its offsets in turn. Windows outside of the list are told at once.
cdef uint32_t window_first(PendingList pending, int64_t window) noexcept:
    cdef int64_t offset = window << WINDOW_BITS
    cdef uint32_t index
    cdef int _tried
    if pending.count == 0 or pending.entries[pending.last].offset < offset:
        return NONE
    if pending.entries[pending.first].offset >= offset:
        index = pending.first
        return index if pending.entries[index].offset >> WINDOW_BITS == window else <uint32_t> NONE
    for _tried in range(WINDOW_SIZE):
        index = find_index(pending, offset)
        if index != NONE:
            return index
        offset += 1
    return NONE


cdef bytes build_window(PendingList pending, int64_t window):
    cdef uint8_t data[LARGEST_WINDOW]
    cdef uint8_t* out = data
    cdef uint32_t index = window_first(pending, window)
    cdef PendingEntry* entry
    cdef int64_t before = 0, distance
    cdef uint8_t state
    if index == NONE:
        return None
    out[0] = FORMAT
    out += 1
    while index != NONE and pending.entries[index].offset >> WINDOW_BITS == window:
        entry = &pending.entries[index]
        out[0] = <uint8_t> (entry.offset & (WINDOW_SIZE - 1))
        state = entry.state if entry.state != ENTRY_HELD else <uint8_t> ENTRY_READY
        out[1] = state
        if state != ENTRY_DEAD:
            if state != ENTRY_READY and entry.reason & IS_LONG:
                out[1] += LONG_STATE
            out[1] |= <uint8_t> (min(<uint8_t> (entry.reason & NACKS), <uint8_t> MOST_NACKS) << STATE_BITS)
        out = put_varint(out + 2, entry.deliveries)
        if entry.state == ENTRY_DEAD:
            out[0] = entry.reason
            out += 1
        elif state != ENTRY_READY:
            # Unsigned, because the distance between any two numbers has to come out right.
            distance = <int64_t> (<uint64_t> entry.due - <uint64_t> before)
            out = put_varint(out, (<uint64_t> distance << 1) ^ <uint64_t> (distance >> 63))
            before = entry.due
            if entry.state == ENTRY_CLAIMED:
                out = put_varint(out, entry.consumer if entry.consumer >= LASTING else 0)
        index = entry.next
    return PyBytes_FromStringAndSize(<char*> data, out - data)


# The entries of a stored window in `found` (256 of them fit); how many.
cdef int parse_window(const uint8_t* data, Py_ssize_t size, int64_t window, PendingEntry* found) except -1:
    cdef const uint8_t* end = data + size
    cdef PendingEntry* entry
    cdef uint64_t value
    cdef int64_t before = 0
    cdef int count = 0, place = -1
    cdef uint8_t state
    cdef bint is_long
    if size == 0 or data[0] != FORMAT:
        raise ValueError("a stored window of an unknown format")
    data += 1
    while data < end:
        if end - data < 3:
            raise ValueError("a stored window is cut short")
        # Places that rise: so there are no more than `found` has room for.
        state = data[1] & STATE_MASK
        is_long = ENTRY_CLAIMED + LONG_STATE <= state <= ENTRY_WAITING + LONG_STATE
        if is_long:
            state -= LONG_STATE
        if data[0] <= place or not ENTRY_CLAIMED <= state <= ENTRY_DEAD:
            raise ValueError("a stored window is damaged")
        place = data[0]
        entry = &found[count]
        entry.offset = (window << WINDOW_BITS) + place
        entry.state = state
        entry.reason = (data[1] >> STATE_BITS) | (<uint8_t> IS_LONG if is_long else 0)
        data = get_varint(data + 2, end, &value)
        entry.deliveries = <uint16_t> min(value, <uint64_t> MOST_DELIVERIES)
        entry.consumer = 0
        entry.due = 0
        if entry.state == ENTRY_DEAD:
            if data == end:
                raise ValueError("a stored window is cut short")
            entry.reason = data[0]
            data += 1
        elif entry.state != ENTRY_READY:
            data = get_varint(data, end, &value)
            before = <int64_t> (<uint64_t> before + ((value >> 1) ^ (0 - (value & 1))))
            entry.due = before
            if entry.state == ENTRY_CLAIMED:
                data = get_varint(data, end, &value)
                entry.consumer = <uint32_t> value
        count += 1
    return count
