# Hash partitioner: which partition a key belongs to. Exact bytes as in docs/queue-architecture.md.
from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef enum HashFunction:
    HASH_MURMUR3_128 = 0        # default: low 32 bits of h1, seed 0
    HASH_MURMUR3_32 = 1         # seed 0
    HASH_SHA256 = 2             # first four bytes, little-endian
    HASH_MURMUR2 = 3            # Kafka's own partitioner: toPositive(murmur2) % n


cdef int32_t hash_key(const uint8_t* data, uint32_t size, HashFunction function) noexcept nogil
# abs(hash) % count, the remainder truncated toward zero; never negative, -2**31 included. MURMUR2 as Kafka does it.
cdef uint32_t partition_of(const uint8_t* data, uint32_t size, uint32_t count, HashFunction function) noexcept nogil
