# Rows of one query and one partition in columns laid out as Arrow's; what a fetch answers with.
#
# The stored form, all numbers little-endian, every part padded with zeros to eight bytes:
#   "PQB1", rows (u32), columns (u32), size of the names (u32)
#   of each column: type (u8), 1 if it has validity bits (u8), size of its name (u16), size of its bytes (u32)
#   the names one after the other
#   the source offsets (i64 each), the times the messages were received at (i64 each, ns)
#   of each column: validity bits (if any), values, bytes
# Values are i64 (BIGINT, TIMESTAMP), double, bits (BOOLEAN), nothing (NULL), or rows + 1 ends (u32) into the bytes.
# PROPERTIES are stored as the JSON text of a list of pairs.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t


cdef enum SqlType:
    T_NULL = 0
    T_BOOLEAN = 1
    T_BIGINT = 2
    T_DOUBLE = 3
    T_VARCHAR = 4
    T_TIMESTAMP = 5
    T_BLOB = 6
    T_JSON = 7
    T_PROPERTIES = 8
    TYPES = 9

cdef enum:
    BLOCK_MAGIC = 0x31425150        # "PQB1"
    BLOCK_HEADER = 16
    COLUMN_HEADER = 8
    LARGEST_COLUMN = 0x60000000     # bytes of one column: Arrow's ends have 31 bits
    MOST_COLUMNS = 4_096


# One column where it lies in the block.
cdef struct ColumnView:
    const uint8_t* valid            # NULL = no value is null
    const uint8_t* values
    const uint8_t* text
    uint32_t text_size
    uint16_t name_size
    uint8_t type


cdef inline size_t padded(size_t size) noexcept nogil:
    return (size + 7) & ~<size_t> 7


cdef inline bint has_text(uint8_t type) noexcept nogil:
    return type == T_VARCHAR or type >= T_BLOB


# Size of the values of a column, without padding.
cdef inline size_t values_size(uint8_t type, size_t rows) noexcept nogil:
    if type == T_NULL:
        return 0
    if type == T_BOOLEAN:
        return (rows + 7) >> 3
    if has_text(type):
        return 4 * (rows + 1)
    return 8 * rows


cdef class Block:
    cdef bytes _data
    cdef readonly uint32_t rows
    cdef readonly tuple names
    cdef readonly tuple types       # as SqlType numbers
    cdef uint32_t _columns
    cdef const uint8_t* _offsets
    cdef const uint8_t* _times
    cdef ColumnView* _views

    cdef int read(self, bytes data) except -1      # names and types too, if they are not there yet
    cdef int read_heads(self, const uint8_t* heads, size_t names_size) except -1
    cdef int read_columns(self, const uint8_t* at, const uint8_t* end, const uint8_t* heads) except -1
    cdef ColumnView* view(self, Py_ssize_t number) except NULL
    cdef object value(self, const ColumnView* view, size_t row)


# A block whose bytes the caller has laid out itself, with these columns.
cdef Block block_of(bytes data, tuple names, tuple types)
