# Part of connection.pxd: a kind of subscriber is an Outlet, and what all outlets of a kind share is a Desk.

# What one subscriber gets of a record that is dispatched.
cdef struct Delivery:
    const RecordView* record
    const EnvelopeView* view    # of it
    Message* kept               # made of it, if an outlet had to make one; the caller's reference
    Hold* hold                  # of the round of dispatch
    const ShareGroup* group     # NULL = not through a shared subscription
    const uint32_t* ids
    uint64_t round              # of dispatch
    uint32_t partition          # of the log it was read from
    uint16_t id_count
    uint8_t qos
    bint retain


# What a kind of subscriber keeps for the whole process: lists of outlets with news, buffers, its callbacks in Python.
# The hub walks its desks at the end of each iteration.
cdef class Desk:
    cdef readonly Hub hub
    cdef bint is_waiting                # it has something to do at the end of this iteration

    # From now on it has; at the end of the iteration the hub calls `work`, submits the batch for the log, calls `tell`.
    cdef int wake(self) except -1
    cdef int work(self) except -1
    # Tell Python, once per iteration. Whatever is left to do sets is_waiting again.
    cdef int tell(self) except -1
    # The connection of a session goes; its outlets are asked after that.
    cdef int on_detach(self, Session session) except -1


# Where messages for a subscriber go. A session has a list of them; direct QoS 0, 1 and 2 delivery needs none.
cdef class Outlet:
    cdef readonly Desk desk             # or None
    cdef readonly Session session       # None: it is no single client's
    cdef uint16_t place                 # from 1, among the outlets of the session; 0 = not there
    cdef readonly uint32_t number       # among all of the process that have one, see DELIVERY_NUMBERED; 0 = none
    cdef uint32_t turn                  # round in which it took the last free place, see window_parts.pxi
    cdef bint from_log                  # it takes turns at the last free place together with all that read the log
    cdef bint is_apart                  # its sessions are a group of their own in share groups with a feed
    cdef public bint live               # nothing waits before it: messages are sent as they come

    # A record of the log for the session whose intake it is, or for one member of a share group.
    cdef int accept(self, Hub hub, Delivery* d) except -1
    # The same for a retained message of a new subscription; False: it is sent directly.
    cdef bint accept_retained(self, Hub hub, const Message* m, uint8_t qos, uint32_t identifier) except -1
    # What was written by the two for somebody else to store.
    cdef list take_filled(self, Hub hub)
    # The client may have room: send, or ask Python for more. True if something was sent.
    cdef bint pump(self, Session s, Connection c) except -1
    # PUBACK, PUBREC or PUBCOMP for a slot of this outlet. By default as for direct messages, with the two calls below.
    cdef int on_ack(self, Connection c, Slot* slot, uint8_t packet_type, const AckView* ack) except -1
    # PUBREC came, or the message is not sent again: True if PUBREL has to wait for this outlet.
    cdef bint on_received(self, Session s, Slot* slot) except -1
    # The delivery is over; `is_taken`: the client has acknowledged it and has not refused it.
    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1
    # A message of an earlier connection is not sent again, and its packet id is free.
    cdef int on_dropped(self, Session s, const Slot* slot) except -1
    # A numbered message that waits in the session, and that the client may not receive any more.
    cdef int take_back(self, const Message* m) except -1
    # The connection goes.
    cdef int on_detach(self, Session s) except -1
    # The session has ended, and the outlet is not among its outlets any more.
    cdef int on_end(self, Session s) except -1
