# Part of evaluator.pyx: from the nested tuples of a Plan to nodes in one array. Not on the path of a message.

OPERATIONS = {
    "and": OP_AND, "or": OP_OR, "not": OP_NOT, "eq": OP_EQ, "ne": OP_NE, "lt": OP_LT, "le": OP_LE, "gt": OP_GT,
    "ge": OP_GE, "distinct": OP_DISTINCT, "not_distinct": OP_NOT_DISTINCT, "is_null": OP_IS_NULL, "in": OP_IN,
    "like": OP_LIKE, "ilike": OP_ILIKE, "add": OP_ADD, "sub": OP_SUB, "mul": OP_MUL, "neg": OP_NEG, "div": OP_DIV,
    "intdiv": OP_INTDIV, "mod": OP_MOD, "add_ns": OP_ADD_NS, "sub_ts": OP_SUB_TS, "concat": OP_CONCAT, "case": OP_CASE,
    "coalesce": OP_COALESCE, "nullif": OP_NULLIF, "cast": OP_CAST, "try_cast": OP_TRY_CAST,
}
FIELDS = {
    "topic": OP_TOPIC, "client_id": OP_CLIENT_ID, "username": OP_USERNAME, "content_type": OP_CONTENT_TYPE,
    "response_topic": OP_RESPONSE_TOPIC, "payload": OP_PAYLOAD, "correlation_data": OP_CORRELATION_DATA, "qos": OP_QOS,
    "partition": OP_PARTITION, "offset": OP_OFFSET, "retain": OP_RETAIN, "ts": OP_TS, "expires_at": OP_EXPIRES_AT,
    "user_properties": OP_USER_PROPERTIES,
}
TEXT_FIELDS = ("topic", "client_id", "username", "content_type", "response_topic")
FIELD_TYPES = {
    **dict.fromkeys(TEXT_FIELDS, T_VARCHAR), "payload": T_BLOB, "correlation_data": T_BLOB, "qos": T_BIGINT,
    "partition": T_BIGINT, "offset": T_BIGINT, "retain": T_BOOLEAN, "ts": T_TIMESTAMP, "expires_at": T_TIMESTAMP,
    "user_properties": T_PROPERTIES,
}
# Types of arguments that are texts; the last counts for all that follow. 0: any number.
TEXT_ARGUMENTS = {
    **dict.fromkeys(("lower", "upper", "reverse", "length", "trim", "ltrim", "rtrim", "replace", "starts_with",
                     "ends_with", "contains", "strpos", "concat_ws", "encode"), (T_VARCHAR,)),
    **dict.fromkeys(("substr", "left", "right"), (T_VARCHAR, 0)),
    **dict.fromkeys(("lpad", "rpad"), (T_VARCHAR, 0, T_VARCHAR)),
    **dict.fromkeys(("json_text", "json_nullify", "json_type", "json_array_length"), (T_JSON,)),
    "split_part": (T_VARCHAR, T_VARCHAR, 0),
    **dict.fromkeys(("decode", "octet_length"), (T_BLOB,)),
}
# How many arguments an operation has: least, most.
ARITIES = {
    OP_NOT: (1, 1), OP_IS_NULL: (1, 1), OP_NEG: (1, 1), OP_CAST: (1, 1), OP_TRY_CAST: (1, 1), OP_AND: (1, 10_000),
    OP_OR: (1, 10_000), OP_IN: (1, 100_000), OP_CONCAT: (1, 64), OP_CASE: (1, 10_001), OP_COALESCE: (1, 10_000),
}
# Read directly from the message: nothing to remember.
CHEAP = ("literal", "field", "json", "element", "ordinality")
TYPE_NAMES = ("NULL", "BOOLEAN", "BIGINT", "DOUBLE", "VARCHAR", "TIMESTAMP", "BLOB", "JSON", "PROPERTIES")

cdef enum:
    DEEPEST_EXPRESSION = 500        # bounds the C stack
    LONGEST_PATH = 64
    MOST_NODES = 1_000_000


cdef uint32_t count_nodes(tuple expression, uint32_t depth) except 0:
    cdef uint32_t count = 1
    if depth > DEEPEST_EXPRESSION:
        raise ValueError("an expression is nested too deeply")
    for part in expression[2:]:
        if type(part) is tuple and expression[0] not in ("literal", "json", "element"):
            if not is_path(expression, part):
                count += count_nodes(part, depth + 1)
    if count > MOST_NODES:
        raise ValueError("an expression has too many parts")
    return count


# Whether the value differs for each element of an array, so that it is not remembered for the message.
cdef bint mentions_element(tuple expression):
    if expression[0] in ("element", "ordinality"):
        return True
    if expression[0] in ("literal", "json"):
        return False
    return any(type(part) is tuple and not is_path(expression, part) and mentions_element(part)
               for part in expression[2:])


cdef bint is_path(tuple expression, tuple part):
    return expression[0] == "json_of" and part is expression[3]


cdef class Program:
    """The nodes of one query, or of the key of an index. `slots` are the JSON paths it needs."""

    cdef Node* nodes
    cdef uint32_t used
    cdef list kept              # the bytes that constants and names borrow from
    cdef object slot_of         # path to slot number
    cdef object memo_of         # repr of an expression to the number of its memo

    def __cinit__(self, uint32_t capacity, slot_of, memo_of):
        self.nodes = <Node*> calloc(capacity + 1, sizeof(Node))
        self.kept, self.slot_of, self.memo_of = [], slot_of, memo_of
        if self.nodes == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint32_t i
        if self.nodes != NULL:
            for i in range(self.used):
                free(self.nodes[i].args)
                free(self.nodes[i].steps)
                regex_free(self.nodes[i].regex)
        free(self.nodes)

    cdef Node* add(self, tuple expression) except NULL:
        cdef Node* node = self.nodes + self.used
        cdef str operation = expression[0]
        self.used += 1
        node.type = expression[1]
        if node.type >= TYPES:
            raise ValueError(f"there is no type {expression[1]}")
        if operation not in CHEAP and not mentions_element(expression):
            node.memo = self.memo_of(repr(expression))
        if operation == "literal":
            node.op = OP_LITERAL
            self.set_literal(&node.value, node.type, expression[2])
        elif operation == "field":
            node.op = FIELDS[expression[2]]
            if node.type != <uint8_t> FIELD_TYPES[expression[2]]:
                raise ValueError(f"{expression[2]} is no {TYPE_NAMES[node.type]}")
        elif operation == "level":
            node.op, node.value.of.i = OP_LEVEL, expression[2]
            if node.value.of.i < 1:
                raise ValueError("the levels of a topic count from 1")
        elif operation == "property":
            node.op = OP_PROPERTY
            self.set_literal(&node.value, T_VARCHAR, expression[2])
        elif operation == "json":
            node.op, node.value.of.i = OP_JSON, self.slot_of(check_path(expression[2]))
        elif operation == "json_of":
            node.op = OP_JSON_OF
            self.set_steps(node, check_path(expression[3]))
            self.set_args(node, (expression[2],))
        elif operation == "element":
            node.op = OP_ELEMENT
            self.set_steps(node, check_path(expression[2]))
        elif operation == "ordinality":
            node.op = OP_ORDINALITY
        elif operation == "call":
            self.set_call(node, expression)
        elif operation == "regex":
            node.op = OP_REGEX
            self.set_args(node, (expression[2],))
            node.regex = regex_new(expression[3])
        elif operation == "like" or operation == "ilike":
            node.op = OPERATIONS[operation]
            self.set_args(node, expression[2:4])
            node.value.of.i = escape_letter(expression[4] if len(expression) > 4 else None)
        else:
            node.op = OPERATIONS[operation]
            self.set_args(node, expression[2:])
            least, most = ARITIES.get(node.op, (2, 2))
            if not least <= node.count <= most or node.op == OP_CASE and node.count % 2 == 0:
                raise ValueError(f"{operation} cannot have {node.count} arguments")
            if node.op == OP_IN:
                sort_constants(node)
        check_types(node, expression)
        return node

    cdef int set_literal(self, Value* value, uint8_t type, object constant) except -1:
        cdef const uint8_t* start
        cdef size_t size
        cdef bytes text
        if constant is None:
            value.type = T_NULL
        elif type == T_DOUBLE:
            set_double(value, constant)
        elif has_text(type):
            text = constant.encode() if isinstance(constant, str) else bytes(constant)
            if type != T_BLOB:
                text.decode()
            self.kept.append(text)
            set_text(value, type, <const uint8_t*> PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
            if type == T_JSON:
                if not find_json(value.of.p, value.size, &start, &size):
                    raise ValueError("a JSON literal is not JSON")
                set_text(value, type, start, size)
        else:
            value.type, value.of.i = type, constant
        return 0

    cdef int set_args(self, Node* node, tuple args) except -1:
        cdef uint32_t i
        node.args = <Node**> calloc(len(args) + 1, sizeof(Node*))
        if node.args == NULL:
            raise MemoryError()
        for i in range(len(args)):
            node.args[i] = self.add(args[i])
        node.count = <uint32_t> len(args)
        return 0

    cdef int set_steps(self, Node* node, tuple path) except -1:
        cdef uint32_t i
        cdef bytes name
        node.steps = <PathStep*> calloc(len(path) + 1, sizeof(PathStep))
        if node.steps == NULL:
            raise MemoryError()
        for i in range(len(path)):
            if isinstance(path[i], str):
                name = path[i].encode()
                self.kept.append(name)
                node.steps[i].name = <const uint8_t*> PyBytes_AS_STRING(name)
                node.steps[i].size = <uint32_t> PyBytes_GET_SIZE(name)
            else:
                node.steps[i].index = path[i]
        node.step_count = <uint32_t> len(path)
        return 0

    cdef int set_call(self, Node* node, tuple expression) except -1:
        cdef uint32_t function = FUNCTION_NAMES.index(expression[2])
        cdef tuple args = expression[3:]
        cdef uint32_t most = (100_000 if function in (F_GREATEST, F_LEAST) else 64 if function == F_CONCAT_WS
                              else MOST_FIXED_ARGUMENTS)
        if not 1 <= len(args) <= most:
            raise ValueError(f"{expression[2]} cannot have {len(args)} arguments")
        if function in (F_DATE_TRUNC, F_DATE_PART):
            if args[0][0] != "literal":
                raise ValueError(f"the unit of {expression[2]} must be a literal")
            args = (("literal", T_BIGINT, UNIT_NAMES.index(args[0][2])), *args[1:])
        node.op, node.value.of.i = OP_CALL, function
        return self.set_args(node, args)


# Each value has the type its node promises (`run` sees to that), so what is left is that promises and demands agree.
cdef int check_types(const Node* node, tuple expression) except -1:
    cdef tuple wanted = ()
    cdef uint32_t i
    cdef uint8_t kind
    if node.op in (OP_JSON, OP_ELEMENT) and node.type != T_JSON \
            or node.op in (OP_LEVEL, OP_PROPERTY) and node.type != T_VARCHAR:
        raise ValueError(f"{expression[0]} is no {TYPE_NAMES[node.type]}")
    if node.op == OP_JSON_OF and node.args[0].type not in (T_VARCHAR, T_JSON):
        raise ValueError("only texts and JSON have paths")
    if node.op in (OP_CONCAT, OP_LIKE, OP_ILIKE, OP_REGEX):
        wanted = (T_VARCHAR,)
    elif node.op == OP_CALL:
        wanted = (node.type,) if expression[2] in ("greatest", "least") else TEXT_ARGUMENTS.get(expression[2], (0,))
    elif node.op >= OP_ADD and node.op <= OP_SUB_TS:
        wanted = (0,)
    if not wanted:
        return 0
    for i in range(node.count):
        kind = wanted[min(<Py_ssize_t> i, len(wanted) - 1)]
        if node.args[i].type != kind and node.args[i].type != T_NULL and (kind or has_text(node.args[i].type)):
            raise ValueError(f"argument {i + 1} of {expression[0]} cannot be {TYPE_NAMES[node.args[i].type]}")
    return 0


cdef int order_of_constants(const void* a, const void* b) noexcept nogil:
    return compare(&(<const Node**> a)[0].value, &(<const Node**> b)[0].value)


# Those of IN, for run_in: NULLs are taken out and remembered in the node's value.
cdef int sort_constants(Node* node) except -1:
    cdef uint32_t kept = 1
    cdef uint32_t i
    for i in range(1, node.count):
        if node.args[i].op != OP_LITERAL:
            raise ValueError("IN takes constants only")
        if node.args[i].value.type == T_NULL:
            node.value.of.i = 1
        elif node.args[i].type != node.args[0].type:
            raise ValueError("the constants of IN have another type than what is looked for")
        else:
            node.args[kept] = node.args[i]
            kept += 1
    node.count = kept
    qsort(node.args + 1, kept - 1, sizeof(Node*), order_of_constants)
    return 0


cdef tuple check_path(path):
    if len(path) > LONGEST_PATH or not all(type(step) in (str, int) for step in path):
        raise ValueError(f"not a path into JSON: {path!r}")
    return tuple(path)


cdef uint32_t escape_letter(escape) except? 0:
    if isinstance(escape, tuple):
        if escape[0] != "literal":
            raise ValueError("an escape must be a literal")
        escape = escape[2]
    if not escape:
        return 0
    if len(escape) != 1:
        raise ValueError("an escape is one character or none")
    return ord(escape)


cdef Program new_program(list expressions, slot_of, memo_of):
    """Room for all their nodes; `add` each of them then."""
    cdef uint32_t count = 0
    for expression in expressions:
        count += count_nodes(expression, 0)
    return Program(count, slot_of, memo_of)
