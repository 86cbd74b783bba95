"""Record packs and the batches they become in the segment files of the embedded log; see segment.pxd.

A record in a pack: size of the rest, timestamp - base_timestamp (zigzag), offset - base_offset, key size + 1
(0 = none), key, size of the headers, headers, value size + 1 (0 = tombstone), value; all numbers are varints. What
follows the value belongs to a later version and is skipped.

A batch in a file is a header (little-endian) and a pack's records. The checksum covers everything after itself; the
header has one of its own (without the other), so that a reader which skips a batch skips what it means to skip:

     0 magic and version   4 size of the batch with its header   8 CRC32C   12 partition
    16 base offset        24 records                            28 last offset - base offset
    32 base timestamp     40 newest timestamp                   48 flags                       52 unsynced bytes before
    56 CRC32C of the header

The unsynced bytes tell after a power cut what a bad batch before a good one means: if the good one says that the bytes
of the bad one were not on the disk yet when it was written, nobody was told that they are, and both are a torn tail;
otherwise something was damaged that had been stored.

More than 600 lines because packs and batches share the walk over the records, which has to be compiled together.
"""

import array
import bisect
import os
import time
from collections import deque, namedtuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython cimport final
from libc.errno cimport EINTR, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from penstock._ext.wire.buffer cimport buffer_free, buffer_reserve, buffer_size

cdef extern from "segment.h" nogil:
    uint32_t load_u32(const uint8_t* p)
    int64_t load_i64(const uint8_t* p)
    void store_u32(uint8_t* p, uint32_t v)
    void store_i64(uint8_t* p, int64_t v)
    uint64_t zigzag(int64_t v)
    int64_t unzigzag(uint64_t v)
    uint32_t varint64_size(uint64_t v)
    uint8_t* put_varint64(uint8_t* p, uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)
    void crc32c_prepare()
    uint32_t crc32c_extend(uint32_t crc, const uint8_t* p, size_t n)
    int crc32c_in_hardware

cdef extern from "siphash.h" nogil:
    void siphash128(const uint64_t* key, const uint8_t* data, size_t size, uint64_t* out)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t size, const void* needle, size_t needle_size)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec* parts, int count, long position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef enum:
    MAGIC_NAME = 0x425350           # "PSB"
    VERSION = 1
    MAGIC = MAGIC_NAME | VERSION << 24
    HEADER = 60
    HEADER_CRC = 56
    CRC_FROM = 12
    IS_CONTROL = 1
    LARGEST_PACK = 0x7FF00000       # sizes in a batch are 32 bits, with room for what surrounds them
    PARTS_AT_ONCE = 1_024           # IOV_MAX

HEADER_SIZE = HEADER
FLAG_CONTROL = IS_CONTROL
FORMAT_VERSION = VERSION
MAX_PACK_SIZE = LARGEST_PACK

Record = namedtuple("Record", ("offset", "timestamp", "key", "value", "headers"))
BatchInfo = namedtuple(
    "BatchInfo",
    (
        "position",
        "size",
        "partition",
        "base_offset",
        "next_offset",
        "count",
        "base_timestamp",
        "max_timestamp",
        "flags",
        "synced",
    ),
)

crc32c_prepare()
HAS_HARDWARE_CRC = bool(crc32c_in_hardware)


class DamagedBatch(ValueError):
    """The bytes at `position` are not what was written."""

    def __init__(self, message, position=0):
        super().__init__(message)
        self.position = position


cdef inline uint32_t header_crc(const uint8_t* p) noexcept nogil:
    return crc32c_extend(crc32c_extend(0, p, 8), p + CRC_FROM, HEADER_CRC - CRC_FROM)


# 1 = filled, 0 = the bytes end inside the batch (size says how many it has, or is 0), -1 = not a batch
cdef int read_header(const uint8_t* p, size_t available, Batch* batch) noexcept nogil:
    batch.size = 0
    if available < 8:
        return 0
    if load_u32(p) != MAGIC:
        return -1
    batch.size = load_u32(p + 4)
    if batch.size < HEADER:
        return -1
    if available < HEADER:
        return 0
    if header_crc(p) != load_u32(p + HEADER_CRC):
        return -1
    batch.partition = load_u32(p + 12)
    batch.base_offset = load_i64(p + 16)
    batch.count = load_u32(p + 24)
    batch.span = load_u32(p + 28)
    batch.base_timestamp = load_i64(p + 32)
    batch.max_timestamp = load_i64(p + 40)
    batch.flags = load_u32(p + 48)
    batch.unsynced = load_u32(p + 52)
    return 1 if available >= batch.size else 0


cdef bint has_valid_crc(const uint8_t* p, uint32_t size) noexcept nogil:
    return crc32c_extend(0, p + CRC_FROM, size - CRC_FROM) == load_u32(p + 8)


cdef void write_header(uint8_t* p, const Batch* batch, const uint8_t* body) noexcept nogil:
    cdef uint32_t crc
    store_u32(p, MAGIC)
    store_u32(p + 4, batch.size)
    store_u32(p + 12, batch.partition)
    store_i64(p + 16, batch.base_offset)
    store_u32(p + 24, batch.count)
    store_u32(p + 28, batch.span)
    store_i64(p + 32, batch.base_timestamp)
    store_i64(p + 40, batch.max_timestamp)
    store_u32(p + 48, batch.flags)
    store_u32(p + 52, batch.unsynced)
    store_u32(p + HEADER_CRC, header_crc(p))
    crc = crc32c_extend(0, p + CRC_FROM, HEADER - CRC_FROM)
    store_u32(p + 8, crc32c_extend(crc, body, batch.size - HEADER))


cdef bytes pack_headers(headers):
    """Headers as RecordView has them: varint count, then sizes and bytes of names and values."""
    cdef bytearray packed = bytearray()
    cdef uint8_t number[10]
    number_end = put_varint64(number, len(headers))
    packed += number[:number_end - number]
    for name, value in headers:
        for part in (name.encode(), value):
            number_end = put_varint64(number, len(part))
            packed += number[:number_end - number]
            packed += part
    return bytes(packed)


cdef list unpack_headers(const uint8_t* p, uint32_t size):
    cdef const uint8_t* end = p + size
    cdef uint64_t count = 0, length = 0
    cdef list parts = []
    if size == 0:
        return []
    p = get_varint64(p, end, &count)
    if p == NULL or count > size:
        raise DamagedBatch("the headers of a record are damaged")
    for _ in range(2 * count):
        p = get_varint64(p, end, &length)
        if p == NULL or length > <uint64_t> (end - p):
            raise DamagedBatch("the headers of a record are damaged")
        parts.append(PyBytes_FromStringAndSize(<const char*> p, <Py_ssize_t> length))
        p += length
    return [(parts[i].decode(errors="replace"), parts[i + 1]) for i in range(0, len(parts), 2)]


cdef class RecordPack:
    """Records in one piece of memory. After it was appended to a log nothing can be added."""

    def __cinit__(self):
        self.base_offset = -1

    def __dealloc__(self):
        buffer_free(&self._body)

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"<RecordPack of {self.count} records, {buffer_size(&self._body)} bytes, from offset {self.base_offset}>"

    @property
    def size(self):
        """Bytes of the records, without the header that a file adds."""
        return buffer_size(&self._body)

    @property
    def next_offset(self):
        """Where reading goes on after this pack; -1 until it was appended."""
        if self.base_offset < 0:
            return -1
        return self.base_offset + self._span + 1 if self.count else self.base_offset

    @property
    def is_dense(self):
        """Whether the offsets have no gaps (compaction leaves some)."""
        return self.count == 0 or self._span == self.count - 1

    # Writes everything of a record but its value; returns where the value goes.
    cdef uint8_t* open_record(self, int64_t timestamp, uint32_t offset_delta, const uint8_t* key, uint32_t key_size,
                              const uint8_t* headers, uint32_t headers_size, uint32_t value_size) except NULL:
        cdef uint64_t stored_key = 0 if key_size == NO_KEY else <uint64_t> key_size + 1
        cdef uint64_t stored_value = 0 if value_size == NO_VALUE else <uint64_t> value_size + 1
        cdef uint64_t rest, ticks
        cdef uint8_t* p
        if self.is_sealed:
            raise ValueError("the pack was appended already: nothing can be added to it")
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        ticks = zigzag(timestamp - self.base_timestamp)
        rest = (varint64_size(ticks) + varint64_size(offset_delta) + varint64_size(stored_key)
                + varint64_size(headers_size) + varint64_size(stored_value) + <uint64_t> headers_size)
        if stored_key:
            rest += key_size
        if stored_value:
            rest += value_size
        if rest + 10 > LARGEST_PACK - <uint64_t> self._body.end:
            raise OverflowError(f"a pack of records cannot grow over {LARGEST_PACK} bytes")
        p = buffer_reserve(&self._body, <uint32_t> (varint64_size(rest) + rest))
        p = put_varint64(p, rest)
        p = put_varint64(p, ticks)
        p = put_varint64(p, offset_delta)
        p = put_varint64(p, stored_key)
        if stored_key > 1:
            memcpy(p, key, key_size)
            p += key_size
        p = put_varint64(p, headers_size)
        if headers_size:
            memcpy(p, headers, headers_size)
            p += headers_size
        p = put_varint64(p, stored_value)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self._span = offset_delta
        return p

    cdef int put(self, int64_t timestamp, const uint8_t* key, uint32_t key_size, const uint8_t* value,
                 uint32_t value_size, const uint8_t* headers, uint32_t headers_size) except -1:
        cdef uint8_t* p = self.open_record(timestamp, self._span + 1 if self.count else 0, key, key_size, headers,
                                           headers_size, value_size)
        if value_size != NO_VALUE and value_size:
            memcpy(p, value, value_size)
        return 0

    cdef uint8_t* reserve(self, int64_t timestamp, const uint8_t* key, uint32_t key_size,
                          uint32_t value_size) except NULL:
        return self.open_record(timestamp, self._span + 1 if self.count else 0, key, key_size, NULL, 0, value_size)

    cdef int next(self, size_t* position, RecordView* view) except -1:
        return self.read_record(self._body.data + self._body.start, buffer_size(&self._body), position, view)

    # As `next`, of records that may lie elsewhere (in a batch that was read) but belong to this pack's header fields.
    cdef int read_record(self, const uint8_t* body, size_t size, size_t* position, RecordView* view) except -1:
        cdef const uint8_t* p = body + position[0]
        cdef const uint8_t* end = body + size
        cdef uint64_t rest = 0, ticks = 0, offset_delta = 0, length = 0
        if p >= end:
            return 0
        p = get_varint64(p, end, &rest)
        if p == NULL or rest > <uint64_t> (end - p):
            raise DamagedBatch("a record runs over the end of its batch")
        end = p + rest
        p = get_varint64(p, end, &ticks)
        if p != NULL:
            p = get_varint64(p, end, &offset_delta)
        if p != NULL:
            p = get_varint64(p, end, &length)
        if p == NULL or (length and length - 1 > <uint64_t> (end - p)):
            raise DamagedBatch("a record's key runs over its end")
        view.timestamp = self.base_timestamp + unzigzag(ticks)
        view.offset = -1 if self.base_offset < 0 else self.base_offset + <int64_t> offset_delta
        view.key = p
        view.key_size = NO_KEY if length == 0 else <uint32_t> (length - 1)
        if length:
            p += length - 1
        p = get_varint64(p, end, &length)
        if p == NULL or length > <uint64_t> (end - p):
            raise DamagedBatch("a record's headers run over its end")
        view.headers = p
        view.headers_size = <uint32_t> length
        p += length
        p = get_varint64(p, end, &length)
        if p == NULL or (length and length - 1 > <uint64_t> (end - p)):
            raise DamagedBatch("a record's value runs over its end")
        view.value = p
        view.value_size = NO_VALUE if length == 0 else <uint32_t> (length - 1)
        position[0] = end - body
        return 1

    def append(self, bytes value, bytes key=None, headers=(), timestamp=None, offset=None):
        """Adds a record: no value is a tombstone, no timestamp is now. An offset (rising) is for records that have one
        already, read from elsewhere; a pack that goes to a log has none."""
        cdef bytes packed = pack_headers(headers) if headers else b""
        cdef int64_t at = int(time.time() * 1000) if timestamp is None else timestamp
        cdef int64_t delta = self._span + 1 if self.count else 0
        cdef uint32_t key_size = NO_KEY, value_size = NO_VALUE
        cdef const uint8_t* key_data = NULL
        cdef uint8_t* p
        if offset is not None:
            if self.count == 0:
                self.base_offset = offset
            if self.base_offset < 0 or offset < self.base_offset + delta:
                raise ValueError(f"offset {offset} does not rise after {self.base_offset + delta - 1}")
            delta = offset - self.base_offset
            if delta >= LARGEST_PACK:
                raise ValueError(f"offset {offset} is too far from the pack's first, {self.base_offset}")
        if key is not None:
            key_data, key_size = <const uint8_t*> PyBytes_AS_STRING(key), <uint32_t> PyBytes_GET_SIZE(key)
        if value is not None:
            if PyBytes_GET_SIZE(value) > LARGEST_PACK or (key is not None and PyBytes_GET_SIZE(key) > LARGEST_PACK):
                raise OverflowError(f"a pack of records cannot grow over {LARGEST_PACK} bytes")
            value_size = <uint32_t> PyBytes_GET_SIZE(value)
        p = self.open_record(at, <uint32_t> delta, key_data, key_size, <const uint8_t*> PyBytes_AS_STRING(packed),
                             <uint32_t> PyBytes_GET_SIZE(packed), value_size)
        if value is not None:
            memcpy(p, PyBytes_AS_STRING(value), value_size)

    def extend(self, values, timestamp=None):
        """Adds a record without key and headers for each of the values (bytes)."""
        cdef int64_t at = int(time.time() * 1000) if timestamp is None else timestamp
        cdef bytes value
        for value in values:
            if value is None:
                raise TypeError("a value must be bytes")
            if PyBytes_GET_SIZE(value) > LARGEST_PACK:
                raise OverflowError(f"a pack of records cannot grow over {LARGEST_PACK} bytes")
            self.put(at, NULL, NO_KEY, <const uint8_t*> PyBytes_AS_STRING(value),
                     <uint32_t> PyBytes_GET_SIZE(value), NULL, 0)

    def __iter__(self):
        cdef size_t position = 0
        cdef RecordView view
        while self.next(&position, &view):
            yield record_of(&view)

    def values(self):
        """The values; None for a tombstone."""
        cdef size_t position = 0
        cdef RecordView view
        cdef list values = []
        while self.next(&position, &view):
            values.append(bytes_of(view.value, view.value_size))
        return values

    def keys(self):
        """The keys; None for a record without one."""
        cdef size_t position = 0
        cdef RecordView view
        cdef list keys = []
        while self.next(&position, &view):
            keys.append(bytes_of(view.key, view.key_size))
        return keys

    def offsets(self):
        """The records' offsets as a numpy array of int64."""
        return self.column(0)

    def timestamps(self):
        """The records' times in milliseconds since the epoch as a numpy array of int64."""
        return self.column(1)

    cdef object column(self, int which):
        import numpy  # 100 ms that a broker which never asks for a column need not spend

        cdef size_t position = 0, i = 0
        cdef RecordView view
        cdef object column = numpy.empty(self.count, numpy.int64)
        cdef int64_t[::1] numbers = column
        while i < self.count and self.next(&position, &view):
            numbers[i] = view.timestamp if which else view.offset
            i += 1
        return column

    def find_time(self, int64_t timestamp, int64_t from_offset=0):
        """The offset of the first record at or after the time and the offset; -1 = none."""
        cdef size_t position = 0
        cdef RecordView view
        while self.next(&position, &view):
            if view.timestamp >= timestamp and view.offset >= from_offset:
                return view.offset
        return -1

    def seal(self):
        """Nothing can be added from now on: it is on its way into a log, and others have its size."""
        self.is_sealed = True

    def place(self, int64_t base_offset):
        """The log gives the first record this offset; nothing can be added from now on."""
        if base_offset < 0:
            raise ValueError("an offset cannot be negative")
        self.base_offset = base_offset
        self.is_sealed = True

    def slice(self, int64_t from_offset, uint32_t max_records=0xFFFFFFFF):
        """A copy with the records at and after the offset."""
        cdef RecordPack part = RecordPack()
        cdef Batch batch
        self.describe(&batch, 0)
        part.merge(&batch, self._body.data + self._body.start, from_offset, max_records, LARGEST_PACK)
        if part.count == 0:
            part.base_offset = max(from_offset, self.next_offset)
        part.is_sealed = True
        return part

    def encode(self, uint32_t partition):
        """The batch as it lies in a segment file."""
        cdef Batch batch
        self.describe(&batch, partition)
        cdef bytes encoded = PyBytes_FromStringAndSize(NULL, batch.size)
        cdef uint8_t* p = <uint8_t*> PyBytes_AS_STRING(encoded)
        if batch.size > HEADER:
            memcpy(p + HEADER, self._body.data + self._body.start, batch.size - HEADER)
        write_header(p, &batch, p + HEADER)
        return encoded

    cdef void describe(self, Batch* batch, uint32_t partition) noexcept:
        batch.size = HEADER + buffer_size(&self._body)
        batch.partition = partition
        batch.base_offset = self.base_offset
        batch.count = self.count
        batch.span = self._span
        batch.base_timestamp = self.base_timestamp
        batch.max_timestamp = self.max_timestamp
        batch.flags = 0
        batch.unsynced = 0

    # Adds the records of a batch from an offset on, at most up to the limits; 1 if the batch is used up.
    cdef int merge(self, const Batch* batch, const uint8_t* body, int64_t from_offset, uint32_t max_records,
                   size_t max_bytes) except -1:
        cdef size_t size = batch.size - HEADER, position = 0, start
        cdef RecordView view
        cdef RecordPack source
        cdef uint8_t* p
        cdef int64_t delta
        if self.count == 0 and from_offset <= batch.base_offset and batch.count <= max_records:
            # likeliest: the whole batch, as it is
            if size:
                memcpy(buffer_reserve(&self._body, <uint32_t> size), body, size)
            self.count, self._span = batch.count, batch.span
            self.base_offset = batch.base_offset
            self.base_timestamp, self.max_timestamp = batch.base_timestamp, batch.max_timestamp
            return 1
        source = RecordPack()
        source.base_offset, source.base_timestamp = batch.base_offset, batch.base_timestamp
        while True:
            start = position
            if source.read_record(body, size, &position, &view) == 0:
                return 1
            if view.offset < from_offset and batch.base_offset >= 0:
                continue
            if self.count >= max_records or (self.count and self._body.end + (position - start) > max_bytes):
                return 0
            if self.count == 0:
                self.base_offset = view.offset
            delta = view.offset - self.base_offset if view.offset >= 0 else <int64_t> self.count
            if delta < 0 or delta >= LARGEST_PACK:
                return 0
            p = self.open_record(view.timestamp, <uint32_t> delta, view.key, view.key_size, view.headers,
                                 view.headers_size, view.value_size)
            if view.value_size != NO_VALUE:
                memcpy(p, view.value, view.value_size)

    def note_newest(self, dict newest):
        """Compaction, first pass: newest[key] = offset of each record with a key. Packs come in rising order."""
        cdef size_t position = 0
        cdef RecordView view
        while self.next(&position, &view):
            if view.key_size != NO_KEY:
                newest[PyBytes_FromStringAndSize(<const char*> view.key, view.key_size)] = view.offset

    def keep_newest(self, dict newest, int64_t tombstones_after, int64_t always_keep):
        """Compaction, second pass: a pack with the records that are the newest of their keys, have none, or are at
        the offset `always_keep`; tombstones only if they are as young as `tombstones_after`."""
        cdef RecordPack kept = RecordPack()
        cdef size_t position = 0
        cdef RecordView view
        while self.next(&position, &view):
            if view.offset != always_keep and view.key_size != NO_KEY:
                key = PyBytes_FromStringAndSize(<const char*> view.key, view.key_size)
                if newest.get(key, view.offset) > view.offset:
                    continue
                if view.value_size == NO_VALUE and view.timestamp < tombstones_after:
                    continue
            kept.put_again(&view)
        return kept

    # A record of another pack, with its offset.
    cdef int put_again(self, const RecordView* view) except -1:
        cdef uint8_t* p
        if self.count == 0:
            self.base_offset = view.offset
        p = self.open_record(view.timestamp, <uint32_t> (view.offset - self.base_offset), view.key, view.key_size,
                             view.headers, view.headers_size, view.value_size)
        if view.value_size != NO_VALUE:
            memcpy(p, view.value, view.value_size)
        return 0

    def bench_put(self, bytes value, uint32_t count):
        """For benchmarks: adds `count` records with one value in a loop in C."""
        cdef int64_t at = int(time.time() * 1000)
        cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(value)
        for _ in range(count):
            self.put(at, NULL, NO_KEY, data, <uint32_t> PyBytes_GET_SIZE(value), NULL, 0)

    def bench_walk(self):
        """For benchmarks: reads every record into a C structure; the sum of the values' sizes."""
        cdef size_t position = 0
        cdef RecordView view
        cdef uint64_t total = 0
        while self.next(&position, &view):
            if view.value_size != NO_VALUE:
                total += view.value_size
        return total


cdef struct Slot:
    uint64_t high
    uint64_t low
    int64_t offset          # of the newest record; -1 = the slot is free


cdef class OffsetTable:
    """The newest offset of each key, in memory of a fixed size: keys are known by 128 bits of a hash that nobody can
    foresee. When there are more keys than it can hold, they are divided into classes that take turns."""

    cdef Slot* _slots
    cdef size_t _mask
    cdef size_t _used
    cdef size_t _most
    cdef uint64_t _key[2]
    cdef uint64_t _classes
    cdef uint64_t _chosen

    def __cinit__(self, size_t max_bytes):
        cdef size_t count = 16
        while 2 * count * sizeof(Slot) <= max_bytes:
            count *= 2
        self._slots = <Slot*> malloc(count * sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError()
        self._mask = count - 1
        self._most = count - count // 4
        memcpy(self._key, PyBytes_AS_STRING(os.urandom(16)), 16)
        self.begin(1, 0)

    def __dealloc__(self):
        free(self._slots)

    @property
    def capacity(self):
        """How many keys it holds."""
        return self._most

    def begin(self, uint64_t classes, uint64_t chosen):
        """Forgets everything; from now on it looks at the keys of one class."""
        self._classes, self._chosen, self._used = classes, chosen, 0
        for i in range(self._mask + 1):
            self._slots[i].offset = -1

    # The slot of a key, free if it is new; NULL if the key is not of the class.
    cdef Slot* find(self, uint32_t partition, const RecordView* view) noexcept:
        cdef uint64_t key[2]
        cdef uint64_t hashed[2]
        cdef size_t i
        key[0], key[1] = self._key[0], self._key[1] ^ partition
        siphash128(key, view.key, view.key_size, hashed)
        if self._classes > 1 and hashed[1] % self._classes != self._chosen:
            return NULL
        i = hashed[0] & self._mask
        while self._slots[i].offset >= 0 and (self._slots[i].high != hashed[0] or self._slots[i].low != hashed[1]):
            i = (i + 1) & self._mask
        self._slots[i].high, self._slots[i].low = hashed[0], hashed[1]
        return &self._slots[i]

    def note(self, RecordPack pack not None, uint32_t partition):
        """Learns of the records of a pack, in rising order. False: there is no room for all of their keys."""
        cdef size_t position = 0
        cdef RecordView view
        cdef Slot* slot
        while pack.next(&position, &view):
            if view.key_size == NO_KEY:
                continue
            slot = self.find(partition, &view)
            if slot == NULL:
                continue
            if slot.offset < 0:
                if self._used >= self._most:
                    return False
                self._used += 1
            slot.offset = view.offset
        return True

    def mark(self, RecordPack pack not None, uint32_t partition, uint8_t[::1] bits, size_t first):
        """Sets the bit of each record that is not the newest of its key; the pack starts at the bit `first`."""
        cdef size_t position = 0
        cdef RecordView view
        cdef Slot* slot
        while pack.next(&position, &view):
            if view.key_size != NO_KEY:
                slot = self.find(partition, &view)
                if slot != NULL and slot.offset > view.offset:
                    bits[first >> 3] |= 1 << (first & 7)
            first += 1

    def keep(self, RecordPack pack not None, uint32_t partition, const uint8_t[::1] bits, size_t first,
             int64_t tombstones_after, int64_t always_keep):
        """A pack with the records that neither the table nor a bit of `mark` (if there are any bits) says are not the
        newest of their keys, and the one at the offset `always_keep`; tombstones only if they are as young as
        `tombstones_after`."""
        cdef RecordPack kept = RecordPack()
        cdef size_t position = 0
        cdef RecordView view
        cdef Slot* slot
        while pack.next(&position, &view):
            first += 1
            if view.offset != always_keep and view.key_size != NO_KEY:
                if view.value_size == NO_VALUE and view.timestamp < tombstones_after:
                    continue
                if bits is not None and bits[(first - 1) >> 3] >> ((first - 1) & 7) & 1:
                    continue
                slot = self.find(partition, &view)
                if slot != NULL and slot.offset > view.offset:
                    continue
            kept.put_again(&view)
        return kept


cdef inline object bytes_of(const uint8_t* data, uint32_t size):
    return None if size == 0xFFFFFFFF else PyBytes_FromStringAndSize(<const char*> data, size)


cdef object record_of(const RecordView* view):
    return Record(view.offset, view.timestamp, bytes_of(view.key, view.key_size),
                  bytes_of(view.value, view.value_size), unpack_headers(view.headers, view.headers_size))


cdef extern from "bus_error.h":
    int explain_bus_error(const char* text, size_t size, int code)


def explain_bus_errors(bytes text not None, int code):
    """End the process with this text on standard error and this code when a page of a mapped file is missing."""
    return explain_bus_error(text, len(text), code) == 0


def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC32C of the bytes, continuing an earlier value."""
    if data.shape[0] == 0:
        return value
    return crc32c_extend(value, &data[0], <size_t> data.shape[0])


def build_control(uint32_t partition, uint32_t kind, int64_t offset, int64_t timestamp, bytes body=b""):
    """A batch without records that tells readers of the file something; `kind` is up to 255."""
    cdef Batch batch
    batch.size = HEADER + <uint32_t> PyBytes_GET_SIZE(body)
    batch.partition, batch.base_offset, batch.count, batch.span = partition, offset, 0, 0
    batch.base_timestamp, batch.max_timestamp, batch.flags = timestamp, timestamp, IS_CONTROL | kind << 8
    batch.unsynced = 0
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, HEADER) + body
    write_header(<uint8_t*> PyBytes_AS_STRING(encoded), &batch, <uint8_t*> PyBytes_AS_STRING(encoded) + HEADER)
    return encoded


cdef bint write_all(int fd, iovec* parts, int count, int64_t position, int64_t* written) noexcept nogil:
    cdef ssize_t done
    cdef int first = 0, chunk
    while first < count:
        chunk = count - first if count - first < PARTS_AT_ONCE else PARTS_AT_ONCE
        done = pwritev(fd, parts + first, chunk, position + written[0])
        if done < 0:
            if errno == EINTR:
                continue
            return False
        written[0] += done
        while first < count and <size_t> done >= parts[first].iov_len:
            done -= parts[first].iov_len
            first += 1
        if first < count and done:
            parts[first].iov_base = <uint8_t*> parts[first].iov_base + done
            parts[first].iov_len -= <size_t> done
    return True


include "disk_thread.pxi"
include "readable.pxi"
include "turns.pxi"


def encode_packs(int64_t position, int64_t synced, list partitions, list packs):
    """The bytes that `write_packs` would write at the position."""
    cdef Py_ssize_t i
    cdef size_t size = 0, at = 0
    cdef RecordPack pack
    cdef Batch batch
    for pack in packs:
        size += HEADER + buffer_size(&pack._body)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
    cdef uint8_t* p = <uint8_t*> PyBytes_AS_STRING(encoded)
    for i in range(len(packs)):
        pack = packs[i]
        pack.describe(&batch, partitions[i])
        batch.unsynced = <uint32_t> min(position + <int64_t> at - synced, 0xFFFFFFFF)
        if batch.size > HEADER:
            memcpy(p + at + HEADER, pack._body.data + pack._body.start, batch.size - HEADER)
        write_header(p + at, &batch, p + at + HEADER)
        at += batch.size
    return encoded


def read_batches(RecordPack into, const uint8_t[::1] data, size_t position, uint32_t partition, int64_t from_offset,
                 uint32_t max_records, size_t max_bytes):
    """Adds a partition's records at and after the offset to the pack, walking the batches from `position` on, until
    one of the limits or the end of the data. Damage behind records that were found is left to the next call, which
    raises: what lies before it can be read. Returns (where to go on, size of the batch that starts there and is not
    whole: 0 if none starts there, 8 if not even its size is known)."""
    cdef size_t end = <size_t> data.shape[0], available
    cdef const uint8_t* start
    cdef Batch batch
    cdef int state
    if end == 0:
        return position, 0
    start = &data[0]
    if into.is_sealed:
        raise ValueError("the pack was appended already: nothing can be added to it")
    while position < end:
        available = end - position
        state = read_header(start + position, available, &batch)
        if state == 0:
            return position, max(8, batch.size)
        if state < 0:
            if into.count:
                return position, 0
            raise DamagedBatch("no sound batch starts here", position)
        if (batch.partition == partition and not batch.flags & IS_CONTROL
                and batch.base_offset + <int64_t> batch.span >= from_offset):
            if into.count >= max_records or (into.count and into._body.end + batch.size > max_bytes):
                return position, 0
            if not has_valid_crc(start + position, batch.size):
                if into.count:
                    return position, 0
                raise DamagedBatch("the checksum does not match", position)
            if not into.merge(&batch, start + position + HEADER, from_offset, max_records, max_bytes):
                return position, 0
        position += batch.size
    return position, 0


def scan_batches(const uint8_t[::1] data, size_t position, bint check):
    """Walks the batches from `position` on, comparing checksums if `check`. Returns (list of BatchInfo, where it
    stopped, why: "" at the end of the data, "torn" inside a batch, "header", "version" or "checksum")."""
    cdef size_t end = <size_t> data.shape[0]
    cdef const uint8_t* start
    cdef Batch batch
    cdef int state
    cdef list found = []
    if position >= end:
        return found, position, ""
    start = &data[0]
    while position < end:
        state = read_header(start + position, end - position, &batch)
        if state == 0:
            return found, position, "torn"
        if state < 0:
            if load_u32(start + position) & 0xFFFFFF == MAGIC_NAME and load_u32(start + position) != MAGIC:
                return found, position, "version"
            return found, position, "header"
        if check and not has_valid_crc(start + position, batch.size):
            return found, position, "checksum"
        next_offset = batch.base_offset + batch.span + 1 if batch.count else batch.base_offset
        found.append(BatchInfo(position, batch.size, batch.partition, batch.base_offset, next_offset, batch.count,
                               batch.base_timestamp, batch.max_timestamp, batch.flags,
                               <int64_t> position - <int64_t> batch.unsynced))
        position += batch.size
    return found, position, ""


def find_batch(const uint8_t[::1] data, size_t position):
    """The first place at or after `position` where a whole batch with a matching checksum starts; -1 = none."""
    cdef size_t end = <size_t> data.shape[0]
    cdef uint8_t magic[4]
    cdef const uint8_t* start
    cdef const uint8_t* found
    cdef Batch batch
    store_u32(magic, MAGIC)
    if end == 0:
        return -1
    start = &data[0]
    while position < end:
        found = <const uint8_t*> memmem(start + position, end - position, magic, 4)
        if found == NULL:
            return -1
        position = <size_t> (found - start)
        if read_header(found, end - position, &batch) == 1 and has_valid_crc(found, batch.size):
            return position
        position += 1
    return -1
