"""SQL topics over the messages of a log: each message is read once for all queries.

A query is a `Plan` of subscribers/query/plan.py. `QuerySet.evaluate` walks a pack: the topic finds the sources (topic
filters) in a trie, a source finds the queries whose equality can hold by hash, and each of these is run on the message;
the payload's JSON is read at most once, for the paths of all queries. No Python object is made for a message.

An operation that fails on a row (a cast, an overflow, a payload that is not JSON where a query needs its values) is an
error of that query, counted once per row and treated by its policy: `skip` leaves the row out, `dead-letter` reports it
too, `null` makes that one operation NULL, and the operations around it continue with the NULL. Only operations that are
evaluated fail: AND, OR, CASE and COALESCE stop at the operand that decides. A missing field is NULL and not an error.

An equality with constants that the condition demands is evaluated before the rest of the condition, to find the queries
by hash. A query whose equality does not hold is not evaluated: the only error it can have for that message is one of
the equality. Apart from that the index changes neither rows nor errors.

The parts: values and their memory (query_values), JSON (query_json, query_json_text, query_paths), conversions, texts,
functions and regular expressions (query_casts, query_text, query_functions, query_regex), expressions (query_run,
query_compile), rows (query_rows) and the choice of queries for a message (query_index).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport ceil, exp, fabs, floor, fmod, isfinite, isnan, log, log2, log10, pow, round, sqrt
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from penstock._ext.query.block cimport (BLOCK_HEADER, BLOCK_MAGIC, COLUMN_HEADER, LARGEST_COLUMN, MOST_COLUMNS,
                                        T_BIGINT, T_BLOB, T_BOOLEAN, T_DOUBLE, T_JSON, T_NULL, T_PROPERTIES,
                                        T_TIMESTAMP, T_VARCHAR, TYPES, Block, block_of, has_text, padded)
from penstock._ext.wire.buffer cimport Buffer, buffer_free
from penstock._ext.record.envelope cimport EnvelopeView, get_envelope
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.match.trie cimport Match, Subscriber, Trie, match_unref
from penstock._ext.wire.numbers cimport get_be16, hash_bytes

import struct

cdef extern from "Python.h" nogil:
    uint32_t Py_UNICODE_TOLOWER(uint32_t c)
    uint32_t Py_UNICODE_TOUPPER(uint32_t c)

cdef extern from "sql_numbers.h" nogil:
    enum:
        DOUBLE_TEXT
    double decimal_to_double(const uint8_t* p, size_t n)
    size_t format_double(double value, char* out)
    size_t format_json_double(double value, char* out)
    size_t format_int(int64_t value, char* out)
    bint is_sql_space(uint8_t c)
    bint equals_word(const uint8_t* p, size_t n, const char* word)
    bint text_to_double(const uint8_t* p, size_t n, uint8_t* scratch, double* value)
    bint text_to_int(const uint8_t* p, size_t n, uint8_t* scratch, int64_t* value)
    bint double_to_int(double value, int64_t* number)

cdef extern from "sql_time.h" nogil:
    enum:
        NS_PER_SECOND
        NS_PER_DAY
    ctypedef struct CivilTime:
        int64_t year
        int month
        int day
        int64_t days
        int64_t ns
    int64_t days_from_civil(int64_t y, int m, int d)
    int64_t floor_div(int64_t a, int64_t b)
    CivilTime civil_from_ns(int64_t ns)
    int days_in_month(int64_t year, int month)
    bint ns_from_days(int64_t days, int64_t ns, int64_t* out)
    size_t format_time(int64_t ns, char* out, int iso)
    bint text_to_time(const uint8_t* p, size_t n, int64_t* out)

cdef extern from "json_text.h" nogil:
    const uint8_t* plain_end(const uint8_t* p, const uint8_t* end)
    size_t json_string_size(const uint8_t* p, size_t n)
    uint8_t* put_json_string(uint8_t* out, const uint8_t* p, size_t n)
    uint8_t* put_utf8(uint8_t* out, uint32_t c)
    uint8_t* unescape_json(uint8_t* out, const uint8_t* p, size_t n)
    uint32_t hex4(const uint8_t* p)

cdef extern from "utf8.h" nogil:
    bint is_utf8(const uint8_t* p, size_t n)

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    extern void *memmem(const void *, size_t, const void *, size_t);
    #endif
    #include <string.h>
    """
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* result)
    bint __builtin_sub_overflow(int64_t a, int64_t b, int64_t* result)
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t* result)

# MQTT 5 properties (2.2.2.2), as they lie in EnvelopeView.props.
cdef enum:
    PAYLOAD_FORMAT = 0x01
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    USER_PROPERTY = 0x26

globals()["Block"] = Block      # a cimported class is not visible to those who import this module

include "values.pxi"
include "json.pxi"
include "json_text.pxi"
include "casts.pxi"
include "text.pxi"
include "functions.pxi"
include "regex.pxi"
include "run.pxi"
include "rows.pxi"
include "compile.pxi"
include "paths.pxi"
include "index.pxi"

cdef enum:
    MOST_REPORTED = 1_000       # errors kept until somebody takes them
    IN_WHERE = 0x7FFFFFFF       # stand for a column in `report`
    IN_UNNEST = 0x7FFFFFFE
    MOST_BYTES = 0x10000000     # of rows that one `evaluate` may make, before the last
    EXCERPT = 60                # of a value in an error's message


class RowError:
    """What was wrong with one row of one query, for its dead letters."""

    __slots__ = ("column", "message", "offset", "query")

    def __init__(self, query, offset, column, message):
        self.query, self.offset, self.column, self.message = query, offset, column, message

    def __repr__(self):
        return f"RowError(query={self.query}, offset={self.offset}, column={self.column!r}, message={self.message!r})"


cdef object show(const Value* value):
    cdef Value shown
    cdef Arena arena
    memset(&arena, 0, sizeof(Arena))
    if value.type == T_NULL or value.type == T_PROPERTIES:
        return TYPE_NAMES[value.type]
    try:
        if has_text(value.type):
            text = value.of.p[:min(<Py_ssize_t> value.size, EXCERPT)].decode(errors="replace")
            return repr(text + "…" if value.size > EXCERPT else text)
        if to_varchar(value, &shown, &arena):
            return TYPE_NAMES[value.type]
        return shown.of.p[:shown.size].decode()
    finally:
        arena_free(&arena)


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * NS_PER_SECOND + now.tv_nsec


# The head of a block without rows: header, column headers, names.
cdef bytes block_head(columns):
    cdef list names = [name.encode() for name, _, _ in columns]
    if len(names) > MOST_COLUMNS or any(len(name) > 0xFFFF for name in names):
        raise ValueError("a query has too many columns, or a name of a column is too long")
    text = b"".join(names)
    heads = b"".join(
        struct.pack("<BBHI", kind, 0, len(name), 0) for name, (_, kind, _) in zip(names, columns, strict=True)
    )
    return struct.pack("<IIII", BLOCK_MAGIC, 0, len(names), len(text)) + heads + text.ljust(padded(len(text)), b"\0")


cdef class QuerySet:
    """Many queries over one stream: a message's topic, and its values that queries compare for equality, choose the few
    that are evaluated; its JSON is read once for all of them."""

    cdef Trie _trie
    cdef Paths _paths
    cdef Memos _memos
    cdef dict _queries          # number: QueryHolder
    cdef dict _sources          # topic filter: Source
    cdef set _changed           # Sources to be built anew
    cdef list _errors
    cdef uint32_t _last
    cdef Message _message
    cdef Buffer _scratch
    cdef Value* _values         # one row
    cdef uint32_t _widest
    cdef size_t _row_bytes      # of the texts in rows of this `evaluate`
    cdef Query* _active         # those with rows, newest first
    cdef readonly uint64_t passed_over      # records that were no envelopes
    cdef readonly int64_t next_offset       # behind the last record of the last `evaluate`, -1: there was none

    def __cinit__(self):
        self._trie = Trie(10_000, 16 << 20)
        self._paths, self._memos = Paths(), Memos()
        self._queries, self._sources, self._changed, self._errors = {}, {}, set(), []
        self.next_offset = -1

    def __dealloc__(self):
        arena_free(&self._message.arena)
        buffer_free(&self._scratch)
        free(self._values)

    def __len__(self):
        return len(self._queries)

    def add(self, plan):
        """A penstock.subscribers.query.plan.Plan; returns the query's number."""
        cdef QueryHolder holder = QueryHolder.__new__(QueryHolder)
        cdef list expressions = [expression for _, _, expression in plan.columns]
        self.make_room(<uint32_t> len(plan.columns))
        holder.paths, holder.shared = [], []
        try:
            self.compile(holder, plan, expressions)
        except BaseException:
            self.forget(holder)
            raise
        self._last += 1
        holder.query.number = self._last
        holder.source = self.source_of(plan.filter)
        holder.source.holders[self._last] = holder
        self._queries[self._last] = holder
        self._changed.add(holder.source)
        return self._last

    cdef int compile(self, QueryHolder holder, plan, list expressions) except -1:
        cdef Query* query = holder.query
        cdef uint32_t i

        def slot_of(path):
            holder.paths.append(path)
            return self._paths.want(path)

        def memo_of(expression):
            number = self._memos.want(expression)
            holder.shared.append(expression)
            return number

        query.policy = POLICIES[plan.on_error]
        holder.names = tuple(name for name, _, _ in plan.columns)
        holder.types = tuple(int(kind) for _, kind, _ in plan.columns)
        holder.head = block_head(plan.columns)
        others = [part for part in (plan.where, plan.unnest) if part is not None]
        holder.program = new_program(expressions + others, slot_of, memo_of)
        query.columns = <Node**> calloc(len(expressions) + 1, sizeof(Node*))
        query.rows.columns = <Column*> calloc(len(expressions) + 1, sizeof(Column))
        if query.columns == NULL or query.rows.columns == NULL:
            raise MemoryError()
        query.rows.column_count = <uint32_t> len(expressions)
        for i in range(len(expressions)):
            query.rows.columns[i].type = plan.columns[i][1]
            if query.rows.columns[i].type >= TYPES:
                raise ValueError(f"there is no type {plan.columns[i][1]}")
            query.columns[i] = holder.program.add(expressions[i])
        if plan.unnest is not None:
            query.unnest = holder.program.add(plan.unnest)
            if query.unnest.type != T_JSON or mentions_element(plan.unnest):
                raise ValueError("only JSON that does not depend on an element is unnested")
        elif any(mentions_element(part) for part in expressions + others):
            raise ValueError("there is no array whose elements could be meant")
        if plan.where is not None:
            query.where = holder.program.add(plan.where)
            holder.key, holder.constants = find_key(plan.where)
            if holder.key is not None and holder.key[0] not in CHEAP:
                memo_of(repr(holder.key))   # the index computes it too
        return 0

    cdef int make_room(self, uint32_t columns) except -1:
        cdef Value* values
        if columns <= self._widest:
            return 0
        values = <Value*> realloc(self._values, columns * sizeof(Value))
        if values == NULL:
            raise MemoryError()
        self._values, self._widest = values, columns
        return 0

    # What it asked for.
    cdef int forget(self, QueryHolder holder) except -1:
        for path in holder.paths:
            self._paths.release(path)
        for expression in holder.shared:
            self._memos.release(expression)
        holder.paths, holder.shared = [], []
        return 0

    cdef Source source_of(self, str topic_filter):
        cdef Source source = self._sources.get(topic_filter)
        if source is None:
            source = Source.__new__(Source)
            self._trie.subscribe(source, topic_filter.encode(), 0)
            self._sources[topic_filter] = source
        return source

    def remove(self, uint32_t query):
        """KeyError if it is not there."""
        cdef QueryHolder holder = self._queries.pop(query)
        cdef Source source = holder.source
        del source.holders[query]
        self.forget(holder)
        self._changed.add(source)
        if not source.holders:
            self._trie.remove(source)
            self._sources = {name: other for name, other in self._sources.items() if other is not source}
        self.prepare()      # nothing may point to the query any more

    # After queries have come or gone.
    cdef int prepare(self) except -1:
        cdef Source source
        for source in list(self._changed):
            build_source(source, self._paths, self._memos)
            self._changed.discard(source)
        if not self._paths.is_current:
            self._paths.build()
        self._message.paths, self._message.memos = &self._paths.tree, self._memos.memos
        return 0

    def evaluate(self, RecordPack pack not None, int64_t partition, int64_t from_offset=-1,
                 uint32_t max_records=0xFFFFFFFF, size_t max_bytes=MOST_BYTES, int64_t max_ns=INT64_MAX):
        """Those queries that have rows, with them. Records that are no envelopes are passed over and counted. Ends
        behind the record (one at least) that reached a limit: `max_bytes` of texts in rows, `max_ns` of time."""
        cdef RecordView record
        cdef size_t position = 0
        cdef uint32_t seen = 0
        cdef int64_t end = INT64_MAX if max_ns == INT64_MAX else monotonic_ns() + max_ns
        self.prepare()
        self.next_offset = -1
        self._row_bytes = 0
        self._message.partition = partition
        try:
            while seen < max_records and pack.next(&position, &record):
                if record.offset >= from_offset:
                    seen += 1
                    self.next_offset = record.offset + 1
                    self.look_at(&record)
                    if self._row_bytes >= max_bytes or end != INT64_MAX and monotonic_ns() >= end:
                        break
        except BaseException:
            self.drop_rows()
            raise
        return self.take_rows()

    # One record: finds the queries it is for.
    cdef int look_at(self, const RecordView* record) except -1:
        cdef Message* message = &self._message
        cdef Match* match
        cdef uint32_t i
        if record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &message.view,
                                                         &self._scratch):
            self.passed_over += 1
            return 0
        match = self._trie.match(message.view.topic, message.view.topic_size,
                                 hash_bytes(message.view.topic, message.view.topic_size, self._trie.seed))
        if match.target_count:
            message.offset = record.offset
            message.json = JSON_UNKNOWN
            tree_next(message.paths)
            try:
                for i in range(match.target_count):
                    self.ask_source(<Source> match.targets[i].owner)
            finally:
                match_unref(match)
                arena_reset(&message.arena)
        else:
            match_unref(match)
        return 0

    cdef int ask_source(self, Source source) except -1:
        cdef IndexGroup group
        cdef Value key
        cdef uint32_t i, j
        cdef int fault
        for i in range(source.plain_count):
            self.ask_query(source.plain[i], False)
        for i in range(source.group_count):
            group = <IndexGroup> source.groups[i]
            self._message.forgives = False
            fault = run(&self._message, group.key, &key)
            if fault:
                group.failures += 1
                for j in range(group.reported_count):
                    self.report(group.reported[j], fault, IN_WHERE)
                if group.has_forgiving:
                    self._message.forgives = True
                    run(&self._message, group.key, &key)
                    self.ask_group(group, &key, True)
            else:
                self.ask_group(group, &key, False)
        return 0

    # The queries that compare with this key. With `is_forgiven` it is the key after an error, which each member of the
    # group has counted: only members whose policy forgives are asked.
    cdef int ask_group(self, IndexGroup group, const Value* key, bint is_forgiven) except -1:
        cdef IndexSlot* slot
        cdef uint32_t i
        if key.type == T_NULL:
            return 0
        slot = group.find(key)
        if slot == NULL:
            return 0
        for i in range(slot.first, slot.first + slot.count):
            if not is_forgiven or group.entries[i].policy == GIVE_NULL:
                self.ask_query(group.entries[i], is_forgiven)
        return 0

    # One query and the message. `is_counted`: an error of this message was found before, and counted.
    cdef int ask_query(self, Query* query, bint is_counted) except -1:
        query.evaluated += 1
        self._message.forgives = query.policy == GIVE_NULL
        if query.unnest != NULL:
            return self.ask_elements(query, is_counted)
        return self.ask_row(query, is_counted)

    # Each element of the array is a row. All of them, or none if they are too many or too large.
    cdef int ask_elements(self, Query* query, bint is_counted) except -1:
        cdef Message* message = &self._message
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef const uint8_t* after
        cdef Value array
        cdef uint32_t rows = query.rows.count
        cdef size_t size = self._row_bytes
        cdef int fault
        message.forgiven = 0
        fault = run(message, query.unnest, &array)
        if fault or message.forgiven:
            return self.refuse_message(query, fault, is_counted)
        if array.type == T_NULL or array.of.p[0] == c'n':
            return 0
        p, end = array.of.p, array.of.p + array.size
        if p[0] != c'[':
            return self.refuse_message(query, blame(message, NO_ARRAY, &array, T_JSON), is_counted)
        if count_elements(p, end, 1) > MOST_ELEMENTS:
            return self.refuse_message(query, blame(message, TOO_MANY, &array, T_JSON), is_counted)
        message.ordinality = 0
        p = skip_space(p + 1, end)
        while p[0] != c']':
            after = skip_value(p, end, 0)
            set_text(&message.element, T_JSON, p, after - p)
            message.ordinality += 1
            self.ask_row(query, is_counted)
            if self._row_bytes - size > LARGEST_ROW:
                query.matched -= query.rows.count - rows
                cut_rows(&query.rows, rows)
                self._row_bytes = size
                return self.refuse_message(query, blame(message, TOO_LARGE, &array, T_JSON), is_counted)
            p = skip_space(after, end)
            if p[0] == c',':
                p = skip_space(p + 1, end)
        return 0

    # Leave out all rows of the message.
    cdef int refuse_message(self, Query* query, int fault, bint is_counted) except -1:
        query.errors += not is_counted
        if query.policy == DEAD_LETTER:
            self.report(query, fault, IN_UNNEST)
        return 0

    cdef int ask_row(self, Query* query, bint is_counted) except -1:
        cdef Message* message = &self._message
        cdef Value truth
        cdef uint32_t i
        cdef int fault = OK
        cdef size_t size = 0
        message.forgiven = 0
        if query.where != NULL:
            fault = run(message, query.where, &truth)
            if fault or truth.type == T_NULL or truth.of.i == 0:
                query.errors += (fault != OK or message.forgiven != 0) and not is_counted
                if fault and query.policy == DEAD_LETTER:
                    self.report(query, fault, IN_WHERE)
                return 0
        for i in range(query.rows.column_count):
            fault = run(message, query.columns[i], self._values + i)
            if fault == OK and self._values[i].type != query.rows.columns[i].type and self._values[i].type != T_NULL:
                fault = blame(message, BAD_TYPE, self._values + i, query.rows.columns[i].type)
            if fault == OK and has_text(self._values[i].type):
                size += self._values[i].size
                if size > LARGEST_ROW:
                    size -= self._values[i].size
                    fault = blame(message, TOO_LARGE, self._values + i, query.rows.columns[i].type)
            if fault:
                if query.policy != GIVE_NULL:
                    query.errors += 1
                    if query.policy == DEAD_LETTER:
                        self.report(query, fault, i)
                    return 0
                message.forgiven += 1
                set_null(self._values + i)
        query.errors += message.forgiven != 0 and not is_counted
        self._row_bytes += size
        return self.put_row(query)

    cdef int put_row(self, Query* query) except -1:
        cdef Message* message = &self._message
        if not query.is_active:
            query.is_active = True
            query.next_active = self._active
            self._active = query
        if put_row(&query.rows, message.offset, message.view.received_at * 1_000_000, self._values, &message.arena):
            raise MemoryError("no memory for the rows of a query")
        query.matched += 1
        return 0

    # Only for queries whose policy is dead-letter; `self._message` says who is to blame.
    cdef int report(self, Query* query, int fault, uint32_t column) except -1:
        cdef QueryHolder holder
        if len(self._errors) >= MOST_REPORTED:
            return 0
        holder = self._queries[query.number]
        text = FAULTS[fault].format(
            value=show(&self._message.culprit), source=TYPE_NAMES[self._message.culprit.type],
            target=TYPE_NAMES[self._message.wanted],
        )
        name = "WHERE" if column == IN_WHERE else "UNNEST" if column == IN_UNNEST else holder.names[column]
        self._errors.append(RowError(query.number, self._message.offset, name, text))
        return 0

    cdef list take_rows(self):
        cdef list taken = []
        cdef Query* query
        cdef QueryHolder holder
        try:
            query = self._active
            while query != NULL:
                if query.rows.count:
                    holder = self._queries[query.number]
                    taken.append((query.number, make_block(&query.rows, holder.head, holder.names, holder.types)))
                query = query.next_active
        finally:
            self.drop_rows()
        taken.sort()
        return taken

    cdef void drop_rows(self) noexcept:
        cdef Query* query
        while self._active != NULL:
            query = self._active
            self._active = query.next_active
            query.next_active = NULL
            query.is_active = False
            empty_rows(&query.rows)

    def take_errors(self):
        """At most 1,000 since the last call, of queries whose policy is dead-letter; see `counts` for how many."""
        errors, self._errors = self._errors, []
        return errors

    def counts(self, uint32_t query):
        """evaluated, rows, errors"""
        cdef QueryHolder holder = self._queries[query]
        failures = holder.group.failures if holder.group is not None else 0
        return holder.query.evaluated, holder.query.matched, holder.query.errors + failures
