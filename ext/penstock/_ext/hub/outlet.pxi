# Kinds of subscribers, as far as the hub and sessions know them; see outlet_declarations.pxi.


cdef enum:
    MOST_OUTLETS = 60_000       # of one session


cdef class Desk:
    """What a kind of subscriber keeps for the whole process."""

    def __init__(self, Hub hub not None):
        self.hub = hub
        hub.desks.append(self)

    cdef int wake(self) except -1:
        self.is_waiting = True
        return schedule_flush(self.hub)

    cdef int work(self) except -1:
        return 0

    cdef int tell(self) except -1:
        self.is_waiting = False
        return 0

    cdef int on_detach(self, Session session) except -1:
        return 0

    def outlets_of(self, Session session not None):
        """The outlets of a session that belong to this desk."""
        return [outlet for outlet in session.outlets or () if (<Outlet> outlet).desk is self]


cdef class Outlet:
    """Where messages for a subscriber go."""

    cdef int accept(self, Hub hub, Delivery* d) except -1:
        return 0

    cdef bint accept_retained(self, Hub hub, const Message* m, uint8_t qos, uint32_t identifier) except -1:
        return False

    cdef list take_filled(self, Hub hub):
        return []

    cdef bint pump(self, Session s, Connection c) except -1:
        return False

    cdef int on_ack(self, Connection c, Slot* slot, uint8_t packet_type, const AckView* ack) except -1:
        return ack_delivery(self, c, slot, packet_type, ack)

    cdef bint on_received(self, Session s, Slot* slot) except -1:
        return False

    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1:
        return 0

    cdef int on_dropped(self, Session s, const Slot* slot) except -1:
        return 0

    cdef int take_back(self, const Message* m) except -1:
        return 0

    cdef int on_detach(self, Session s) except -1:
        return 0

    cdef int on_end(self, Session s) except -1:
        return 0


# Whether the session has an outlet of the desk.
cdef bint has_outlet(Session s, Desk desk) noexcept:
    cdef Py_ssize_t i
    if s.outlets is not None:
        for i in range(PyList_GET_SIZE(s.outlets)):
            if (<Outlet> PyList_GET_ITEM(s.outlets, i)).desk is desk:
                return True
    return False


cdef Outlet find_numbered(Session s, uint32_t number):
    cdef Py_ssize_t i
    if s.outlets is not None:
        for i in range(PyList_GET_SIZE(s.outlets)):
            if (<Outlet> PyList_GET_ITEM(s.outlets, i)).number == number:
                return <Outlet> PyList_GET_ITEM(s.outlets, i)
    return None


# The number of an outlet that is not given one by its client.
cdef uint32_t next_number(Hub hub) noexcept:
    hub.outlet_numbers += 1
    return hub.outlet_numbers


# From now on the outlet is asked whenever the session can send. Messages that an outlet with the same number has under
# way are its own. A session that has ended takes no outlet: its place stays 0, and it is never asked.
cdef int add_outlet(Session s, Outlet outlet) except -1:
    cdef Slot* slot
    cdef uint32_t i
    if s._ended:
        return 0
    if s.outlets is None:
        s.outlets = [outlet]
    elif PyList_GET_SIZE(s.outlets) < MOST_OUTLETS:
        s.outlets.append(outlet)
    else:
        raise OverflowError("too many outlets of one session")
    outlet.place = <uint16_t> PyList_GET_SIZE(s.outlets)
    if outlet.from_log:
        s.log_outlets += 1
    if outlet.number:
        for i in range(s.window.capacity):
            slot = &s.window.slots[i]
            if (slot.packet_id and slot.flags & DELIVERY_NUMBERED and slot.message != NULL
                    and slot.message.source_partition == outlet.number):
                slot.outlet = outlet.place
    return divide_window(s)


# What it has under way is the client's all the same, but nobody is told of its acknowledgement.
cdef int remove_outlet(Session s, Outlet outlet) except -1:
    cdef uint16_t place = outlet.place
    cdef uint32_t i
    if place == 0:
        return 0
    outlet.place = 0
    for i in range(s.window.capacity):
        if s.window.slots[i].outlet == place:
            s.window.slots[i].outlet = 0
        elif s.window.slots[i].outlet > place:
            s.window.slots[i].outlet -= 1
    if outlet.from_log:
        s.log_outlets -= 1
    del s.outlets[place - 1]
    for i in range(place - 1, <uint32_t> PyList_GET_SIZE(s.outlets)):
        (<Outlet> PyList_GET_ITEM(s.outlets, i)).place -= 1
    if not s.outlets:
        s.outlets = None
    return divide_window(s)


# Each outlet in turn: the one after that which sent last is the first.
cdef int pump_outlets(Session s, Connection c) except -1:
    cdef Py_ssize_t i, count = PyList_GET_SIZE(s.outlets)
    cdef Py_ssize_t at = s.first_outlet if <Py_ssize_t> s.first_outlet < count else 0
    cdef Outlet outlet
    for i in range(count):
        outlet = <Outlet> PyList_GET_ITEM(s.outlets, at)
        at = at + 1 if at + 1 < count else 0
        if outlet.pump(s, c):
            s.first_outlet = <uint32_t> at
        if s._ended:
            break
    return 0


# The connection goes: desks tell Python, then each outlet does what is left.
cdef int detach_outlets(Session s) except -1:
    if s.outlets is None:
        return 0
    for desk in s.hub.desks:
        if has_outlet(s, <Desk> desk):
            (<Desk> desk).on_detach(s)
    for outlet in list(s.outlets or ()):
        (<Outlet> outlet).on_detach(s)
    return 0


# The session has ended. Outlets refer to their session, and the garbage collector does not look at sessions that were
# restored when the broker started: the session must not refer to its outlets any more.
cdef int end_outlets(Session s) except -1:
    cdef list outlets = s.outlets
    s.outlets = None
    s.log_outlets = 0
    if outlets is not None:
        for outlet in outlets:
            (<Outlet> outlet).place = 0
        for outlet in outlets:
            (<Outlet> outlet).on_end(s)
    return 0


# The outlet of the message that was sent last, with QoS > 0.
cdef inline void bind_last(Session s, Outlet outlet) noexcept:
    window_find(&s.window, s.window.last_id).outlet = outlet.place


# As handle_ack for direct messages.
cdef int ack_delivery(Outlet outlet, Connection c, Slot* slot, uint8_t packet_type, const AckView* ack) except -1:
    cdef Session s = c.session
    cdef bint was_full
    if packet_type == PUBREC:
        if slot.state == AWAIT_PUBACK:
            return send_ack(c, PUBREL, ack.packet_id, PACKET_IDENTIFIER_NOT_FOUND)
        if ack.reason < 0x80:
            return release_slot(s, c, slot)
    elif slot.state != (AWAIT_PUBACK if packet_type == PUBACK else AWAIT_PUBCOMP):
        return 0                                # late or unknown: nothing waits for it
    was_full = PyList_GET_SIZE(s.outlets) > 1 and s.is_full()
    if slot.flags & SLOT_COUNTED:
        s.outstanding -= 1
    c.hub.counters.inflight -= 1
    outlet.on_done(s, slot, packet_type != PUBREC and ack.reason < 0x80)
    window_release(&s.window, slot)
    # was_full: outlets hear of what is acknowledged to them, not of room that others leave
    if s.queue.count or s.resend_count or s.congested or s.wants_room or s.is_contended or was_full:
        s.pump()
    return 0
