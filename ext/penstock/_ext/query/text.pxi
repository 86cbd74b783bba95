# Part of evaluator.pyx: texts by code points: patterns, parts, cases. All texts are UTF-8.

cdef inline uint32_t letter_size(uint8_t c) noexcept nogil:
    return 1 if c < 0x80 else 2 if c < 0xE0 else 3 if c < 0xF0 else 4


cdef inline uint32_t read_letter(const uint8_t* p) noexcept nogil:
    if p[0] < 0x80:
        return p[0]
    if p[0] < 0xE0:
        return (p[0] & 31) << 6 | p[1] & 63
    if p[0] < 0xF0:
        return (p[0] & 15) << 12 | (p[1] & 63) << 6 | p[2] & 63
    return (p[0] & 7) << 18 | (p[1] & 63) << 12 | (p[2] & 63) << 6 | p[3] & 63


cdef inline int64_t count_letters(const uint8_t* p, size_t size) noexcept nogil:
    cdef int64_t count = 0
    cdef size_t i
    for i in range(size):
        count += p[i] & 0xC0 != 0x80
    return count


# Where so many letters end; the end of the text if it has fewer.
cdef inline const uint8_t* skip_letters(const uint8_t* p, const uint8_t* end, int64_t count) noexcept nogil:
    while p < end and count > 0:
        p += letter_size(p[0])
        count -= 1
    return p


# Simple case mapping, as DuckDB's: one code point for one.
cdef inline uint32_t to_lower_letter(uint32_t c) noexcept nogil:
    if c < 128:
        return c + 32 if c'A' <= c <= c'Z' else c
    return c'i' if c == 0x130 else Py_UNICODE_TOLOWER(c)


cdef inline uint32_t to_upper_letter(uint32_t c) noexcept nogil:
    if c < 128:
        return c - 32 if c'a' <= c <= c'z' else c
    return 0x1E9E if c == 0xDF else Py_UNICODE_TOUPPER(c)


# NULL: no memory. A letter can need one byte more than before.
cdef int change_case(const Value* text, bint is_upper, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef uint8_t* changed = arena_take(arena, 2 * <size_t> text.size + 4)
    cdef uint8_t* at = changed
    cdef uint32_t letter
    if changed == NULL:
        return NO_MEMORY
    while p < end:
        letter = read_letter(p)
        p += letter_size(p[0])
        at = put_utf8(at, to_upper_letter(letter) if is_upper else to_lower_letter(letter))
    arena_trim(arena, at)
    set_text(out, T_VARCHAR, changed, at - changed)
    return OK


# LIKE: `%` any letters, `_` one; a letter behind `escape` (0 = none) is itself. With two places to go back to at most:
# only the last `%` matters. A fault for a pattern that ends with its escape, and for texts (a client may send both)
# that would keep everybody waiting.
cdef int match_like(const Value* text, const Value* pattern, uint32_t escape, bint* matches) noexcept nogil:
    cdef const uint8_t* t = text.of.p
    cdef const uint8_t* t_end = t + text.size
    cdef const uint8_t* p = pattern.of.p
    cdef const uint8_t* p_end = p + pattern.size
    cdef uint64_t steps = MOST_STEPS + 4 * <uint64_t> text.size
    cdef const uint8_t* star = NULL         # behind the last %
    cdef const uint8_t* star_text = NULL
    cdef uint32_t letter, size
    cdef bint is_literal
    matches[0] = False
    while True:
        steps -= 1
        if steps == 0:
            return TOO_MUCH_WORK
        if p < p_end:
            letter = read_letter(p)
            size = letter_size(p[0])
            is_literal = escape != 0 and letter == escape
            if is_literal:
                if p + size >= p_end:
                    return BAD_PATTERN
                p += size
                letter = read_letter(p)
                size = letter_size(p[0])
            if not is_literal and letter == c'%':
                p += size
                star, star_text = p, t
                continue
            if t < t_end and (not is_literal and letter == c'_' or read_letter(t) == letter):
                p += size
                t += letter_size(t[0])
                continue
        elif t == t_end:
            matches[0] = True
            return OK
        if star == NULL or star_text == t_end:
            return OK
        star_text += letter_size(star_text[0])
        p, t = star, star_text


# Byte position of a text in another, -1 if it is not there.
cdef inline int64_t find_text(const uint8_t* p, size_t size, const uint8_t* wanted, size_t wanted_size) noexcept nogil:
    cdef const uint8_t* found
    if wanted_size == 0:
        return 0
    found = <const uint8_t*> memmem(p, size, wanted, wanted_size)
    return -1 if found == NULL else found - p


# `start` counts from 1; without a length everything behind it (INT64_MAX).
cdef void take_part(const Value* text, int64_t start, int64_t length, Value* out) noexcept nogil:
    cdef const uint8_t* end = text.of.p + text.size
    cdef const uint8_t* first
    cdef const uint8_t* last
    cdef int64_t count
    if start < 0:
        count = count_letters(text.of.p, text.size)
        start = count + start
        # a start before the text is none of its letters; they count for the length all the same
    elif start > 0:
        start -= 1
    else:
        start = -1      # DuckDB: 0 is the place before the first letter
    if length < 0:
        length = -length
        start -= length
    elif length == INT64_MAX:
        length = INT64_MAX - (start if start > 0 else 0)
    if start < 0:
        length = length + start if length < INT64_MAX else length
        start = 0
    if length <= 0:
        set_text(out, T_VARCHAR, text.of.p, 0)
        return
    first = skip_letters(text.of.p, end, start)
    last = skip_letters(first, end, length)
    set_text(out, T_VARCHAR, first, last - first)


cdef inline bint has_letter(const Value* set_, uint32_t letter) noexcept nogil:
    cdef const uint8_t* p = set_.of.p
    cdef const uint8_t* end = p + set_.size
    while p < end:
        if read_letter(p) == letter:
            return True
        p += letter_size(p[0])
    return False


cdef int trim_text(const Value* text, const Value* letters, bint at_start, bint at_end, Value* out) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef const uint8_t* last
    if <uint64_t> letters.size * text.size > 16 * MOST_STEPS:
        return TOO_MUCH_WORK
    while at_start and p < end and has_letter(letters, read_letter(p)):
        p += letter_size(p[0])
    while at_end and end > p:
        last = end - 1
        while last > p and last[0] & 0xC0 == 0x80:
            last -= 1
        if not has_letter(letters, read_letter(last)):
            break
        end = last
    set_text(out, T_VARCHAR, p, end - p)
    return OK


cdef int replace_text(const Value* text, const Value* old, const Value* new, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef uint64_t count = 0, size
    cdef int64_t found
    cdef uint8_t* changed
    cdef uint8_t* at
    out[0] = text[0]
    if old.size == 0:
        return OK
    while True:
        found = find_text(p, end - p, old.of.p, old.size)
        if found < 0:
            break
        count += 1
        p += found + old.size
    if count == 0:
        return OK
    size = text.size - count * old.size + count * new.size
    if size > LARGEST_TEXT:
        return TOO_LARGE
    changed = at = arena_take(arena, size)
    if changed == NULL:
        return NO_MEMORY
    p = text.of.p
    while True:
        found = find_text(p, end - p, old.of.p, old.size)
        if found < 0:
            break
        memcpy(at, p, found)
        memcpy(at + found, new.of.p, new.size)
        at += found + new.size
        p += found + old.size
    memcpy(at, p, end - p)
    set_text(out, T_VARCHAR, changed, size)
    return OK


cdef int reverse_text(const Value* text, Value* out, Arena* arena) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef uint8_t* turned = arena_take(arena, text.size)
    cdef uint8_t* at = turned + text.size
    cdef uint32_t size
    if turned == NULL:
        return NO_MEMORY
    while p < end:
        size = letter_size(p[0])
        at -= size
        memcpy(at, p, size)
        p += size
    set_text(out, T_VARCHAR, turned, text.size)
    return OK


# From 1, negative from the end. An empty separator splits into letters.
cdef void split_part(const Value* text, const Value* separator, int64_t number, Value* out) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef const uint8_t* after
    cdef int64_t found
    cdef int64_t parts = 1
    set_text(out, T_VARCHAR, p, 0)
    if separator.size == 0:
        parts = count_letters(p, text.size)
        if number < 0:
            number += parts + 1
        if 1 <= number <= parts:
            p = skip_letters(p, end, number - 1)
            set_text(out, T_VARCHAR, p, letter_size(p[0]))
        return
    if number < 0:
        while True:
            found = find_text(p, end - p, separator.of.p, separator.size)
            if found < 0:
                break
            parts += 1
            p += found + separator.size
        p = text.of.p
        number += parts + 1
    if number < 1:
        return
    while True:
        found = find_text(p, end - p, separator.of.p, separator.size)
        after = end if found < 0 else p + found
        if number == 1:
            set_text(out, T_VARCHAR, p, after - p)
            return
        if found < 0:
            return
        number -= 1
        p = after + separator.size


cdef int pad_text(const Value* text, int64_t length, const Value* filling, bint at_start, Value* out,
                  Arena* arena) noexcept nogil:
    cdef int64_t missing = length - count_letters(text.of.p, text.size)
    cdef const uint8_t* p = filling.of.p
    cdef const uint8_t* end = filling.of.p + filling.size
    cdef uint8_t* padded_text
    cdef uint8_t* at
    cdef int64_t i
    cdef uint32_t size
    if missing <= 0:
        set_text(out, T_VARCHAR, text.of.p,
                 skip_letters(text.of.p, text.of.p + text.size, length) - text.of.p)
        return OK
    if filling.size == 0:
        return BAD_ARGUMENT
    if missing > LARGEST_TEXT // 4:
        return TOO_LARGE
    padded_text = at = arena_take(arena, text.size + 4 * <size_t> missing)
    if at == NULL:
        return NO_MEMORY
    if not at_start:
        memcpy(at, text.of.p, text.size)
        at += text.size
    for i in range(missing):
        if p == end:
            p = filling.of.p
        size = letter_size(p[0])
        memcpy(at, p, size)
        at += size
        p += size
    if at_start:
        memcpy(at, text.of.p, text.size)
        at += text.size
    arena_trim(arena, at)
    set_text(out, T_VARCHAR, padded_text, at - padded_text)
    return OK
