# Part of evaluator.pyx: which queries a message is shown to. Queries hang at their topic filter; among those of one
# filter that demand `x = constant` (or x IN constants) for the same x, the message's x finds the few by hash.

cdef enum Policy:
    SKIP, GIVE_NULL, DEAD_LETTER

POLICIES = {"skip": SKIP, "null": GIVE_NULL, "dead-letter": DEAD_LETTER}

# One query while messages pass.
cdef struct Query:
    Node* where             # NULL: all
    Node* unnest            # NULL: a message is one row
    Node** columns
    Rows rows
    Query* next_active      # of those that have rows of this pack
    uint32_t number
    uint8_t policy
    bint is_active
    uint64_t evaluated
    uint64_t matched
    uint64_t errors

# Some queries of one constant: `count` of the group's entries from `first` on.
cdef struct IndexSlot:
    uint64_t hash
    Value key
    uint32_t first
    uint32_t count          # 0: the slot is free


cdef class Source(Subscriber):
    """All queries of one topic filter."""

    cdef dict holders           # query number: QueryHolder
    cdef list groups_kept
    cdef Query** plain          # those without a key
    cdef uint32_t plain_count
    cdef void** groups          # borrowed IndexGroups
    cdef uint32_t group_count

    def __cinit__(self):
        self.holders, self.groups_kept = {}, []

    def __dealloc__(self):
        free(self.plain)
        free(self.groups)


cdef class IndexGroup:
    """The queries of one filter that compare the same expression with constants."""

    cdef Program program
    cdef Node* key
    cdef IndexSlot* table
    cdef uint64_t mask
    cdef Query** entries
    cdef list members           # QueryHolders
    cdef Query** reported       # those whose policy is dead-letter
    cdef uint32_t reported_count
    cdef bint has_forgiving     # some have the policy null: a key that fails still has a value for them
    cdef uint64_t failures      # messages whose key had an error: an error of each member

    def __dealloc__(self):
        free(self.table)
        free(self.entries)
        free(self.reported)

    # The slot of a value, or NULL: nobody compares with it.
    cdef inline IndexSlot* find(self, const Value* value) noexcept:
        cdef uint64_t hash = hash_value(value, INDEX_SEED)
        cdef uint64_t at = hash & self.mask
        while self.table[at].count:
            if self.table[at].hash == hash and self.table[at].key.type == value.type \
                    and compare(&self.table[at].key, value) == 0:
                return self.table + at
            at = (at + 1) & self.mask
        return NULL

    # `queries` are the holders of each constant.
    cdef int fill(self, dict queries) except -1:
        cdef uint64_t size = 4
        cdef uint64_t at
        cdef uint32_t used = 0
        cdef Value key
        cdef QueryHolder holder
        while size < 2 * <uint64_t> len(queries):
            size *= 2
        self.mask = size - 1
        self.table = <IndexSlot*> calloc(size, sizeof(IndexSlot))
        self.entries = <Query**> calloc(sum(len(holders) for holders in queries.values()) + 1, sizeof(Query*))
        self.reported = <Query**> calloc(len(self.members) + 1, sizeof(Query*))
        if self.table == NULL or self.entries == NULL or self.reported == NULL:
            raise MemoryError()
        for constant, holders in queries.items():
            self.program.set_literal(&key, self.key.type, constant)
            at = hash_value(&key, INDEX_SEED) & self.mask
            while self.table[at].count:
                at = (at + 1) & self.mask
            self.table[at].hash, self.table[at].key = hash_value(&key, INDEX_SEED), key
            self.table[at].first, self.table[at].count = used, <uint32_t> len(holders)
            for holder in holders:
                self.entries[used] = holder.query
                used += 1
        for holder in self.members:
            self.has_forgiving = self.has_forgiving or holder.query.policy == GIVE_NULL
            if holder.query.policy == DEAD_LETTER:
                self.reported[self.reported_count] = holder.query
                self.reported_count += 1
        return 0


cdef class QueryHolder:
    """Owns a query and what it is made of."""

    cdef Query* query
    cdef Program program
    cdef Source source
    cdef IndexGroup group
    cdef readonly tuple names
    cdef bytes head             # of its blocks
    cdef list paths             # what its program asked for
    cdef list shared            # repr of expressions
    cdef tuple types
    cdef tuple key              # the expression that must equal one of the constants, or None
    cdef tuple constants

    def __cinit__(self):
        self.query = <Query*> calloc(1, sizeof(Query))
        if self.query == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.query != NULL:
            free_rows(&self.query.rows)
            free(self.query.columns)
        free(self.query)


cdef enum:
    INDEX_SEED = 0x5EED


# What the queries of a source are found by, anew after one has come or gone.
cdef int build_source(Source source, Paths paths, Memos memos) except -1:
    cdef IndexGroup group
    cdef QueryHolder holder
    cdef dict by_key = {}
    cdef list plain = []
    cdef uint32_t i
    for group in source.groups_kept:
        for holder in group.members:
            holder.query.errors += group.failures
            holder.group = None
    for holder in source.holders.values():
        if holder.key is None:
            plain.append(holder)
        else:
            by_key.setdefault(repr(holder.key), []).append(holder)
    free(source.plain)
    free(source.groups)
    source.plain_count = source.group_count = 0
    source.plain = <Query**> calloc(len(plain) + 1, sizeof(Query*))
    source.groups = <void**> calloc(len(by_key) + 1, sizeof(void*))
    if source.plain == NULL or source.groups == NULL:
        raise MemoryError()
    for holder in plain:
        source.plain[source.plain_count] = holder.query
        source.plain_count += 1
    source.groups_kept = [make_group(members, paths, memos) for members in by_key.values()]
    for i in range(len(source.groups_kept)):
        source.groups[i] = <void*> source.groups_kept[i]
    source.group_count = <uint32_t> len(source.groups_kept)
    return 0


# The queries themselves ask for everything their key asks for.
cdef IndexGroup make_group(list members, Paths paths, Memos memos):
    cdef IndexGroup group = IndexGroup.__new__(IndexGroup)
    cdef QueryHolder holder = members[0]
    cdef tuple key = holder.key
    cdef dict queries = {}
    group.members = members
    group.program = new_program([key], lambda path: paths.slots[path][0], memos.numbers.__getitem__)
    group.key = group.program.add(key)
    for holder in members:
        for constant in holder.constants:
            queries.setdefault(constant, []).append(holder)
    group.fill(queries)
    for holder in members:
        holder.group = group
    return group


# Of a condition that must be true: (expression, constants) of which it must equal one; the first such conjunct.
cdef tuple find_key(tuple where):
    for part in conjuncts(where):
        found = equality(part)
        if found is not None:
            return found
    return None, None


cdef list conjuncts(tuple condition):
    cdef list parts = []
    if condition[0] != "and":
        return [condition]
    for part in condition[2:]:
        parts.extend(conjuncts(part))
    return parts


cdef tuple equality(tuple condition):
    cdef set constants = set()
    if condition[0] == "or":
        keys = [equality(part) for part in condition[2:]]
        if None in keys or any(one[0] != keys[0][0] for one in keys):
            return None
        return keys[0][0], tuple({constant for one in keys for constant in one[1]})
    if condition[0] not in ("eq", "in", "not_distinct"):
        return None
    needle, *others = condition[2:]
    if needle[0] == "literal" and len(others) == 1:
        needle, others = others[0], [needle]
    if needle[0] == "literal" or any(other[0] != "literal" or other[1] not in (needle[1], T_NULL) for other in others):
        return None
    for other in others:
        if other[2] is None and condition[0] == "not_distinct":
            return None
        if other[2] is not None:
            constants.add(other[2])
    if mentions_element(needle):
        return None         # it has no value before the array is unnested
    if needle[1] == T_NULL or needle[1] == T_JSON or any(constant != constant for constant in constants):
        return None         # JSON is compared as text, in one form: not by the bytes of the message; NaN has no hash
    return needle, tuple(constants)
