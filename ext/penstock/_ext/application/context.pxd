# The context of a lane as it is stored: how far it is committed, what was seen of its sources, and which packet ids are
# in flight for which offsets. Offsets between `committed` and `end` that are not in flight are done.
#
#   version, committed, end - committed, last packet id of the client | laps << 16,
#   count of sources, (partition, offset) of each,
#   count of runs, (offset - end of the run before, packet id, length, state) of each        all of them varints
#
# A run is consecutive offsets with consecutive packet ids in one state; packet id 0 = each is to get a new one.
# Laps say how often the packet ids of the client began again at 1: of several contexts of a client the one with the
# largest number has the packet id that was given last.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.wire.buffer cimport Buffer


cdef enum:
    CONTEXT_VERSION = 1
    MOST_PARTITIONS = 65_536    # of the log of all messages
    RUN_SENT_2 = 4              # sent with QoS 2; the other states are those of an entry, ENTRY_SENT with QoS 1
    RUN_READY = 5               # sent as soon as this context is durable: after a crash nobody knows whether it was
    RUN_READY_2 = 6             # the same with QoS 2
    RUN_STATE_COUNT = 7


cdef struct Run:
    int64_t offset              # first of it
    int64_t last                # behind the run written last
    uint32_t packet_id
    uint32_t length
    uint32_t count              # of runs
    uint8_t state


cdef int put_number(Buffer* out, uint64_t value) except -1
cdef int run_end(Buffer* out, Run* run) except -1
cdef int run_add(Buffer* out, Run* run, int64_t offset, uint16_t packet_id, uint8_t state) except -1
