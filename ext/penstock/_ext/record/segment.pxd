# Record packs: many records in one piece of memory, as they lie in the segment files of the embedded log and as they
# travel between the layers. Written and read without a Python object per record.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.wire.buffer cimport Buffer


cdef enum:
    NO_KEY = 0xFFFFFFFF     # key_size of a record without a key
    NO_VALUE = 0xFFFFFFFF   # value_size of a tombstone


# One record where it lies. WARNING: borrowed from the pack.
cdef struct RecordView:
    int64_t offset
    int64_t timestamp       # ms since the epoch
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers  # packed: varint count, then name (varint size, bytes) and value (varint size, bytes) each
    uint32_t key_size       # NO_KEY = none
    uint32_t value_size     # NO_VALUE = tombstone
    uint32_t headers_size   # 0 = none


# The header of a batch in a segment file.
cdef struct Batch:
    uint32_t size           # of the batch, with its header
    uint32_t partition
    int64_t base_offset
    uint32_t count
    uint32_t span           # offset of the last record - base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    uint32_t flags
    uint32_t unsynced       # bytes before the batch that were not known to be on the disk when it was written


cdef class RecordPack:
    cdef Buffer _body               # the records, without the batch header
    cdef readonly uint32_t count
    cdef readonly int64_t base_offset       # -1 until it was appended
    cdef readonly int64_t base_timestamp    # of the first record
    cdef readonly int64_t max_timestamp
    cdef uint32_t _span             # offset of the last record - base_offset
    cdef readonly bint is_sealed    # appended to a log: nothing can be added any more

    # Appends a record; the key may be NULL with NO_KEY, headers NULL with 0. Returns 0.
    cdef int put(self, int64_t timestamp, const uint8_t* key, uint32_t key_size, const uint8_t* value,
                 uint32_t value_size, const uint8_t* headers, uint32_t headers_size) except -1
    # Room for a record whose value the caller writes itself (the envelope): returns where `value_size` bytes go.
    cdef uint8_t* reserve(self, int64_t timestamp, const uint8_t* key, uint32_t key_size,
                          uint32_t value_size) except NULL
    # Walks the records: *position starts at 0; 0 = end, 1 = view filled, raises on damage.
    cdef int next(self, size_t* position, RecordView* view) except -1

    cdef uint8_t* open_record(self, int64_t timestamp, uint32_t offset_delta, const uint8_t* key, uint32_t key_size,
                              const uint8_t* headers, uint32_t headers_size, uint32_t value_size) except NULL
    cdef int read_record(self, const uint8_t* body, size_t size, size_t* position, RecordView* view) except -1
    cdef object column(self, int which)
    cdef void describe(self, Batch* batch, uint32_t partition) noexcept
    cdef int merge(self, const Batch* batch, const uint8_t* body, int64_t from_offset, uint32_t max_records,
                   size_t max_bytes) except -1
    cdef int put_again(self, const RecordView* view) except -1
