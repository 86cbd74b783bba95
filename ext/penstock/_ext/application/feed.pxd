# The topics of APPLICATION clients, and of filters that they share.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock._ext.hub.connection cimport Hub, Outlet
from penstock._ext.record.segment cimport RecordPack


# A topic that is filled with the messages of one APPLICATION client, or of one filter that such clients share.
cdef class Feed(Outlet):
    cdef readonly str topic
    cdef readonly uint32_t partitions
    cdef void** _packs              # the pack being filled of each partition, or NULL: strong references
    cdef bint _is_open
    # the record it got last: one that several share groups match is written once
    cdef int64_t _last_offset
    cdef uint32_t _last_partition
    cdef uint64_t _round

    cdef RecordPack open(self, Hub hub, uint32_t partition)
