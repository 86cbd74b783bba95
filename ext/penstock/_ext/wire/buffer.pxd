# A growing write buffer with no opinion about what is in it. A buffer that is empty owns no memory.
from libc.stdint cimport uint8_t, uint32_t


cdef struct Buffer:
    uint8_t* data       # NULL while nothing is held
    uint32_t start      # first byte still to be taken
    uint32_t end        # one past the last byte written
    uint32_t capacity


cdef int buffer_grow(Buffer* b, uint32_t more) except -1 nogil
cdef void buffer_free(Buffer* b) noexcept nogil


cdef inline uint32_t buffer_size(const Buffer* b) noexcept nogil:
    return b.end - b.start


# Room for `size` more bytes at the end; NULL with MemoryError set when there is none. The caller writes all of them.
cdef inline uint8_t* buffer_reserve(Buffer* b, uint32_t size) except NULL nogil:
    if b.capacity - b.end < size:
        buffer_grow(b, size)
    b.end += size
    return b.data + b.end - size
