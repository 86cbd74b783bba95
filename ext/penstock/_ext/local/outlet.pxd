# Subscribers inside the broker: Python gets their messages in batches.
from libc.stdint cimport uint32_t

from penstock._ext.hub.connection cimport Desk, Outlet
from penstock._ext.hub.inflight cimport Hold
from penstock._ext.record.segment cimport RecordPack


cdef class LocalDesk(Desk):
    cdef list _news                     # outlets with records to hand over


cdef class LocalOutlet(Outlet):
    cdef object _receive                # takes a RecordPack
    cdef list _packs                    # complete and not handed over yet
    cdef RecordPack _pack               # being filled
    cdef Hold** _holds                  # ring: what each record that is not settled holds back, in order
    cdef uint32_t _head, _count, _capacity
    cdef readonly uint32_t credit       # records that may be handed over and not settled
    cdef readonly uint32_t unsettled    # records that are
    cdef readonly bint is_open
    cdef bint _has_news

    cdef int note(self) except -1
    cdef int hand_over(self) except -1
    cdef int keep_hold(self, Hold* hold) except -1
    cdef int release(self, uint32_t count) except -1
    cdef int give_up(self, uint32_t count) except -1
    cdef int ease(self) except -1
