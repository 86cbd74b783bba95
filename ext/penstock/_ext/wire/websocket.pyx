"""WebSocket frames (RFC 6455), server side; see websocket.pxd.

A frame passes through one of two ways:

  data      the header is parsed, its payload length becomes `remaining`, and the payload is handed out read by read,
            unmasked where it lies; nothing of it is ever kept
  control   handed out whole; when a read ends inside one, header and payload (at most 131 bytes) wait in `held`

MQTT packets need not be aligned with frames and a frame may hold any number of them [MQTT-6.0.0-2] [MQTT3-6.0.0-2],
so the fragments of a message are simply more bytes of the same stream.
"""

from libc.stdint cimport UINT32_MAX
from libc.string cimport memcpy, memset


cdef extern from "utf8.h" nogil:
    bint is_utf8(const uint8_t* p, size_t n)


# Opcodes and close codes with the names RFC 6455 gives them (sections 5.2 and 7.4.1).
cdef enum:
    OP_CONTINUATION = 0
    OP_TEXT = 1
    OP_BINARY = 2
    OP_CLOSE = 8
    OP_PING = 9
    OP_PONG = 10

    CLOSE_PROTOCOL_ERROR = 1002
    CLOSE_UNSUPPORTED_DATA = 1003
    CLOSE_INVALID_DATA = 1007
    CLOSE_TOO_BIG = 1009

    FIN = 0x80
    RESERVED_BITS = 0x70
    MASKED = 0x80
    LONGEST_CONTROL_PAYLOAD = 125
    LENGTH_IN_16_BITS = 126
    LENGTH_IN_64_BITS = 127
    MASK_SIZE = 4
    LONGEST_HEADER = 14


# What the first bytes of a frame say about it.
cdef struct Header:
    uint64_t payload_size
    uint32_t size           # bytes of the header; 0 while more of it must come
    uint16_t close_code     # 0, or why the frame is refused
    uint8_t opcode
    uint8_t is_final


cdef inline uint16_t check_first_bytes(const uint8_t* at, bint in_message) noexcept nogil:
    cdef uint8_t opcode = at[0] & 0x0F
    if at[0] & RESERVED_BITS or not at[1] & MASKED:     # no extension was agreed; a client always masks
        return CLOSE_PROTOCOL_ERROR
    if opcode == OP_BINARY:
        return CLOSE_PROTOCOL_ERROR if in_message else 0
    if opcode == OP_CONTINUATION:
        return 0 if in_message else CLOSE_PROTOCOL_ERROR
    if opcode == OP_TEXT:
        return CLOSE_UNSUPPORTED_DATA                   # only binary frames carry MQTT [MQTT-6.0.0-1] [MQTT3-6.0.0-1]
    if opcode < OP_CLOSE or opcode > OP_PONG:
        return CLOSE_PROTOCOL_ERROR
    if not at[0] & FIN or at[1] & 0x7F > LONGEST_CONTROL_PAYLOAD:
        return CLOSE_PROTOCOL_ERROR
    return 0


cdef inline uint64_t read_number(const uint8_t* at, uint32_t size) noexcept nogil:
    cdef uint64_t number = 0
    cdef uint32_t i
    for i in range(size):
        number = number << 8 | at[i]
    return number


cdef Header parse_header(const uint8_t* at, size_t available, bint in_message, uint64_t max_frame) noexcept nogil:
    cdef Header header
    cdef uint32_t length_size = 0
    cdef uint64_t shortest = 0
    memset(&header, 0, sizeof(header))
    if available < 2:
        return header
    header.close_code = check_first_bytes(at, in_message)
    if header.close_code:
        return header
    header.opcode = at[0] & 0x0F
    header.is_final = at[0] & FIN
    header.payload_size = at[1] & 0x7F
    if header.payload_size == LENGTH_IN_16_BITS:
        length_size, shortest = 2, LENGTH_IN_16_BITS
    elif header.payload_size == LENGTH_IN_64_BITS:
        length_size, shortest = 8, 0x10000
    if available < 2 + length_size:
        return header
    if length_size:
        header.payload_size = read_number(at + 2, length_size)
        if header.payload_size < shortest or header.payload_size >> 63:     # the shortest form is the only one
            header.close_code = CLOSE_PROTOCOL_ERROR
            return header
    if header.payload_size > max_frame and header.opcode < OP_CLOSE:
        header.close_code = CLOSE_TOO_BIG
        return header
    if available >= 2 + length_size + MASK_SIZE:
        header.size = 2 + length_size + MASK_SIZE
    return header


# Section 7.4: a close payload is empty, or begins with a code that may be sent.
cdef inline bint is_close_payload(const uint8_t* payload, uint32_t size) noexcept nogil:
    cdef uint32_t code
    if size == 0:
        return True
    if size == 1:
        return False
    code = <uint32_t> payload[0] << 8 | payload[1]
    if code >= 3000:
        return code < 5000
    return 1000 <= code <= 1014 and not 1004 <= code <= 1006


# Eight bytes at a time; the loads and stores are memcpy because a payload lies at any address.
cdef void unmask(uint8_t* payload, size_t size, const uint8_t* mask, uint8_t mask_at) noexcept nogil:
    cdef uint8_t turned[8]
    cdef uint64_t mask_word, word
    cdef size_t i
    for i in range(8):
        turned[i] = mask[(mask_at + i) & 3]
    memcpy(&mask_word, turned, 8)
    i = 0
    while i + 8 <= size:
        memcpy(&word, payload + i, 8)
        word ^= mask_word
        memcpy(payload + i, &word, 8)
        i += 8
    while i < size:
        payload[i] ^= turned[i & 7]
        i += 1


cdef WsEvent control_event(const Header* header, uint8_t* frame, uint8_t** data, uint32_t* size,
                           uint16_t* close_code) noexcept nogil:
    cdef uint8_t* payload = frame + header.size
    cdef uint32_t payload_size = <uint32_t> header.payload_size
    unmask(payload, payload_size, payload - MASK_SIZE, 0)
    data[0] = payload
    size[0] = payload_size
    if header.opcode == OP_PING:
        return WS_PING
    if header.opcode == OP_PONG:
        return WS_PONG
    if not is_close_payload(payload, payload_size):
        close_code[0] = CLOSE_PROTOCOL_ERROR
        return WS_ERROR
    if payload_size > 2 and not is_utf8(payload + 2, payload_size - 2):
        close_code[0] = CLOSE_INVALID_DATA      # section 5.5.1: the reason is UTF-8
        return WS_ERROR
    return WS_CLOSE


cdef inline void open_data_frame(WsReader* reader, const Header* header, const uint8_t* frame) noexcept nogil:
    memcpy(reader.mask, frame + header.size - MASK_SIZE, MASK_SIZE)
    reader.mask_at = 0
    reader.remaining = header.payload_size
    reader.in_message = not header.is_final


cdef inline void take_data(WsReader* reader, uint8_t** cursor, uint8_t* end, uint8_t** data,
                           uint32_t* size) noexcept nogil:
    cdef uint64_t taken = <uint64_t> (end - cursor[0])
    if taken > reader.remaining:
        taken = reader.remaining
    if taken > UINT32_MAX:
        taken = UINT32_MAX
    unmask(cursor[0], taken, reader.mask, reader.mask_at)
    data[0] = cursor[0]
    size[0] = <uint32_t> taken
    cursor[0] += taken
    reader.remaining -= taken
    reader.mask_at = (reader.mask_at + taken) & 3


# How many bytes the frame that begins at `frame` needs before it can be acted on: its header for data, all of a control
# frame. Knows no more than `available` bytes tell, so the answer may grow with the next ones.
cdef inline uint32_t needed_for(const Header* header, const uint8_t* frame, size_t available) noexcept nogil:
    cdef uint8_t length
    if header.size:
        return header.size if header.opcode < OP_CLOSE else header.size + <uint32_t> header.payload_size
    if available < 2:
        return 2
    length = frame[1] & 0x7F
    if length == LENGTH_IN_16_BITS:
        return 4 + MASK_SIZE
    if length == LENGTH_IN_64_BITS:
        return LONGEST_HEADER
    return 2 + MASK_SIZE


# Moves bytes from the cursor behind what is held, until the frame there can be acted on.
cdef inline void hold(WsReader* reader, uint8_t** cursor, uint8_t* end, uint32_t needed) noexcept nogil:
    cdef size_t taken = needed - reader.held_size
    if taken > <size_t> (end - cursor[0]):
        taken = <size_t> (end - cursor[0])
    memcpy(reader.held + reader.held_size, cursor[0], taken)
    reader.held_size += <uint8_t> taken
    cursor[0] += taken


cdef WsEvent ws_next(WsReader* reader, uint8_t** cursor, uint8_t* end, uint64_t max_frame, uint8_t** data,
                     uint32_t* size, uint16_t* close_code) noexcept nogil:
    cdef Header header
    cdef uint8_t* frame
    cdef size_t available
    cdef uint32_t needed
    cdef bint is_held
    while cursor[0] < end:
        if reader.remaining:            # the likeliest: more of the payload
            take_data(reader, cursor, end, data, size)
            return WS_DATA
        is_held = reader.held_size != 0
        frame = &reader.held[0] if is_held else cursor[0]
        available = reader.held_size if is_held else <size_t> (end - cursor[0])
        header = parse_header(frame, available, reader.in_message, max_frame)
        needed = needed_for(&header, frame, available)
        while is_held and not header.close_code and available < needed and cursor[0] < end:
            hold(reader, cursor, end, needed)
            available = reader.held_size
            header = parse_header(frame, available, reader.in_message, max_frame)
            needed = needed_for(&header, frame, available)
        if header.close_code:
            cursor[0] = end             # nothing behind a broken frame has a meaning
            close_code[0] = header.close_code
            data[0] = end
            size[0] = 0
            return WS_ERROR
        if available < needed:          # the rest comes with a later read
            if not is_held:
                hold(reader, cursor, end, needed)
            break
        if is_held:
            reader.held_size = 0
        else:
            cursor[0] += needed
        if header.opcode >= OP_CLOSE:
            return control_event(&header, frame, data, size, close_code)
        open_data_frame(reader, &header, frame)
    data[0] = cursor[0]
    size[0] = 0
    return WS_DATA


cdef uint32_t ws_put_header(uint8_t* payload, uint8_t opcode, uint64_t size) noexcept nogil:
    cdef uint32_t length_size = 0
    cdef uint8_t* header
    cdef uint32_t i
    if size > 0xFFFF:
        length_size = 8
    elif size > LONGEST_CONTROL_PAYLOAD:
        length_size = 2
    header = payload - length_size - 2
    header[0] = FIN | opcode
    header[1] = <uint8_t> size if length_size == 0 else LENGTH_IN_16_BITS if length_size == 2 else LENGTH_IN_64_BITS
    for i in range(length_size):
        header[2 + i] = <uint8_t> (size >> 8 * (length_size - 1 - i))
    return length_size + 2


cdef class WsDecoder:
    """The frame reader for tests and tools: bytes as they were read in, events out, everything copied."""

    cdef WsReader reader
    cdef uint64_t max_frame

    def __init__(self, uint64_t max_frame=1 << 20):
        self.max_frame = max_frame

    def feed(self, bytes chunk not None):
        """The events of one read: (name, payload), or ("error", close code) as the last one."""
        cdef bytearray read = bytearray(chunk)
        cdef uint8_t* cursor = <uint8_t*> <char*> read
        cdef uint8_t* end = cursor + len(read)
        cdef uint8_t* data = NULL
        cdef uint32_t size = 0
        cdef uint16_t close_code = 0
        cdef WsEvent event
        events = []
        while True:
            event = ws_next(&self.reader, &cursor, end, self.max_frame, &data, &size, &close_code)
            if event == WS_ERROR:
                events.append(("error", close_code))
                return events
            if event == WS_DATA and size == 0:
                return events
            events.append((EVENT_NAMES[<int> event], <bytes> data[:size]))


EVENT_NAMES = ("data", "ping", "pong", "close", "error")


def build_frame(int opcode, bytes payload not None):
    """One whole unmasked frame, as a server sends it."""
    cdef uint8_t header[WS_MAX_HEADER]
    cdef uint32_t size = ws_put_header(header + WS_MAX_HEADER, <uint8_t> opcode, <uint64_t> len(payload))
    return <bytes> (header + WS_MAX_HEADER - size)[:size] + payload
