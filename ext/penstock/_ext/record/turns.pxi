# The usual turn of the embedded log: packs of one topic whose segment is open and has room. Between two turns other
# processes use the processor's caches, so that the loop's side costs what it touches, not what it computes: it is
# compiled. Everything else is in commit_thread.py and topic_writer.py, whose classes are derived from these.

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* now)


cdef inline double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec / 1e9


cdef class PackAppend:
    """Packs of one topic that are written one after the other, into the same segment."""

    cdef readonly object view
    cdef readonly list partitions
    cdef readonly list packs
    cdef readonly int64_t size          # bytes of the records
    cdef readonly int64_t records
    cdef public object on_done          # of a single pack
    cdef public object on_all_done
    cdef public int64_t position
    cdef public object error
    cdef public bint is_quiet           # nothing waits for the outcome

    def __init__(self, view, list partitions not None, list packs not None, int64_t size, int64_t records,
                 on_done=None):
        self.view, self.partitions, self.packs = view, partitions, packs
        self.size, self.records = size, records
        self.on_done = on_done

    @property
    def file_size(self):
        """Bytes in the segment."""
        return append_size(self)


cdef inline int64_t append_size(PackAppend append) noexcept:
    return append.size + <int64_t> HEADER * len(append.packs)


cdef class SegmentEnd:
    """Where a topic is written. The turn that is under way owns it."""

    cdef public int _fd
    cdef public int _tail_fd
    cdef public int64_t _sequence
    cdef public int64_t _position
    cdef public int64_t _synced
    cdef public list _ends              # of each partition
    cdef public list _staged
    cdef public bint _is_empty
    cdef public bint _has_surplus
    # a failed fdatasync may have dropped acknowledged bytes (fsync = interval), and the next one does not say so
    cdef public bint _is_doubtful
    cdef public object problem

    def begin(self, list appends not None, disk, bint is_awaited):
        """Start writing the packs on the disk thread; `settle_written` or `roll_back` must follow. Return False, with
        nothing done, if a file must be opened, a segment started or a failure repaired first."""
        cdef int64_t size = 0, end
        cdef list numbers, packs
        if self._fd < 0 or self.problem is not None or self._has_surplus or self._is_doubtful:
            return False
        for append in appends:
            size += append_size(append)
        if self._position + size > self.config.segment_bytes:
            return False
        end, numbers, packs = self._place(appends)
        disk.write(self._fd, self._position, self._synced, numbers, packs, self._tail_fd,
                   encode_tail(self._sequence, end), is_awaited)
        self._position = end
        return True

    def _place(self, list appends not None):
        """Assign offsets and positions to the packs. Return the end of the last one, the partitions and the packs."""
        cdef int64_t position = self._position
        cdef PackAppend append = appends[0]
        cdef list numbers = append.partitions, packs = append.packs
        if len(appends) > 1:
            numbers, packs = [], []
            for append in appends:
                numbers += append.partitions
                packs += append.packs
        place_packs(numbers, packs, self._ends)
        for append in appends:
            append.position = position
            position += append_size(append)
        self._staged += appends
        self._is_empty = False
        return position, numbers, packs

    def settle_written(self):
        """Settle what the disk thread has written, and the tail. Return the appends, to be reported."""
        cdef list appends = self._staged
        self.problem = None
        self._staged = []
        self._synced = self._position
        return appends


cdef class Turns:
    """The loop's side of the turns: begins them, one at a time, and finishes those of the disk thread."""

    cdef public object _loop
    cdef public object _disk
    cdef public object _on_appended     # (appends, problem or None, seconds) of a turn of the disk thread
    cdef public bint _sync_always
    cdef public list _waiting           # (writer, append), or something else
    cdef public bint _is_busy
    cdef public SegmentEnd _writer      # of the turn of the disk thread that is under way, or None
    cdef public double _started
    cdef public object _idle
    cdef public set _troubled           # writers with a problem
    cdef public object _collect_timer
    cdef public double _collect_seconds
    cdef readonly uint64_t turns
    cdef public uint64_t thread_wakes
    cdef public uint64_t loop_wakes

    def submit(self, list jobs not None):
        self._waiting += jobs
        if not self._is_busy:
            self.begin_turn()
        elif self._disk.expect():
            self._loop.call_soon(self._on_written)

    def collect(self):
        """Finish the turn under way if it is done, or have the loop woken when it is."""
        if self._disk.expect():
            self._on_written()

    cdef int begin_turn(self) except -1:
        cdef list jobs = self._waiting
        self._waiting = []
        self._is_busy = True
        self.turns += 1
        self.thread_wakes += 1
        if not self.begin_single(jobs):
            self._begin_others(jobs)
        return 0

    # Start the turn on the disk thread; False if the commit thread has to run it.
    cdef bint begin_single(self, list jobs) except -1:
        cdef double started = monotonic()
        cdef list appends = []
        cdef SegmentEnd writer = None
        cdef bint is_quiet = True
        for job in jobs:
            if type(job) is not tuple or (writer is not None and job[0] is not writer):
                return False
            writer = job[0]
            appends.append(job[1])
            is_quiet = is_quiet and (<PackAppend?> job[1]).is_quiet
        if writer is None or not self._sync_always or writer.config.is_lazy:
            return False
        if not writer.begin(appends, self._disk, not is_quiet):
            return False
        self._writer, self._started = writer, started
        if is_quiet and self._collect_timer is None:
            self._collect_timer = self._loop.call_later(self._collect_seconds, self._collect_late)
        return True

    def _collect_late(self):
        self._collect_timer = None
        self.collect()

    def _on_event(self):
        self.loop_wakes += 1
        self._disk.reset()
        self._on_written()

    def _on_written(self):
        cdef list appends
        cdef SegmentEnd writer = self._writer
        failure = self._disk.take()
        if failure is None or writer is None:
            return
        self._writer = None
        if failure:
            self.thread_wakes += 1
            self._fail_single(writer, failure, self._started)
            return
        appends = writer.settle_written()
        seconds = monotonic() - self._started
        self._begin_next()
        self._on_appended(appends, self._find_problem() if self._troubled else None, seconds)
        self._check_idle()

    def _begin_next(self):
        """The next turn begins before callers hear of the last one, so that the disk is not idle."""
        self._is_busy = False
        if self._waiting:
            self.begin_turn()

    def _check_idle(self):
        if self._idle is not None and not self._is_busy and not self._idle.done():
            self._idle.set_result(None)


@final
cdef class AppendCounts:
    """Appends and reads from the disk since the start, and what is on its way."""

    cdef public int64_t records, bytes, failed, commits, pending_bytes, disk_reads
    cdef public double seconds

    def add(self, PackAppend append not None):
        """The append is done."""
        self.pending_bytes -= append.size
        if append.error is None:
            self.records += append.records
            self.bytes += append.size
        else:
            self.failed += len(append.packs)


def report_appended(list appends not None, AppendCounts counts not None, RecentPacks recent not None, double seconds):
    """Make appends that succeeded readable and call back. What a callback raises is returned, with its append."""
    cdef PackAppend append
    cdef list failures = []
    counts.commits += 1
    counts.seconds += seconds
    for append in appends:
        segments = append.view.segments
        add_readable(segments[len(segments) - 1], append.view.partitions, recent, append.position, append.partitions,
                     append.packs)
    for append in appends:
        counts.add(append)
    for append in appends:
        try:
            if append.on_all_done is not None:
                append.on_all_done(None)
            else:
                append.tell()
        except Exception as error:
            failures.append((append, error))        # the others of this commit must hear of it all the same
    return failures


def find_active(dict of_topic not None, partitions):
    """The places of the partitions that have something to learn: one that is paused and in the queue has nothing."""
    cdef list found = []
    for number in partitions:
        for place in of_topic.get(number, ()):
            if not (place.is_paused and place.is_queued):
                found.append(place)
    return found
