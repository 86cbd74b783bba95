# Part of evaluator.pyx: regular expressions. A pattern comes as the program of a Thompson NFA over bytes, written by
# subscribers/query/sql/regex.py. Its states are found as texts need them: a DFA that is remembered within a bound, and
# forgotten as a whole when it is full. A text takes one table lookup per byte, or the visits of the NFA where a state
# is new; these are counted, and too many of them are a fault of the row.

cdef enum RegexOperation:
    R_MATCH, R_RANGE, R_SPLIT, R_ASSERT

cdef enum RegexAssertion:
    A_BEGIN, A_END, A_WORD_EDGE, A_NO_WORD_EDGE

cdef enum:
    MOST_REGEX_INSTRUCTIONS = 5_000
    MOST_REGEX_STATES = 512
    MOST_REGEX_CELLS = 32_768       # transitions that are remembered
    MOST_REGEX_MEMBERS = 32_768     # instructions in all states
    FIRST_REGEX_STATES = 8
    LAST_VISIT = 0x7FFFFFFF         # then their count begins again
    AT_BEGIN = 1                    # flags of a state
    AFTER_WORD = 2
    # in place of a state
    R_UNKNOWN = -1
    R_ACCEPT = -2
    R_DEAD = -3
    R_NO_MEMORY = -4

cdef packed struct RegexInstruction:
    uint8_t operation
    uint8_t low             # of R_ASSERT: the kind
    uint8_t high
    uint8_t unused
    uint16_t target
    uint16_t other          # of R_SPLIT

# A set of instructions that the text may be at, before those that need no byte are followed.
cdef struct RegexState:
    uint32_t first          # of its members
    uint16_t count
    uint8_t flags

cdef struct Regex:
    RegexInstruction* program
    uint32_t size
    uint16_t start
    bint has_word_edges
    uint8_t classes[256]    # bytes that the program does not tell apart have one class
    uint8_t samples[256]    # a byte of each class
    uint32_t class_count    # the end of the text is one more
    int32_t* cells          # of each state and class, the next state
    RegexState* states
    uint32_t state_count
    uint32_t state_capacity
    uint16_t* members
    uint32_t member_count
    uint32_t member_capacity
    uint32_t* seen          # of each instruction, the last visit
    uint32_t* reached
    uint32_t visit
    uint32_t forgotten      # how often all states were
    uint16_t* waiting       # instructions to follow, two for each
    uint16_t* found         # the members of the next state
    uint32_t found_count
    uint64_t steps          # of the NFA, for the text that is looked at


cdef inline bint is_word_byte(uint8_t c) noexcept nogil:
    return is_digit(c) or c'a' <= (c | 32) <= c'z' or c == c'_'


cdef void regex_free(Regex* regex) noexcept nogil:
    if regex == NULL:
        return
    free(regex.program)
    free(regex.cells)
    free(regex.states)
    free(regex.members)
    free(regex.seen)
    free(regex.reached)
    free(regex.waiting)
    free(regex.found)
    free(regex)


# A byte begins a new class where a range begins or has ended, and where letters of words do.
cdef void set_classes(Regex* regex) noexcept nogil:
    cdef uint8_t begins[257]
    cdef RegexInstruction* each
    cdef uint32_t i
    memset(begins, 0, sizeof(begins))
    for i in range(regex.size):
        each = regex.program + i
        if each.operation == R_RANGE:
            begins[each.low] = 1
            begins[each.high + 1] = 1
        elif each.operation == R_ASSERT and each.low >= A_WORD_EDGE:
            regex.has_word_edges = True
    if regex.has_word_edges:
        for i in range(1, 256):
            if is_word_byte(<uint8_t> i) != is_word_byte(<uint8_t> (i - 1)):
                begins[i] = 1
    regex.class_count = 0
    for i in range(256):
        if i == 0 or begins[i]:
            regex.samples[regex.class_count] = <uint8_t> i
            regex.class_count += 1
        regex.classes[i] = <uint8_t> (regex.class_count - 1)


# Load the program that penstock.subscribers.query.sql.regex has compiled.
cdef Regex* regex_new(bytes program) except NULL:
    cdef Regex* regex
    cdef RegexInstruction* each
    cdef uint32_t size, start, i
    if len(program) < 4:
        raise ValueError("not the program of a regular expression")
    size, start = struct.unpack_from("<HH", program)
    if not 0 < size <= MOST_REGEX_INSTRUCTIONS or start >= size \
            or <size_t> len(program) != 4 + size * sizeof(RegexInstruction):
        raise ValueError("not the program of a regular expression")
    regex = <Regex*> calloc(1, sizeof(Regex))
    if regex == NULL:
        raise MemoryError()
    regex.size, regex.start = size, <uint16_t> start
    regex.program = <RegexInstruction*> malloc(size * sizeof(RegexInstruction))
    regex.seen = <uint32_t*> calloc(size, sizeof(uint32_t))
    regex.reached = <uint32_t*> calloc(size, sizeof(uint32_t))
    regex.waiting = <uint16_t*> malloc((2 * size + 2) * sizeof(uint16_t))
    regex.found = <uint16_t*> malloc(size * sizeof(uint16_t))
    if regex.program == NULL or regex.seen == NULL or regex.reached == NULL or regex.waiting == NULL \
            or regex.found == NULL:
        regex_free(regex)
        raise MemoryError()
    memcpy(regex.program, <const char*> PyBytes_AS_STRING(program) + 4, size * sizeof(RegexInstruction))
    for i in range(size):
        each = regex.program + i
        if each.operation > R_ASSERT or each.target >= size or each.other >= size:
            regex_free(regex)
            raise ValueError("not the program of a regular expression")
    set_classes(regex)
    return regex


cdef int order_of_members(const void* a, const void* b) noexcept nogil:
    return <int> (<const uint16_t*> a)[0] - <int> (<const uint16_t*> b)[0]


# Return the state with the members that were found, a new one if need be, or R_NO_MEMORY. If there is no room, all
# other states are forgotten.
cdef int32_t regex_state(Regex* regex, uint8_t flags) noexcept nogil:
    cdef uint32_t size = regex.found_count * sizeof(uint16_t)
    cdef uint32_t width = regex.class_count + 1
    cdef RegexState* state
    cdef uint32_t i
    qsort(regex.found, regex.found_count, sizeof(uint16_t), order_of_members)
    regex.steps += regex.state_count >> 3
    for i in range(regex.state_count):
        state = regex.states + i
        if state.flags == flags and state.count == regex.found_count \
                and memcmp(regex.members + state.first, regex.found, size) == 0:
            return <int32_t> i
    if regex.state_count == MOST_REGEX_STATES or (regex.state_count + 1) * width > MOST_REGEX_CELLS \
            or regex.member_count + regex.found_count > MOST_REGEX_MEMBERS:
        regex.state_count = regex.member_count = 0
        regex.forgotten += 1
    if regex_room(regex, width):
        return R_NO_MEMORY
    state = regex.states + regex.state_count
    state.first, state.count, state.flags = regex.member_count, <uint16_t> regex.found_count, flags
    memcpy(regex.members + regex.member_count, regex.found, size)
    regex.member_count += regex.found_count
    for i in range(width):
        regex.cells[regex.state_count * width + i] = R_UNKNOWN
    regex.state_count += 1
    return <int32_t> (regex.state_count - 1)


# Make room for one more state with the members that were found.
cdef int regex_room(Regex* regex, uint32_t width) noexcept nogil:
    cdef uint32_t capacity
    cdef void* grown
    if regex.state_count == regex.state_capacity:
        capacity = 2 * regex.state_capacity + FIRST_REGEX_STATES
        grown = realloc(regex.states, capacity * sizeof(RegexState))
        if grown == NULL:
            return -1
        regex.states = <RegexState*> grown
        grown = realloc(regex.cells, <size_t> capacity * width * sizeof(int32_t))
        if grown == NULL:
            return -1
        regex.cells, regex.state_capacity = <int32_t*> grown, capacity
    if regex.member_capacity - regex.member_count < regex.found_count:
        capacity = 2 * regex.member_capacity + regex.found_count
        grown = realloc(regex.members, capacity * sizeof(uint16_t))
        if grown == NULL:
            return -1
        regex.members, regex.member_capacity = <uint16_t*> grown, capacity
    return 0


cdef inline bint regex_holds(uint8_t kind, uint8_t flags, bint at_end, bint before_word) noexcept nogil:
    if kind == A_BEGIN:
        return (flags & AT_BEGIN) != 0
    if kind == A_END:
        return at_end
    return ((flags & AFTER_WORD) != 0) != before_word if kind == A_WORD_EDGE \
        else ((flags & AFTER_WORD) != 0) == before_word


# The state after a byte of that class, or at the end of the text: R_ACCEPT if the program has matched before it.
cdef int32_t regex_step(Regex* regex, int32_t from_, uint32_t class_) noexcept nogil:
    cdef const RegexState* state = regex.states + from_
    cdef const RegexInstruction* each
    cdef bint at_end = class_ == regex.class_count
    cdef uint8_t sample = 0 if at_end else regex.samples[class_]
    cdef uint8_t flags = state.flags
    cdef bint before_word = not at_end and is_word_byte(sample)
    cdef uint32_t waiting = state.count, at, forgotten = regex.forgotten
    cdef int32_t next_
    if regex.visit == LAST_VISIT:
        memset(regex.seen, 0, regex.size * sizeof(uint32_t))
        memset(regex.reached, 0, regex.size * sizeof(uint32_t))
        regex.visit = 0
    regex.visit += 1
    regex.found_count = 0
    memcpy(regex.waiting, regex.members + state.first, state.count * sizeof(uint16_t))
    while waiting:
        waiting -= 1
        at = regex.waiting[waiting]
        if regex.seen[at] == regex.visit:
            continue
        regex.seen[at] = regex.visit
        regex.steps += 1
        each = regex.program + at
        if each.operation == R_MATCH:
            return R_ACCEPT
        if each.operation == R_RANGE:
            if not at_end and each.low <= sample <= each.high and regex.reached[each.target] != regex.visit:
                regex.reached[each.target] = regex.visit
                regex.found[regex.found_count] = each.target
                regex.found_count += 1
        elif each.operation == R_SPLIT:
            regex.waiting[waiting] = each.other
            regex.waiting[waiting + 1] = each.target
            waiting += 2
        elif regex_holds(each.low, flags, at_end, before_word):
            regex.waiting[waiting] = each.target
            waiting += 1
    if regex.found_count == 0:
        return R_DEAD
    flags = AFTER_WORD if before_word and regex.has_word_edges else 0
    next_ = regex_state(regex, flags)
    if next_ >= 0 and regex.forgotten == forgotten:     # else `from_` is another state now
        regex.cells[<uint32_t> from_ * (regex.class_count + 1) + class_] = next_
    return next_


# Set whether the text matches and return OK, or return a fault.
cdef int regex_matches(Regex* regex, const Value* text, bint* matches) noexcept nogil:
    cdef const uint8_t* p = text.of.p
    cdef const uint8_t* end = p + text.size
    cdef uint32_t width = regex.class_count + 1
    cdef uint32_t class_ = 0
    cdef int32_t state, next_
    regex.steps = 0
    regex.found[0] = regex.start
    regex.found_count = 1
    state = regex_state(regex, AT_BEGIN)
    while state >= 0:
        class_ = regex.classes[p[0]] if p < end else regex.class_count
        next_ = regex.cells[<uint32_t> state * width + class_]
        if next_ == R_UNKNOWN:
            if regex.steps > MOST_STEPS:
                return TOO_MUCH_WORK
            next_ = regex_step(regex, state, class_)
            if next_ < 0 and next_ != R_NO_MEMORY:
                regex.cells[<uint32_t> state * width + class_] = next_
        state = next_
        p += 1
    matches[0] = state == R_ACCEPT
    return NO_MEMORY if state == R_NO_MEMORY else OK
