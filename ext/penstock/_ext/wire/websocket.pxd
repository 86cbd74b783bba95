# WebSocket frames (RFC 6455), server side: the MQTT bytes in binary frames, unmasked in place.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    WS_MAX_HEADER = 10          # the longest header a server writes: it never masks

cdef enum WsEvent:
    WS_DATA = 0                 # `size` bytes of MQTT at `data` (may be 0: all that was read is used up)
    WS_PING = 1                 # answer with a pong of the same payload (data, size)
    WS_PONG = 2                 # nothing to do
    WS_CLOSE = 3                # data, size: the close payload as received; answer it and close
    WS_ERROR = 4                # close with `close_code`


# Where a connection stands between reads. Zero-initialised; WsReader_free when done.
cdef struct WsReader:
    uint64_t remaining          # payload bytes of the current data frame still to come
    uint8_t mask[4]
    uint8_t mask_at
    uint8_t in_message          # a fragmented message is open
    uint8_t held_size           # bytes of an incomplete header or control frame kept between reads
    uint8_t held[144]           # header (14) and the longest control payload (125)


# Takes the next event out of [*cursor, end), moving *cursor behind what it used; payload is unmasked where it lies.
# Returns WS_DATA with size 0 when the bytes are used up. Text frames, unmasked frames, reserved bits, oversized or
# fragmented control frames are WS_ERROR with the RFC's close code.
cdef WsEvent ws_next(WsReader* reader, uint8_t** cursor, uint8_t* end, uint64_t max_frame, uint8_t** data,
                     uint32_t* size, uint16_t* close_code) noexcept nogil

# Writes the header of one binary frame (or other opcode) so that it ends right before `payload`; returns its size.
cdef uint32_t ws_put_header(uint8_t* payload, uint8_t opcode, uint64_t size) noexcept nogil
