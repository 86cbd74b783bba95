# Connections and messages that wait because matching a topic takes long, see turns.pxi.
cdef class Turns:
    cdef Hub hub
    cdef uint64_t budget                # steps of matching for a connection, and for all that wait, in an iteration
    cdef uint64_t used                  # by all connections in this iteration
    cdef list resting                   # connections that have used more than the budget, in the order they stopped
    cdef list walkers                   # (topic, what waits for its match) of each long walk: the first is under way
    cdef bint is_scheduled
    cdef object _give_soon              # bound method, made once
    cdef uint32_t dispatch_tries        # long walks for the record that dispatch stopped at
    cdef bint dispatch_waits
    cdef readonly uint64_t pauses       # times a connection gave way to others
    cdef readonly uint64_t long_matches     # matches made in slices

    cdef int schedule(self) except -1
    cdef int rest(self, Connection c) except -1
    cdef int await_match(self, Connection c, const uint8_t* topic, uint32_t size) except -1
    cdef int pay(self) except -1
    cdef int walk_on(self) except -1
    cdef bint dispatch_must_wait(self, const uint8_t* topic, uint32_t size) except -1
