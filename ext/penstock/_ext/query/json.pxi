# Part of evaluator.pyx: one pass over a JSON text that picks out the values at the paths somebody asks for.
#
# The paths of all queries are a tree; the pass walks the text and the tree together and skips (but checks) what has no
# node. Strict RFC 8259: no comments, no trailing commas, no NaN, no lone surrogates; nesting is bounded. Of members
# with the same name the first counts, as in DuckDB.

cdef enum:
    MOST_NESTED = 128
    ROOT_PATH = 0
    NO_PATH = 0x7FFFFFFF
    FEW_EDGES = 6           # so many are compared one by one


# From a node to a member (name) or an element (index, negative from the end) below it. Members are sorted by size and
# bytes.
cdef struct PathEdge:
    const uint8_t* name
    int64_t index
    uint32_t size
    uint32_t node

cdef struct PathNode:
    uint32_t members        # the first edge
    uint32_t member_count
    uint32_t elements
    uint32_t element_count
    uint32_t slot           # NO_PATH: nobody wants the value itself
    uint64_t seen           # the last message that had it
    bint from_end           # some index is negative

cdef struct JsonSlot:
    const uint8_t* p
    uint32_t size
    uint64_t seen           # the message it belongs to; any other number: no value

cdef struct PathTree:
    PathNode* nodes
    PathEdge* edges
    JsonSlot* slots
    uint64_t message        # number of the message


cdef inline const uint8_t* skip_space(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return c'0' <= c <= c'9'


cdef inline bint is_hex(uint8_t c) noexcept nogil:
    return is_digit(c) or c'a' <= (c | 32) <= c'f'


# Behind an escape; surrogates come in pairs.
cdef const uint8_t* skip_escape(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef uint32_t half
    cdef int i
    if end - p < 2:
        return NULL
    if p[1] != c'u':
        return p + 2 if memchr(b"\"\\/bfnrt", p[1], 8) != NULL else NULL
    if end - p < 6:
        return NULL
    for i in range(2, 6):
        if not is_hex(p[i]):
            return NULL
    half = hex4(p + 2)
    p += 6
    if half < 0xD800 or half > 0xDFFF:
        return p
    if half > 0xDBFF or end - p < 6 or p[0] != c'\\' or p[1] != c'u':
        return NULL
    for i in range(2, 6):
        if not is_hex(p[i]):
            return NULL
    half = hex4(p + 2)
    return p + 6 if 0xDC00 <= half <= 0xDFFF else NULL


# Behind the closing quote; p is at the opening one.
cdef inline const uint8_t* skip_string(const uint8_t* p, const uint8_t* end) noexcept nogil:
    p += 1
    while True:
        p = plain_end(p, end)
        if p >= end:
            return NULL
        if p[0] == c'"':
            return p + 1
        if p[0] != c'\\':
            return NULL     # a control character
        p = skip_escape(p, end)
        if p == NULL:
            return NULL


cdef inline const uint8_t* skip_digits(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and is_digit(p[0]):
        p += 1
    return p


cdef inline const uint8_t* skip_number(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* start
    if p[0] == c'-':
        p += 1
    if p >= end or not is_digit(p[0]):
        return NULL
    p = p + 1 if p[0] == c'0' else skip_digits(p, end)
    if p < end and p[0] == c'.':
        start = p + 1
        p = skip_digits(start, end)
        if p == start:
            return NULL
    if p < end and (p[0] | 32) == c'e':
        p += 1
        if p < end and (p[0] == c'-' or p[0] == c'+'):
            p += 1
        start = p
        p = skip_digits(start, end)
        if p == start:
            return NULL
    return p


cdef inline const uint8_t* skip_scalar(const uint8_t* p, const uint8_t* end) noexcept nogil:
    if p[0] == c'"':
        return skip_string(p, end)
    if p[0] == c'-' or is_digit(p[0]):
        return skip_number(p, end)
    if p[0] == c't':
        return p + 4 if end - p >= 4 and memcmp(p, b"true", 4) == 0 else NULL
    if p[0] == c'f':
        return p + 5 if end - p >= 5 and memcmp(p, b"false", 5) == 0 else NULL
    if p[0] == c'n':
        return p + 4 if end - p >= 4 and memcmp(p, b"null", 4) == 0 else NULL
    return NULL


# From a member's name to its value.
cdef inline const uint8_t* skip_name(const uint8_t* p, const uint8_t* end) noexcept nogil:
    if p >= end or p[0] != c'"':
        return NULL
    p = skip_string(p, end)
    if p == NULL:
        return NULL
    p = skip_space(p, end)
    if p >= end or p[0] != c':':
        return NULL
    p = skip_space(p + 1, end)
    return p if p < end else NULL


# Behind a value of any kind; p < end is at its first byte. `depth` is how deep it lies already.
cdef const uint8_t* skip_value(const uint8_t* p, const uint8_t* end, uint32_t depth) noexcept nogil:
    cdef uint8_t closing[MOST_NESTED]
    cdef uint32_t base = depth
    while True:
        if p[0] == c'{' or p[0] == c'[':
            if depth >= MOST_NESTED:
                return NULL
            closing[depth] = p[0] + 2   # "}" and "]" are two behind their opening one
            depth += 1
            p = skip_space(p + 1, end)
            if p >= end:
                return NULL
            if p[0] != closing[depth - 1]:
                if closing[depth - 1] == c'}':
                    p = skip_name(p, end)
                    if p == NULL:
                        return NULL
                continue
            p += 1
            depth -= 1
        else:
            p = skip_scalar(p, end)
            if p == NULL:
                return NULL
        # behind a value
        while True:
            if depth == base:
                return p
            p = skip_space(p, end)
            if p >= end:
                return NULL
            if p[0] == c',':
                p = skip_space(p + 1, end)
                if closing[depth - 1] == c'}':
                    p = skip_name(p, end)
                if p == NULL or p >= end:
                    return NULL
                break
            if p[0] != closing[depth - 1]:
                return NULL
            p += 1
            depth -= 1


cdef inline int compare_names(const uint8_t* name, uint32_t size, const PathEdge* edge) noexcept nogil:
    if size != edge.size:
        return -1 if size < edge.size else 1
    return memcmp(name, edge.name, size)


# The node of a member, NO_PATH if nobody asks for it. The name has no escapes.
cdef inline uint32_t find_member(const PathTree* tree, const PathNode* node, const uint8_t* name,
                                 uint32_t size) noexcept nogil:
    cdef const PathEdge* edges = tree.edges + node.members
    cdef uint32_t low = 0, high = node.member_count, middle
    cdef int order
    if high <= FEW_EDGES:
        for middle in range(high):
            if edges[middle].size == size and memcmp(edges[middle].name, name, size) == 0:
                return edges[middle].node
        return NO_PATH
    while low < high:
        middle = (low + high) >> 1
        order = compare_names(name, size, edges + middle)
        if order == 0:
            return edges[middle].node
        if order < 0:
            high = middle
        else:
            low = middle + 1
    return NO_PATH


# The same for a name as it lies between its quotes.
cdef uint32_t find_escaped(const PathTree* tree, const PathNode* node, const uint8_t* name, uint32_t size,
                           Arena* arena) noexcept nogil:
    cdef uint8_t* plain = arena_take(arena, size)
    if plain == NULL:
        return NO_PATH
    return find_member(tree, node, plain, <uint32_t> (unescape_json(plain, name, size) - plain))


# How many elements the array at p has; -1 if it is damaged.
cdef int64_t count_elements(const uint8_t* p, const uint8_t* end, uint32_t depth) noexcept nogil:
    cdef int64_t count = 0
    p = skip_space(p + 1, end)
    if p < end and p[0] == c']':
        return 0
    while p < end:
        p = skip_value(p, end, depth)
        if p == NULL:
            return -1
        count += 1
        p = skip_space(p, end)
        if p >= end or p[0] != c',':
            return count if p < end and p[0] == c']' else -1
        p = skip_space(p + 1, end)
    return -1


cdef const uint8_t* scan_object(PathTree* tree, const PathNode* node, const uint8_t* p, const uint8_t* end,
                                uint32_t depth, Arena* arena) noexcept nogil:
    cdef const uint8_t* name
    cdef const uint8_t* name_end
    cdef uint32_t child
    p = skip_space(p + 1, end)
    if p < end and p[0] == c'}':
        return p + 1
    while True:
        name = p + 1
        if p >= end or p[0] != c'"':
            return NULL
        p = skip_string(p, end)
        if p == NULL:
            return NULL
        name_end = p - 1
        p = skip_space(p, end)
        if p >= end or p[0] != c':':
            return NULL
        p = skip_space(p + 1, end)
        if p >= end:
            return NULL
        child = find_member(tree, node, name, <uint32_t> (name_end - name))
        if child == NO_PATH and memchr(name, c'\\', name_end - name) != NULL:
            child = find_escaped(tree, node, name, <uint32_t> (name_end - name), arena)
        p = skip_value(p, end, depth) if child == NO_PATH else scan_value(tree, child, p, end, depth, arena)
        if p == NULL:
            return NULL
        p = skip_space(p, end)
        if p >= end or p[0] != c',':
            return p + 1 if p < end and p[0] == c'}' else NULL
        p = skip_space(p + 1, end)


cdef const uint8_t* scan_array(PathTree* tree, const PathNode* node, const uint8_t* p, const uint8_t* end,
                               uint32_t depth, Arena* arena) noexcept nogil:
    cdef const uint8_t* after
    cdef const PathEdge* edge
    cdef int64_t index = 0, count = 0
    cdef uint32_t i
    if node.from_end:
        count = count_elements(p, end, depth)
        if count < 0:
            return NULL
    p = skip_space(p + 1, end)
    if p < end and p[0] == c']':
        return p + 1
    while p < end:
        after = NULL
        for i in range(node.element_count):
            edge = tree.edges + node.elements + i
            if edge.index == index or edge.index < 0 and edge.index + count == index:
                after = scan_value(tree, edge.node, p, end, depth, arena)
                if after == NULL:
                    return NULL
        p = skip_value(p, end, depth) if after == NULL else after
        if p == NULL:
            return NULL
        index += 1
        p = skip_space(p, end)
        if p >= end or p[0] != c',':
            return p + 1 if p < end and p[0] == c']' else NULL
        p = skip_space(p + 1, end)
    return NULL


# Behind the value at p, which is that of a node; notes it and those below it.
cdef const uint8_t* scan_value(PathTree* tree, uint32_t number, const uint8_t* p, const uint8_t* end, uint32_t depth,
                               Arena* arena) noexcept nogil:
    cdef PathNode* node = tree.nodes + number
    cdef const uint8_t* after
    if node.seen == tree.message:       # a member of that name came before
        return skip_value(p, end, depth)
    node.seen = tree.message
    if p[0] == c'{' and node.member_count and depth < MOST_NESTED:
        after = scan_object(tree, node, p, end, depth + 1, arena)
    elif p[0] == c'[' and node.element_count and depth < MOST_NESTED:
        after = scan_array(tree, node, p, end, depth + 1, arena)
    else:
        after = skip_value(p, end, depth)
    if after != NULL and node.slot != NO_PATH:
        tree.slots[node.slot].p = p
        tree.slots[node.slot].size = <uint32_t> (after - p)
        tree.slots[node.slot].seen = tree.message
    return after


# Values of the message before are forgotten.
cdef inline void tree_next(PathTree* tree) noexcept nogil:
    tree.message += 1


# Whether it is JSON; the slots have the values. After a failure they have none.
cdef bint scan_json(PathTree* tree, const uint8_t* p, size_t size, Arena* arena) noexcept nogil:
    cdef const uint8_t* end = p + size
    if is_utf8(p, size):
        p = skip_space(p, end)
        if p < end:
            p = scan_value(tree, ROOT_PATH, p, end, 0, arena)
            if p != NULL and skip_space(p, end) == end:
                return True
    tree_next(tree)
    return False


# Whether it is one JSON value with nothing but spaces around; `*start` and `*length` get it without them.
cdef bint find_json(const uint8_t* p, size_t size, const uint8_t** start, size_t* length) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef const uint8_t* after
    p = skip_space(p, end)
    if p >= end or not is_utf8(p, end - p):
        return False
    after = skip_value(p, end, 0)
    if after == NULL or skip_space(after, end) != end:
        return False
    start[0] = p
    length[0] = after - p
    return True
