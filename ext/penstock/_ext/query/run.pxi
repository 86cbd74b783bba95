# Part of evaluator.pyx: expressions over one message. An expression is a tree of nodes in one array; a value is
# computed by walking down, so that what AND, OR, CASE and COALESCE do not need is not computed.

cdef enum Operation:
    OP_LITERAL, OP_TOPIC, OP_CLIENT_ID, OP_USERNAME, OP_CONTENT_TYPE, OP_RESPONSE_TOPIC, OP_PAYLOAD,
    OP_CORRELATION_DATA, OP_QOS, OP_PARTITION, OP_OFFSET, OP_RETAIN, OP_TS, OP_EXPIRES_AT, OP_USER_PROPERTIES,
    OP_LEVEL, OP_PROPERTY, OP_JSON, OP_JSON_OF, OP_AND, OP_OR, OP_NOT, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE,
    OP_DISTINCT, OP_NOT_DISTINCT, OP_IS_NULL, OP_IN, OP_LIKE, OP_ILIKE, OP_ADD, OP_SUB, OP_MUL, OP_NEG, OP_DIV,
    OP_INTDIV, OP_MOD, OP_ADD_NS, OP_SUB_TS, OP_CONCAT, OP_CASE, OP_COALESCE, OP_NULLIF, OP_CAST, OP_TRY_CAST, OP_CALL,
    OP_REGEX, OP_ELEMENT, OP_ORDINALITY

cdef struct Node:
    Value value             # a literal; of other nodes the slot, level, name, escape letter or function
    Node** args
    PathStep* steps         # of OP_JSON_OF and OP_ELEMENT
    Regex* regex            # of OP_REGEX
    uint32_t count          # of args
    uint32_t step_count
    uint32_t memo           # of the value, 0 = none
    uint8_t op
    uint8_t type            # SqlType of what comes out

# The value of an expression that several queries compute, or one query in several places: once for each message.
cdef struct Memo:
    Value value
    uint64_t seen           # the message it is of
    uint32_t uses

# Whether the payload is JSON is found out when the first value of it is needed.
cdef enum JsonState:
    JSON_UNKNOWN, JSON_READ, JSON_BAD

# One message while the queries look at it.
cdef struct Message:
    EnvelopeView view
    int64_t offset
    int64_t partition
    Arena arena
    PathTree* paths
    Memo* memos
    uint8_t json
    bint forgives           # the query's policy: an operation that fails is NULL
    uint32_t forgiven       # number of such operations in the query that is evaluated
    Value element           # of the array that the query unnests
    int64_t ordinality      # its number, from 1
    Value culprit           # of a fault: the value, and the type it should have had
    uint8_t wanted


cdef inline int blame(Message* m, int fault, const Value* culprit, uint8_t wanted) noexcept nogil:
    m.culprit = culprit[0]
    m.wanted = wanted
    return fault


cdef inline int read_json(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef const JsonSlot* slot
    if m.json == JSON_UNKNOWN:
        m.json = JSON_READ if scan_json(m.paths, m.view.payload, m.view.payload_size, &m.arena) else JSON_BAD
    if m.json == JSON_BAD:
        if m.forgives:
            m.forgiven += 1
            set_null(out)
            return OK
        set_text(&m.culprit, T_BLOB, m.view.payload, m.view.payload_size)
        return NOT_JSON
    slot = m.paths.slots + node.value.of.i
    if slot.seen == m.paths.message:
        set_text(out, T_JSON, slot.p, slot.size)
    else:
        set_null(out)
    return OK


cdef int read_json_of(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value text
    cdef const uint8_t* p
    cdef size_t size
    cdef int fault = run(m, node.args[0], &text)
    if fault:
        return fault
    set_null(out)
    if text.type == T_NULL:
        return OK
    p, size = text.of.p, text.size
    if text.type != T_JSON and not find_json(text.of.p, text.size, &p, &size):
        return blame(m, BAD_CAST, &text, T_JSON)
    walk_steps(m, node, p, p + size, out)
    return OK


# The value at the node's path in a piece of JSON that was checked, or NULL.
cdef void walk_steps(Message* m, const Node* node, const uint8_t* p, const uint8_t* end, Value* out) noexcept nogil:
    cdef uint32_t i
    set_null(out)
    for i in range(node.step_count):
        if node.steps[i].name != NULL:
            p = step_member(p, &end, node.steps + i, &m.arena)
        else:
            p = step_element(p, &end, node.steps[i].index)
        if p == NULL:
            return
    set_text(out, T_JSON, p, end - p)


cdef void read_level(const Message* m, int64_t number, Value* out) noexcept nogil:
    cdef const uint8_t* p = m.view.topic
    cdef const uint8_t* end = p + m.view.topic_size
    cdef const uint8_t* slash
    set_null(out)
    while True:
        slash = <const uint8_t*> memchr(p, c'/', end - p)
        number -= 1
        if number == 0:
            set_text(out, T_VARCHAR, p, (end if slash == NULL else slash) - p)
            return
        if slash == NULL:
            return
        p = slash + 1


# The MQTT property of that identifier; envelope laid the properties out itself, so every size is right.
cdef void read_property(const Message* m, uint8_t wanted, uint8_t type, Value* out) noexcept nogil:
    cdef const uint8_t* at = m.view.props
    cdef const uint8_t* end = at + m.view.props_size
    set_null(out)
    while at < end and at[0] != USER_PROPERTY:
        if at[0] == PAYLOAD_FORMAT:
            at += 2
            continue
        if at[0] == wanted:
            set_text(out, type, at + 3, get_be16(at + 1))
            return
        at += 3 + get_be16(at + 1)
    if wanted == USER_PROPERTY and at < end:    # they are last: all of them
        set_text(out, type, at, end - at)


cdef void read_user_property(const Message* m, const Value* name, Value* out) noexcept nogil:
    cdef Value all_
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* value
    read_property(m, USER_PROPERTY, T_PROPERTIES, &all_)
    set_null(out)
    if all_.type == T_NULL:
        return
    at, end = all_.of.p, all_.of.p + all_.size
    while at < end:
        value = at + 3 + get_be16(at + 1)
        if get_be16(at + 1) == name.size and memcmp(at + 3, name.of.p, name.size) == 0:
            set_text(out, T_VARCHAR, value + 2, get_be16(value))
            return
        at = value + 2 + get_be16(value)


cdef int read_field(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef const EnvelopeView* view = &m.view
    if node.op == OP_TOPIC:
        set_text(out, T_VARCHAR, view.topic, view.topic_size)
    elif node.op == OP_CLIENT_ID:
        set_text(out, T_VARCHAR, view.client_id, view.client_id_size)
    elif node.op == OP_PAYLOAD:
        set_text(out, T_BLOB, view.payload, view.payload_size)
    elif node.op == OP_USERNAME:
        if view.username == NULL:
            set_null(out)
        else:
            set_text(out, T_VARCHAR, view.username, view.username_size)
    elif node.op == OP_QOS:
        set_int(out, view.qos)
    elif node.op == OP_PARTITION:
        set_int(out, m.partition)
    elif node.op == OP_OFFSET:
        set_int(out, m.offset)
    elif node.op == OP_RETAIN:
        set_bool(out, view.retain)
    elif node.op == OP_TS:
        return time_from(view.received_at, 1_000_000, out)
    elif node.op == OP_EXPIRES_AT:
        set_null(out)
        if view.expires_at:
            return time_from(view.expires_at, 1_000_000, out)
    elif node.op == OP_CONTENT_TYPE:
        read_property(m, CONTENT_TYPE, T_VARCHAR, out)
    elif node.op == OP_RESPONSE_TOPIC:
        read_property(m, RESPONSE_TOPIC, T_VARCHAR, out)
    elif node.op == OP_CORRELATION_DATA:
        read_property(m, CORRELATION_DATA, T_BLOB, out)
    else:
        read_property(m, USER_PROPERTY, T_PROPERTIES, out)
    return OK


# AND and OR with three values: the deciding one ends it, else NULL wins over the rest.
cdef int run_logic(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef bint deciding = node.op == OP_OR
    cdef bint met_null = False
    cdef Value value
    cdef uint32_t i
    cdef int fault
    for i in range(node.count):
        fault = run(m, node.args[i], &value)
        if fault:
            return fault
        if value.type == T_NULL:
            met_null = True
        elif (value.of.i != 0) == deciding:
            set_bool(out, deciding)
            return OK
    if met_null:
        set_null(out)
    else:
        set_bool(out, not deciding)
    return OK


cdef int run_comparison(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value a, b
    cdef int order
    cdef int fault = run(m, node.args[0], &a)
    if fault:
        return fault
    fault = run(m, node.args[1], &b)
    if fault:
        return fault
    if a.type == T_NULL or b.type == T_NULL:
        if node.op == OP_DISTINCT:
            set_bool(out, a.type != b.type)
        elif node.op == OP_NOT_DISTINCT:
            set_bool(out, a.type == b.type)
        else:
            set_null(out)
        return OK
    if a.type != b.type:
        return blame(m, BAD_TYPE, &a, b.type)
    order = compare(&a, &b)
    if node.op == OP_EQ or node.op == OP_NOT_DISTINCT:
        set_bool(out, order == 0)
    elif node.op == OP_NE or node.op == OP_DISTINCT:
        set_bool(out, order != 0)
    elif node.op == OP_LT:
        set_bool(out, order < 0)
    elif node.op == OP_LE:
        set_bool(out, order <= 0)
    elif node.op == OP_GT:
        set_bool(out, order > 0)
    else:
        set_bool(out, order >= 0)
    return OK


# The constants were sorted by `sort_constants`; NULL among them is told by the node's value.
cdef int run_in(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value needle
    cdef uint32_t low = 1, high = node.count, middle
    cdef int order
    cdef int fault = run(m, node.args[0], &needle)
    if fault:
        return fault
    set_null(out)
    if needle.type == T_NULL:
        return OK
    while low < high:
        middle = (low + high) >> 1
        order = compare(&needle, &node.args[middle].value)
        if order == 0:
            set_bool(out, True)
            return OK
        if order < 0:
            high = middle
        else:
            low = middle + 1
    if node.value.of.i == 0:
        set_bool(out, False)
    return OK


cdef int run_like(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value text, pattern
    cdef bint matches
    cdef int fault = run(m, node.args[0], &text)
    if fault == OK:
        fault = run(m, node.args[1], &pattern)
    if fault:
        return fault
    set_null(out)
    if text.type == T_NULL or pattern.type == T_NULL:
        return OK
    if node.op == OP_ILIKE:
        if change_case(&text, False, &text, &m.arena) or change_case(&pattern, False, &pattern, &m.arena):
            return NO_MEMORY
    fault = match_like(&text, &pattern, <uint32_t> node.value.of.i, &matches)
    set_bool(out, matches)
    return fault


cdef int run_regex(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value text
    cdef bint matches = False
    cdef int fault = run(m, node.args[0], &text)
    if fault:
        return fault
    set_null(out)
    if text.type == T_NULL:
        return OK
    fault = regex_matches(node.regex, &text, &matches)
    if fault:
        return blame(m, fault, &text, T_BOOLEAN)
    set_bool(out, matches)
    return OK


cdef int int_arithmetic(uint8_t op, int64_t a, int64_t b, Value* out) noexcept nogil:
    cdef int64_t result = 0
    cdef bint overflows = False
    if op == OP_ADD or op == OP_ADD_NS:
        overflows = __builtin_add_overflow(a, b, &result)
    elif op == OP_SUB or op == OP_SUB_TS:
        overflows = __builtin_sub_overflow(a, b, &result)
    elif op == OP_MUL:
        overflows = __builtin_mul_overflow(a, b, &result)
    elif b == 0:
        set_null(out)
        return OK
    elif b == -1 and a == INT64_MIN:
        overflows = True
    else:
        result = a / b if op == OP_INTDIV else a % b
    set_int(out, result)
    return BAD_OVERFLOW if overflows else OK


cdef void double_arithmetic(uint8_t op, double a, double b, Value* out) noexcept nogil:
    if op == OP_ADD:
        set_double(out, a + b)
    elif op == OP_SUB:
        set_double(out, a - b)
    elif op == OP_MUL:
        set_double(out, a * b)
    elif b == 0:
        set_null(out)
    elif op == OP_MOD:
        set_double(out, fmod(a, b))
    else:
        set_double(out, a / b)


cdef int run_arithmetic(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value a, b
    cdef int fault = run(m, node.args[0], &a)
    if fault:
        return fault
    fault = run(m, node.args[1], &b)
    if fault:
        return fault
    if a.type == T_NULL or b.type == T_NULL:
        set_null(out)
        return OK
    if a.type == T_DOUBLE:
        double_arithmetic(node.op, a.of.d, b.of.d, out)
        return OK
    fault = int_arithmetic(node.op, a.of.i, b.of.i, out)
    if fault:
        return blame(m, fault, &a, T_BIGINT)
    if out.type == T_BIGINT:
        out.type = node.type        # TIMESTAMP for add_ns
    return OK


cdef int run_negation(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef int fault = run(m, node.args[0], out)
    if fault or out.type == T_NULL:
        return fault
    if node.op == OP_NOT:
        out.of.i = not out.of.i
    elif out.type == T_DOUBLE:
        out.of.d = -out.of.d
    elif out.of.i == INT64_MIN:
        return blame(m, BAD_OVERFLOW, out, T_BIGINT)
    else:
        out.of.i = -out.of.i
    return OK


cdef inline int append_text(uint8_t** at, const Value* text) noexcept nogil:
    memcpy(at[0], text.of.p, text.size)
    at[0] += text.size
    return 0


# concat (NULL if one is) and concat_ws, whose first is what stands between the others that are not NULL.
cdef int run_concat(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef bint has_separator = node.op == OP_CALL
    cdef Value parts[64]
    cdef uint64_t size = 0
    cdef bint met_null = False
    cdef uint32_t i, count = 0
    cdef uint8_t* text
    cdef uint8_t* at
    cdef int fault
    for i in range(node.count):
        fault = run(m, node.args[i], parts + count)
        if fault:
            return fault
        if parts[count].type == T_NULL:
            met_null |= i == 0 or not has_separator
            continue
        size += parts[count].size
        count += 1
    if met_null:
        set_null(out)
        return OK
    if has_separator:
        size += (count - 1) * <uint64_t> parts[0].size
    if size > LARGEST_TEXT:
        return TOO_LARGE
    text = at = arena_take(&m.arena, size)
    if text == NULL:
        return NO_MEMORY
    for i in range(has_separator, count):
        if has_separator and i > 1:
            append_text(&at, parts)
        append_text(&at, parts + i)
    set_text(out, T_VARCHAR, text, at - text)
    return OK


# case, coalesce, nullif: which argument is the value.
cdef int run_choice(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value other
    cdef uint32_t i
    cdef int fault = OK
    if node.op == OP_CASE:
        for i in range(0, node.count - 1, 2):
            fault = run(m, node.args[i], &other)
            if fault:
                return fault
            if other.type != T_NULL and other.of.i:
                return run(m, node.args[i + 1], out)
        return run(m, node.args[node.count - 1], out)
    if node.op == OP_COALESCE:
        set_null(out)
        for i in range(node.count):
            fault = run(m, node.args[i], out)
            if fault or out.type != T_NULL:
                return fault
        return OK
    fault = run(m, node.args[0], out)
    if fault == OK:
        fault = run(m, node.args[1], &other)
    if fault == OK and out.type != T_NULL and other.type == out.type and compare(out, &other) == 0:
        set_null(out)
    return fault


cdef int run_extreme(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef bint is_greatest = node.value.of.i == F_GREATEST
    cdef Value value
    cdef uint32_t i
    cdef int fault
    set_null(out)
    for i in range(node.count):
        fault = run(m, node.args[i], &value)
        if fault:
            return fault
        if value.type != T_NULL and (out.type == T_NULL or (compare(&value, out) > 0) == is_greatest):
            out[0] = value
    return OK


cdef int run_call(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value arguments[MOST_FIXED_ARGUMENTS]
    cdef uint8_t function = <uint8_t> node.value.of.i
    cdef bint met_null = False      # the other arguments are computed all the same: their faults count
    cdef uint32_t i
    cdef int fault
    if function == F_GREATEST or function == F_LEAST:
        return run_extreme(m, node, out)
    if function == F_CONCAT_WS:
        return run_concat(m, node, out)
    for i in range(node.count):
        fault = run(m, node.args[i], arguments + i)
        if fault:
            return fault
        met_null |= arguments[i].type == T_NULL
    if met_null:
        set_null(out)
        return OK
    fault = call_fixed(function, arguments, node.count, out, &m.arena)
    if fault:
        return blame(m, fault, arguments, node.type)
    return OK


cdef int run_cast(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value value
    cdef int fault = run(m, node.args[0], &value)
    if fault:
        return fault
    fault = cast_value(&value, node.type, out, &m.arena)
    if fault == OK:
        return OK
    if node.op == OP_TRY_CAST:
        set_null(out)
        return OK
    return blame(m, fault, &value, node.type)


# Return OK with the value, or a fault with the culprit (see `blame`). If the query forgives, an operation that fails is
# NULL at its place, and the operations around it continue with that NULL.
cdef int run(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Memo* memo
    cdef uint32_t forgiven = m.forgiven
    cdef int fault
    if node.op == OP_LITERAL:
        out[0] = node.value
        return OK
    if node.op == OP_JSON:
        return read_json(m, node, out)
    memo = m.memos + node.memo
    if memo.uses > 1 and memo.seen == m.paths.message:
        out[0] = memo.value
        return OK
    fault = compute(m, node, out)
    # `check_types` relies on it: a text is never taken for a number or the other way round
    if fault == OK and out.type != node.type and out.type != T_NULL:
        fault = blame(m, BAD_TYPE, out, node.type)
    if fault:
        if not m.forgives:
            return fault
        m.forgiven += 1
        set_null(out)
    # a value in which an error was forgiven is an error of queries with another policy, and counted by each
    if memo.uses > 1 and m.forgiven == forgiven:
        memo.value = out[0]
        memo.seen = m.paths.message
    return OK


cdef int compute(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef uint8_t op = node.op
    if op == OP_CAST or op == OP_TRY_CAST:
        return run_cast(m, node, out)
    if op == OP_AND or op == OP_OR:
        return run_logic(m, node, out)
    if op >= OP_EQ and op <= OP_NOT_DISTINCT:
        return run_comparison(m, node, out)
    if op < OP_LEVEL:
        return read_field(m, node, out)
    if op == OP_LEVEL:
        read_level(m, node.value.of.i, out)
        return OK
    if op == OP_PROPERTY:
        read_user_property(m, &node.value, out)
        return OK
    if op == OP_JSON_OF:
        return read_json_of(m, node, out)
    if op == OP_NOT or op == OP_NEG:
        return run_negation(m, node, out)
    if op == OP_IS_NULL:
        return run_is_null(m, node, out)
    if op == OP_IN:
        return run_in(m, node, out)
    if op == OP_LIKE or op == OP_ILIKE:
        return run_like(m, node, out)
    if op <= OP_SUB_TS:
        return run_arithmetic(m, node, out)
    if op == OP_CONCAT:
        return run_concat(m, node, out)
    if op == OP_CALL:
        return run_call(m, node, out)
    if op == OP_REGEX:
        return run_regex(m, node, out)
    if op == OP_ELEMENT:
        walk_steps(m, node, m.element.of.p, m.element.of.p + m.element.size, out)
        return OK
    if op == OP_ORDINALITY:
        set_int(out, m.ordinality)
        return OK
    return run_choice(m, node, out)


cdef inline int run_is_null(Message* m, const Node* node, Value* out) noexcept nogil:
    cdef Value value
    cdef int fault = run(m, node.args[0], &value)
    set_bool(out, value.type == T_NULL)
    return fault
