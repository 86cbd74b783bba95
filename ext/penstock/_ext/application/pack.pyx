"""The acknowledgements of one pack; see pack.pxd. The Python side of the class is for tests and for people."""

from cython cimport final
from libc.stdlib cimport free, realloc

STATES = ("planned", "sent", "received", "done")


@final
cdef class PackTracker:
    """Which records of a pack are done: QoS 0 when sent, QoS 1 at PUBACK, QoS 2 at PUBCOMP."""

    def __init__(self, list parts, int64_t end_offset):
        self.parts = parts
        self.end_offset = end_offset

    def __dealloc__(self):
        free(self.entries)

    cdef int put(self, int64_t offset, uint16_t part, uint32_t at, uint8_t qos, uint16_t packet_id, uint8_t state,
                 uint8_t flags) except -1:
        cdef Entry* entry
        cdef uint32_t capacity
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            entry = <Entry*> realloc(self.entries, capacity * sizeof(Entry))
            if entry == NULL:
                raise MemoryError()
            self.entries = entry
            self.capacity = capacity
        entry = &self.entries[self.count]
        entry.offset, entry.part, entry.at, entry.packet_id = offset, part, at, packet_id
        entry.qos, entry.state, entry.flags = qos, state, flags
        self.count += 1
        self.open_count += 1
        return 0

    cdef bint finish(self, uint32_t index) noexcept:
        cdef Entry* entry = &self.entries[index]
        if entry.state == ENTRY_DONE:
            return False
        entry.state = ENTRY_DONE
        self.open_count -= 1
        if index != self.first_open:
            return False
        while self.first_open < self.count and self.entries[self.first_open].state == ENTRY_DONE:
            self.first_open += 1
        return True

    def add(self, int64_t offset, *, uint8_t qos=1, uint16_t packet_id=0):
        """A record that is to be delivered; its place in the pack's order."""
        if self.count and offset <= self.entries[self.count - 1].offset:
            raise ValueError("offsets rise")
        self.put(offset, 0, 0, qos, packet_id, ENTRY_PLANNED, 0)
        return self.count - 1

    def sent(self, uint32_t index):
        """With QoS 0 that is all."""
        self._check(index)
        if self.entries[index].state != ENTRY_PLANNED:
            return False
        self.entries[index].state = ENTRY_SENT
        if self.entries[index].qos == 0:
            self.finish(index)
        return True

    def received(self, uint32_t index):
        """PUBREC; False where none was expected."""
        self._check(index)
        if self.entries[index].qos != 2 or self.entries[index].state not in (ENTRY_SENT, ENTRY_RECEIVED):
            return False
        self.entries[index].state = ENTRY_RECEIVED
        return True

    def acknowledge(self, uint32_t index):
        """PUBACK of QoS 1, PUBCOMP of QoS 2; False where none was expected."""
        self._check(index)
        if self.entries[index].state != (ENTRY_SENT if self.entries[index].qos == 1 else ENTRY_RECEIVED):
            return False
        self.finish(index)
        return True

    def _check(self, uint32_t index):
        if index >= self.count:
            raise IndexError(index)

    @property
    def lowest_offset(self):
        """The lowest offset that is not done: where the log may be committed."""
        return self.lowest()

    def entries_now(self):
        """(offset, packet id, QoS, state) of each record."""
        return [(self.entries[i].offset, self.entries[i].packet_id, self.entries[i].qos, STATES[self.entries[i].state])
                for i in range(self.count)]
