# Persistent DEVICE clients: their messages, live or through a store.
from libc.stdint cimport int64_t, uint16_t, uint32_t

from penstock._ext.hub.connection cimport Delivery, Desk, Outlet
from penstock._ext.hub.inflight cimport SLOT_OUTLET_1, SLOT_OUTLET_2
from penstock._ext.record.segment cimport RecordPack
from penstock._ext.wire.buffer cimport Buffer


cdef enum:
    SLOT_STORED = SLOT_OUTLET_1     # the store has the message under this packet id
    SLOT_STORING = SLOT_OUTLET_2    # it is on its way there


cdef class DeviceDesk(Desk):
    cdef list _stashed              # outlets with records for the store
    cdef dict _group_stash          # packs for share groups without a member here, by $share/name/filter
    cdef list _unsaved              # outlets with messages sent that are neither acknowledged nor stored
    cdef list _news                 # outlets with something acknowledged that is stored, or with room
    cdef object _on_devices
    cdef object _on_detach
    cdef int64_t persist_after      # ms

    cdef int stash_for_group(self, const Delivery* d) except -1


cdef class DeviceOutlet(Outlet):
    cdef bint is_unsaved, has_news
    cdef bint wants_more            # the store has more for the client
    cdef RecordPack stash           # records for its store
    cdef uint32_t stash_sent        # those at its front that were sent already
    cdef Buffer settled             # packet ids acknowledged that are stored
    cdef Buffer released            # packet ids of stored QoS 2 messages whose PUBREC came

    cdef RecordPack open_stash(self)
    cdef int settle(self, uint16_t packet_id, bint is_release) except -1
    cdef int call(self) except -1
