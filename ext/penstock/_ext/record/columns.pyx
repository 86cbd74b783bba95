"""Stored publishes straight into the memory of Arrow columns, for Spark: no Python object per record.

A `Decoder` takes records from the batches of segment files or from the values of an Arrow array and fills the columns
of penstock_spark.schema. `take` hands the memory over, named `<column>.data`, `.offsets` and `.valid` (a bitmap, absent
when no row is null). What is not a publish becomes a row of nulls with the reason in `error` and its bytes in `raw`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from penstock._ext.wire.buffer cimport Buffer, buffer_free
from penstock._ext.record.envelope cimport EnvelopeView, get_envelope
from penstock._ext.wire.numbers cimport get_be16

from penstock._ext.record.envelope import EnvelopeError, decode

cdef extern from "segment.h" nogil:
    uint32_t load_u32(const uint8_t* p)
    int64_t load_i64(const uint8_t* p)
    int64_t unzigzag(uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)
    void crc32c_prepare()
    uint32_t crc32c_extend(uint32_t crc, const uint8_t* p, size_t n)

cdef extern from "topic_filter.h" nogil:
    bint filter_matches(const uint8_t* f, size_t f_size, const uint8_t* t, size_t t_size)

cdef extern from "utf8.h" nogil:
    bint is_utf8(const uint8_t* p, size_t n)

cdef enum:
    MAGIC = 0x425350 | 1 << 24      # "PSB" and the version of the batch; see segment.pyx
    HEADER = 60
    HEADER_CRC = 56
    CRC_FROM = 12
    IS_CONTROL = 1
    LARGEST_DATA = 0x60000000       # Arrow's offsets have 31 bits

# MQTT 5 properties (2.2.2.2), as they lie in EnvelopeView.props.
cdef enum:
    PAYLOAD_FORMAT = 0x01
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    USER_PROPERTY = 0x26

# How add_batches ended.
cdef enum Stop:
    AT_END = 0      # the data ends with the last batch
    FULL = 1        # enough rows: take them
    TORN = 2        # the next batch is not whole in the data
    DAMAGED = 3     # no batch, or its checksum is wrong

cdef enum:
    T_TOPIC, T_PAYLOAD, T_CLIENT_ID, T_USERNAME, T_CONTENT_TYPE, T_RESPONSE_TOPIC, T_CORRELATION_DATA, T_ERROR, T_RAW,
    T_MAP_NAME, T_MAP_VALUE, T_LIST_NAME, T_LIST_VALUE,
    TEXTS

cdef enum:
    N_RECEIVED_AT, N_EXPIRES_AT, N_LOG_OFFSET, N_LOG_TIME,
    LONGS,
    N_QOS = LONGS, N_PAYLOAD_FORMAT, N_LOG_PARTITION, N_SCHEMA_VERSION, N_MAP, N_LIST,
    NUMBERS

cdef enum:
    B_GOOD, B_RETAIN, B_PAYLOAD_TEXT, B_USERNAME, B_EXPIRES_AT, B_PAYLOAD_FORMAT, B_CONTENT_TYPE, B_RESPONSE_TOPIC,
    B_CORRELATION_DATA, B_ERROR,
    BITS

TEXT_NAMES = (
    "topic", "payload", "client_id", "username", "content_type", "response_topic", "correlation_data", "error", "raw",
    "map_name", "map_value", "list_name", "list_value",
)
NUMBER_NAMES = (
    "received_at", "expires_at", "log_offset", "log_time", "qos", "payload_format", "log_partition", "schema_version",
    "map", "list",
)
BIT_NAMES = (
    "good", "retain", "payload_text", "username", "expires_at", "payload_format", "content_type", "response_topic",
    "correlation_data", "error",
)
STOPS = ("end", "full", "torn", "damaged")

crc32c_prepare()


cdef struct Growing:
    uint8_t* data
    size_t size
    size_t capacity

cdef struct VarColumn:
    Growing offsets
    Growing data


cdef int grow(Growing* g, size_t more) except -1:
    cdef size_t capacity = g.capacity * 2 if g.capacity else 4_096
    cdef uint8_t* data
    if g.capacity - g.size >= more:
        return 0
    if capacity < g.size + more:
        capacity = g.size + more
    data = <uint8_t*> realloc(g.data, capacity)
    if data == NULL:
        raise MemoryError()
    g.data, g.capacity = data, capacity
    return 0


cdef inline int put_bytes(Growing* g, const uint8_t* at, size_t size) except -1:
    grow(g, size)
    if size:
        memcpy(g.data + g.size, at, size)
    g.size += size
    return 0


cdef inline int put_i32(Growing* g, int32_t number) except -1:
    return put_bytes(g, <const uint8_t*> &number, 4)


cdef inline int put_i64(Growing* g, int64_t number) except -1:
    return put_bytes(g, <const uint8_t*> &number, 8)


# The value of a row; NULL data with size 0 is the empty slot of a null.
cdef inline int put_text(VarColumn* column, const uint8_t* at, size_t size) except -1:
    put_bytes(&column.data, at, size)
    return put_i32(&column.offsets, <int32_t> column.data.size)


cdef inline int put_bit(Growing* g, size_t row, bint is_set) except -1:
    if row & 7 == 0:
        grow(g, 1)
        g.data[g.size] = 0
        g.size += 1
    if is_set:
        g.data[row >> 3] |= <uint8_t> (1 << (row & 7))
    return 0


cdef class Memory:
    """Bytes that an Arrow buffer may keep as long as it likes."""

    cdef uint8_t* _data
    cdef Py_ssize_t _size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self._data, self._size, 1, flags)

    def __len__(self):
        return self._size

    def __dealloc__(self):
        free(self._data)


cdef Memory hand_over(Growing* g):
    cdef Memory memory = Memory.__new__(Memory)
    grow(g, 1)  # Arrow wants an address even for nothing
    memory._data, memory._size = g.data, <Py_ssize_t> g.size
    memset(g, 0, sizeof(Growing))
    return memory


cdef inline int64_t micros(int64_t ms) noexcept nogil:
    return ms * 1_000


cdef inline bint is_time(int64_t ms) noexcept nogil:
    # the years 1 to 9999: what Spark and Python both can show
    return -62_135_596_800_000LL <= ms <= 253_402_300_799_999LL


cdef class Decoder:
    """Rows of columns; see the module. `ranges` are the wanted (start, end) offsets of each partition."""

    cdef VarColumn _texts[TEXTS]
    cdef Growing _numbers[NUMBERS]
    cdef Growing _bits[BITS]
    cdef size_t _nulls[BITS]
    cdef Buffer _scratch
    cdef int64_t* _ranges
    cdef uint32_t _partitions
    cdef tuple _filters
    cdef size_t _max_rows
    cdef size_t _max_bytes
    cdef bint _keeps_bad
    cdef readonly size_t rows
    cdef readonly size_t bad

    def __cinit__(self, ranges=(), filters=(), size_t max_rows=20_000, size_t max_bytes=8_388_608, bint keep_bad=True):
        cdef uint32_t i = 0
        self._partitions = <uint32_t> len(ranges)
        self._ranges = <int64_t*> malloc(16 * (self._partitions + 1))
        if self._ranges == NULL:
            raise MemoryError()
        for start, end in ranges:
            self._ranges[2 * i], self._ranges[2 * i + 1] = start, end
            i += 1
        self._filters = tuple(bytes(one) for one in filters)
        self._max_rows, self._max_bytes, self._keeps_bad = max_rows, max_bytes, keep_bad
        self.start_columns()

    def __dealloc__(self):
        cdef int i
        for i in range(TEXTS):
            free(self._texts[i].offsets.data)
            free(self._texts[i].data.data)
        for i in range(NUMBERS):
            free(self._numbers[i].data)
        for i in range(BITS):
            free(self._bits[i].data)
        buffer_free(&self._scratch)
        free(self._ranges)

    cdef int start_columns(self) except -1:
        cdef int i
        self.rows = 0
        memset(self._nulls, 0, sizeof(self._nulls))
        for i in range(TEXTS):
            put_i32(&self._texts[i].offsets, 0)
        put_i32(&self._numbers[N_MAP], 0)
        put_i32(&self._numbers[N_LIST], 0)
        return 0

    @property
    def is_full(self):
        return self.has_enough()

    cdef bint has_enough(self) noexcept:
        return (self.rows >= self._max_rows or self._texts[T_PAYLOAD].data.size >= self._max_bytes
                or self._texts[T_RAW].data.size >= self._max_bytes)

    def take(self):
        """({name: memory}, rows, {bits: how many are not set}); the decoder is empty again."""
        cdef dict parts = {}
        cdef dict nulls = {}
        cdef int i
        cdef size_t rows = self.rows
        for i in range(TEXTS):
            parts[f"{TEXT_NAMES[i]}.offsets"] = hand_over(&self._texts[i].offsets)
            parts[f"{TEXT_NAMES[i]}.data"] = hand_over(&self._texts[i].data)
        for i in range(NUMBERS):
            parts[f"{NUMBER_NAMES[i]}.numbers"] = hand_over(&self._numbers[i])
        for i in range(BITS):
            parts[f"{BIT_NAMES[i]}.bits"] = hand_over(&self._bits[i])
            nulls[BIT_NAMES[i]] = self._nulls[i]
        self.start_columns()
        return parts, rows, nulls

    cdef int put_flag(self, int which, bint is_set) except -1:
        self._nulls[which] += not is_set
        return put_bit(&self._bits[which], self.rows, is_set)

    cdef bint is_wanted(self, const uint8_t* topic, size_t size) except -1:
        cdef bytes one
        if not self._filters:
            return True
        for one in self._filters:
            if filter_matches(<const uint8_t*> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one), topic, size):
                return True
        return False

    # A row of a record, if it is wanted; 1 if there is one.
    cdef int put_record(self, const uint8_t* value, uint32_t size, bint has_value, int64_t partition, int64_t offset,
                        int64_t time_ms) except -1:
        cdef EnvelopeView view
        if not has_value:
            return self.put_bad(b"a tombstone", NULL, 0, partition, offset, time_ms)
        if get_envelope(value, size, &view, &self._scratch):
            return self.put_bad(reason_of(value, size), value, size, partition, offset, time_ms)
        if not is_time(view.received_at) or not is_time(view.expires_at):
            return self.put_bad(b"a time outside the years 1 to 9999", value, size, partition, offset, time_ms)
        if not self.is_wanted(view.topic, view.topic_size):
            return 0
        self.put_good(&view, version_of(value, size))
        return self.put_place(partition, offset, time_ms)

    cdef int put_place(self, int64_t partition, int64_t offset, int64_t time_ms) except -1:
        put_i32(&self._numbers[N_LOG_PARTITION], <int32_t> partition)
        put_i64(&self._numbers[N_LOG_OFFSET], offset)
        put_i64(&self._numbers[N_LOG_TIME], micros(time_ms) if is_time(time_ms) else 0)
        self.rows += 1
        return 1

    cdef int put_good(self, const EnvelopeView* view, int32_t version) except -1:
        put_text(&self._texts[T_TOPIC], view.topic, view.topic_size)
        put_text(&self._texts[T_PAYLOAD], view.payload, view.payload_size)
        put_text(&self._texts[T_CLIENT_ID], view.client_id, view.client_id_size)
        put_text(&self._texts[T_USERNAME], view.username, view.username_size)
        put_text(&self._texts[T_ERROR], NULL, 0)
        put_text(&self._texts[T_RAW], NULL, 0)
        put_i64(&self._numbers[N_RECEIVED_AT], micros(view.received_at))
        put_i64(&self._numbers[N_EXPIRES_AT], micros(view.expires_at))
        put_i32(&self._numbers[N_QOS], view.qos)
        put_i32(&self._numbers[N_SCHEMA_VERSION], version)
        self.put_flag(B_GOOD, True)
        self.put_flag(B_RETAIN, view.retain)
        self.put_flag(B_PAYLOAD_TEXT, is_utf8(view.payload, view.payload_size))
        self.put_flag(B_USERNAME, view.username != NULL)
        self.put_flag(B_EXPIRES_AT, view.expires_at != 0)
        self.put_flag(B_ERROR, False)
        return self.put_properties(view.props, view.props + view.props_size)

    # envelope laid them out itself, so every size is right.
    cdef int put_properties(self, const uint8_t* at, const uint8_t* end) except -1:
        cdef const uint8_t* content_type = NULL
        cdef const uint8_t* response_topic = NULL
        cdef const uint8_t* correlation_data = NULL
        cdef const uint8_t* users = NULL
        cdef int payload_format = -1
        while at < end:
            if at[0] == PAYLOAD_FORMAT:
                payload_format = at[1]
                at += 2
                continue
            if at[0] == USER_PROPERTY:
                users = at
                break  # they are last
            if at[0] == CONTENT_TYPE:
                content_type = at + 1
            elif at[0] == RESPONSE_TOPIC:
                response_topic = at + 1
            else:
                correlation_data = at + 1
            at += 3 + get_be16(at + 1)
        self.put_optional(T_CONTENT_TYPE, B_CONTENT_TYPE, content_type)
        self.put_optional(T_RESPONSE_TOPIC, B_RESPONSE_TOPIC, response_topic)
        self.put_optional(T_CORRELATION_DATA, B_CORRELATION_DATA, correlation_data)
        put_i32(&self._numbers[N_PAYLOAD_FORMAT], payload_format if payload_format >= 0 else 0)
        self.put_flag(B_PAYLOAD_FORMAT, payload_format >= 0)
        if users != NULL:
            self.put_users(users, end)
        put_i32(&self._numbers[N_MAP], <int32_t> (self._texts[T_MAP_NAME].offsets.size // 4 - 1))
        put_i32(&self._numbers[N_LIST], <int32_t> (self._texts[T_LIST_NAME].offsets.size // 4 - 1))
        return 0

    # `at` is a size of two bytes and the string; NULL = absent.
    cdef int put_optional(self, int text, int flag, const uint8_t* at) except -1:
        if at == NULL:
            put_text(&self._texts[text], NULL, 0)
        else:
            put_text(&self._texts[text], at + 2, get_be16(at))
        return self.put_flag(flag, at != NULL)

    # All of them in their order, and in the map the last of each name.
    cdef int put_users(self, const uint8_t* at, const uint8_t* end) except -1:
        cdef const uint8_t* value
        cdef const uint8_t* later
        cdef const uint8_t* after
        cdef size_t name_size, later_size
        while at < end:
            name_size = get_be16(at + 1)
            value = at + 3 + name_size
            after = value + 2 + get_be16(value)
            put_text(&self._texts[T_LIST_NAME], at + 3, name_size)
            put_text(&self._texts[T_LIST_VALUE], value + 2, get_be16(value))
            later = after
            while later < end:
                later_size = get_be16(later + 1)
                if later_size == name_size and memcmp(later + 3, at + 3, name_size) == 0:
                    break
                later += 3 + later_size
                later += 2 + get_be16(later)
            if later >= end:
                put_text(&self._texts[T_MAP_NAME], at + 3, name_size)
                put_text(&self._texts[T_MAP_VALUE], value + 2, get_be16(value))
            at = after
        return 0

    cdef int put_bad(self, bytes reason, const uint8_t* value, size_t size, int64_t partition, int64_t offset,
                     int64_t time_ms) except -1:
        cdef int i
        self.bad += 1
        if not self._keeps_bad:
            return 0
        for i in range(T_ERROR):
            put_text(&self._texts[i], NULL, 0)
        put_text(&self._texts[T_ERROR], <const uint8_t*> PyBytes_AS_STRING(reason), PyBytes_GET_SIZE(reason))
        put_text(&self._texts[T_RAW], value, size)
        put_i64(&self._numbers[N_RECEIVED_AT], 0)
        put_i64(&self._numbers[N_EXPIRES_AT], 0)
        for i in (N_QOS, N_PAYLOAD_FORMAT, N_SCHEMA_VERSION):
            put_i32(&self._numbers[i], 0)
        put_i32(&self._numbers[N_MAP], <int32_t> (self._texts[T_MAP_NAME].offsets.size // 4 - 1))
        put_i32(&self._numbers[N_LIST], <int32_t> (self._texts[T_LIST_NAME].offsets.size // 4 - 1))
        for i in range(B_ERROR):
            self.put_flag(i, False)
        self.put_flag(B_ERROR, True)
        return self.put_place(partition, offset, time_ms)

    def add_batches(self, data not None, size_t position=0):
        """Takes the batches in the bytes from the position on, until enough rows are there. (position, why it
        stopped, size): `torn` says with the size how many bytes the next batch has, 0 if that is not known."""
        cdef Py_buffer source
        cdef size_t size
        cdef const uint8_t* p
        cdef int stop
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            size = <size_t> source.len
            while True:
                if position >= size:
                    return position, STOPS[AT_END], 0
                p = <const uint8_t*> source.buf + position
                stop = check_batch(p, size - position)
                if stop != AT_END:
                    return position, STOPS[stop], load_u32(p + 4) if size - position >= 8 else 0
                if self.wants_batch(p):
                    if self.rows and (self.has_enough() or self.rows + load_u32(p + 24) > self._max_rows):
                        return position, STOPS[FULL], 0
                    if not has_valid_crc(p) or not self.put_batch(p):
                        return position, STOPS[DAMAGED], load_u32(p + 4)
                position += load_u32(p + 4)
        finally:
            PyBuffer_Release(&source)

    cdef bint wants_batch(self, const uint8_t* p) noexcept:
        cdef uint32_t partition = load_u32(p + 12)
        cdef int64_t first = load_i64(p + 16)
        if load_u32(p + 48) & IS_CONTROL or partition >= self._partitions:
            return False
        return first < self._ranges[2 * partition + 1] and first + load_u32(p + 28) >= self._ranges[2 * partition]

    # 1, or 0 where a record is damaged (the checksum was right, so it was written like that).
    cdef int put_batch(self, const uint8_t* p) except -1:
        cdef uint32_t partition = load_u32(p + 12)
        cdef int64_t base_offset = load_i64(p + 16), base_time = load_i64(p + 32), offset
        cdef const uint8_t* end = p + load_u32(p + 4)
        cdef const uint8_t* record_end
        cdef uint64_t rest = 0, ticks = 0, delta = 0, length = 0
        p += HEADER
        while p < end:
            p = get_varint64(p, end, &rest)
            if p == NULL or rest > <uint64_t> (end - p):
                return 0
            record_end = p + rest
            p = get_varint64(p, record_end, &ticks)
            if p != NULL:
                p = get_varint64(p, record_end, &delta)
            if p != NULL:
                p = get_varint64(p, record_end, &length)
            if p == NULL or (length and length - 1 > <uint64_t> (record_end - p)):
                return 0
            p += length - 1 if length else 0
            p = get_varint64(p, record_end, &length)
            if p == NULL or length > <uint64_t> (record_end - p):
                return 0
            p = get_varint64(p + length, record_end, &length)
            if p == NULL or (length and length - 1 > <uint64_t> (record_end - p)):
                return 0
            offset = base_offset + <int64_t> delta
            if self._ranges[2 * partition] <= offset < self._ranges[2 * partition + 1]:
                if length > INT32_MAX or self._texts[T_PAYLOAD].data.size + length > LARGEST_DATA:
                    raise OverflowError("a batch holds more than Arrow's columns can: set a smaller segment.bytes")
                self.put_record(p, <uint32_t> (length - 1) if length else 0, length != 0, partition, offset,
                                base_time + unzigzag(ticks))
            p = record_end
        return 1

    def add_value(self, bytes value, int64_t partition, int64_t offset, int64_t time_ms):
        """One record; None is a tombstone. 1 if it became a row."""
        if value is None:
            return self.put_record(NULL, 0, False, partition, offset, time_ms)
        return self.put_record(<const uint8_t*> PyBytes_AS_STRING(value), <uint32_t> PyBytes_GET_SIZE(value), True,
                               partition, offset, time_ms)

    def add_array(self, offsets not None, data not None, valid, size_t first, size_t count, kept not None):
        """The values of an Arrow binary array: its three buffers (`valid` may be None), where it starts in them and
        how many there are. Writes 1 into `kept` (count bytes) for each value that became a row, 0 for the others.
        The place of the rows is not filled: it is in the array's neighbours."""
        cdef const int32_t[::1] at = memoryview(offsets).cast("B").cast("i")
        cdef const uint8_t[::1] bits = memoryview(valid).cast("B") if valid is not None else None
        cdef uint8_t[::1] rows = kept
        cdef Py_buffer source
        cdef size_t i
        cdef const uint8_t* p
        if count == 0:
            return
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            p = <const uint8_t*> source.buf
            for i in range(first, first + count):
                if bits is not None and not bits[i >> 3] >> (i & 7) & 1:
                    rows[i - first] = self.put_record(NULL, 0, False, 0, 0, 0)
                else:
                    rows[i - first] = self.put_record(p + at[i], <uint32_t> (at[i + 1] - at[i]), True, 0, 0, 0)
        finally:
            PyBuffer_Release(&source)


# AT_END if a whole batch lies there, TORN or DAMAGED.
cdef int check_batch(const uint8_t* p, size_t available) noexcept nogil:
    if available < 8:
        return TORN
    if load_u32(p) != MAGIC or load_u32(p + 4) < HEADER:
        return DAMAGED
    if available < HEADER:
        return TORN
    if (crc32c_extend(crc32c_extend(0, p, 8), p + CRC_FROM, HEADER_CRC - CRC_FROM) != load_u32(p + HEADER_CRC)):
        return DAMAGED
    return AT_END if available >= load_u32(p + 4) else TORN


cdef bint has_valid_crc(const uint8_t* p) noexcept nogil:
    return crc32c_extend(0, p + CRC_FROM, load_u32(p + 4) - CRC_FROM) == load_u32(p + 8)


# The version a record says; it is written first, and get_envelope has found one that it reads.
cdef int32_t version_of(const uint8_t* p, uint32_t size) noexcept nogil:
    return <int32_t> p[1] if size >= 2 and p[0] == 8 and p[1] < 128 else 1


cdef bytes reason_of(const uint8_t* value, uint32_t size):
    try:
        decode(PyBytes_FromStringAndSize(<const char*> value, size))
    except EnvelopeError as error:
        return str(error).encode()
    return b"not a publish"


def match_filter(bytes topic_filter not None, bytes topic not None):
    """Whether the MQTT topic filter matches the topic."""
    return bool(filter_matches(<const uint8_t*> PyBytes_AS_STRING(topic_filter), PyBytes_GET_SIZE(topic_filter),
                               <const uint8_t*> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)))
