# A client's window among its lanes. Its own topic and each of its shares are a part. Half of the window is reserved,
# the same number of places for each part; the other half is for any part. So no part that is not acknowledged takes
# all of it. What a part may plan is bounded as well, because planned messages have packet ids.
#
# Messages of queues, of query topics and direct ones are in no part. If the client consumes queues or query topics, at
# least one place is not reserved. Everything that competes for the last free place takes turns, see "rounds" below.

cdef enum:
    ROUND_HOPS = 3              # iterations of the loop in which a courier's task notices that it has room


# Divide the window again, after a part was added or removed, or the first or the last queue or query topic.
cdef int divide_window(Session s) except -1:
    cdef uint32_t count = <uint32_t> len(s.parts) if s.parts is not None else 0
    cdef uint32_t sharers = count + (1 if others_of(s) else 0)
    cdef WindowPart part
    s.reserve_each = 0
    s.plan_each = 0xFFFFFFFFu
    if count > 1:
        # some windows ahead, and never the packet ids of the others
        s.plan_each = min(<uint32_t> PLANNED_AHEAD * s.limit, <uint32_t> MOST_PLANNED // count)
        s.reserve_each = s.limit // (2 * sharers)
        if s.reserve_each == 0 and s.limit >= sharers:
            s.reserve_each = 1
    s.kept_free = 0
    if count == 0:
        return 0
    for item in s.parts.values():
        part = <WindowPart> item
        if part.outstanding < s.reserve_each:
            s.kept_free += s.reserve_each - part.outstanding
    return 0


cdef WindowPart find_part(Session s, str name):
    if s.parts is None:
        s.parts = {}
    if name not in s.parts:
        s.parts[name] = WindowPart(name)
        divide_window(s)
    return <WindowPart?> s.parts[name]


cdef int drop_unused(Session s, WindowPart part) except -1:
    # a lane may be closed after its session was detached, which has no parts
    if part.lanes == 0 and not part.is_held and s.parts is not None and s.parts.get(part.name) is part:
        del s.parts[part.name]
        divide_window(s)
    return 0


# ---- rounds ----
# The log (lanes and the store), each consumer of a queue and each courier compete for the places that are not reserved.
# Each of them may take the last free place once per round. The round ends when a place stays free for some iterations
# of the loop: all that have not had their turn have nothing to send.


cdef inline void start_round(Session s) noexcept:
    s.round += 1
    s.is_contended = False


cdef int end_round_soon(Session s) except -1:
    if s.round_hops == 0:
        s.round_hops = ROUND_HOPS
        s.hub.loop.call_soon(end_round, s)
    return 0


def end_round(Session s not None):
    """Start the next round, unless the free place was taken meanwhile."""
    if s.connection is None or s.outstanding + s.kept_free >= s.limit:
        s.round_hops = 0
        return
    s.round_hops -= 1
    if s.round_hops:
        s.hub.loop.call_soon(end_round, s)
        return
    start_round(s)
    s.pump()
