"""Rows in columns, as they are made by a query, sent to a consumer and read there; see block.pxd for the layout.

A block is its stored form: making it costs one copy, sending it none. `decode` takes any bytes: what is not a block
raises ValueError and nothing outside the bytes is ever read.
"""

import json

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport isfinite
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

cdef extern from "sql_numbers.h" nogil:
    enum:
        DOUBLE_TEXT
    size_t format_double(double value, char* out)
    size_t format_int(int64_t value, char* out)

cdef extern from "sql_time.h" nogil:
    enum:
        TIME_TEXT
    size_t format_time(int64_t ns, char* out, int iso)

cdef extern from "utf8.h" nogil:
    bint is_utf8(const uint8_t* p, size_t n)

cdef extern from "json_text.h" nogil:
    size_t json_string_size(const uint8_t* p, size_t n)
    uint8_t* put_json_string(uint8_t* out, const uint8_t* p, size_t n)

cdef enum:
    NUMBER_TEXT = 48    # room for any number or time


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    cdef int64_t value
    memcpy(&value, p, 8)
    return value


cdef inline double load_f64(const uint8_t* p) noexcept nogil:
    cdef double value
    memcpy(&value, p, 8)
    return value


cdef inline bint is_set(const uint8_t* bits, size_t row) noexcept nogil:
    return bits[row >> 3] >> (row & 7) & 1


cdef inline bint is_continuation(uint8_t c) noexcept nogil:
    return c & 0xC0 == 0x80


# Whether the ends rise from 0 to the size of the bytes, and each value of a text column is UTF-8.
cdef bint has_good_text(const ColumnView* view, size_t rows) noexcept nogil:
    cdef uint32_t before = 0, after
    cdef size_t row
    if load_u32(view.values) != 0 or load_u32(view.values + 4 * rows) != view.text_size:
        return False
    if view.type != T_BLOB and not is_utf8(view.text, view.text_size):
        return False
    for row in range(1, rows + 1):
        after = load_u32(view.values + 4 * row)
        if after < before or after > view.text_size:
            return False
        if view.type != T_BLOB and after < view.text_size and is_continuation(view.text[after]):
            return False
        before = after
    return True


cdef object read_json(bytes text):
    try:
        return json.loads(text)
    except ValueError:      # Python makes no int of so many digits, and whoever sent them must not stop the reader
        return json.loads(text, parse_int=float)


# Bytes, texts and numbers: nothing here can be part of a cycle, and feeds have many of them.
@cython.no_gc
cdef class Block:
    """Rows of one query and one partition. Beside the columns each row has its source offset, and the time (ns) its
    message was received."""

    def __cinit__(self):
        self._data = b""

    def __init__(self):
        raise TypeError("a block is made by a query, or by Block.decode")

    def __dealloc__(self):
        free(self._views)

    def __len__(self):
        return self.rows

    @property
    def first_offset(self):
        return load_i64(self._offsets) if self.rows else -1

    @property
    def last_offset(self):
        return load_i64(self._offsets + 8 * (<size_t> self.rows - 1)) if self.rows else -1

    @property
    def size(self):
        return PyBytes_GET_SIZE(self._data)

    def encode(self):
        return self._data

    @staticmethod
    def decode(data not None):
        """The block in the bytes; ValueError if there is none."""
        cdef Block block = Block.__new__(Block)
        cdef uint32_t i
        block.read(data if type(data) is bytes else bytes(memoryview(data)))
        for i in range(block._columns):
            if has_text(block._views[i].type) and not has_good_text(block._views + i, block.rows):
                raise ValueError(f"column {i} of the block is damaged")
        return block

    # The parts lie one after the other, so their sizes say where each is; all of them together are all of the bytes.
    cdef int read(self, bytes data) except -1:
        cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(data)
        cdef const uint8_t* end = p + PyBytes_GET_SIZE(data)
        cdef const uint8_t* heads = p + BLOCK_HEADER
        cdef size_t fixed, names_size
        if end - p < BLOCK_HEADER or load_u32(p) != BLOCK_MAGIC:
            raise ValueError("the bytes are not a block")
        self._data = data
        self.rows, self._columns, names_size = load_u32(p + 4), load_u32(p + 8), load_u32(p + 12)
        if self._columns > MOST_COLUMNS:
            raise ValueError("the block has too many columns")
        fixed = BLOCK_HEADER + COLUMN_HEADER * <size_t> self._columns + padded(names_size) + 16 * <size_t> self.rows
        if fixed > <size_t> (end - p):
            raise ValueError("the block is cut off")
        self._views = <ColumnView*> calloc(self._columns + 1, sizeof(ColumnView))
        if self._views == NULL:
            raise MemoryError()
        self._offsets = heads + COLUMN_HEADER * <size_t> self._columns + padded(names_size)
        self._times = self._offsets + 8 * <size_t> self.rows
        if self.names is None:
            self.read_heads(heads, names_size)
        return self.read_columns(p + fixed, end, heads)

    cdef int read_heads(self, const uint8_t* heads, size_t names_size) except -1:
        cdef const uint8_t* name = heads + COLUMN_HEADER * <size_t> self._columns
        cdef list names = []
        cdef list types = []
        cdef size_t used = 0
        cdef uint16_t size
        for _ in range(self._columns):
            memcpy(&size, heads + 2, 2)
            used += size
            if heads[0] >= TYPES or heads[1] > 1 or used > names_size:
                raise ValueError("the block has a column of an unknown kind")
            names.append(name[:size].decode())
            types.append(heads[0])
            name += size
            heads += COLUMN_HEADER
        if used != names_size:
            raise ValueError("the block has names without columns")
        self.names, self.types = tuple(names), tuple(types)
        return 0

    cdef int read_columns(self, const uint8_t* at, const uint8_t* end, const uint8_t* heads) except -1:
        cdef uint32_t i
        cdef size_t bits, values
        cdef ColumnView* view
        for i in range(self._columns):
            view = self._views + i
            view.type = heads[0]
            view.text_size = load_u32(heads + 4)
            bits = padded((<size_t> self.rows + 7) >> 3) if heads[1] else 0
            values = padded(values_size(view.type, self.rows))
            if bits + values + padded(view.text_size) > <size_t> (end - at):
                raise ValueError("the block is cut off")
            if view.text_size and not has_text(view.type):
                raise ValueError(f"column {i} of the block has bytes that do not belong to it")
            view.valid = at if heads[1] else NULL
            view.values = at + bits
            view.text = view.values + values
            at = view.text + padded(view.text_size)
            heads += COLUMN_HEADER
        if at != end:
            raise ValueError("the block is followed by something else")
        return 0

    cdef ColumnView* view(self, Py_ssize_t number) except NULL:
        if not 0 <= number < <Py_ssize_t> self._columns:
            raise IndexError(f"the block has {self._columns} columns")
        return self._views + number

    def offsets(self):
        cdef size_t row
        return [load_i64(self._offsets + 8 * row) for row in range(self.rows)]

    def times(self):
        cdef size_t row
        return [load_i64(self._times + 8 * row) for row in range(self.rows)]

    def column(self, Py_ssize_t number):
        """The values: bool, int, float, str, bytes, None; TIMESTAMP as nanoseconds, JSON as what it says, PROPERTIES
        as a list of pairs."""
        cdef const ColumnView* view = self.view(number)
        cdef size_t row
        return [self.value(view, row) for row in range(self.rows)]

    cdef object value(self, const ColumnView* view, size_t row):
        cdef uint32_t start, end
        if view.type == T_NULL or view.valid != NULL and not is_set(view.valid, row):
            return None
        if view.type == T_BOOLEAN:
            return is_set(view.values, row)
        if view.type == T_BIGINT or view.type == T_TIMESTAMP:
            return load_i64(view.values + 8 * row)
        if view.type == T_DOUBLE:
            return load_f64(view.values + 8 * row)
        start, end = load_u32(view.values + 4 * row), load_u32(view.values + 4 * row + 4)
        if view.type == T_BLOB:
            return PyBytes_FromStringAndSize(<const char*> view.text + start, end - start)
        if view.type == T_VARCHAR:
            return (view.text + start)[:end - start].decode()
        if view.type == T_JSON:
            return read_json((view.text + start)[:end - start])
        return [(name, text) for name, text in json.loads((view.text + start)[:end - start])]

    def buffers(self, Py_ssize_t number):
        """validity, values or ends, bytes: for pyarrow.Array.from_buffers. They are borrowed from the block's bytes."""
        cdef const ColumnView* view = self.view(number)
        cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(self._data)
        whole = memoryview(self._data)
        valid = values = text = None
        if view.valid != NULL:
            valid = whole[view.valid - data:view.valid - data + ((<size_t> self.rows + 7) >> 3)]
        if view.type != T_NULL:
            values = whole[view.values - data:view.values - data + values_size(view.type, self.rows)]
        if has_text(view.type):
            text = whole[view.text - data:view.text - data + view.text_size]
        return valid, values, text

    def to_pylist(self):
        cdef list columns = [self.column(i) for i in range(self._columns)]
        if not columns:
            return [{} for _ in range(self.rows)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_json(self):
        """A JSON array of objects; BLOB as base64, TIMESTAMP as ISO 8601 with nanoseconds when there are any; what
        JSON has no number for (inf, nan) is null."""
        return block_to_json(self)

    def slice(self, int64_t from_offset, uint32_t max_rows=0xFFFFFFFF):
        """The rows at `from_offset` and behind it, at most so many."""
        cdef size_t first = 0, last = self.rows, middle
        while first < last:
            middle = (first + last) // 2
            if load_i64(self._offsets + 8 * middle) < from_offset:
                first = middle + 1
            else:
                last = middle
        last = min(<size_t> self.rows, first + max_rows)
        if first == 0 and last == self.rows:
            return self
        return cut_out(self, first, last - first)

    def take(self, uint32_t first, uint32_t count):
        """Return rows by their number. Rows of one offset may be separated, so the caller tracks which offsets are
        complete."""
        if first > self.rows or count > self.rows - first:
            raise IndexError(f"{count} rows from {first} on are not in a block of {self.rows}")
        return cut_out(self, first, count)


cdef Block block_of(bytes data, tuple names, tuple types):
    cdef Block block = Block.__new__(Block)
    block.names, block.types = names, types
    block.read(data)
    return block


include "block_json.pxi"
include "block_slice.pxi"
