# Byte order, UTF-8 and hashing (ext/include/wire.h).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "wire.h" nogil:
    uint16_t get_be16(const uint8_t* p)
    uint32_t get_be32(const uint8_t* p)
    void put_be16(uint8_t* p, uint16_t v)
    void put_be32(uint8_t* p, uint32_t v)
    uint32_t varint_size(uint32_t v)
    uint8_t* put_varint(uint8_t* p, uint32_t v)
    # length in bytes, 0 = incomplete, -1 = malformed
    int get_varint(const uint8_t* p, const uint8_t* end, uint32_t* value)
    bint is_mqtt_utf8(const uint8_t* p, size_t n)
    uint64_t hash_bytes(const uint8_t* p, size_t n, uint64_t seed)
