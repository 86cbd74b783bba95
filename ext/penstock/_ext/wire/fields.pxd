# The fields and properties of the rarer packets: taken from a body, put into a buffer. What is wrong in a body raises
# ProtocolViolation with its reason code; what cannot be encoded raises ValueError.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from penstock._ext.wire.buffer cimport Buffer

cdef enum:
    WILL = 0        # stands where a packet type is asked for, since a will has properties of its own


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end


# Each takes one field and moves the cursor behind it. `what` names the field in the message.
cdef int take_byte(Cursor* c, str what) except -1
cdef int take_u16(Cursor* c, str what) except -1
cdef int64_t take_u32(Cursor* c, str what) except -1
cdef int64_t take_varint(Cursor* c, str what) except -1
cdef bytes take_binary(Cursor* c, str what)
cdef str take_str(Cursor* c, str what)
cdef bytes take_utf8(Cursor* c, str what)       # well-formed UTF-8, left as bytes
cdef int take_packet_id(Cursor* c) except -1    # never 0
cdef int take_end(Cursor* c) except -1          # nothing may be left
# Property length and properties: name to value, or None if there are none.
cdef dict take_properties(Cursor* c, int packet, uint32_t max_user_properties)
cdef dict read_properties(Cursor* c, int packet, uint32_t max_user_properties)      # all that is left, without a length

cdef int put_byte(Buffer* b, uint8_t value) except -1
cdef int put_u16(Buffer* b, object value) except -1
cdef int put_u32(Buffer* b, object value) except -1
cdef int put_binary(Buffer* b, object value) except -1
cdef int put_str(Buffer* b, object value) except -1      # str, or bytes that are UTF-8
cdef int put_raw(Buffer* b, const uint8_t* data, uint32_t size) except -1
# The properties without their length, None values left out; put_properties writes the length first.
cdef int put_bare_properties(Buffer* b, int packet, dict properties) except -1
cdef int put_properties(Buffer* b, int packet, dict properties) except -1
# The whole packet: fixed header and what the buffer holds.
cdef bytes seal_packet(uint8_t first_byte, Buffer* b)
