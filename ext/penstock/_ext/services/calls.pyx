"""Requests and answers in record packs (src/penstock/services/rpc): their headers written and read in C.

The headers are those of services/messages.py: requestId (16 bytes), responseTopic (UTF-8), expireTs (8 bytes,
big-endian ms), producerId and ts; an error answer has errorCode and errorMessage.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from penstock._ext.record.segment cimport NO_KEY, NO_VALUE, RecordPack, RecordView

cdef extern from "segment.h" nogil:
    uint8_t* put_varint64(uint8_t* p, uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)

cdef enum:
    ID_SIZE = 16
    TEXT_SIZE = 36

cdef const char* HEX = b"0123456789abcdef"


cdef class Call:
    """A request or an answer as it was read. `fault` says why it is neither; None = it is one."""

    cdef readonly bytes data
    cdef readonly bytes key
    cdef readonly bytes request_id
    cdef readonly str response_topic
    cdef readonly int64_t expire_ts
    cdef readonly int64_t offset
    cdef readonly bytes error_code
    cdef readonly bytes error_message
    cdef readonly list headers      # all others than these, and than producerId and ts
    cdef readonly str fault


cdef inline int64_t read_time(const uint8_t* p) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value = value << 8 | p[i]
    return <int64_t> value


cdef inline void write_time(uint8_t* p, int64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t> (<uint64_t> value >> (56 - 8 * i))


# The UUID as text, which is the key of the record.
cdef inline void write_uuid(uint8_t* p, const uint8_t* identifier) noexcept nogil:
    cdef int i
    for i in range(ID_SIZE):
        if i == 4 or i == 6 or i == 8 or i == 10:
            p[0] = c"-"
            p += 1
        p[0] = HEX[identifier[i] >> 4]
        p[1] = HEX[identifier[i] & 15]
        p += 2


cdef class CallWriter:
    """Adds requests (with a response topic) or answers (without) of one service to packs."""

    cdef bytearray _headers         # packed, with room for what differs from call to call
    cdef Py_ssize_t _request_id
    cdef Py_ssize_t _expire_ts
    cdef Py_ssize_t _ts

    def __init__(self, bytes producer_id not None, bytes response_topic=None):
        self._headers = bytearray([3 if response_topic is None else 5])
        self._request_id = self.add(b"requestId", bytes(ID_SIZE))
        self.add(b"producerId", producer_id)
        self._ts = self.add(b"ts", bytes(8))
        self._expire_ts = -1
        if response_topic is not None:
            self.add(b"responseTopic", response_topic)
            self._expire_ts = self.add(b"expireTs", bytes(8))

    cdef Py_ssize_t add(self, bytes name, bytes value) except -1:
        self._headers += pack_part(name)
        self._headers += pack_part(value)
        return len(self._headers) - len(value)

    def put(self, RecordPack pack not None, bytes data not None, bytes request_id not None, int64_t now_ms,
            int64_t expire_ts=0, bytes key=None, headers=()):
        """Without a key the record's key is the id as text. `headers` are (name, value) and come after ours."""
        cdef uint8_t* packed = <uint8_t*> self._headers
        cdef uint32_t size = <uint32_t> len(self._headers)
        cdef uint8_t text[TEXT_SIZE]
        cdef const uint8_t* key_data = text
        cdef uint32_t key_size = TEXT_SIZE
        cdef bytearray more
        if PyBytes_GET_SIZE(request_id) != ID_SIZE:
            raise ValueError("the id of a request has 16 bytes")
        memcpy(packed + self._request_id, PyBytes_AS_STRING(request_id), ID_SIZE)
        write_time(packed + self._ts, now_ms)
        if self._expire_ts >= 0:
            write_time(packed + self._expire_ts, expire_ts)
        if key is None:
            write_uuid(text, <const uint8_t*> PyBytes_AS_STRING(request_id))
        else:
            key_data, key_size = <const uint8_t*> PyBytes_AS_STRING(key), <uint32_t> PyBytes_GET_SIZE(key)
        if headers:
            more = bytearray(pack_number(packed[0] + len(headers)))
            more += self._headers[1:]
            for name, value in headers:
                more += pack_part(name.encode())
                more += pack_part(value)
            packed, size = <uint8_t*> more, <uint32_t> len(more)
        pack.put(now_ms, key_data, key_size, <const uint8_t*> PyBytes_AS_STRING(data),
                 <uint32_t> PyBytes_GET_SIZE(data), packed, size)


cdef bytes pack_number(uint64_t number):
    cdef uint8_t room[10]
    return room[:put_varint64(room, number) - room]


cdef bytes pack_part(bytes part):
    return pack_number(len(part)) + part


cdef inline bint is_name(const uint8_t* p, uint64_t size, const char* name, uint64_t name_size) noexcept nogil:
    return size == name_size and memcmp(p, name, name_size) == 0


cdef inline bytes bytes_of(const uint8_t* p, uint64_t size):
    return PyBytes_FromStringAndSize(<const char*> p, <Py_ssize_t> size)


cdef class CallReader:
    """Reads packs; keeps the newest response topic, because the next request mostly has the same."""

    cdef bytes _topic_bytes
    cdef str _topic

    def __init__(self):
        self._topic_bytes, self._topic = b"", ""

    cdef str topic_of(self, const uint8_t* p, uint64_t size):
        if not is_name(p, size, PyBytes_AS_STRING(self._topic_bytes), <uint64_t> PyBytes_GET_SIZE(self._topic_bytes)):
            self._topic = p[:size].decode()
            self._topic_bytes = bytes_of(p, size)
        return self._topic

    # A fault, or None.
    cdef str read_headers(self, Call call, const uint8_t* p, const uint8_t* end, bint* has_expire):
        cdef uint64_t count = 0, name_size = 0, size = 0
        cdef const uint8_t* name
        p = get_varint64(p, end, &count)
        if p == NULL:
            return "the headers are damaged"
        while count:
            count -= 1
            p = get_varint64(p, end, &name_size)
            if p == NULL or name_size > <uint64_t> (end - p):
                return "the headers are damaged"
            name = p
            p = get_varint64(p + name_size, end, &size)
            if p == NULL or size > <uint64_t> (end - p):
                return "the headers are damaged"
            if is_name(name, name_size, b"requestId", 9):
                if size != ID_SIZE:
                    return f"the header requestId has {size} bytes instead of 16"
                call.request_id = bytes_of(p, size)
            elif is_name(name, name_size, b"responseTopic", 13):
                try:
                    call.response_topic = self.topic_of(p, size)
                except UnicodeDecodeError:
                    return "the header responseTopic is not UTF-8"
            elif is_name(name, name_size, b"expireTs", 8):
                has_expire[0] = size == 8
                call.expire_ts = read_time(p) if size == 8 else 0
            elif is_name(name, name_size, b"errorCode", 9):
                call.error_code = bytes_of(p, size)
            elif is_name(name, name_size, b"errorMessage", 12):
                call.error_message = bytes_of(p, size)
            elif not is_name(name, name_size, b"producerId", 10) and not is_name(name, name_size, b"ts", 2):
                if call.headers is None:
                    call.headers = []
                call.headers.append((name[:name_size].decode(errors="replace"), bytes_of(p, size)))
            p += size
        return None

    cdef Call read(self, const RecordView* view, bint is_request):
        cdef Call call = Call.__new__(Call)
        cdef bint has_expire = False
        call.offset = view.offset
        if view.key_size != NO_KEY:
            call.key = bytes_of(view.key, view.key_size)
        if view.headers_size:
            call.fault = self.read_headers(call, view.headers, view.headers + view.headers_size, &has_expire)
        if call.fault is not None:
            return call
        if view.value_size == NO_VALUE:
            call.fault = "it has no data"
        else:
            call.data = bytes_of(view.value, view.value_size)
        if call.request_id is None:
            call.fault = "the header requestId is missing"
        elif is_request and not call.response_topic:
            call.fault = "the header responseTopic is missing"
        elif is_request and not has_expire:
            call.fault = "the header expireTs is missing or not 8 bytes"
        return call

    def read_requests(self, RecordPack pack not None):
        """A Call for each record, in order; those that are no request have a fault."""
        return self.read_all(pack, True)

    def read_answers(self, RecordPack pack not None):
        return self.read_all(pack, False)

    cdef list read_all(self, RecordPack pack, bint is_request):
        cdef size_t position = 0
        cdef RecordView view
        cdef list calls = []
        while pack.next(&position, &view):
            calls.append(self.read(&view, is_request))
        return calls
