# Part of evaluator.pyx: pieces of JSON text that were checked: their kind, their value, their text as DuckDB writes it.

# One step of a path of `json_of`.
cdef struct PathStep:
    const uint8_t* name     # NULL: an element
    int64_t index
    uint32_t size


# The member of an object that was checked, NULL if there is none; `*end` is set behind its value.
cdef const uint8_t* step_member(const uint8_t* p, const uint8_t** end, const PathStep* step,
                                Arena* arena) noexcept nogil:
    cdef const uint8_t* limit = end[0]
    cdef const uint8_t* name
    cdef const uint8_t* name_end
    cdef uint8_t* plain
    cdef size_t size
    if p[0] != c'{':
        return NULL
    p = skip_space(p + 1, limit)
    while p[0] != c'}':
        name = p + 1
        name_end = skip_string(p, limit) - 1
        p = skip_name(p, limit)
        size = name_end - name
        if memchr(name, c'\\', size) != NULL:
            plain = arena_take(arena, size)
            if plain == NULL:
                return NULL
            size = unescape_json(plain, name, size) - plain
            name = plain
        if size == step.size and memcmp(name, step.name, size) == 0:
            end[0] = skip_value(p, limit, 0)
            return p
        p = skip_space(skip_value(p, limit, 0), limit)
        if p[0] == c',':
            p = skip_space(p + 1, limit)
    return NULL


cdef const uint8_t* step_element(const uint8_t* p, const uint8_t** end, int64_t index) noexcept nogil:
    cdef const uint8_t* limit = end[0]
    if p[0] != c'[':
        return NULL
    if index < 0:
        index += count_elements(p, limit, 1)
        if index < 0:
            return NULL
    p = skip_space(p + 1, limit)
    while p[0] != c']':
        if index == 0:
            end[0] = skip_value(p, limit, 0)
            return p
        index -= 1
        p = skip_space(skip_value(p, limit, 0), limit)
        if p[0] == c',':
            p = skip_space(p + 1, limit)
    return NULL


# Which number a piece is: whole and in 64 bits (also without sign), or to be read as a double.
cdef inline bint is_whole(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        if p[i] == c'.' or (p[i] | 32) == c'e':
            return False
    return True


# A whole number in the bounds of BIGINT; -1 if it is larger.
cdef int whole_number(const uint8_t* p, uint32_t size, int64_t* number) noexcept nogil:
    cdef bint is_negative = p[0] == c'-'
    cdef uint64_t most = <uint64_t> INT64_MAX + <uint64_t> is_negative
    cdef uint64_t value = 0
    cdef uint32_t i
    for i in range(is_negative, size):
        if value > (most - (p[i] - c'0')) // 10:
            return -1
        value = value * 10 + (p[i] - c'0')
    number[0] = <int64_t> (0 - value if is_negative else value)
    return 0


# The text between the quotes; 0, or -1 without memory.
cdef int string_content(const uint8_t* p, uint32_t size, Value* out, Arena* arena) noexcept nogil:
    cdef uint8_t* plain
    if memchr(p, c'\\', size) == NULL:
        set_text(out, T_VARCHAR, p + 1, size - 2)
        return 0
    plain = arena_take(arena, size)
    if plain == NULL:
        return -1
    set_text(out, T_VARCHAR, plain, unescape_json(plain, p + 1, size - 2) - plain)
    return 0


# A number as DuckDB writes it: doubles in their shortest form, whole ones as they are.
cdef uint8_t* put_number(uint8_t* out, const uint8_t* p, uint32_t size) noexcept nogil:
    cdef double number
    if size == 2 and p[0] == c'-' and p[1] == c'0':
        out[0] = c'0'
        return out + 1
    if not is_whole(p, size):
        number = decimal_to_double(p, size)
        if isfinite(number):
            return out + format_json_double(number, <char*> out)
    memcpy(out, p, size)
    return out + size


# How much longer the text can become: a double of few letters has many digits (1e20).
cdef size_t canonical_bound(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef size_t bound = size + DOUBLE_TEXT
    cdef uint32_t i
    for i in range(size):
        if (p[i] | 32) == c'e':
            bound += DOUBLE_TEXT
        elif p[i] == c'.':
            bound += 8
    return bound


# Without spaces, numbers and strings in one form; 0, or -1 without memory.
cdef int canonical(const Value* json, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = json.of.p
    cdef const uint8_t* end = p + json.size
    cdef const uint8_t* after
    cdef uint8_t* text
    cdef uint8_t* at
    cdef uint8_t* plain
    if is_digit(p[0]) and is_whole(p, json.size) or p[0] == c't' or p[0] == c'f' or p[0] == c'n':
        out[0] = json[0]
        return 0
    if p[0] == c'"' and memchr(p, c'\\', json.size) == NULL:
        out[0] = json[0]
        return 0
    # behind the text there is room for a string without its escapes, before it gets others
    text = at = arena_take(arena, canonical_bound(p, json.size) + json.size)
    if text == NULL:
        return -1
    plain = text + canonical_bound(p, json.size)
    while p < end:
        if p[0] == c'"':
            after = skip_string(p, end)
            at = put_json_string(at, plain, unescape_json(plain, p + 1, after - p - 2) - plain)
            p = after
        elif p[0] == c'-' or is_digit(p[0]):
            after = skip_number(p, end)
            at = put_number(at, p, <uint32_t> (after - p))
            p = after
        else:
            if p[0] != c' ' and p[0] != c'\n' and p[0] != c'\r' and p[0] != c'\t':
                at[0] = p[0]
                at += 1
            p += 1
    set_text(out, T_JSON, text, at - text)
    return 0
