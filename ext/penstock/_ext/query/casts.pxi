# Part of evaluator.pyx: conversions, by DuckDB's rules. Each returns OK or a fault; NULL never gets here.

cdef inline int number_text(Value* out, char* text, size_t size, Arena* arena) noexcept nogil:
    cdef uint8_t* copy = arena_take(arena, size)
    if copy == NULL:
        return NO_MEMORY
    memcpy(copy, text, size)
    set_text(out, T_VARCHAR, copy, size)
    return OK


# Bytes that are not printable ASCII, and quotes and backslashes, are written as \xHH.
cdef int blob_to_text(const Value* blob, Value* out, Arena* arena) noexcept nogil:
    cdef const char* digits = b"0123456789ABCDEF"
    cdef const uint8_t* p = blob.of.p
    cdef uint8_t* text
    cdef uint8_t* at
    cdef uint32_t i
    if blob.size > LARGEST_TEXT:
        return TOO_LARGE
    text = at = arena_take(arena, 4 * <size_t> blob.size)
    if text == NULL:
        return NO_MEMORY
    for i in range(blob.size):
        if 32 <= p[i] < 127 and p[i] != c'\\' and p[i] != c'"' and p[i] != c'\'':
            at[0] = p[i]
            at += 1
        else:
            at[0], at[1], at[2], at[3] = c'\\', c'x', digits[p[i] >> 4], digits[p[i] & 15]
            at += 4
    arena_trim(arena, at)
    set_text(out, T_VARCHAR, text, at - text)
    return OK


cdef int text_to_blob(const Value* text, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef uint8_t* blob = arena_take(arena, text.size)
    cdef uint8_t* at = blob
    if blob == NULL:
        return NO_MEMORY
    while p < end:
        if p[0] == c'\\':
            if end - p < 4 or p[1] != c'x' or not is_hex(p[2]) or not is_hex(p[3]):
                return BAD_CAST
            at[0] = <uint8_t> (hex_digit(p[2]) << 4 | hex_digit(p[3]))
            p += 4
        elif p[0] < 128:
            at[0] = p[0]
            p += 1
        else:
            return BAD_CAST
        at += 1
    set_text(out, T_BLOB, blob, at - blob)
    return OK


cdef inline uint8_t hex_digit(uint8_t c) noexcept nogil:
    return c - c'0' if c <= c'9' else (c | 32) - c'a' + 10


cdef int to_varchar(const Value* value, Value* out, Arena* arena) noexcept nogil:
    cdef char text[48]
    if value.type == T_BIGINT:
        return number_text(out, text, format_int(value.of.i, text), arena)
    if value.type == T_DOUBLE:
        return number_text(out, text, format_double(value.of.d, text), arena)
    if value.type == T_TIMESTAMP:
        return number_text(out, text, format_time(value.of.i, text, False), arena)
    if value.type == T_BOOLEAN:
        if value.of.i:
            set_text(out, T_VARCHAR, <const uint8_t*> b"true", 4)
        else:
            set_text(out, T_VARCHAR, <const uint8_t*> b"false", 5)
        return OK
    if value.type == T_BLOB:
        return blob_to_text(value, out, arena)
    if value.type == T_JSON:
        return json_to_text(value, out, arena)
    return BAD_CAST


# What `->>` gives.
cdef int json_to_text(const Value* json, Value* out, Arena* arena) noexcept nogil:
    if json.of.p[0] == c'n':
        set_null(out)
        return OK
    if json.of.p[0] == c'"':
        return NO_MEMORY if string_content(json.of.p, json.size, out, arena) else OK
    if canonical(json, out, arena):
        return NO_MEMORY
    out.type = T_VARCHAR
    return OK


cdef int text_to_bool(const uint8_t* p, uint32_t size, Value* out, bint is_json) noexcept nogil:
    if equals_word(p, size, b"true") or equals_word(p, size, b"t") or equals_word(p, size, b"yes") \
            or equals_word(p, size, b"y") or not is_json and size == 1 and p[0] == c'1':
        set_bool(out, True)
        return OK
    if equals_word(p, size, b"false") or equals_word(p, size, b"f") or equals_word(p, size, b"no") \
            or equals_word(p, size, b"n") or not is_json and size == 1 and p[0] == c'0':
        set_bool(out, False)
        return OK
    return BAD_CAST


cdef int text_to_number(const Value* text, uint8_t target, Value* out, Arena* arena) noexcept nogil:
    cdef uint8_t* scratch
    cdef int64_t number = 0
    cdef double real = 0
    if target == T_TIMESTAMP:
        if not text_to_time(text.of.p, text.size, &number):
            return BAD_CAST
        set_time(out, number)
        return OK
    scratch = arena_take(arena, text.size + 1)
    if scratch == NULL:
        return NO_MEMORY
    if target == T_BIGINT:
        if not text_to_int(text.of.p, text.size, scratch, &number):
            return BAD_CAST
        set_int(out, number)
    else:
        if not text_to_double(text.of.p, text.size, scratch, &real):
            return BAD_CAST
        set_double(out, real)
    arena_trim(arena, scratch)
    return OK


# A piece of JSON: numbers and truth values convert as such, strings as texts; JSON null is NULL.
cdef int json_to_number(const Value* json, uint8_t target, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = json.of.p
    cdef int64_t number = 0
    cdef double real
    cdef Value text
    if p[0] == c'"':
        if string_content(p, json.size, &text, arena):
            return NO_MEMORY
        if target == T_BOOLEAN:
            return text_to_bool(text.of.p, text.size, out, True)
        if target == T_BIGINT and not is_plain_integer(text.of.p, text.size):
            return BAD_CAST
        if target == T_DOUBLE and not is_plain_number(text.of.p, text.size):
            return BAD_CAST
        return text_to_number(&text, target, out, arena)
    if p[0] == c'n':
        set_null(out)
        return OK
    if p[0] == c'{' or p[0] == c'[' or target == T_TIMESTAMP:
        return BAD_CAST
    if p[0] == c't' or p[0] == c'f':
        number = p[0] == c't'
        if target == T_DOUBLE:
            set_double(out, <double> number)
        else:
            set_int(out, number)
            out.type = target
        return OK
    if target != T_DOUBLE and is_whole(p, json.size):
        if whole_number(p, json.size, &number):
            if target != T_BOOLEAN:
                return BAD_CAST
            number = 1
        set_int(out, number)
    else:
        real = decimal_to_double(p, json.size)
        if target == T_DOUBLE:
            set_double(out, real)
            return OK
        if target == T_BIGINT:
            if not double_to_int(real, &number):
                return BAD_CAST
            set_int(out, number)
            return OK
        number = real != 0
    if target == T_BOOLEAN:
        set_bool(out, number != 0)
    return OK


# In the strings of JSON DuckDB takes whole numbers only as plain digits (or behind 0x), and no underscores.
cdef bint is_plain_integer(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        if p[i] == c'.' or p[i] == c'_' or p[i] == c'+':
            return False
        if (p[i] | 32) == c'e' and (size < 2 or (p[1] | 32) != c'x'):
            return False
    return True


cdef bint is_plain_number(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t i
    if size and p[0] == c'+':
        return False
    for i in range(size):
        if p[i] == c'_' or is_sql_space(p[i]):
            return False
    return True


cdef int to_json(const Value* value, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* start
    cdef size_t size
    cdef char text[48]
    cdef int fault
    if value.type == T_VARCHAR:
        if not find_json(value.of.p, value.size, &start, &size):
            return BAD_CAST
        set_text(out, T_JSON, start, size)
        return OK
    if value.type == T_DOUBLE:
        fault = number_text(out, text, format_json_double(value.of.d, text), arena)
    elif value.type == T_BOOLEAN or value.type == T_BIGINT:
        fault = to_varchar(value, out, arena)
    elif value.type == T_TIMESTAMP:
        text[0] = c'"'
        size = format_time(value.of.i, text + 1, False)
        text[size + 1] = c'"'
        fault = number_text(out, text, size + 2, arena)
    else:
        return BAD_CAST
    out.type = T_JSON
    return fault


cdef int to_number(const Value* value, uint8_t target, Value* out) noexcept nogil:
    cdef int64_t number = 0
    if value.type == T_DOUBLE:
        if target == T_BOOLEAN:
            set_bool(out, value.of.d != 0)
            return OK
        if target != T_BIGINT or not double_to_int(value.of.d, &number):
            return BAD_CAST
        set_int(out, number)
        return OK
    if value.type != T_BIGINT and value.type != T_BOOLEAN or target == T_TIMESTAMP:
        return BAD_CAST
    number = value.of.i
    if target == T_DOUBLE:
        set_double(out, <double> number)
    elif target == T_BOOLEAN:
        set_bool(out, number != 0)
    else:
        set_int(out, number)
    return OK


# `out` may be `value` itself.
cdef int cast_value(const Value* from_, uint8_t target, Value* out, Arena* arena) noexcept nogil:
    cdef Value value = from_[0]
    if value.type == T_NULL or value.type == target:
        out[0] = value
        return OK
    if target == T_VARCHAR:
        return to_varchar(&value, out, arena)
    if target == T_JSON:
        return to_json(&value, out, arena)
    if value.type == T_JSON:
        if target == T_BLOB:
            if json_to_text(&value, out, arena):
                return NO_MEMORY
            if out.type != T_NULL:
                out.type = T_BLOB
            return OK
        return json_to_number(&value, target, out, arena)
    if value.type == T_VARCHAR:
        if target == T_BLOB:
            return text_to_blob(&value, out, arena)
        if target == T_BOOLEAN:
            return text_to_bool(value.of.p, value.size, out, False)
        return text_to_number(&value, target, out, arena)
    return to_number(&value, target, out)
