# Records of the log on their way to the outlets of persistent clients.
from libc.stdint cimport int64_t, uint64_t

from penstock._ext.hub.connection cimport Desk, Session
from penstock._ext.hub.inflight cimport Hold


cdef class Round:
    cdef Hold hold


cdef class DispatchDesk(Desk):
    cdef uint64_t _round                # of dispatching
    cdef bint _is_replay                # what was in the log when the broker started
    cdef bint _is_adoption              # only for sessions that came from another broker
    cdef readonly int64_t position      # where dispatch() stopped in a pack, -1 = at its end
    cdef int64_t _until                 # the offset it stops at, -1 = none
    cdef Session _stalled_by            # the subscriber it stopped for
