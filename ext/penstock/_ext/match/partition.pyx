"""The hash partitioner; see partition.pxd. The exact bytes are described in docs/queue-architecture.md.

One key at a time for C (hash_key, partition_of of the .pxd) and for Python, and many keys at once with numpy in and
out: an array of fixed-width bytes, rows of a 2-D uint8 array, or one buffer with the offsets of the keys in it.
"""

from libc.stdint cimport INT32_MAX, UINT32_MAX, int64_t, uint64_t

cdef extern from "murmur.h" nogil:
    uint64_t murmur3_128_low(const uint8_t* data, uint32_t size)
    uint32_t murmur3_32(const uint8_t* data, uint32_t size)
    uint32_t murmur3_32_step(uint32_t h, uint32_t k)
    uint32_t murmur3_32_end(uint32_t h, uint32_t last, uint32_t size)
    uint32_t kafka_murmur2(const uint8_t* data, uint32_t size)
    uint32_t load_le32(const uint8_t* p)

cdef extern from "sha256.h" nogil:
    void sha256_first4(const uint8_t* data, uint32_t size, uint8_t* out)

FUNCTIONS = ("murmur3_128", "murmur3_32", "sha256", "murmur2")


cdef int32_t hash_key(const uint8_t* data, uint32_t size, HashFunction function) noexcept nogil:
    cdef uint8_t digest[4]
    # The default first: nearly every key goes this way.
    if function == HASH_MURMUR3_128:
        return <int32_t> <uint32_t> murmur3_128_low(data, size)
    if function == HASH_MURMUR3_32:
        return <int32_t> murmur3_32(data, size)
    if function == HASH_MURMUR2:
        return <int32_t> kafka_murmur2(data, size)
    sha256_first4(data, size, digest)
    return <int32_t> load_le32(digest)


cdef inline uint32_t partition_of_hash(int32_t hash, uint32_t count, HashFunction function) noexcept nogil:
    if function == HASH_MURMUR2:
        return (<uint32_t> hash & <uint32_t> INT32_MAX) % count
    # Unsigned negation: the absolute value of -2**31 has no int32.
    return (0 - <uint32_t> hash if hash < 0 else <uint32_t> hash) % count


cdef uint32_t partition_of(const uint8_t* data, uint32_t size, uint32_t count, HashFunction function) noexcept nogil:
    return partition_of_hash(hash_key(data, size, function), count, function)


cdef HashFunction function_named(str name) except *:
    cdef int number
    for number in range(4):
        if FUNCTIONS[number] == name:
            return <HashFunction> number
    raise ValueError(f"{name!r} is no hash function: use one of {', '.join(FUNCTIONS)}")


cdef uint32_t checked_count(object count) except 0:
    if not 1 <= count <= INT32_MAX:
        raise ValueError(f"{count} partitions: use 1 to {INT32_MAX}")
    return count


cdef int check_size(size_t size) except -1:
    if size > UINT32_MAX:
        raise ValueError(f"a key of {size} bytes is too long: use at most {UINT32_MAX}")
    return 0


def _hash_key(data not None, str function not None="murmur3_128"):
    """The signed 32-bit hash of the bytes of a key."""
    cdef const uint8_t[::1] view = data
    cdef HashFunction number = function_named(function)
    check_size(view.shape[0])
    return hash_key(&view[0] if view.shape[0] else NULL, <uint32_t> view.shape[0], number)


def _partition_of(data not None, count, str function not None="murmur3_128"):
    """The partition of a key among `count`."""
    return partition_of_hash(_hash_key(data, function), checked_count(count), function_named(function))


# The .pxd gives these names to the C functions, and the module's Python namespace is another one.
globals().update(hash_key=_hash_key, partition_of=_partition_of)


def partition_of_number(int32_t hash, count):
    """|hash| modulo count, for who has the hash already; -2**31 included."""
    return partition_of_hash(hash, checked_count(count), HASH_MURMUR3_128)


def uuid_input(uuid):
    """The 16 bytes of a UUID that are hashed: each half little-endian, the most significant one first."""
    cdef bytes plain = uuid.bytes
    return plain[7::-1] + plain[:7:-1]


cdef int32_t hash_text_murmur3_32(str text) except? -1:
    # Guava's murmur3_32 before its "fixed" variant: a character outside the basic plane is mixed into the bytes that
    # wait, but they are not counted as filled, so what follows is laid over them.
    cdef uint64_t waiting = 0
    cdef uint32_t filled = 0, size = 0, h = 0, i
    cdef Py_UCS4 character
    cdef bytes encoded
    for character in text:
        encoded = (<str> character).encode()
        for i in range(<uint32_t> len(encoded)):
            waiting |= <uint64_t> <uint8_t> encoded[i] << (filled + 8 * i)
        size += <uint32_t> len(encoded)
        if len(encoded) < 4:
            filled += 8 * <uint32_t> len(encoded)
        if filled >= 32:
            h = murmur3_32_step(h, <uint32_t> waiting)
            waiting >>= 32
            filled -= 32
    return <int32_t> murmur3_32_end(h, <uint32_t> waiting, size)


def hash_text(str text not None, str function not None="murmur3_128"):
    """The hash of a text: of its UTF-8, but for murmur3_32 as the compatible original does it, which differs from the
    hash of the bytes where the text has characters outside the basic plane."""
    if function_named(function) == HASH_MURMUR3_32:
        return hash_text_murmur3_32(text)
    return _hash_key(text.encode(), function)


# Keys of one width. Numpy pads its fixed-width bytes with zeros, which are no part of the key.
cdef void hash_rows(const uint8_t[:, ::1] rows, bint padded, uint32_t count, HashFunction function,
                    int32_t[::1] out) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t size
    cdef int32_t hash
    cdef const uint8_t* row = NULL
    for i in range(rows.shape[0]):
        size = <uint32_t> rows.shape[1]
        if size:
            row = &rows[i, 0]
        while padded and size and row[size - 1] == 0:
            size -= 1
        hash = hash_key(row, size, function)
        out[i] = <int32_t> partition_of_hash(hash, count, function) if count else hash


cdef void hash_slices(const uint8_t[::1] data, const int64_t[::1] offsets, uint32_t count, HashFunction function,
                      int32_t[::1] out) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t hash
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    for i in range(offsets.shape[0] - 1):
        hash = hash_key(start + offsets[i], <uint32_t> (offsets[i + 1] - offsets[i]), function)
        out[i] = <int32_t> partition_of_hash(hash, count, function) if count else hash


cdef bint are_offsets(const int64_t[::1] offsets, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    if offsets.shape[0] < 1 or offsets[0] < 0 or offsets[offsets.shape[0] - 1] > size:
        return False
    for i in range(offsets.shape[0] - 1):
        if offsets[i + 1] < offsets[i] or offsets[i + 1] - offsets[i] > <int64_t> UINT32_MAX:
            return False
    return True


cdef object run_slices(object numpy, object data, object offsets, uint32_t count, HashFunction function):
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef const int64_t[::1] bounds = numpy.ascontiguousarray(offsets, dtype=numpy.int64)
    if not are_offsets(bounds, view.shape[0]):
        raise ValueError("offsets must rise from 0 or more to at most the size of the buffer, one more than keys")
    result = numpy.empty(bounds.shape[0] - 1, dtype=numpy.int32)
    cdef int32_t[::1] out = result
    with nogil:
        hash_slices(view, bounds, count, function, out)
    return result


cdef object run_rows(object numpy, object keys, uint32_t count, HashFunction function):
    cdef bint padded = keys.dtype.kind == "S"
    if padded and keys.ndim == 1:
        keys = numpy.ascontiguousarray(keys)
        keys = keys.view(numpy.uint8).reshape(keys.shape[0], keys.dtype.itemsize)
    if keys.ndim != 2 or keys.dtype != numpy.uint8:
        raise TypeError("keys must be a 1-D array of fixed-width bytes, a 2-D array of uint8 or (buffer, offsets)")
    check_size(keys.shape[1])
    cdef const uint8_t[:, ::1] rows = numpy.ascontiguousarray(keys)
    result = numpy.empty(keys.shape[0], dtype=numpy.int32)
    cdef int32_t[::1] out = result
    with nogil:
        hash_rows(rows, padded, count, function, out)
    return result


cdef object run(object keys, uint32_t count, str function):
    # Here and not above: a broker that hashes single keys in C need not load numpy.
    import numpy
    cdef HashFunction number = function_named(function)
    if isinstance(keys, tuple):
        return run_slices(numpy, keys[0], keys[1], count, number)
    return run_rows(numpy, numpy.asanyarray(keys), count, number)


def hash_keys(keys not None, str function not None="murmur3_128"):
    """The hashes of many keys as an int32 array."""
    return run(keys, 0, function)


def partitions_of(keys not None, count, str function not None="murmur3_128"):
    """The partitions of many keys as an int32 array."""
    return run(keys, checked_count(count), function)
