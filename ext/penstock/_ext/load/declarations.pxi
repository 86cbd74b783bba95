# What generator.pyx takes from C: histogram, arrivals, resources, epoll and sockets; its enumerations and structures.
cdef extern from "load_histogram.h" nogil:
    enum:
        HIST_BINS
    ctypedef struct Histogram "struct histogram":
        uint64_t* bins
        uint64_t count
        uint64_t max
    void histogram_record(Histogram* h, uint64_t ns, uint64_t count)
    uint64_t histogram_ns(uint64_t bin)
    double histogram_quantile_us(const Histogram* h, double q)
    void histogram_since(const Histogram* h, Histogram* last, Histogram* part)
    void histogram_add(Histogram* sum, const Histogram* part)

cdef extern from "load_sequence.h" nogil:
    enum:
        ARRIVED_LATE
        ARRIVED_TWICE
    ctypedef struct Arrivals "struct stream":
        uint64_t next
    Arrivals* stream_new(uint64_t bits)
    int stream_arrive(Arrivals* s, uint64_t seq)
    void stream_arrive_in_order(Arrivals* s, uint64_t count)

cdef extern from "load_resources.h" nogil:
    ctypedef struct Usage "struct usage":
        uint64_t at
        double broker_cpu
        double own_cpu
        double thread_cpu
        long rss_kb
        long peak_kb
    uint64_t now_ns()
    Usage usage_now(const int* pids, int count)

cdef extern from "sys/epoll.h" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <string.h>
    #include <netinet/tcp.h>
    #include <netinet/in.h>
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <unistd.h>

    /* A socket on its way to the address, or -1. */
    static int load_connect(const void *address, unsigned size, int family) {
        int one = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) return -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, (const struct sockaddr *)address, size) && errno != EINPROGRESS) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        return fd;
    }

    static int load_socket_error(int fd) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        return error;
    }

    static void load_reset(int fd) {
        struct linger reset = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }

    static int load_wait(int epoll_fd, struct epoll_event *events, int room, uint64_t ns) {
        struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
        return epoll_pwait2(epoll_fd, events, room, &t, NULL);
    }

    static void load_nap(uint64_t ns) {
        struct timespec t = {0, (long)ns};
        nanosleep(&t, NULL);
    }

    /* As memcpy, without the call of it for the few bytes that most messages have. */
    static inline void load_copy(uint8_t *to, const uint8_t *from, size_t size) {
        if (size < 16 || size > 256) {
            memcpy(to, from, size);
            return;
        }
        for (size_t at = 0; at + 16 < size; at += 16) memcpy(to + at, from + at, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    }

    /* Whether there is nothing but x, as publishers fill their messages; at least one. */
    static inline int load_is_filler(const uint8_t *at, size_t size) {
        typedef uint64_t pair __attribute__((vector_size(16)));
        const pair filler = {0x7878787878787878ull, 0x7878787878787878ull};
        pair part, other = {0, 0};
        if (size < 16 || size > 256) return at[0] == 'x' && memcmp(at, at + 1, size - 1) == 0;
        for (size_t i = 0; i + 16 < size; i += 16) {
            memcpy(&part, at + i, 16);
            other |= part ^ filler;
        }
        memcpy(&part, at + size - 16, 16);
        other |= part ^ filler;
        return (other[0] | other[1]) == 0;
    }

    /* What one thread writes and another reads. */
    static uint64_t peek(const uint64_t *value) { return __atomic_load_n(value, __ATOMIC_SEQ_CST); }
    static void poke(uint64_t *value, uint64_t to) { __atomic_store_n(value, to, __ATOMIC_SEQ_CST); }
    static void increment(uint64_t *value) { __atomic_fetch_add(value, 1, __ATOMIC_SEQ_CST); }
    static uint64_t take(uint64_t *value) { return __atomic_exchange_n(value, 0, __ATOMIC_SEQ_CST); }

    static int load_bell(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
    static void load_ring(int bell) { eventfd_write(bell, 1); }
    static void load_silence(int bell) { eventfd_t count; eventfd_read(bell, &count); }

    static void load_fine_timers(void) { prctl(PR_SET_TIMERSLACK, 1); }
    """
    int load_connect(const void* address, unsigned size, int family)
    int load_socket_error(int fd)
    void load_reset(int fd)
    int load_wait(int epoll_fd, epoll_event* events, int room, uint64_t ns)
    void load_nap(uint64_t ns)
    void load_copy(uint8_t* to, const uint8_t* source, size_t size)
    int load_is_filler(const uint8_t* at, size_t size)
    void load_fine_timers()
    uint64_t peek(const uint64_t* value)
    void poke(uint64_t* value, uint64_t to)
    void increment(uint64_t* value)
    uint64_t take(uint64_t* value)
    int load_bell()
    void load_ring(int bell)
    void load_silence(int bell)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int close(int fd)
    enum:
        MSG_NOSIGNAL

cdef enum Scenario:
    P2P
    FANOUT
    FANIN
    PUBLISH_ONLY
    IDLE
    STORM

cdef enum Part:
    WHOLE
    SUBSCRIBE_PART
    PUBLISH_PART
    RECEIVE_PART

cdef enum State:
    CONNECTING
    HANDSHAKE
    WAIT_CONNACK
    WAIT_SUBACK
    READY
    CLOSING
    DEAD

cdef enum Phase:
    OPENING
    OPENED
    WARMING
    MEASURING
    DRAINING
    DONE

cdef enum:
    STAMP_SIZE = 16             # nanoseconds, publisher, sequence number
    SEEN_BITS = 4096
    SEEN_BITS_MAX = 1 << 24
    CHUNK = 64 << 10            # written at a time
    TURN_CHUNK = 128 << 10      # written at a time by a publisher that has its turn
    TURN_CHUNKS = 8             # of those under way
    BATCH = 32                  # messages worth a call of the kernel
    MUCH = 1000                 # messages under way that allow a rest
    REST_PER_MESSAGE = 25       # ns: a quarter of what the fastest broker needs for one
    REST_MAX = 100_000          # ns
    READ_MAX = 1 << 22          # a packet, and what came with it
    READ_AT_ONCE = 1 << 20      # what the caches hold
    PENDING_MAX = 64            # connections being opened at a time
    EVENTS = 512
    STORM_FAILURES_MAX = 1000
    CACHE_LINE = 64
    FIRST_ERROR_CODE = 0x80
    SETTLEMENT_MAX = 63
    UNSETTLED_MAX = 1 << 16
    TOPIC_DIGITS = 8            # of the number at the end of a retained message's topic
    USER_PROPERTY = 0x26
    TLS_AGAIN = -2
    TLS_BROKEN = -3

cdef uint64_t SECOND = 1000000000
cdef uint64_t STANDSTILL = 10 * SECOND
cdef uint64_t CLOSING_TIME = 5 * SECOND


# The message-id of a delivery from a queue, as the property it came with.
cdef struct Settlement:
    uint8_t size
    uint8_t[SETTLEMENT_MAX] property

cdef struct Client:
    int fd
    int state
    bint is_subscriber
    bint wants_out              # EPOLLOUT is armed
    bint reads_late             # EPOLLIN is not: acknowledgements wait in the socket until the window needs them
    uint32_t index              # number among its role, part of its topic
    uint32_t cycle              # storm: how often it has connected
    PyObject* tls               # the SSLSocket that owns fd, or NULL
    uint8_t* held               # an incomplete packet
    uint32_t held_size
    Buffer out                  # bytes not yet written
    uint64_t prepared           # publisher: so many messages `out` has from its beginning on, written or not
    uint64_t since              # when the current connection was begun, or its closing
    uint64_t sent               # messages written; of a consumer of a queue: settlements
    uint64_t acked
    uint64_t received           # subscriber: arrivals in the measured time
    uint64_t released           # messages no longer waited for after a stall
    uint16_t packet_id
    uint8_t* pattern            # publisher: a whole PUBLISH, patched per message
    uint32_t pattern_size
    uint32_t id_at
    uint32_t stamp_at
    uint32_t digits_at          # where the topic ends with the sequence number, 0 = it does not
    Arrivals* arrivals          # of this publisher's messages, or in fanout at this subscriber; the team's
    Settlement* unsettled       # consumer of a queue: a ring of deliveries yet to be settled
    uint32_t unsettled_at
    uint32_t unsettled_count

# Messages that were read one after another, of one publisher and one time, none missing: noted together.
cdef struct Run:
    Arrivals* arrivals
    uint64_t count
    uint64_t stamp
    uint32_t publisher
    uint32_t next               # sequence number of the one that would go on with it

cdef struct Totals:
    uint64_t published
    uint64_t received
    uint64_t measured
    uint64_t late
    uint64_t twice
    uint64_t downgraded
    uint64_t refused
    uint64_t corrupt
    uint64_t stalls
    uint64_t connects
    uint64_t unclosed
    uint64_t disconnects

# What a worker shows the others: written by its own thread, read by all.
cdef struct Seat:
    Totals total
    Histogram* latency
    uint64_t phase
    uint64_t unsent             # publishers with bytes that are not written yet
    uint64_t unacknowledged     # messages of its publishers that are connected
    uint64_t settlements_open
    uint64_t lag_max
    uint64_t fan_min            # fanout: what all its subscribers have
    uint64_t is_asleep
    int ready_count
    int bell                    # an eventfd that wakes it
    char[CACHE_LINE] apart      # two threads that write to one cache line slow each other down

# What all workers of a run look at. The first of them, the lead, decides when it begins and when it is over.
cdef struct Common:
    int size                    # workers
    int publisher_count
    int subscriber_count
    int stream_count
    Seat* seats
    Arrivals** streams          # of each publisher's messages, in fanout at each subscriber
    uint64_t begin_at           # 0 until every connection is ready
    uint64_t is_stopped         # no more is published
    uint64_t is_over
    uint64_t releases           # how often windows were opened because nothing came any more
    uint64_t last_progress
    char[CACHE_LINE] apart
    uint64_t arrivals           # how often somebody has read messages
