# A thread that writes packs to a file and waits for the disk. It never takes the interpreter's lock: a commit wakes it
# once, and it wakes the loop once, through an eventfd, or not at all if the commit is not awaited.

cdef extern from * nogil:
    """
    #define load_flag(flag) __atomic_load_n((flag), __ATOMIC_SEQ_CST)
    #define store_flag(flag, value) __atomic_store_n((flag), (value), __ATOMIC_SEQ_CST)
    """
    int load_flag(int* flag)
    void store_flag(int* flag, int value)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t* thread, const void* attributes, void* (*run)(void*) noexcept nogil, void* argument)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t* semaphore, int shared, unsigned int value)
    int sem_destroy(sem_t* semaphore)
    int sem_post(sem_t* semaphore)
    int sem_wait(sem_t* semaphore)

cdef extern from "<sys/eventfd.h>" nogil:
    enum: EFD_CLOEXEC
    enum: EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    int eventfd_read(int fd, uint64_t* value)
    int eventfd_write(int fd, uint64_t value)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t pwrite(int fd, const void* data, size_t size, long position)

cdef enum:
    LONGEST_TAIL = 64
    TAIL_SIZE = 20


# Packs to be written as batches. They are sealed and referenced, so their bytes do not move.
cdef struct Batches:
    Py_ssize_t count
    Batch* batches
    uint8_t* headers
    iovec* parts


cdef int prepare_batches(Batches* b, int64_t position, int64_t synced, list partitions, list packs) except -1:
    cdef Py_ssize_t i
    cdef RecordPack pack
    if len(partitions) != len(packs):
        raise ValueError(f"{len(packs)} packs need as many partitions, {len(partitions)} were given")
    b.count = len(packs)
    b.batches = <Batch*> malloc(b.count * sizeof(Batch))
    b.headers = <uint8_t*> malloc(b.count * HEADER)
    b.parts = <iovec*> malloc(2 * b.count * sizeof(iovec))
    if b.batches == NULL or b.headers == NULL or b.parts == NULL:
        free_batches(b)
        raise MemoryError()
    try:
        for i in range(b.count):
            pack = packs[i]
            pack.describe(&b.batches[i], partitions[i])
            b.batches[i].unsynced = <uint32_t> min(position - synced, 0xFFFFFFFF)
            position += b.batches[i].size
            b.parts[2 * i].iov_base = b.headers + i * HEADER
            b.parts[2 * i].iov_len = HEADER
            b.parts[2 * i + 1].iov_base = pack._body.data + pack._body.start
            b.parts[2 * i + 1].iov_len = b.batches[i].size - HEADER
    except BaseException:
        free_batches(b)
        raise
    return 0


cdef void free_batches(Batches* b) noexcept nogil:
    free(b.batches)
    free(b.headers)
    free(b.parts)
    b.batches, b.headers, b.parts = NULL, NULL, NULL


# 0, or the number of the error.
cdef int write_batches(Batches* b, int fd, int64_t position, bint sync, int64_t* written) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(b.count):
        write_header(b.headers + i * HEADER, &b.batches[i], <const uint8_t*> b.parts[2 * i + 1].iov_base)
    if not write_all(fd, b.parts, <int> (2 * b.count), position, written):
        return errno
    if sync and fdatasync(fd) != 0:
        return errno
    return 0


def write_packs(int fd, int64_t position, int64_t synced, list partitions, list packs, bint sync):
    """Write the packs, which have their offsets, as batches at the position and, with `sync`, wait until they are on
    the disk; the file is on the disk up to `synced`. The interpreter's lock is released meanwhile. Return (bytes
    written, errno or 0)."""
    cdef Batches b
    cdef int64_t written = 0
    cdef int failure
    prepare_batches(&b, position, synced, partitions, packs)
    with nogil:
        failure = write_batches(&b, fd, position, sync, &written)
    free_batches(&b)
    return written, failure


def encode_tail(int64_t sequence, int64_t position):
    """The content of a topic's tail file: the segment's number, how much of it is on the disk, and a checksum."""
    cdef uint8_t tail[TAIL_SIZE]
    store_i64(tail, sequence)
    store_i64(tail + 8, position)
    store_u32(tail + 16, crc32c_extend(0, tail, 16))
    return PyBytes_FromStringAndSize(<char*> tail, TAIL_SIZE)


# Shared by the thread and its owner. The semaphore orders their access when a job begins, `is_done` when it ends. The
# thread sets `is_done` before it reads `is_awaited`, and the owner the other way round: at least one sees the other's.
cdef struct DiskJob:
    pthread_t thread
    sem_t ready
    int event
    bint has_job
    int is_done
    int is_awaited
    bint is_over
    Batches batches
    int fd
    int64_t position
    int tail_fd
    uint8_t tail[LONGEST_TAIL]
    size_t tail_size
    int failure


cdef void* run_disk_thread(void* argument) noexcept nogil:
    cdef DiskJob* job = <DiskJob*> argument
    cdef int64_t written
    while True:
        while sem_wait(&job.ready) != 0:
            pass                                # interrupted by a signal
        if not job.has_job:
            if job.is_over:
                return NULL
            continue
        written = 0
        job.failure = write_batches(&job.batches, job.fd, job.position, True, &written)
        if job.failure == 0 and job.tail_fd >= 0:
            # after the fdatasync; if it fails, other processes see the records a little later
            pwrite(job.tail_fd, job.tail, job.tail_size, 0)
        job.has_job = False
        store_flag(&job.is_done, 1)
        if load_flag(&job.is_awaited):
            eventfd_write(job.event, 1)


cdef class DiskThread:
    """Writes one job at a time. `event` is a descriptor that becomes readable when an awaited job is done; `take`
    returns its result."""

    cdef DiskJob* _job
    cdef list _packs                            # being written

    def __cinit__(self):
        self._job = <DiskJob*> calloc(1, sizeof(DiskJob))
        if self._job == NULL:
            raise MemoryError()
        self._job.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._job.event < 0:
            raise OSError(errno, os.strerror(errno))
        sem_init(&self._job.ready, 0, 0)
        cdef int failure = pthread_create(&self._job.thread, NULL, run_disk_thread, self._job)
        if failure:
            close(self._job.event)
            self._job.event = -1
            raise OSError(failure, os.strerror(failure))

    @property
    def event(self):
        return self._job.event

    def write(self, int fd, int64_t position, int64_t synced, list partitions not None, list packs not None,
              int tail_fd, bytes tail not None, bint is_awaited=True):
        """Start writing the packs, which have their offsets, as batches at the position. When they are on the disk, the
        thread writes `tail` to the beginning of `tail_fd`. Both descriptors must stay open until `take`. The event
        reports the end of the job only if it is awaited, from the beginning or by `expect`."""
        if self._job.event < 0:
            raise RuntimeError("the disk thread is closed")
        if self._packs is not None:
            raise RuntimeError("the disk thread is still writing")
        if len(tail) > LONGEST_TAIL:
            raise ValueError(f"the tail has {len(tail)} bytes, at most {LONGEST_TAIL} are allowed")
        prepare_batches(&self._job.batches, position, synced, partitions, packs)
        self._packs = packs
        self._job.fd, self._job.position = fd, position
        self._job.tail_fd, self._job.tail_size = tail_fd, <size_t> len(tail)
        memcpy(self._job.tail, PyBytes_AS_STRING(tail), self._job.tail_size)
        self._job.has_job = True
        store_flag(&self._job.is_done, 0)
        store_flag(&self._job.is_awaited, is_awaited)
        sem_post(&self._job.ready)

    def take(self):
        """Return 0 or the errno of the job once it is done, and None before that or without a job."""
        if self._packs is None or not load_flag(&self._job.is_done):
            return None
        self._packs = None
        free_batches(&self._job.batches)
        return self._job.failure

    def reset(self):
        """The event was seen. To be called before `take`: a job that ends after that reports itself again."""
        cdef uint64_t value = 0
        eventfd_read(self._job.event, &value)

    def expect(self):
        """From now on the job is awaited. Return True if it is done, which the event may not report any more."""
        store_flag(&self._job.is_awaited, 1)
        return self._packs is not None and load_flag(&self._job.is_done) != 0

    def close(self):
        """Finish the job and end the thread. Blocks."""
        if self._job.event < 0:
            return
        self._job.is_over = True
        with nogil:
            sem_post(&self._job.ready)
            pthread_join(self._job.thread, NULL)
            close(self._job.event)
        self._job.event = -1
        self._packs = None
        free_batches(&self._job.batches)

    def __dealloc__(self):
        if self._job == NULL:
            return
        if self._job.event >= 0:
            self.close()
        sem_destroy(&self._job.ready)
        free(self._job)
