"""Growing write buffers; see buffer.pxd."""

from libc.stdint cimport UINT32_MAX
from libc.stdlib cimport free, realloc

# Output of one loop iteration usually fits: a few small packets, or one of a usual size.
cdef enum:
    SMALLEST = 256


cdef int buffer_grow(Buffer* b, uint32_t more) except -1 nogil:
    # Nothing is moved to the front: what lies before `start` may be room its owner keeps for a header.
    cdef size_t wanted = <size_t> b.end + more
    cdef uint8_t* data
    if wanted < SMALLEST:
        wanted = SMALLEST
    elif wanted < 2 * <size_t> b.capacity:
        wanted = 2 * <size_t> b.capacity
    if wanted > UINT32_MAX:
        with gil:
            raise MemoryError("a buffer cannot hold more than 4 GiB")
    data = <uint8_t*> realloc(b.data, wanted)
    if data == NULL:
        with gil:
            raise MemoryError()
    b.data = data
    b.capacity = <uint32_t> wanted
    return 0


cdef void buffer_free(Buffer* b) noexcept nogil:
    free(b.data)
    b.data = NULL
    b.start = b.end = b.capacity = 0
