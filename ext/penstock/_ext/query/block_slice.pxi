# Part of block.pyx: some rows of a block as a block of their own.

# Bits from `first` on, moved to the start of a byte. `out` is zero.
cdef void copy_bits(uint8_t* out, const uint8_t* bits, size_t first, size_t count) noexcept nogil:
    cdef size_t i
    for i in range(count):
        if is_set(bits, first + i):
            out[i >> 3] |= <uint8_t> (1 << (i & 7))


# The bytes that the rows of a column have.
cdef inline uint32_t text_between(const ColumnView* view, size_t first, size_t count) noexcept nogil:
    return load_u32(view.values + 4 * (first + count)) - load_u32(view.values + 4 * first)


cdef size_t cut_size(Block block, size_t first, size_t count) noexcept:
    cdef size_t size = 16 * count
    cdef const ColumnView* view
    cdef uint32_t i
    for i in range(block._columns):
        view = block._views + i
        size += padded(values_size(view.type, count))
        if view.valid != NULL:
            size += padded((count + 7) >> 3)
        if has_text(view.type):
            size += padded(text_between(view, first, count))
    return size


# One column behind the other; where the next one goes.
cdef uint8_t* cut_column(uint8_t* out, const ColumnView* view, size_t first, size_t count) noexcept nogil:
    cdef uint32_t start, end, size
    cdef size_t row
    if view.valid != NULL:
        copy_bits(out, view.valid, first, count)
        out += padded((count + 7) >> 3)
    if view.type == T_BOOLEAN:
        copy_bits(out, view.values, first, count)
    elif has_text(view.type):
        start = load_u32(view.values + 4 * first)
        for row in range(count + 1):
            end = load_u32(view.values + 4 * (first + row)) - start
            memcpy(out + 4 * row, &end, 4)
        size = text_between(view, first, count)
        memcpy(out + padded(4 * (count + 1)), view.text + start, size)
        return out + padded(4 * (count + 1)) + padded(size)
    elif view.type != T_NULL:
        memcpy(out, view.values + 8 * first, 8 * count)
    return out + padded(values_size(view.type, count))


cdef Block cut_out(Block block, size_t first, size_t count):
    cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(block._data)
    cdef size_t heads = block._offsets - data
    cdef size_t size = heads + cut_size(block, first, count)
    cdef bytes cut = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
    cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(cut)
    cdef uint32_t rows = <uint32_t> count, text, i
    memset(out, 0, size)
    memcpy(out, data, heads)
    memcpy(out + 4, &rows, 4)
    for i in range(block._columns):
        if has_text(block._views[i].type):
            text = text_between(block._views + i, first, count)
            memcpy(out + BLOCK_HEADER + COLUMN_HEADER * i + 4, &text, 4)
    out += heads
    memcpy(out, block._offsets + 8 * first, 8 * count)
    memcpy(out + 8 * count, block._times + 8 * first, 8 * count)
    out += 16 * count
    for i in range(block._columns):
        out = cut_column(out, block._views + i, first, count)
    return block_of(cut, block.names, block.types)
