# The records that readers of a topic can find. A commit adds all its packs with one Python call.

cdef enum:
    INDEX_INTERVAL = 32_768     # bytes of a segment between two entries of a partition's index
    PACK_OVERHEAD = 256         # bytes that a pack costs besides its records
    TRIM_AT = 256               # a run removes its first packs from the list only when there are this many

NEVER = -(2**63)


cdef inline int64_t next_offset_of(RecordPack pack) noexcept:
    return pack.base_offset + pack._span + 1 if pack.count else pack.base_offset


@final
cdef class PackRun:
    """Packs of one partition in memory, in the order of their offsets."""

    cdef list _packs
    cdef list _bases
    cdef Py_ssize_t _head
    cdef readonly int64_t bytes
    cdef readonly int64_t records

    def __init__(self, packs=()):
        self._packs, self._bases = [], []
        for pack in packs:
            self.add(pack)

    def __len__(self):
        return len(self._packs) - self._head

    def __iter__(self):
        return iter(self._packs[self._head:])

    @property
    def first_offset(self):
        """Offset of the first record, or None if the run is empty."""
        return self._bases[self._head] if len(self._packs) > self._head else None

    @property
    def first_pack(self):
        """First pack, or None if the run is empty."""
        return self._packs[self._head] if len(self._packs) > self._head else None

    cpdef add(self, RecordPack pack):
        self._packs.append(pack)
        self._bases.append(pack.base_offset)
        self.bytes += buffer_size(&pack._body)
        self.records += pack.count

    def drop_first(self):
        cdef RecordPack pack = self._packs[self._head]
        self.bytes -= buffer_size(&pack._body)
        self.records -= pack.count
        self._head += 1
        if self._head >= TRIM_AT and 2 * self._head >= len(self._packs):
            del self._packs[:self._head]
            del self._bases[:self._head]
            self._head = 0
        else:
            # an empty pack in its place, so that the memory of the records is free at once
            self._packs[self._head - 1] = EMPTY_PACK

    def read(self, int64_t offset, int64_t max_records, int64_t max_bytes):
        """Return packs with the records at and after the offset: at least one if there is one, otherwise no more than
        the limits allow."""
        cdef list found = []
        cdef RecordPack pack
        cdef Py_ssize_t index = max(self._head, bisect.bisect_right(self._bases, offset) - 1)
        while index < len(self._packs) and max_records > 0:
            pack = self._packs[index]
            index += 1
            if next_offset_of(pack) <= offset:
                continue
            if found and max_bytes < buffer_size(&pack._body):
                break
            if pack.base_offset < offset or pack.count > max_records:
                pack = pack.slice(offset, max_records)
            found.append(pack)
            max_records -= pack.count
            max_bytes -= buffer_size(&pack._body)
        return found


EMPTY_PACK = RecordPack()


@final
cdef class PartitionState:
    """The offsets of a partition that can be read, and its newest packs."""

    cdef public int64_t first
    cdef public int64_t end
    cdef readonly PackRun recent

    def __init__(self, int64_t first, int64_t end):
        self.first, self.end = first, end
        self.recent = PackRun()


@final
cdef class RecentPacks:
    """The newest packs of all topics stay in memory, up to a number of bytes: most readers are close to the end."""

    cdef int64_t _max_bytes
    cdef object _queue                  # (state, pack) in the order they were added
    cdef readonly int64_t bytes

    def __init__(self, int64_t max_bytes):
        self._max_bytes = max_bytes
        self._queue = deque()

    cpdef add(self, PartitionState state, RecordPack pack):
        cdef PartitionState oldest
        cdef RecordPack dropped
        state.recent.add(pack)
        self._queue.append((state, pack))
        self.bytes += buffer_size(&pack._body) + PACK_OVERHEAD
        while self.bytes > self._max_bytes:
            oldest, dropped = self._queue.popleft()
            self.bytes -= buffer_size(&dropped._body) + PACK_OVERHEAD
            # retention may have taken the pack out of its run already
            if oldest.recent.first_pack is dropped:
                oldest.recent.drop_first()


@final
cdef class PartitionIndex:
    """Positions of a partition's batches in one segment, an entry about every 32 KiB."""

    cdef public int64_t first
    cdef public int64_t end
    cdef public int64_t records
    cdef public int64_t max_timestamp
    cdef readonly object offsets
    cdef readonly object positions
    cdef readonly object times          # the newest time before the entry
    cdef int64_t _entry_at              # a batch at this position or after it gets an entry

    def __init__(self, int64_t first):
        self.first = self.end = first
        self.max_timestamp = self._entry_at = NEVER
        self.offsets, self.positions, self.times = array.array("q"), array.array("q"), array.array("q")

    def note(self, int64_t position, batch):
        """Add a batch, a RecordPack or a BatchInfo, that is at the position."""
        self.note_batch(position, batch.base_offset, batch.next_offset, batch.count, batch.max_timestamp)

    cdef int note_batch(self, int64_t position, int64_t base_offset, int64_t next_offset, uint32_t count,
                        int64_t max_timestamp) except -1:
        if position >= self._entry_at:
            self.offsets.append(base_offset)
            self.positions.append(position)
            self.times.append(self.max_timestamp)
            self._entry_at = position + INDEX_INTERVAL
        self.end = next_offset
        self.records += count
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        return 0

    def find_offset(self, int64_t offset):
        """Return the position from which the headers lead to the batch with the offset."""
        return self.positions[max(0, bisect.bisect_right(self.offsets, offset) - 1)]

    def find_time(self, int64_t timestamp):
        """Return the position from which the headers lead to the first batch with a record at or after the time."""
        return self.positions[max(0, bisect.bisect_left(self.times, timestamp) - 1)]


def add_readable(segment, list states not None, RecentPacks recent not None, int64_t position,
                 list partitions not None, list packs not None):
    """Make the packs readable, which are in the segment from the position on: index them, move the ends of their
    partitions and keep them as the newest packs."""
    cdef dict indexes = segment.partitions
    cdef PartitionIndex index
    cdef PartitionState state
    cdef RecordPack pack
    cdef Py_ssize_t i
    cdef int64_t newest = segment.max_timestamp, records = 0
    for i in range(len(packs)):
        pack = packs[i]
        index = indexes.get(partitions[i])
        if index is None:
            index = indexes[partitions[i]] = PartitionIndex(pack.base_offset)
        state = states[partitions[i]]
        state.end = next_offset_of(pack)
        index.note_batch(position, pack.base_offset, state.end, pack.count, pack.max_timestamp)
        recent.add(state, pack)
        newest = max(newest, pack.max_timestamp)
        records += pack.count
        position += HEADER + buffer_size(&pack._body)
    segment.records += records
    segment.max_timestamp = newest
    segment.size = position


def seal_packs(pairs):
    """Seal the packs of [(partition, pack)] for an append. Return (partitions, packs, bytes, records)."""
    cdef RecordPack pack
    cdef list partitions = [], packs = []
    cdef int64_t size = 0, records = 0
    for partition, pack in pairs:
        if pack.count == 0 or pack._span != pack.count - 1:
            raise ValueError("a pack that is appended has records, and no gaps between their offsets")
        pack.is_sealed = True
        partitions.append(partition)
        packs.append(pack)
        size += buffer_size(&pack._body)
        records += pack.count
    return partitions, packs, size, records


def place_packs(list partitions not None, list packs not None, list ends not None):
    """Assign offsets to the packs from the ends of their partitions on, and move these."""
    cdef RecordPack pack
    cdef Py_ssize_t i
    for i in range(len(packs)):
        pack = packs[i]
        pack.place(ends[partitions[i]])
        ends[partitions[i]] = next_offset_of(pack)
