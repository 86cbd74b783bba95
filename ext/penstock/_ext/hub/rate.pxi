# How many messages may pass in a time: each that passes takes up its part of the time, and what would reach further
# than the time from now does not pass. So as many as in the whole time may come at once, and then no faster than that.


cdef int read_rates(Rates* rates, pairs) except -1:
    cdef uint32_t i = 0
    if len(pairs) > MOST_RATES:
        raise ValueError(f"more than {MOST_RATES} rates")
    for most, seconds in pairs:
        rates.period[i] = <int64_t> (seconds * 1_000_000_000)
        rates.each[i] = rates.period[i] // <int64_t> most
        i += 1
    rates.count = i
    return 0


cdef bint may_pass(const Rates* rates, int64_t* ends, int64_t now) noexcept:
    cdef uint32_t i
    now *= 1_000_000                    # ns
    for i in range(rates.count):
        if max(now, ends[i]) + rates.each[i] > now + rates.period[i]:
            return False
    for i in range(rates.count):
        ends[i] = max(now, ends[i]) + rates.each[i]
    return True


cdef int64_t* turns_of(Session s) except NULL:
    if s.turns == NULL:
        s.turns = <int64_t*> calloc(2 * MOST_RATES, sizeof(int64_t))
        if s.turns == NULL:
            raise MemoryError()
    return s.turns


# Whether the client, or everybody together, publishes too fast; counts what is not taken.
cdef bint is_too_fast(Hub hub, Session s) except -1:
    if hub.rates.incoming.count and not may_pass(&hub.rates.incoming, turns_of(s), hub.now):
        hub.counters.dropped[<int> DROP_INCOMING_RATE] += 1
        return True
    if not may_pass(&hub.rates.total, hub.rates.total_turns, hub.now):
        hub.counters.dropped[<int> DROP_TOTAL_RATE] += 1
        return True
    return False


# The same for a client of another front-end: without a session it has no limit of its own.
cdef bint is_front_end_too_fast(Hub hub, Subscriber client) except -1:
    if isinstance(client, Session):
        return is_too_fast(hub, <Session> client)
    if not may_pass(&hub.rates.total, hub.rates.total_turns, hub.now):
        hub.counters.dropped[<int> DROP_TOTAL_RATE] += 1
        return True
    return False


# The same for a QoS 0 message to a client; only one without a session that stays has a limit of its own.
cdef bint gets_too_much(Hub hub, Session s) except -1:
    if hub.rates.outgoing.count and not s._keeps:
        if not may_pass(&hub.rates.outgoing, turns_of(s) + MOST_RATES, hub.now):
            count_drop(s, DROP_OUTGOING_RATE)
            return True
    if not may_pass(&hub.rates.total, hub.rates.total_turns, hub.now):
        count_drop(s, DROP_TOTAL_RATE)
        return True
    return False


# MQTT 3 has no way to say no but to close.
cdef int leave_too_fast(Connection c) except -1:
    c.disconnect(QUOTA_EXCEEDED, "the client sends more messages than its rate limit allows")
    return 0


# ---- patience with slow readers: that of a user, not of a connection ----

cdef enum:
    MOST_IMPATIENCE = 10_000


# The user of a reader, or its address if it has no user name.
cdef tuple owner_of(Session session):
    if session.username is not None or session.connection is None:
        return ("user", session.username)
    return ("address", (session.connection.peer or "").rpartition(":")[0])


cdef int lose_patience(Hub hub, Session session) except -1:
    owner = owner_of(session)
    if hub._impatience is None:
        hub._impatience = {}
    hub._impatience.pop(owner, None)
    if len(hub._impatience) >= MOST_IMPATIENCE:
        del hub._impatience[next(iter(hub._impatience))]
    hub._impatience[owner] = hub.now + FORGIVEN_AFTER
    return 0


# Whether another reader of the same user has used up the patience: then this one loses messages at once, too.
cdef bint has_lost_patience(Hub hub, Session session) except -1:
    owner = owner_of(session)
    until = hub._impatience.get(owner)
    if until is None:
        return False
    if hub.now >= until:
        del hub._impatience[owner]
        return False
    session.forgiven_at = until
    return True


# ---- publishes that the rules deny ----

cdef enum:
    DENIAL_INTERVAL = 10_000    # ms between two reports of one connection
    DENIALS_PER_SECOND = 50     # of all connections


# Count a publish that the rules deny, and report it at a bounded rate.
cdef int note_denied(Connection c, const PublishView* view) except -1:
    cdef Hub hub = c.hub
    hub.counters.dropped[<int> DROP_DENIED] += 1
    if c.denial_at and hub.now - c.denial_at < DENIAL_INTERVAL:
        c.denials_held += 1
        return 0
    if hub.now - hub._denials_since >= 1000:
        hub._denials_since = hub.now
        hub._denials = 0
    if hub._denials >= DENIALS_PER_SECOND:
        c.denials_held += 1
        return 0
    hub._denials += 1
    c.denial_at = hub.now
    c.handler.on_denied(c, PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size), c.denials_held)
    c.denials_held = 0
    return 0
