// A TCP proxy on 127.0.0.1 that is far away: every byte arrives the given time after it was sent, in both directions.
// One thread, epoll; bandwidth is not limited. Prints the port it listens on. usage: delay TO_PORT ONE_WAY_MS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 64 << 10, MOST_UNDER_WAY = 64 << 20, EVENTS = 64 };
static const uint64_t MS = 1000000ull;

struct chunk {
    struct chunk *next;
    uint64_t due;
    uint32_t len, sent;                  // len 0: the sender has closed
    uint8_t bytes[];
};

struct end {                             // one socket of a pair
    int fd;
    struct end *other;
    struct chunk *first, *last;          // on their way to this socket
    uint64_t under_way;
    bool can_write, can_read, closed;
};

static int epoll_fd;
static uint64_t delay;
static struct end **ends;
static size_t end_count;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *allocate(size_t size) {
    void *p = calloc(1, size);
    if (!p) fail("calloc");
    return p;
}

static void queue(struct end *to, struct chunk *c, uint32_t len) {
    c->due = now_ns() + delay;
    c->len = len;
    c->sent = 0;
    c->next = NULL;
    if (to->last) to->last->next = c;
    else to->first = c;
    to->last = c;
    to->under_way += len;
}

static void take_in(struct end *from) {
    struct end *to = from->other;
    while (from->can_read && to->under_way < MOST_UNDER_WAY) {
        struct chunk *c = malloc(sizeof *c + CHUNK);
        if (!c) fail("malloc");
        ssize_t k = recv(from->fd, c->bytes, CHUNK, 0);
        if (k < 0) {
            free(c);
            if (errno == EINTR) continue;
            if (errno == EAGAIN) from->can_read = false;
            else from->can_read = false, queue(to, allocate(sizeof *c), 0);
            return;
        }
        struct chunk *smaller = realloc(c, sizeof *c + (size_t)k);
        queue(to, smaller ? smaller : c, (uint32_t)k);
        if (k == 0) from->can_read = false;
    }
}

static void give_out(struct end *to, uint64_t now) {
    for (struct chunk *c; to->can_write && (c = to->first) && c->due <= now;) {
        if (c->len == 0) {
            shutdown(to->fd, SHUT_WR);
            to->closed = true;
        } else if (!to->closed) {
            ssize_t k = send(to->fd, c->bytes + c->sent, c->len - c->sent, MSG_NOSIGNAL);
            if (k < 0 && errno == EINTR) continue;
            if (k < 0 && errno == EAGAIN) {
                to->can_write = false;
                return;
            }
            if (k < 0) to->closed = true;
            else if ((c->sent += (uint32_t)k) < c->len) continue;
        }
        to->under_way -= c->len;
        to->first = c->next;
        if (!to->first) to->last = NULL;
        free(c);
        take_in(to->other);              // it may have waited for room
    }
}

static struct end *add(int fd) {
    struct end *e = allocate(sizeof *e);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    e->fd = fd;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = e};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    ends = realloc(ends, (end_count + 1) * sizeof *ends);
    if (!ends) fail("realloc");
    return ends[end_count++] = e;
}

static void accept_one(int listener, struct sockaddr_in *broker) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int further = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (further < 0) fail("socket");
    if (connect(further, (struct sockaddr *)broker, sizeof *broker) && errno != EINPROGRESS) fail("connect");
    struct end *a = add(fd), *b = add(further);
    a->other = b;
    b->other = a;
}

// Pairs of which both ways have ended.
static void forget_closed(void) {
    for (size_t i = 0; i + 1 < end_count;) {
        struct end *a = ends[i], *b = ends[i + 1];
        if (!a->closed || !b->closed || a->first || b->first) {
            i += 2;
            continue;
        }
        close(a->fd), close(b->fd), free(a), free(b);
        end_count -= 2;
        ends[i] = ends[end_count], ends[i + 1] = ends[end_count + 1];
    }
}

static uint64_t first_due(void) {
    uint64_t due = UINT64_MAX;
    for (size_t i = 0; i < end_count; i++)
        if (ends[i]->first && ends[i]->can_write && ends[i]->first->due < due) due = ends[i]->first->due;
    return due;
}

int main(int argc, char **argv) {
    if (argc != 3 || atoi(argv[1]) <= 0 || atof(argv[2]) < 0) {
        fprintf(stderr, "usage: delay TO_PORT ONE_WAY_MS    (both ends on 127.0.0.1)\n");
        return 2;
    }
    struct sockaddr_in broker = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof own;
    delay = (uint64_t)(atof(argv[2]) * (double)MS);
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);    // it never outlives the benchmark
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&own, size) || listen(listener, 64)) fail("listen");
    getsockname(listener, (struct sockaddr *)&own, &size);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event)) fail("epoll_ctl");
    printf("%d\n", ntohs(own.sin_port));
    fflush(stdout);
    for (struct epoll_event events[EVENTS];;) {
        uint64_t due = first_due(), now = now_ns(), wait = due == UINT64_MAX ? 1000 * MS : due > now ? due - now : 0;
        struct timespec t = {(time_t)(wait / (1000 * MS)), (long)(wait % (1000 * MS))};
        int k = epoll_pwait2(epoll_fd, events, EVENTS, &t, NULL);
        for (int i = 0; i < k; i++) {
            struct end *e = events[i].data.ptr;
            if (!e) {
                accept_one(listener, &broker);
                continue;
            }
            if (events[i].events & EPOLLOUT) e->can_write = true;
            if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) e->can_read = true, take_in(e);
        }
        now = now_ns();
        for (size_t i = 0; i < end_count; i++) give_out(ends[i], now);
        forget_closed();
    }
}
