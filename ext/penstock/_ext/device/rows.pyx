"""The rows of DEVICE queues in LMDB (device/store/lmdb_rows.py), written and read without a Python object per message.

A chunk has several messages of a queue, as many as LMDB keeps in a page of the tree. Its key has the score of the first
that was ever in it; its value is the number of messages (16 bits) and each of them, little-endian:

     0 score - score of the key    4 via       8 partition    12 size of the value
    16 offset                     24 expiry   32 the value (the envelope; nothing = a PUBREL)

The packet id of a message is its score modulo 65535 (0 is 65535), so nobody has to remember which is where: a message
that gets an id out of turn gets a score further on.

A row of marks has what was added with offsets of one bucket (MARKS_SPAN offsets of a partition) in a transaction:

     0 offset in the bucket (8 bits)    1 via    5 number of the queue    13 score

Longer than other files because writing and reading are one format: whoever changes an offset here must see both sides.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.wire.numbers cimport put_be32

cdef enum:
    IDS = 65_535                # packet ids, from 1 on
    TAKEN_SIZE = 8_192          # a bit for each of them
    SOURCE_SIZE = 26            # store/base.py, SOURCE: partition, via, offset, expiry, packet id
    COUNT_SIZE = 2
    ENTRY_SIZE = 32
    LARGEST_CHUNK = 2_000       # with its key it is half a page of LMDB
    MESSAGE_KEY_SIZE = 16
    SPAN_BITS = 6
    MARK_SIZE = 21
    MARKS_IN_ROW = 90
    MARK_KEY_SIZE = 20
    SIGN = 0x80000000           # turned over in keys, so that negative partitions come first

MARKS_SPAN = 1 << SPAN_BITS


class BadSource(ValueError):
    """The key of a record is not one that `build_source` has made."""


class NoPacketId(LookupError):
    """Every packet id is stored or in flight."""


cdef struct Entry:
    uint64_t score
    int64_t offset
    int64_t expires
    const uint8_t* value
    int32_t partition
    uint32_t via
    uint32_t size


cdef struct Mark:
    int64_t offset
    uint64_t number
    uint64_t score
    int32_t partition
    uint32_t via


cdef struct Newest:
    int64_t written             # newest offset of the partition that has a mark in the tables
    int64_t pending             # the same, with those that were not written yet
    int32_t partition


cdef inline void put_be64(uint8_t* p, uint64_t v) noexcept:
    put_be32(p, <uint32_t> (v >> 32))
    put_be32(p + 4, <uint32_t> v)


cdef inline uint16_t id_of(uint64_t score) noexcept:
    return <uint16_t> ((score - 1) % IDS + 1)


# The next score that means the id.
cdef inline uint64_t score_after(uint64_t last, uint16_t packet_id) noexcept:
    cdef uint64_t step = (<uint64_t> packet_id + IDS - last % IDS) % IDS
    return last + (step if step else <uint64_t> IDS)


cdef inline bint has_bit(const uint8_t* bits, uint16_t i) noexcept:
    return (bits[i >> 3] >> (i & 7)) & 1


cdef inline void set_bit(uint8_t* bits, uint16_t i) noexcept:
    bits[i >> 3] |= <uint8_t> (1 << (i & 7))


def packet_id_of(uint64_t score):
    return id_of(score)


cdef class QueueCounters:
    """What is known of a queue. All its messages have scores from `first_score` to `last_score`, and there are no more
    than `most` of them; exactly so many if `is_exact`."""

    cdef readonly uint64_t number
    cdef public uint16_t last_id
    cdef public uint64_t last_score
    cdef public uint64_t first_score
    cdef public int64_t most
    cdef public bint is_exact
    cdef uint8_t* _taken        # a bit for each packet id that is stored, once somebody had to know; or NULL

    def __cinit__(self, uint64_t number, uint16_t last_id, uint64_t last_score):
        self.number = number
        self.last_id = last_id
        self.last_score = last_score
        self.first_score = last_score + 1
        self.is_exact = True

    def __dealloc__(self):
        free(self._taken)

    @property
    def knows_taken(self):
        return self._taken != NULL

    def take(self, scores):
        """All that is stored has these scores."""
        if self._taken == NULL:
            self._taken = <uint8_t*> calloc(TAKEN_SIZE, 1)
            if self._taken == NULL:
                raise MemoryError
        memset(self._taken, 0, TAKEN_SIZE)
        for score in scores:
            set_bit(self._taken, id_of(score))

    def removed(self, list scores):
        """Messages have gone."""
        cdef uint16_t packet_id
        self.most -= len(scores)
        if self._taken != NULL:
            for score in scores:
                packet_id = id_of(score)
                self._taken[packet_id >> 3] &= <uint8_t> ~(1 << (packet_id & 7))
        if self.is_exact and self.most == 0:
            self.first_score = self.last_score + 1
            free(self._taken)
            self._taken = NULL

    def scores_of(self, packet_ids):
        """Where messages with these ids are, if they are stored at all; in order."""
        cdef uint64_t score
        cdef int number
        cdef list scores = []
        for number in packet_ids:
            if number < 1 or number > IDS or (self._taken != NULL and not has_bit(self._taken, <uint16_t> number)):
                continue
            score = score_after(self.last_score, <uint16_t> number)
            while score > IDS and score - IDS >= self.first_score:
                score -= IDS
                scores.append(score)
        scores.sort()
        return scores

    @property
    def rounds(self):
        """How many scores can mean the same packet id."""
        return (self.last_score - self.first_score) // IDS + 1 if self.last_score >= self.first_score else 0


# The bits of ids that are in flight, in memory of the caller; NULL if there are none.
cdef uint8_t* read_in_flight(bytes in_flight, uint8_t* bits) except? NULL:
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(in_flight)
    cdef Py_ssize_t i
    cdef uint16_t packet_id
    if PyBytes_GET_SIZE(in_flight) == 0:
        return NULL
    memset(bits, 0, TAKEN_SIZE)
    for i in range(0, PyBytes_GET_SIZE(in_flight) - 1, 2):
        memcpy(&packet_id, p + i, 2)
        set_bit(bits, packet_id)
    return bits


cdef class RowWriter:
    """Rows that were not written yet. `tables` is asked where this does not know enough:
    `find_known(counters, partition, offset, via)` says under which packet id a message is stored that may have been
    added before (0 = it is gone, None = never added), `find_first(counters)` looks which score is the first, and
    `load_taken(counters)` which packet ids are stored."""

    cdef readonly list chunks   # (key, value)
    cdef object _tables
    cdef Buffer _chunk
    cdef uint64_t _chunk_base
    cdef uint32_t _chunk_count
    cdef Mark* _marks
    cdef uint32_t _mark_count
    cdef uint32_t _mark_room
    cdef uint32_t* _slots       # a hash table of places in _marks, from 1 on
    cdef uint32_t _slot_mask
    cdef Newest* _newest
    cdef uint32_t _partitions

    def __cinit__(self, tables):
        self.chunks = []
        self._tables = tables

    def __dealloc__(self):
        buffer_free(&self._chunk)
        free(self._marks)
        free(self._slots)
        free(self._newest)

    @property
    def mark_count(self):
        return self._mark_count

    def forget(self):
        """Nothing of it is wanted any more, and nothing is known."""
        self.chunks.clear()
        self._chunk.start = self._chunk.end = 0
        self._chunk_count = 0
        self._forget_marks()
        self._partitions = 0

    cdef void _forget_marks(self) noexcept:
        self._mark_count = 0
        if self._slots != NULL:
            memset(self._slots, 0, (<size_t> self._slot_mask + 1) * sizeof(uint32_t))

    def note_newest(self, int32_t partition, int64_t offset):
        """There is a mark in the tables for this offset, or none behind it."""
        cdef Newest* newest = self._find_newest(partition)
        newest.written = max(newest.written, offset)
        newest.pending = max(newest.pending, offset)

    cdef Newest* _find_newest(self, int32_t partition) except NULL:
        cdef uint32_t i
        cdef Newest* grown
        for i in range(self._partitions):
            if self._newest[i].partition == partition:
                return &self._newest[i]
        grown = <Newest*> realloc(self._newest, (self._partitions + 1) * sizeof(Newest))
        if grown == NULL:
            raise MemoryError
        self._newest = grown
        grown += self._partitions
        self._partitions += 1
        grown.partition, grown.written, grown.pending = partition, -1, -1
        return grown

    # ---- adding ----

    def add(self, QueueCounters counters not None, RecordPack pack not None, bytes in_flight not None, int64_t now,
            int64_t default_expiry, int64_t latest_expiry, int64_t passed_over):
        """Packet ids of the messages, 0 = not stored; the oldest `passed_over` new ones are not. And whether the
        newest has the last id that was given. Raises BadSource and NoPacketId; what was added before that, is."""
        cdef uint8_t bits[TAKEN_SIZE]
        cdef const uint8_t* taken = read_in_flight(in_flight, bits)
        cdef size_t position = 0
        cdef RecordView record
        cdef Entry e
        cdef Newest* newest = NULL
        cdef Mark* mark
        cdef uint16_t packet_id
        cdef bint is_given, knows_last_id = True
        cdef list packet_ids = []
        cdef object known
        try:
            while pack.next(&position, &record):
                if record.key_size != SOURCE_SIZE:
                    raise BadSource(f"{record.key_size} bytes and not {SOURCE_SIZE}")
                memcpy(&e.partition, record.key, 4)
                memcpy(&e.via, record.key + 4, 4)
                memcpy(&e.offset, record.key + 8, 8)
                memcpy(&e.expires, record.key + 16, 8)
                memcpy(&packet_id, record.key + 24, 2)
                if newest == NULL or newest.partition != e.partition:
                    newest = self._find_newest(e.partition)
                mark = self._find_pending(counters.number, &e) if e.offset <= newest.pending else NULL
                if mark != NULL:
                    packet_ids.append(id_of(mark.score))
                    continue
                if e.offset <= newest.written:
                    known = self._tables.find_known(counters, e.partition, e.offset, e.via)
                    newest = NULL       # it may lie elsewhere now
                    if known is not None:
                        packet_ids.append(known)
                        continue
                if e.expires == 0:
                    e.expires = default_expiry
                elif e.expires <= now:
                    packet_ids.append(0)
                    continue
                e.expires = min(e.expires, latest_expiry)
                if passed_over > 0:
                    passed_over -= 1
                    packet_ids.append(0)
                    continue
                is_given = packet_id == 0 or self._is_taken(counters, packet_id)
                if is_given:
                    packet_id = self._next_id(counters, taken)
                elif (packet_id + IDS - counters.last_id) % IDS < IDS // 2:
                    counters.last_id = packet_id    # it was sent with the next one, or one further on
                knows_last_id = counters.last_id == packet_id
                e.score = score_after(counters.last_score, packet_id)
                e.value = record.value
                e.size = 0 if record.value_size == NO_VALUE else record.value_size
                self._put(counters, &e)
                packet_ids.append(packet_id)
        finally:
            self._close_chunk(counters.number)
        return packet_ids, knows_last_id

    def reserve(self, QueueCounters counters not None, Py_ssize_t count, bytes in_flight not None):
        """The next ids that are neither stored nor in flight. Raises NoPacketId."""
        cdef uint8_t bits[TAKEN_SIZE]
        cdef uint8_t* taken = read_in_flight(in_flight, bits)
        cdef uint16_t before = counters.last_id
        cdef list packet_ids = []
        if taken == NULL:
            memset(bits, 0, TAKEN_SIZE)
        try:
            while len(packet_ids) < count:
                packet_ids.append(self._next_id(counters, bits))
                set_bit(bits, counters.last_id)
        except NoPacketId:
            counters.last_id = before
            raise
        return packet_ids

    # Whether a stored message has the id.
    cdef bint _is_taken(self, QueueCounters counters, uint16_t packet_id) except -1:
        if counters._taken == NULL:
            if score_after(counters.last_score, packet_id) < counters.first_score + IDS:
                return False
            # Where the first message is may be known too vaguely.
            self._close_chunk(counters.number)
            self._tables.find_first(counters)
            if score_after(counters.last_score, packet_id) < counters.first_score + IDS:
                return False
            self._tables.load_taken(counters)
        return has_bit(counters._taken, packet_id)

    cdef uint16_t _next_id(self, QueueCounters counters, const uint8_t* in_flight) except 0:
        cdef uint16_t packet_id = counters.last_id
        for _ in range(IDS):
            packet_id = packet_id % IDS + 1
            if (in_flight == NULL or not has_bit(in_flight, packet_id)) and not self._is_taken(counters, packet_id):
                counters.last_id = packet_id
                return packet_id
        raise NoPacketId("every packet id of the client is stored or in flight")

    cdef int _put(self, QueueCounters counters, const Entry* e) except -1:
        cdef uint8_t* p
        cdef uint32_t delta, size = e.size
        if self._chunk_count and self._chunk.end + ENTRY_SIZE + size > LARGEST_CHUNK:
            self._close_chunk(counters.number)
        if self._chunk_count == 0:
            self._chunk_base = e.score
            buffer_reserve(&self._chunk, COUNT_SIZE)
        delta = <uint32_t> (e.score - self._chunk_base)
        p = buffer_reserve(&self._chunk, ENTRY_SIZE + size)
        memcpy(p, &delta, 4)
        memcpy(p + 4, &e.via, 4)
        memcpy(p + 8, &e.partition, 4)
        memcpy(p + 12, &size, 4)
        memcpy(p + 16, &e.offset, 8)
        memcpy(p + 24, &e.expires, 8)
        memcpy(p + ENTRY_SIZE, e.value, size)
        self._chunk_count += 1
        self._put_mark(counters.number, e)
        if counters.most == 0:
            counters.first_score = e.score
        counters.last_score = e.score
        counters.most += 1
        if counters._taken != NULL:
            set_bit(counters._taken, id_of(e.score))
        return 0

    cdef int _close_chunk(self, uint64_t number) except -1:
        cdef uint8_t key[MESSAGE_KEY_SIZE]
        cdef uint16_t count = <uint16_t> self._chunk_count
        if count == 0:
            return 0
        memcpy(self._chunk.data, &count, COUNT_SIZE)
        put_be64(key, number)
        put_be64(key + 8, self._chunk_base)
        self.chunks.append((
            PyBytes_FromStringAndSize(<const char*> key, MESSAGE_KEY_SIZE),
            PyBytes_FromStringAndSize(<const char*> self._chunk.data, self._chunk.end),
        ))
        self._chunk.start = self._chunk.end = 0
        self._chunk_count = 0
        return 0

    # ---- marks ----

    cdef Mark* _find_pending(self, uint64_t number, const Entry* e) noexcept:
        cdef uint32_t at
        cdef Mark* mark
        if self._mark_count == 0:
            return NULL
        at = hash_mark(number, e.partition, e.offset, e.via) & self._slot_mask
        while self._slots[at]:
            mark = &self._marks[self._slots[at] - 1]
            if (mark.offset == e.offset and mark.number == number and mark.partition == e.partition
                    and mark.via == e.via):
                return mark
            at = (at + 1) & self._slot_mask
        return NULL

    cdef int _put_mark(self, uint64_t number, const Entry* e) except -1:
        cdef Newest* newest = self._find_newest(e.partition)
        cdef Mark* mark
        if self._mark_count == self._mark_room:
            self._grow_marks()
        mark = &self._marks[self._mark_count]
        mark.offset, mark.number, mark.score = e.offset, number, e.score
        mark.partition, mark.via = e.partition, e.via
        self._mark_count += 1
        self._link(self._mark_count)
        newest.pending = max(newest.pending, e.offset)
        return 0

    cdef void _link(self, uint32_t place) noexcept:
        cdef Mark* mark = &self._marks[place - 1]
        cdef uint32_t at = hash_mark(mark.number, mark.partition, mark.offset, mark.via) & self._slot_mask
        while self._slots[at]:
            at = (at + 1) & self._slot_mask
        self._slots[at] = place

    cdef int _grow_marks(self) except -1:
        cdef uint32_t i, room = max(2 * self._mark_room, <uint32_t> 1024)
        cdef Mark* marks = <Mark*> realloc(self._marks, room * sizeof(Mark))
        cdef uint32_t* slots
        if marks == NULL:
            raise MemoryError
        self._marks = marks
        slots = <uint32_t*> calloc(2 * <size_t> room, sizeof(uint32_t))
        if slots == NULL:
            raise MemoryError
        free(self._slots)
        self._slots, self._slot_mask, self._mark_room = slots, 2 * room - 1, room
        for i in range(self._mark_count):
            self._link(i + 1)
        return 0

    def take_marks(self, uint64_t sequence):
        """The rows of marks, in the order of their keys, which have a number of their own from `sequence` on."""
        cdef list rows = []
        cdef uint8_t key[MARK_KEY_SIZE]
        cdef uint8_t value[MARKS_IN_ROW * MARK_SIZE]
        cdef uint8_t* p
        cdef Mark* mark
        cdef uint32_t i = 0, j, first
        cdef int64_t bucket
        qsort(self._marks, self._mark_count, sizeof(Mark), compare_marks)
        while i < self._mark_count:
            first, p = i, value
            bucket = self._marks[i].offset >> SPAN_BITS
            put_be32(key, <uint32_t> self._marks[i].partition ^ SIGN)
            put_be64(key + 4, <uint64_t> bucket)
            put_be64(key + 12, sequence + i)
            while i < self._mark_count and i - first < MARKS_IN_ROW:
                mark = &self._marks[i]
                if mark.partition != self._marks[first].partition or mark.offset >> SPAN_BITS != bucket:
                    break
                p[0] = <uint8_t> (mark.offset - (bucket << SPAN_BITS))
                memcpy(p + 1, &mark.via, 4)
                memcpy(p + 5, &mark.number, 8)
                memcpy(p + 13, &mark.score, 8)
                p += MARK_SIZE
                i += 1
            rows.append((PyBytes_FromStringAndSize(<const char*> key, MARK_KEY_SIZE),
                         PyBytes_FromStringAndSize(<const char*> value, p - value)))
        for j in range(self._partitions):
            self._newest[j].written = self._newest[j].pending
        self._forget_marks()
        return rows


cdef inline uint32_t hash_mark(uint64_t number, int32_t partition, int64_t offset, uint32_t via) noexcept:
    cdef uint64_t hash = number * 0x9E3779B97F4A7C15ull ^ <uint64_t> offset * 0xC2B2AE3D27D4EB4Full
    hash ^= (<uint64_t> <uint32_t> partition << 32 | via) * 0x165667B19E3779F9ull
    return <uint32_t> (hash >> 32) ^ <uint32_t> hash


cdef int compare_marks(const void* a, const void* b) noexcept nogil:
    cdef const Mark* one = <const Mark*> a
    cdef const Mark* other = <const Mark*> b
    if one.partition != other.partition:
        return -1 if one.partition < other.partition else 1
    if one.offset != other.offset:
        return -1 if one.offset < other.offset else 1
    return 0


def mark_prefix(int32_t partition, int64_t offset):
    """How keys of rows begin in which an offset has its marks."""
    cdef uint8_t key[12]
    put_be32(key, <uint32_t> partition ^ SIGN)
    put_be64(key + 4, <uint64_t> (offset >> SPAN_BITS))
    return PyBytes_FromStringAndSize(<const char*> key, 12)


def find_mark(bytes row not None, int64_t offset, uint32_t via, uint64_t number):
    """The score that a message got, 0 = it has no mark in this row."""
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(row)
    cdef const uint8_t* end = p + PyBytes_GET_SIZE(row)
    cdef uint8_t low = <uint8_t> (offset - (offset >> SPAN_BITS << SPAN_BITS))
    cdef uint64_t score
    while end - p >= MARK_SIZE:
        if p[0] == low and memcmp(p + 1, &via, 4) == 0 and memcmp(p + 5, &number, 8) == 0:
            memcpy(&score, p + 13, 8)
            return score
        p += MARK_SIZE
    return 0


# ---- chunks ----

# 1 = filled, 0 = end of the chunk; raises when it is damaged.
cdef int next_entry(const uint8_t** at, const uint8_t* end, uint64_t base, Entry* e) except -1:
    cdef const uint8_t* p = at[0]
    cdef uint32_t delta
    if p >= end:
        return 0
    if end - p < ENTRY_SIZE:
        raise ValueError("a row of stored messages is damaged")
    memcpy(&delta, p, 4)
    memcpy(&e.via, p + 4, 4)
    memcpy(&e.partition, p + 8, 4)
    memcpy(&e.size, p + 12, 4)
    memcpy(&e.offset, p + 16, 8)
    memcpy(&e.expires, p + 24, 8)
    if <size_t> (end - p - ENTRY_SIZE) < e.size:
        raise ValueError("a row of stored messages is damaged")
    e.score = base + delta
    e.value = p + ENTRY_SIZE
    at[0] = e.value + e.size
    return 1


cdef inline const uint8_t* entries_of(bytes chunk, const uint8_t** end) noexcept:
    end[0] = <const uint8_t*> PyBytes_AS_STRING(chunk) + PyBytes_GET_SIZE(chunk)
    return <const uint8_t*> PyBytes_AS_STRING(chunk) + COUNT_SIZE


def chunk_count(chunk):
    """How many messages are in it."""
    return int.from_bytes(chunk[:COUNT_SIZE], "little")


def chunk_scores(bytes chunk not None, uint64_t base):
    cdef const uint8_t* end
    cdef const uint8_t* p = entries_of(chunk, &end)
    cdef Entry e
    cdef list scores = []
    while next_entry(&p, end, base, &e):
        scores.append(e.score)
    return scores


def read_chunk(bytes chunk not None, uint64_t base, int64_t after, Py_ssize_t limit, int64_t now, list packet_ids,
               list scores, list values, list expired):
    """Fills the columns, up to `limit` messages, with what comes after a score. Returns the score of the last that was
    looked at (`after` = none) and whether more are in the chunk."""
    cdef const uint8_t* end
    cdef const uint8_t* p = entries_of(chunk, &end)
    cdef Entry e
    cdef Py_ssize_t count = len(values)
    while next_entry(&p, end, base, &e):
        if <int64_t> e.score <= after:
            continue
        if count == limit:
            return after, True
        after = <int64_t> e.score
        if e.expires <= now:
            expired.append(id_of(e.score))
            continue
        packet_ids.append(id_of(e.score))
        scores.append(e.score)
        values.append(PyBytes_FromStringAndSize(<const char*> e.value, e.size))
        count += 1
    return after, False


def copy_chunk(bytes chunk not None, uint64_t base, RecordPack pack not None, uint32_t via, bytes delivery not None,
               Py_ssize_t limit, int64_t now, list packet_ids, set wanted=None):
    """Put messages that have not expired into a pack, for another queue, until there are `limit` in it; note the packet
    ids of these and of expired ones. `via` is for those that came without, `delivery` is put after each. With `wanted`,
    only messages that have these scores are looked at."""
    cdef const uint8_t* end
    cdef const uint8_t* p = entries_of(chunk, &end)
    cdef uint8_t source[SOURCE_SIZE]
    cdef uint8_t* copied
    cdef uint32_t delivery_size = <uint32_t> PyBytes_GET_SIZE(delivery)
    cdef Entry e
    while pack.count < limit and next_entry(&p, end, base, &e):
        if wanted is not None and e.score not in wanted:
            continue
        packet_ids.append(id_of(e.score))
        if e.expires <= now:
            continue
        memcpy(source, &e.partition, 4)
        memcpy(source + 4, &e.via if e.via else &via, 4)
        memcpy(source + 8, &e.offset, 8)
        memcpy(source + 16, &e.expires, 8)
        memset(source + 24, 0, 2)
        copied = pack.reserve(now, source, SOURCE_SIZE, e.size + delivery_size)
        memcpy(copied, e.value, e.size)
        memcpy(copied + e.size, PyBytes_AS_STRING(delivery), delivery_size)


def edit_chunk(bytes chunk not None, uint64_t base, list wanted not None, Py_ssize_t at, bint empties):
    """Takes messages out of a chunk (or empties them: they are PUBRELs now): those whose scores are in `wanted`, which
    is in order, from place `at` on. Returns the chunk (empty when nothing is left), the scores that were found, and
    where in `wanted` the scores behind this chunk begin."""
    cdef const uint8_t* end
    cdef const uint8_t* p = entries_of(chunk, &end)
    cdef const uint8_t* start
    cdef Py_ssize_t count = len(wanted)
    cdef uint64_t score = wanted[at]
    cdef uint16_t left = 0
    cdef uint32_t nothing = 0, size
    cdef Entry e
    cdef list found = []
    cdef uint8_t* room = <uint8_t*> malloc(<size_t> PyBytes_GET_SIZE(chunk))
    cdef uint8_t* to = room + COUNT_SIZE
    if room == NULL:
        raise MemoryError
    e.score = base
    try:
        start = p
        while next_entry(&p, end, base, &e):
            while at < count and score < e.score:
                at += 1
                score = wanted[at] if at < count else 0
            size = <uint32_t> (p - start)
            if at < count and score == e.score:
                found.append(e.score)
                size = ENTRY_SIZE if empties else 0
            memcpy(to, start, size)
            if size == ENTRY_SIZE:
                memcpy(to + 12, &nothing, 4)
            left += 1 if size else 0
            to += size
            start = p
        while at < count and wanted[at] <= e.score:
            at += 1
        memcpy(room, &left, COUNT_SIZE)
        edited = PyBytes_FromStringAndSize(<const char*> room, to - room) if left else b""
    finally:
        free(room)
    return edited, found, at
