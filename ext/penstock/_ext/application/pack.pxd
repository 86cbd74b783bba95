# The acknowledgements of one pack: the records that are under way to a client, which of them it has, and how far the
# log may be committed.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum EntryState:
    ENTRY_PLANNED = 0       # it has its packet id, but was not sent on this connection
    ENTRY_SENT = 1          # QoS 1 awaits PUBACK, QoS 2 awaits PUBREC
    ENTRY_RECEIVED = 2      # PUBREC came: awaits PUBCOMP
    ENTRY_DONE = 3


cdef enum:
    ENTRY_DUP = 1           # it was sent before, on this connection or an earlier one
    ENTRY_RELEASED = 2      # PUBREL was sent on this connection
    ENTRY_NEW = 4           # PUBREC came and no context that says so is durable yet
    ENTRY_UNSURE = 8        # a broker that was killed may have sent it


# One record of the pack that is to be delivered.
cdef struct Entry:
    int64_t offset
    uint32_t at             # of the record in its RecordPack
    uint16_t part           # which of them
    uint16_t packet_id      # 0 with QoS 0
    uint8_t qos
    uint8_t state
    uint8_t flags


cdef class PackTracker:
    cdef list parts                     # the RecordPacks that were read at once
    cdef Entry* entries
    cdef readonly uint32_t count
    cdef uint32_t capacity
    cdef uint32_t next_entry            # the first that was not sent yet
    cdef uint32_t first_open            # everything before it is done
    cdef readonly uint32_t open_count   # entries not done
    cdef readonly int64_t end_offset    # behind the last record of the pack
    cdef uint64_t mark                  # of the context in which its packet ids are durable
    cdef int64_t touched                # monotonic ms of the last thing sent or acknowledged, 0 = nothing yet
    cdef readonly uint32_t retries
    cdef uint64_t size                  # bytes of the parts
    cdef uint64_t rules                 # version of the trie when its records were planned: rules may change later

    cdef int put(self, int64_t offset, uint16_t part, uint32_t at, uint8_t qos, uint16_t packet_id, uint8_t state,
                 uint8_t flags) except -1
    # The entry is done; 1 if the lowest offset that is not done has moved.
    cdef bint finish(self, uint32_t index) noexcept
    # The lowest offset that is not done.
    cdef inline int64_t lowest(self) noexcept:
        return self.end_offset if self.first_open == self.count else self.entries[self.first_open].offset
