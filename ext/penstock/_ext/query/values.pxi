# Part of evaluator.pyx: a value while it is computed, and the memory of one message.

cdef union Content:
    int64_t i               # BIGINT, TIMESTAMP, BOOLEAN
    double d
    const uint8_t* p        # VARCHAR, BLOB, JSON, PROPERTIES


# Texts are borrowed: from the record, the query's constants, or the message's arena. JSON is a piece of checked JSON
# text as it was sent (`canonical` makes it DuckDB's). PROPERTIES are those of MQTT's encoding.
cdef struct Value:
    Content of
    uint32_t size
    uint8_t type            # T_NULL: no value


# What can be wrong with a row. OK is 0.
cdef enum Fault:
    OK, NOT_JSON, BAD_CAST, BAD_RANGE, BAD_OVERFLOW, BAD_ARGUMENT, BAD_PATTERN, TOO_LARGE, NO_MEMORY, BAD_TYPE,
    TOO_MUCH_WORK, NO_ARRAY, TOO_MANY

FAULTS = (
    "", "the payload is not JSON", "cannot convert {value} from {source} to {target}", "{value} is out of range",
    "overflow of BIGINT", "an argument of {value} is not possible", "a pattern must not end with its escape character",
    "the value is too large", "no memory for the value", "a value of type {source} where {target} was promised",
    "comparing these texts would take too long", "{value} is not an array to be unnested",
    "an array of more than 10,000 elements is not unnested",
)

cdef enum:
    ARENA_CHUNK = 16_384
    LARGEST_TEXT = 0x04000000       # what a function may build: 64 MiB
    LARGEST_ROW = 0x04000000        # all texts of a row
    LARGEST_ARENA = 0x20000000      # what all functions over one message may build
    MOST_ELEMENTS = 10_000          # of an array that is unnested
    MOST_STEPS = 4_000_000          # letters that one operation may compare, besides four for each byte of its text
    KEPT_CHUNK = 0x100000           # a larger arena is given back with the message that needed it


# Memory that is given back all at once, with the message it was for.
cdef struct Chunk:
    Chunk* before
    size_t size
    size_t used

cdef struct Arena:
    Chunk* chunk
    size_t size             # of all chunks


cdef uint8_t* arena_more(Arena* arena, size_t size) noexcept nogil:
    cdef size_t capacity = ARENA_CHUNK if arena.chunk == NULL else 2 * arena.chunk.size
    cdef Chunk* chunk
    if capacity < size or arena.size + capacity > LARGEST_ARENA:
        capacity = size
    if arena.size + capacity > LARGEST_ARENA:
        return NULL
    chunk = <Chunk*> malloc(sizeof(Chunk) + capacity)
    if chunk == NULL:
        return NULL
    chunk.before, chunk.size, chunk.used = arena.chunk, capacity, size
    arena.chunk = chunk
    arena.size += capacity
    return <uint8_t*> (chunk + 1)


# NULL without memory; what a text is made of needs no alignment.
cdef inline uint8_t* arena_take(Arena* arena, size_t size) noexcept nogil:
    cdef Chunk* chunk = arena.chunk
    cdef uint8_t* taken
    if chunk == NULL or chunk.size - chunk.used < size:
        return arena_more(arena, size)
    taken = <uint8_t*> (chunk + 1) + chunk.used
    chunk.used += size
    return taken


# What was taken last was too much: only the bytes up to `end` were written.
cdef inline void arena_trim(Arena* arena, const uint8_t* end) noexcept nogil:
    arena.chunk.used = end - <const uint8_t*> (arena.chunk + 1)


cdef void arena_free(Arena* arena) noexcept nogil:
    cdef Chunk* chunk
    while arena.chunk != NULL:
        chunk = arena.chunk
        arena.chunk = chunk.before
        free(chunk)
    arena.size = 0


# The newest chunk is the largest, and is kept for the messages to come.
cdef inline void arena_reset(Arena* arena) noexcept nogil:
    cdef Chunk* chunk = arena.chunk
    cdef Chunk* before
    if chunk == NULL or chunk.used == 0 and chunk.before == NULL:
        return
    if chunk.size > KEPT_CHUNK:
        arena_free(arena)
        return
    before = chunk.before
    chunk.before, chunk.used = NULL, 0
    arena.size = chunk.size
    while before != NULL:
        chunk = before
        before = chunk.before
        free(chunk)


cdef inline void set_null(Value* value) noexcept nogil:
    value.type = T_NULL


cdef inline void set_bool(Value* value, bint truth) noexcept nogil:
    value.type = T_BOOLEAN
    value.of.i = truth


cdef inline void set_int(Value* value, int64_t number) noexcept nogil:
    value.type = T_BIGINT
    value.of.i = number


cdef inline void set_double(Value* value, double number) noexcept nogil:
    value.type = T_DOUBLE
    value.of.d = number


cdef inline void set_time(Value* value, int64_t ns) noexcept nogil:
    value.type = T_TIMESTAMP
    value.of.i = ns


cdef inline void set_text(Value* value, uint8_t type, const uint8_t* p, size_t size) noexcept nogil:
    value.type = type
    value.of.p = p
    value.size = <uint32_t> size


# Of two bytewise compared texts: -1, 0, 1.
cdef inline int compare_texts(const Value* a, const Value* b) noexcept nogil:
    cdef uint32_t size = a.size if a.size < b.size else b.size
    cdef int order = memcmp(a.of.p, b.of.p, size) if size else 0
    if order:
        return -1 if order < 0 else 1
    return (a.size > b.size) - (a.size < b.size)


# NaN equals itself and is greater than everything.
cdef inline int compare_doubles(double a, double b) noexcept nogil:
    if isnan(a) or isnan(b):
        return <int> isnan(a) - <int> isnan(b) if not (isnan(a) and isnan(b)) else 0
    return (a > b) - (a < b)


# Neither is NULL, both have the same type.
cdef inline int compare(const Value* a, const Value* b) noexcept nogil:
    if a.type == T_DOUBLE:
        return compare_doubles(a.of.d, b.of.d)
    if has_text(a.type):
        return compare_texts(a, b)
    return (a.of.i > b.of.i) - (a.of.i < b.of.i)


# For the index: equal values have equal hashes.
cdef uint64_t hash_value(const Value* value, uint64_t seed) noexcept nogil:
    cdef double number
    if has_text(value.type):
        return hash_bytes(value.of.p, value.size, seed)
    if value.type == T_DOUBLE:
        number = value.of.d + 0.0       # -0 and 0 are equal
        if isnan(number):
            return hash_bytes(<const uint8_t*> "nan", 3, seed)
        return hash_bytes(<const uint8_t*> &number, 8, seed)
    return hash_bytes(<const uint8_t*> &value.of.i, 8, seed)
