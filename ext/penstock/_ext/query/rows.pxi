# Part of evaluator.pyx: the rows of one query while a pack is read, in columns that grow; then a Block.

cdef struct Growing:
    uint8_t* data
    size_t size
    size_t capacity

cdef struct Column:
    Growing valid           # bits; written only from the first NULL on
    Growing values
    Growing text
    uint8_t type
    bint has_nulls

cdef struct Rows:
    Column* columns
    Growing offsets
    Growing times
    uint32_t column_count
    uint32_t count

cdef enum:
    FIRST_GROWTH = 256
    KEPT_GROWTH = 0x40000   # larger memory is not kept for the next pack


cdef int grow(Growing* g, size_t more) noexcept nogil:
    cdef size_t capacity = 2 * g.capacity + FIRST_GROWTH
    cdef uint8_t* data
    if capacity < g.size + more:
        capacity = g.size + more
    data = <uint8_t*> realloc(g.data, capacity)
    if data == NULL:
        return -1
    g.data, g.capacity = data, capacity
    return 0


# Where `size` more bytes go, NULL without memory.
cdef inline uint8_t* extend(Growing* g, size_t size) noexcept nogil:
    if g.capacity - g.size < size and grow(g, size):
        return NULL
    g.size += size
    return g.data + g.size - size


cdef inline int put_word(Growing* g, const void* word) noexcept nogil:
    cdef uint8_t* at = extend(g, 8)
    if at == NULL:
        return -1
    memcpy(at, word, 8)
    return 0


cdef inline int put_bit(Growing* g, size_t row, bint is_one) noexcept nogil:
    cdef uint8_t* at
    while g.size * 8 <= row:
        at = extend(g, 1)
        if at == NULL:
            return -1
        at[0] = 0
    if is_one:
        g.data[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        g.data[row >> 3] &= <uint8_t> ~(1 << (row & 7))     # of a row that was taken back
    return 0


# The first NULL of a column: all rows before it have values.
cdef int begin_nulls(Column* column, uint32_t row) noexcept nogil:
    cdef uint32_t i
    column.has_nulls = True
    for i in range(row):
        if put_bit(&column.valid, i, True):
            return -1
    return 0


cdef inline int put_end(Column* column) noexcept nogil:
    cdef uint32_t end = <uint32_t> column.text.size
    cdef uint8_t* at = extend(&column.values, 4)
    if at == NULL:
        return -1
    memcpy(at, &end, 4)
    return 0


# [["name","value"],…] of the user properties in MQTT's encoding.
cdef int put_properties(Column* column, const Value* value) noexcept nogil:
    cdef const uint8_t* at = value.of.p
    cdef const uint8_t* end = at + value.size
    cdef const uint8_t* text
    cdef uint8_t* out = extend(&column.text, 1)
    cdef size_t size
    if out == NULL:
        return -1
    out[0] = c'['
    while at < end:
        text = at + 3 + get_be16(at + 1)
        size = json_string_size(at + 3, get_be16(at + 1)) + json_string_size(text + 2, get_be16(text)) + 3
        out = extend(&column.text, size + (at != value.of.p))
        if out == NULL:
            return -1
        if at != value.of.p:
            out[0] = c','
            out += 1
        out[0] = c'['
        out = put_json_string(out + 1, at + 3, get_be16(at + 1))
        out[0] = c','
        out = put_json_string(out + 1, text + 2, get_be16(text))
        out[0] = c']'
        at = text + 2 + get_be16(text)
    out = extend(&column.text, 1)
    if out == NULL:
        return -1
    out[0] = c']'
    return 0


cdef int put_text(Column* column, const Value* value, Arena* arena) noexcept nogil:
    cdef Value text = value[0]
    cdef uint8_t* out
    if column.text.size + text.size > LARGEST_COLUMN:
        return -1
    if column.type == T_PROPERTIES:
        return -1 if put_properties(column, value) else put_end(column)
    if column.type == T_JSON and canonical(value, &text, arena):
        return -1
    if text.size:
        out = extend(&column.text, text.size)
        if out == NULL:
            return -1
        memcpy(out, text.of.p, text.size)
    return put_end(column)


# 0, or -1 without memory. The value has the column's type or is NULL.
cdef inline int put_value(Column* column, uint32_t row, const Value* value, Arena* arena) noexcept nogil:
    cdef int64_t nothing = 0
    if value.type == T_NULL and not column.has_nulls and begin_nulls(column, row):
        return -1
    if column.has_nulls and put_bit(&column.valid, row, value.type != T_NULL):
        return -1
    if column.type == T_NULL:
        return 0
    if column.type == T_BOOLEAN:
        return put_bit(&column.values, row, value.type != T_NULL and value.of.i != 0)
    if has_text(column.type):
        return put_end(column) if value.type == T_NULL else put_text(column, value, arena)
    return put_word(&column.values, &nothing if value.type == T_NULL else <const void*> &value.of)


cdef int put_row(Rows* rows, int64_t offset, int64_t time, const Value* values, Arena* arena) noexcept nogil:
    cdef uint32_t i
    if put_word(&rows.offsets, &offset) or put_word(&rows.times, &time):
        return -1
    for i in range(rows.column_count):
        if rows.count == 0 and has_text(rows.columns[i].type) and put_end(rows.columns + i):
            return -1
        if put_value(rows.columns + i, rows.count, values + i, arena):
            return -1
    rows.count += 1
    return 0


# Take back the rows after the first `count`.
cdef void cut_rows(Rows* rows, uint32_t count) noexcept nogil:
    cdef Column* column
    cdef uint32_t end = 0
    cdef uint32_t i
    if count == 0:
        empty_rows(rows)
        return
    rows.count = count
    rows.offsets.size = rows.times.size = 8 * <size_t> count
    for i in range(rows.column_count):
        column = rows.columns + i
        if column.has_nulls:
            column.valid.size = (<size_t> count + 7) // 8
        if column.type == T_BOOLEAN:
            column.values.size = (<size_t> count + 7) // 8
        elif has_text(column.type):
            memcpy(&end, column.values.data + 4 * <size_t> count, 4)
            column.values.size = 4 * (<size_t> count + 1)
            column.text.size = end
        elif column.type != T_NULL:
            column.values.size = 8 * <size_t> count


cdef inline void empty(Growing* g) noexcept nogil:
    g.size = 0
    if g.capacity > KEPT_GROWTH:
        free(g.data)
        memset(g, 0, sizeof(Growing))


cdef void empty_rows(Rows* rows) noexcept nogil:
    cdef uint32_t i
    rows.count = 0
    empty(&rows.offsets)
    empty(&rows.times)
    for i in range(rows.column_count):
        empty(&rows.columns[i].valid)
        empty(&rows.columns[i].values)
        empty(&rows.columns[i].text)
        rows.columns[i].has_nulls = False


cdef void free_rows(Rows* rows) noexcept nogil:
    cdef uint32_t i
    free(rows.offsets.data)
    free(rows.times.data)
    if rows.columns != NULL:
        for i in range(rows.column_count):
            free(rows.columns[i].valid.data)
            free(rows.columns[i].values.data)
            free(rows.columns[i].text.data)
    free(rows.columns)


cdef inline uint8_t* lay_down(uint8_t* out, const Growing* g) noexcept nogil:
    if g.size:
        memcpy(out, g.data, g.size)
    memset(out + g.size, 0, padded(g.size) - g.size)
    return out + padded(g.size)


cdef size_t rows_size(const Rows* rows) noexcept nogil:
    cdef size_t size = 16 * <size_t> rows.count
    cdef uint32_t i
    for i in range(rows.column_count):
        size += (padded(rows.columns[i].valid.size) + padded(rows.columns[i].values.size)
                 + padded(rows.columns[i].text.size))
    return size


# `head` is that of an empty block with the same columns: header, column headers, names.
cdef Block make_block(const Rows* rows, bytes head, tuple names, tuple types):
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef bytes data = PyBytes_FromStringAndSize(NULL, head_size + <Py_ssize_t> rows_size(rows))
    cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(data)
    cdef uint8_t* column
    cdef uint32_t i, text_size
    memcpy(out, PyBytes_AS_STRING(head), head_size)
    memcpy(out + 4, &rows.count, 4)
    for i in range(rows.column_count):
        column = out + BLOCK_HEADER + COLUMN_HEADER * i
        column[1] = rows.columns[i].has_nulls
        text_size = <uint32_t> rows.columns[i].text.size
        memcpy(column + 4, &text_size, 4)
    out = lay_down(lay_down(out + head_size, &rows.offsets), &rows.times)
    for i in range(rows.column_count):
        out = lay_down(out, &rows.columns[i].valid)
        out = lay_down(out, &rows.columns[i].values)
        out = lay_down(out, &rows.columns[i].text)
    return block_of(data, names, types)
