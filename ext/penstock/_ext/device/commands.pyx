"""Additions to queues as commands of Redis (stores/redis/scripts/add.lua, add_each.lua), written from packs of records
without a Python object per message."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView

cdef enum:
    SOURCE_SIZE = 26            # store/base.py, SOURCE: partition, via, offset, expiry, packet id
    PLACE_SIZE = 8              # partition and via
    DETAILS_AT = 16             # where expiry and packet id begin
    DETAILS_SIZE = 10
    IDENTITY_SIZE = 16
    LONGEST_NUMBER = 20
    ZERO = 0x30                 # the digit
    ARRAY = 0x2A                # `*`, how many words follow
    WORD = 0x24                 # `$`, how many bytes follow


cdef struct Place:
    uint64_t name               # partition and via
    int64_t lowest
    int64_t highest


cdef int put_digits(Buffer* b, uint64_t number) except -1:
    cdef uint8_t digits[LONGEST_NUMBER]
    cdef uint32_t at = LONGEST_NUMBER
    while True:
        at -= 1
        digits[at] = <uint8_t> (ZERO + number % 10)
        number //= 10
        if number == 0:
            break
    memcpy(buffer_reserve(b, LONGEST_NUMBER - at), digits + at, LONGEST_NUMBER - at)
    return 0


# ARRAY or WORD with its number, and the end of the line.
cdef int put_line(Buffer* b, uint8_t kind, uint64_t number) except -1:
    buffer_reserve(b, 1)[0] = kind
    put_digits(b, number)
    memcpy(buffer_reserve(b, 2), b"\r\n", 2)
    return 0


cdef int put_word(Buffer* b, const uint8_t* word, uint32_t size) except -1:
    cdef uint8_t* p
    put_line(b, WORD, size)
    p = buffer_reserve(b, size + 2)
    memcpy(p, word, size)
    memcpy(p + size, b"\r\n", 2)
    return 0


cdef int put_number(Buffer* b, uint64_t number) except -1:
    cdef uint64_t rest = number
    cdef uint32_t size = 1
    while rest >= 10:
        rest //= 10
        size += 1
    put_line(b, WORD, size)
    put_digits(b, number)
    memcpy(buffer_reserve(b, 2), b"\r\n", 2)
    return 0


cdef inline int put_bytes(Buffer* b, bytes text) except -1:
    cdef uint32_t size = <uint32_t> PyBytes_GET_SIZE(text)
    memcpy(buffer_reserve(b, size), PyBytes_AS_STRING(text), size)
    return 0


cdef inline int put_value(Buffer* b, const RecordView* record) except -1:
    # A PUBREL has no value in a pack and an empty one in Redis.
    return put_word(b, record.value, 0 if record.value_size == NO_VALUE else record.value_size)


# Offset, partition and via: what differs most stands first, so that it is found quickly.
cdef inline void write_identity(uint8_t* p, const uint8_t* source) noexcept:
    memcpy(p, source + 8, 8)
    memcpy(p + 8, source, PLACE_SIZE)


cdef enum:
    DAMAGED, ANY, SINGLE

# What `kind_of` says.
IS_DAMAGED, IS_ANY, IS_SINGLE = DAMAGED, ANY, SINGLE


def kind_of(RecordPack pack not None):
    """IS_DAMAGED: a key is none that `build_source` can have made; IS_SINGLE: one message without a packet id."""
    cdef size_t position = 0
    cdef RecordView record
    cdef uint16_t packet_id = 0
    while pack.next(&position, &record):
        if record.key_size != SOURCE_SIZE:
            return DAMAGED
        memcpy(&packet_id, record.key + SOURCE_SIZE - 2, 2)
    return SINGLE if pack.count == 1 and packet_id == 0 else ANY


def read_given(bytes given not None):
    """Packet ids as the script tells them: the first, and how many there are from it on; from 0 on they are all 0."""
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(given)
    cdef Py_ssize_t i
    cdef uint16_t first, count, j
    cdef list packet_ids = []
    for i in range(0, PyBytes_GET_SIZE(given) - 3, 4):
        memcpy(&first, p + i, 2)
        memcpy(&count, p + i + 2, 2)
        for j in range(count):
            packet_ids.append(first + j if first else 0)
    return packet_ids


def split_pack(RecordPack pack not None, uint32_t most):
    """The same records in packs of at most so many."""
    cdef size_t position = 0
    cdef RecordView record
    cdef RecordPack part = None
    cdef list parts = []
    while pack.next(&position, &record):
        if part is None or part.count == most:
            part = RecordPack()
            parts.append(part)
        part.put(record.timestamp, record.key, record.key_size, record.value, record.value_size, record.headers,
                 record.headers_size)
    return parts


cdef class _Places:
    """Where the messages of a command come from."""

    cdef Place* places
    cdef uint32_t count
    cdef uint32_t last
    cdef bint is_growing

    def __cinit__(self):
        self.is_growing = True

    def __dealloc__(self):
        free(self.places)

    cdef int note(self, const uint8_t* source) except -1:
        cdef uint64_t name
        cdef int64_t offset
        cdef Place* place
        memcpy(&name, source, PLACE_SIZE)
        memcpy(&offset, source + 8, 8)
        if self.count == 0 or self.places[self.last].name != name:
            self.last = 0
            while self.last < self.count and self.places[self.last].name != name:
                self.last += 1
        if self.last == self.count:
            place = <Place*> realloc(self.places, (self.count + 1) * sizeof(Place))
            if place == NULL:
                raise MemoryError
            self.places = place
            self.count += 1
            place += self.last
            place.name, place.lowest, place.highest = name, offset, offset
            return 0
        place = &self.places[self.last]
        if offset <= place.highest:
            self.is_growing = False
        place.lowest = min(place.lowest, offset)
        place.highest = max(place.highest, offset)
        return 0

    cdef int put(self, Buffer* b) except -1:
        cdef uint32_t i
        cdef uint8_t* p
        put_line(b, WORD, 1 + self.count * sizeof(Place))
        buffer_reserve(b, 1)[0] = ZERO + 1 if self.is_growing else ZERO
        for i in range(self.count):
            p = buffer_reserve(b, sizeof(Place))
            memcpy(p, &self.places[i], sizeof(Place))
        memcpy(buffer_reserve(b, 2), b"\r\n", 2)
        return 0


def pack_addition(uint32_t words, bytes head not None, bytes in_flight not None, list packs not None):
    """The command that adds the messages of all these packs to a queue. `head`: its first words, so many, packed."""
    cdef Buffer b
    cdef _Places places = _Places()
    cdef RecordPack pack
    cdef RecordView record
    cdef size_t position
    cdef uint32_t count = 0
    cdef bint is_plain = True
    cdef uint8_t nothing[DETAILS_SIZE]
    for i in range(DETAILS_SIZE):
        nothing[i] = 0
    b.data, b.start, b.end, b.capacity = NULL, 0, 0, 0
    try:
        for pack in packs:
            count += pack.count
            position = 0
            while pack.next(&position, &record):
                places.note(record.key)
                if memcmp(record.key + DETAILS_AT, nothing, DETAILS_SIZE):
                    is_plain = False
        put_line(&b, ARRAY, words + 4 + count)
        put_bytes(&b, head)
        put_word(&b, <const uint8_t*> PyBytes_AS_STRING(in_flight), <uint32_t> PyBytes_GET_SIZE(in_flight))
        places.put(&b)
        put_line(&b, WORD, count * IDENTITY_SIZE)
        for pack in packs:
            position = 0
            while pack.next(&position, &record):
                write_identity(buffer_reserve(&b, IDENTITY_SIZE), record.key)
        memcpy(buffer_reserve(&b, 2), b"\r\n", 2)
        put_line(&b, WORD, 0 if is_plain else count * DETAILS_SIZE)
        for pack in packs if not is_plain else ():
            position = 0
            while pack.next(&position, &record):
                memcpy(buffer_reserve(&b, DETAILS_SIZE), record.key + DETAILS_AT, DETAILS_SIZE)
        memcpy(buffer_reserve(&b, 2), b"\r\n", 2)
        for pack in packs:
            position = 0
            while pack.next(&position, &record):
                put_value(&b, &record)
        return PyBytes_FromStringAndSize(<const char*> b.data, b.end)
    finally:
        buffer_free(&b)


def pack_singles(uint32_t words, bytes head not None, list packs not None):
    """The command that adds one message to each of several queues; `head` as above, keys and limits included."""
    cdef Buffer b
    cdef RecordPack pack
    cdef RecordView record
    cdef size_t position
    cdef uint8_t identity[IDENTITY_SIZE]
    cdef int64_t expires
    b.data, b.start, b.end, b.capacity = NULL, 0, 0, 0
    try:
        put_line(&b, ARRAY, words + 3 * len(packs))
        put_bytes(&b, head)
        for pack in packs:
            position = 0
            pack.next(&position, &record)
            write_identity(identity, record.key)
            put_word(&b, identity, IDENTITY_SIZE)
            memcpy(&expires, record.key + DETAILS_AT, 8)
            put_number(&b, <uint64_t> max(expires, <int64_t> 0))
            put_value(&b, &record)
        return PyBytes_FromStringAndSize(<const char*> b.data, b.end)
    finally:
        buffer_free(&b)
