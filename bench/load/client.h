// One MQTT connection of the load generator: its socket, its unwritten output, its incomplete input, its progress.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "options.h"
#include "packets.h"
#include "resources.h"
#include "sequence.h"

enum role { SUBSCRIBER, PUBLISHER };
enum state { CONNECTING, WAIT_CONNACK, WAIT_SUBACK, READY, CLOSING, DEAD };

struct client {
    int fd;
    enum role role;
    enum state state;
    uint32_t index;                      // number among its role, part of its topic
    uint32_t cycle;                      // storm: how often it has connected
    bool want_out;                       // EPOLLOUT is armed
    uint8_t *in, *out;                   // incomplete packet; bytes not yet written
    uint32_t in_len, out_off, out_len, out_cap;
    uint64_t since;                      // when the current connection was begun, or its closing
    uint64_t sent, acked;                // messages written and acknowledged; of a consumer of a queue: settlements
    uint64_t received;                   // subscriber: arrivals in the measured time
    uint64_t released;                   // messages no longer waited for after a stall
    uint16_t packet_id;
    uint8_t *template;                   // publisher: a whole PUBLISH, patched per message
    uint32_t template_len, id_off, stamp_off;
    struct stream *stream;               // arrivals: of this publisher, or in fanout at this subscriber
    struct settlement *unsettled;        // consumer of a queue: a ring of deliveries yet to be settled
    uint32_t unsettled_at, unsettled_count;
};

static const char *const QUEUE_GROUP = "load";

static int epoll_fd;
static struct client *clients, *publishers;       // clients: subscribers first, then publishers
static int client_count, publisher_count, subscriber_count, ready_count, pending_count;
static uint64_t disconnects;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("{\"error\": \"");
    vprintf(format, args);
    printf("\"}\n");
    va_end(args);
    exit(1);
}

static void client_lose(struct client *c) {
    static const char *const names[] = {"connecting", "waiting for CONNACK", "waiting for SUBACK", "ready", "closing", "dead"};
    if (c->state == DEAD) return;
    if (opt.scenario != STORM && c->state != READY)
        fail("connection %d refused or closed while %s", (int)(c - clients), names[c->state]);
    c->state = DEAD;
    disconnects++;
    close(c->fd);
}

static void client_flush(struct client *c) {
    while (c->out_off < c->out_len) {
        ssize_t k = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) break;
        if (k < 0) {
            client_lose(c);
            return;
        }
        c->out_off += (uint32_t)k;
    }
    bool blocked = c->out_off < c->out_len;
    if (!blocked) {
        c->out_off = c->out_len = 0;
        if (opt.scenario == IDLE) free(c->out), c->out = NULL, c->out_cap = 0;
    }
    if (blocked != c->want_out) {
        struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
        c->want_out = blocked;
    }
}

static uint8_t *client_reserve(struct client *c, uint32_t len) {
    if (c->out_len + len > c->out_cap) {
        c->out_cap = (c->out_len + len) * 2;
        c->out = realloc(c->out, c->out_cap);
        if (!c->out) fail("out of memory");
    }
    c->out_len += len;
    return c->out + c->out_len - len;
}

static void put_packet(struct client *c, int first, const uint8_t *body, uint32_t len) {
    uint8_t head[5], *p = head;
    *p++ = (uint8_t)first;
    p = put_varint(p, len);
    uint32_t head_len = (uint32_t)(p - head);
    uint8_t *to = client_reserve(c, head_len + len);
    memcpy(to, head, head_len);
    if (len) memcpy(to + head_len, body, len);
}

static inline void put_ack(struct client *c, enum packet_type type, const uint8_t *packet_id) {
    uint8_t *p = client_reserve(c, 4);
    p[0] = (uint8_t)(type << 4 | (type == PUBREL ? 2 : 0));
    p[1] = 2;
    p[2] = packet_id[0];
    p[3] = packet_id[1];
}

static void topic_of(char *to, size_t room, uint32_t index) {
    if (opt.queue) snprintf(to, room, "$queue/%s/%u", opt.queue, index);
    else if (opt.scenario == FANOUT) snprintf(to, room, "load/fanout");
    else if (opt.groups > 1) snprintf(to, room, "load/fanin/%u/%u", index % (uint32_t)opt.groups, index);
    else snprintf(to, room, "load/%s/%u", scenario_names[opt.scenario], index);
}

static void send_connect(struct client *c) {
    uint8_t body[128], *p = put_text(body, "MQTT");
    char id[64];
    bool stays = opt.session && c->role == SUBSCRIBER;
    *p++ = (uint8_t)opt.version;
    *p++ = stays ? 0 : 2;                // clean session, clean start
    p = put_u16(p, (unsigned)opt.keepalive);
    if (opt.version == PROTOCOL_5) p = put_session_expiry(p, stays ? 3600 : 0);
    if (stays) snprintf(id, sizeof id, "%s%u", opt.session, c->index);
    else snprintf(id, sizeof id, "load-%d-%c%u-%u", getpid(), c->role == SUBSCRIBER ? 's' : 'p', c->index, c->cycle);
    p = put_text(p, id);
    put_packet(c, CONNECT << 4, body, (uint32_t)(p - body));
    c->state = WAIT_CONNACK;
    client_flush(c);
}

// What a SUBSCRIBE asks of a queue, behind its length.
static uint8_t *put_consumer_properties(uint8_t *to) {
    char number[16];
    uint8_t properties[128], *p = properties;
    if (opt.queue) {
        p = put_user_property(p, "consumer-group", QUEUE_GROUP);
        if (opt.start) p = put_user_property(p, "x-stream-offset", opt.start);
        snprintf(number, sizeof number, "%d", opt.prefetch);
        if (opt.prefetch) p = put_user_property(p, "prefetch", number);
    }
    to = put_varint(to, (uint32_t)(p - properties));
    return (uint8_t *)memcpy(to, properties, (size_t)(p - properties)) + (p - properties);
}

static void send_subscribe(struct client *c) {
    char topic[64], filter[96];
    uint8_t body[256], *p = put_u16(body, 1);
    topic_of(topic, sizeof topic, c->index);
    if (opt.queue) snprintf(topic, sizeof topic, "$queue/%s", opt.queue);
    else if (opt.groups > 1) snprintf(topic, sizeof topic, "load/fanin/%u/+", c->index);
    else if (opt.scenario == FANIN) snprintf(topic, sizeof topic, "load/fanin/+");
    snprintf(filter, sizeof filter, "%s%s", opt.scenario == FANIN && opt.subs > 1 && !opt.queue ? "$share/load/" : "", topic);
    if (opt.version == PROTOCOL_5) p = put_consumer_properties(p);
    p = put_text(p, filter);
    *p++ = (uint8_t)opt.qos;
    put_packet(c, SUBSCRIBE << 4 | 2, body, (uint32_t)(p - body));
    c->state = WAIT_SUBACK;
    client_flush(c);
}

static void client_open(struct client *c) {
    int port = c->role == SUBSCRIBER && opt.subscriber_port ? opt.subscriber_port : opt.port;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->state = CONNECTING;
    c->in_len = c->out_off = c->out_len = 0;
    c->since = now_ns();
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (const struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
        fail("connect: %s", strerror(errno));
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->want_out = true;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e)) fail("epoll_ctl: %s", strerror(errno));
    pending_count++;
}

static void client_check_connected(struct client *c) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) fail("connect: %s", strerror(error));
    send_connect(c);
}

static void make_template(struct client *c) {
    char topic[64];
    topic_of(topic, sizeof topic, c->index);
    uint32_t len = 2 + (uint32_t)strlen(topic) + (opt.qos ? 2 : 0) + (opt.version == PROTOCOL_5) + (uint32_t)opt.size;
    uint8_t *p = c->template = malloc(len + 5);
    if (!p) fail("out of memory");
    *p++ = (uint8_t)(PUBLISH << 4 | opt.qos << 1);
    p = put_text(put_varint(p, len), topic);
    c->id_off = (uint32_t)(p - c->template);
    if (opt.qos) p += 2;
    if (opt.version == PROTOCOL_5) *p++ = 0;
    c->stamp_off = (uint32_t)(p - c->template);
    memset(p, 'x', (size_t)opt.size);
    memcpy(p + 8, &c->index, 4);
    c->template_len = (uint32_t)(p + opt.size - c->template);
}
