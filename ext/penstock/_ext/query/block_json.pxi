# Part of block.pyx: rows as a JSON text, for subscribers that speak MQTT.

cdef struct Text:
    uint8_t* data
    size_t size
    size_t capacity


cdef uint8_t* text_reserve(Text* text, size_t more) except NULL:
    cdef size_t capacity
    cdef uint8_t* data
    if text.capacity - text.size < more:
        capacity = 2 * text.capacity + more + 1_024
        data = <uint8_t*> realloc(text.data, capacity)
        if data == NULL:
            raise MemoryError()
        text.data, text.capacity = data, capacity
    return text.data + text.size


cdef int text_put(Text* text, const uint8_t* p, size_t n) except -1:
    memcpy(text_reserve(text, n), p, n)
    text.size += n
    return 0


cdef int text_put_string(Text* text, const uint8_t* p, size_t n) except -1:
    text_reserve(text, json_string_size(p, n))
    text.size = put_json_string(text.data + text.size, p, n) - text.data
    return 0


cdef int text_put_base64(Text* text, const uint8_t* p, size_t n) except -1:
    cdef const char* letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef uint8_t* out = text_reserve(text, 4 * ((n + 2) // 3) + 2)
    cdef uint32_t word
    cdef size_t i
    out[0] = c'"'
    out += 1
    for i in range(0, n, 3):
        word = <uint32_t> p[i] << 16
        if i + 1 < n:
            word |= <uint32_t> p[i + 1] << 8
        if i + 2 < n:
            word |= p[i + 2]
        out[0] = letters[word >> 18]
        out[1] = letters[word >> 12 & 63]
        out[2] = letters[word >> 6 & 63] if i + 1 < n else c'='
        out[3] = letters[word & 63] if i + 2 < n else c'='
        out += 4
    out[0] = c'"'
    text.size = out + 1 - text.data
    return 0


cdef int text_put_value(Text* text, const ColumnView* view, size_t row) except -1:
    cdef char* out
    cdef uint32_t start, size
    cdef double number
    if view.type == T_NULL or view.valid != NULL and not is_set(view.valid, row):
        return text_put(text, b"null", 4)
    if has_text(view.type):
        start = load_u32(view.values + 4 * row)
        size = load_u32(view.values + 4 * row + 4) - start
        if view.type == T_VARCHAR:
            return text_put_string(text, view.text + start, size)
        if view.type == T_BLOB:
            return text_put_base64(text, view.text + start, size)
        return text_put(text, view.text + start, size)
    if view.type == T_BOOLEAN:
        return text_put(text, b"true", 4) if is_set(view.values, row) else text_put(text, b"false", 5)
    out = <char*> text_reserve(text, NUMBER_TEXT)
    if view.type == T_BIGINT:
        text.size += format_int(load_i64(view.values + 8 * row), out)
    elif view.type == T_TIMESTAMP:
        out[0] = c'"'
        size = <uint32_t> format_time(load_i64(view.values + 8 * row), out + 1, True)
        out[size + 1] = c'"'
        text.size += size + 2
    else:
        number = load_f64(view.values + 8 * row)
        if not isfinite(number):
            return text_put(text, b"null", 4)
        text.size += format_double(number, out)
    return 0


cdef bytes block_to_json(Block block):
    cdef Text text
    cdef list names = [json.dumps(one, ensure_ascii=False).encode() + b":" for one in block.names]
    cdef bytes name
    cdef size_t row
    cdef uint32_t i
    memset(&text, 0, sizeof(Text))
    try:
        text_put(&text, b"[", 1)
        for row in range(block.rows):
            text_put(&text, b",{" if row else b"{", 2 if row else 1)
            for i in range(block._columns):
                if i:
                    text_put(&text, b",", 1)
                name = names[i]
                text_put(&text, <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
                text_put_value(&text, block._views + i, row)
            text_put(&text, b"}", 1)
        text_put(&text, b"]", 1)
        return PyBytes_FromStringAndSize(<const char*> text.data, <Py_ssize_t> text.size)
    finally:
        free(text.data)
