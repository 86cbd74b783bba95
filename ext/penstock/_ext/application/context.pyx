"""The stored form of a lane's context; see context.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memset

from penstock._ext.application.pack cimport ENTRY_DONE
from penstock._ext.wire.buffer cimport buffer_free, buffer_reserve, buffer_size

cdef extern from "segment.h" nogil:
    uint8_t* put_varint64(uint8_t* p, uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)

cdef uint64_t MOST_OFFSETS = 1ull << 62
cdef uint64_t MOST_IDS_GIVEN = 1ull << 48

RUN_STATES = ("planned", "sent", "received", "done", "sent qos 2", "ready", "ready qos 2")
# States in which a client holds, or may hold, the packet id of a message: no other client gets the message.
OWN_STATES = ("received", "sent qos 2", "ready qos 2")


cdef int put_number(Buffer* out, uint64_t value) except -1:
    cdef uint8_t* p = buffer_reserve(out, 10)
    cdef uint8_t* end = put_varint64(p, value)
    out.end -= 10 - <uint32_t> (end - p)
    return 0


cdef const uint8_t* take_number(const uint8_t* p, const uint8_t* end, uint64_t* value) except NULL:
    p = get_varint64(p, end, value)
    if p == NULL:
        raise ValueError("the context of the client is cut off")
    return p


cdef int run_end(Buffer* out, Run* run) except -1:
    if run.length:
        put_number(out, <uint64_t> (run.offset - run.last))
        put_number(out, run.packet_id)
        put_number(out, run.length)
        put_number(out, run.state)
        run.last = run.offset + run.length
        run.count += 1
        run.length = 0
    return 0


cdef int run_add(Buffer* out, Run* run, int64_t offset, uint16_t packet_id, uint8_t state) except -1:
    if (run.length and offset == run.offset + run.length and state == run.state
            and packet_id == (run.packet_id + run.length if run.packet_id else 0)):
        run.length += 1
        return 0
    run_end(out, run)
    run.offset, run.packet_id, run.state, run.length = offset, packet_id, state, 1
    return 0


def read_context(bytes context not None):
    """What a stored context says, for people: offsets, packet ids in flight and what was seen of the sources."""
    cdef const uint8_t* p = context
    cdef const uint8_t* end = p + len(context)
    cdef uint64_t committed = 0, value = 0, count = 0, offset = 0
    cdef uint64_t _i
    cdef uint64_t fields[4]
    cdef uint64_t total = 0
    cdef list runs = []
    cdef dict seen = {}
    if p == end or p[0] != CONTEXT_VERSION:
        raise ValueError("the context of the client was written by another version")
    p = take_number(p + 1, end, &committed)
    p = take_number(p, end, &value)
    if committed > MOST_OFFSETS or value > MOST_OFFSETS:
        raise ValueError("the context of the client is damaged")
    found = {"committed": committed, "end": committed + value}
    p = take_number(p, end, &value)
    found["last_packet_id"] = value & 0xFFFF
    found["laps"] = value >> 16
    if value >= MOST_IDS_GIVEN:
        raise ValueError("the context of the client is damaged")
    p = take_number(p, end, &count)
    for _i in range(count):
        p = take_number(p, end, &value)
        p = take_number(p, end, &offset)
        if value >= MOST_PARTITIONS or offset > MOST_OFFSETS:
            raise ValueError("the context of the client is damaged")
        seen[value] = offset
    offset = committed
    p = take_number(p, end, &count)
    for _i in range(count):
        for field in range(4):
            p = take_number(p, end, &fields[<int> field])
        if (fields[0] > MOST_OFFSETS or fields[1] > 65_535 or not 0 < fields[2] <= 65_535
                or fields[3] >= RUN_STATE_COUNT or fields[3] == ENTRY_DONE):
            raise ValueError("the context of the client is damaged")
        offset += fields[0]
        runs.append((offset, fields[1], fields[2], RUN_STATES[fields[3]]))
        offset += fields[2]
        total += fields[2]
        if total > 65_535 or offset > found["end"]:
            raise ValueError("the context of the client is damaged")
    found["in_flight"] = runs
    found["seen"] = seen
    return found


def write_context(dict context not None):
    """The stored form of what read_context gives."""
    cdef Buffer out
    cdef uint64_t last = context["committed"]
    memset(&out, 0, sizeof(Buffer))
    try:
        for value in (CONTEXT_VERSION, context["committed"], context["end"] - context["committed"],
                      context["last_packet_id"] | context.get("laps", 0) << 16, len(context["seen"])):
            put_number(&out, value)
        for partition, offset in context["seen"].items():
            put_number(&out, partition)
            put_number(&out, offset)
        put_number(&out, len(context["in_flight"]))
        for offset, packet_id, length, state in context["in_flight"]:
            for value in (offset - last, packet_id, length, RUN_STATES.index(state)):
                put_number(&out, value)
            last = offset + length
        return PyBytes_FromStringAndSize(<const char*> out.data + out.start, buffer_size(&out))
    finally:
        buffer_free(&out)


def split_context(bytes context not None):
    """The context of a shared partition when another client goes on with it: (what that client gets, what the first
    still has to finish or None). A QoS 2 message under way stays with the client it was sent to [MQTT-4.8.2-4]
    [MQTT-4.8.2-5], also one that a broker was killed about to send; everything else gets new packet ids."""
    whole = read_context(context)
    own = [run for run in whole["in_flight"] if run[1] and run[3] in OWN_STATES]
    others = [(offset, 0, length, "planned") for offset, packet_id, length, state in whole["in_flight"]
              if not packet_id or state not in OWN_STATES]
    claims = None
    if own:
        claims = write_context({"committed": own[0][0], "end": own[len(own) - 1][0] + own[len(own) - 1][2],
                                "last_packet_id": whole["last_packet_id"], "laps": whole["laps"], "seen": {},
                                "in_flight": own})
    return write_context({**whole, "last_packet_id": 0, "laps": 0, "in_flight": others}), claims
