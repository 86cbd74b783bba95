// MQTT load generator for a broker on 127.0.0.1: one thread, epoll, packets built once and written in batches.
// Every message carries a monotonic timestamp, its publisher and a sequence number, so one process sees loss,
// duplicates, reordering and latency. Result: one JSON object on stdout. Options: see usage() in options.h.
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <sys/resource.h>

#include "client.h"
#include "histogram.h"
#include "settle.h"

enum { CHUNK = 64 << 10, READ_MAX = 1 << 20, PENDING_MAX = 64, EVENTS = 512, STORM_FAILURES_MAX = 1000 };
static const uint64_t SEC = 1000000000ull;
enum { CONNECT_LIMIT_S = 120 };

static uint8_t *read_buffer;
static struct histogram latency;
static bool measuring;
static uint64_t fan_min, last_progress, lag_max;
static struct {
    uint64_t published, received, measured, late, twice, downgraded, refused, corrupt, stalls, connects, unclosed;
} total;

static struct usage sample(void) { return usage_now(opt.pids, opt.pid_count); }

// How many messages a publisher may still send under one limit.
static uint64_t remaining(uint64_t limit, uint64_t sent, uint64_t done) {
    uint64_t open = sent > done ? sent - done : 0;
    return open < limit ? limit - open : 0;
}

static uint64_t delivered_of(const struct client *c) {
    uint64_t seen = opt.scenario == FANOUT ? fan_min : c->stream->next;
    return seen > c->released ? seen : c->released;
}

static uint64_t room(const struct client *c) {
    uint64_t r = opt.count ? opt.count - c->sent : UINT64_MAX, k;
    if (opt.qos && (k = remaining(opt.window, c->sent, c->acked)) < r) r = k;
    if (opt.e2e && (k = remaining(opt.e2e, c->sent, delivered_of(c))) < r) r = k;
    return r;
}

static void put_messages(struct client *c, uint64_t k, uint64_t now) {
    uint8_t *p = client_reserve(c, (uint32_t)k * c->template_len);
    total.published += k;
    for (; k--; p += c->template_len) {
        memcpy(p, c->template, c->template_len);
        if (opt.qos) {
            if (++c->packet_id == 0) c->packet_id = 1;
            put_u16(p + c->id_off, c->packet_id);
        }
        uint32_t seq = (uint32_t)c->sent++;
        memcpy(p + c->stamp_off, &now, 8);
        memcpy(p + c->stamp_off + 12, &seq, 4);
    }
}

// Sends in batches of at least a quarter of the window, as a busy client does, rather than one by one as it opens.
static void pump(struct client *c) {
    uint64_t cap = opt.qos ? opt.window : UINT64_MAX;
    if (opt.e2e && opt.e2e < cap) cap = opt.e2e;
    uint64_t batch = cap == UINT64_MAX || cap < 4 ? 1 : cap / 4;
    uint64_t most = CHUNK / c->template_len ? CHUNK / c->template_len : 1;
    while (c->state == READY && c->out_len == 0) {
        uint64_t r = room(c);
        bool is_tail = opt.count && r == opt.count - c->sent;
        if (r == 0 || (r < batch && !is_tail)) return;
        put_messages(c, r < most ? r : most, now_ns());
        client_flush(c);
        if (cap == UINT64_MAX) return;   // unlimited: give the reading side its turn
    }
}

// Fixed total rate, round robin over the publishers. Returns the ns until the next message is due.
static uint64_t pace(uint64_t start) {
    static uint32_t turn;
    static uint64_t planned;
    uint64_t now = now_ns(), due = (uint64_t)((double)(now - start) * (opt.rate / 1e9));
    for (int skipped = 0; planned < due && skipped < publisher_count;) {
        struct client *c = &publishers[turn++ % (uint32_t)publisher_count];
        if (c->state != READY || room(c) == 0) {
            skipped++;
            continue;
        }
        uint64_t lag = now - start - (uint64_t)((double)planned * 1e9 / opt.rate);
        if (measuring && lag > lag_max) lag_max = lag;
        put_messages(c, 1, now_ns());
        if (!c->want_out) client_flush(c);
        planned++;
        skipped = 0;
    }
    if (planned < due) return SEC / 1000;         // all windows are full: wait for the broker
    uint64_t next = start + (uint64_t)((double)(planned + 1) * 1e9 / opt.rate);
    now = now_ns();
    return next > now ? next - now : 0;
}

static void count_arrival(struct client *subscriber, const uint8_t *payload, uint64_t now) {
    uint64_t stamp;
    uint32_t publisher, seq;
    memcpy(&stamp, payload, 8);
    memcpy(&publisher, payload + 8, 4);
    memcpy(&seq, payload + 12, 4);
    if (publisher >= (uint32_t)publisher_count || (opt.size > STAMP_SIZE && payload[opt.size - 1] != 'x')) {
        total.corrupt++;
        return;
    }
    struct stream *stream = opt.scenario == FANOUT ? subscriber->stream : publishers[publisher].stream;
    enum arrival how = stream_arrive(stream, seq);
    total.received++;
    last_progress = now;
    if (how == ARRIVED_TWICE) total.twice++;
    else if (how == ARRIVED_LATE && opt.subs == 1) total.late++;   // members of a shared subscription are not ordered
    if (measuring) {
        total.measured++;
        subscriber->received++;
        histogram_record(&latency, now > stamp ? now - stamp : 0);
    }
}

static void count_ack(struct client *c, uint64_t now) {
    c->acked++;
    if (c->role == SUBSCRIBER) {
        settlements_open--;
        settle_waiting(c);
        return;
    }
    if (opt.scenario != PUBLISH_ONLY && opt.part != PUBLISH_PART) return;
    total.received++;
    total.measured += measuring;
    last_progress = now;
}

static void on_publish(struct client *c, int flags, const uint8_t *p, const uint8_t *end, uint64_t now) {
    int qos = flags >> 1 & 3;
    p += 2 + get_u16(p);
    if (qos) {
        put_ack(c, qos == 1 ? PUBACK : PUBREC, p);
        p += 2;
    }
    if (opt.version == PROTOCOL_5) {
        uint32_t properties = 0;
        const uint8_t *after = get_varint(p, end, &properties);
        p = after ? after + properties : end;
        if (opt.settle >= 0 && !settle_delivery(c, after, p)) total.corrupt++;
    }
    total.downgraded += qos < opt.qos;
    if (end - p == opt.size) count_arrival(c, p, now);
    else total.corrupt++;
}

static void become_ready(struct client *c, uint64_t now) {
    c->state = READY;
    pending_count--;
    ready_count++;
    total.connects++;
    if (opt.scenario != STORM) return;
    if (measuring) {
        total.measured++;
        histogram_record(&latency, now - c->since);
    }
    if (opt.abrupt) {
        struct linger reset = {.l_onoff = 1};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(c->fd);
        c->state = DEAD;
        return;
    }
    // The broker closes first, so no port of ours is left in TIME_WAIT and the whole cycle is in the measurement.
    put_packet(c, DISCONNECT << 4, NULL, 0);
    c->since = now;
    c->state = CLOSING;
}

static void on_connack(struct client *c, const uint8_t *body, const uint8_t *end, uint64_t now) {
    if (body[1]) fail("CONNACK code %d", body[1]);
    if (opt.version == PROTOCOL_5) {
        unsigned maximum = connack_receive_maximum(body + 2, end);
        if (maximum < opt.window) opt.window = maximum;
    }
    bool subscribes = opt.scenario == IDLE || opt.scenario == STORM ? opt.subscribe : c->role == SUBSCRIBER;
    if (opt.part == RECEIVE_PART && !opt.queue) {
        if (!(body[0] & 1)) fail("the session of %s%u is gone", opt.session, c->index);
        subscribes = false;
    }
    if (subscribes) send_subscribe(c);
    else become_ready(c, now);
}

static void on_packet(struct client *c, int first, const uint8_t *body, const uint8_t *end, uint64_t now) {
    bool has_error_code = end - body > 2 && body[2] >= FIRST_ERROR_CODE;
    switch (first >> 4) {
    case PUBLISH: on_publish(c, first, body, end, now); break;
    case PUBACK: case PUBCOMP:
        count_ack(c, now);
        total.refused += has_error_code;
        break;
    case PUBREC:
        if (has_error_code) c->acked++, total.refused++;
        else put_ack(c, PUBREL, body);
        break;
    case PUBREL: put_ack(c, PUBCOMP, body); break;
    case CONNACK: on_connack(c, body, end, now); break;
    case SUBACK:
        if (end[-1] >= FIRST_ERROR_CODE) fail("SUBACK code %d", end[-1]);
        if (end[-1] < opt.qos) fail("granted QoS %d instead of %d", end[-1], opt.qos);
        become_ready(c, now);
        break;
    case DISCONNECT: client_lose(c); break;
    }
}

static void keep_incomplete(struct client *c, const uint8_t *from, uint32_t len) {
    c->in_len = len;
    if (len == READ_MAX) fail("packet larger than %d bytes", READ_MAX);
    if (!len) return;
    c->in = realloc(c->in, len);
    if (!c->in) fail("out of memory");
    memcpy(c->in, from, len);
}

static void on_readable(struct client *c) {
    if (c->in_len) memcpy(read_buffer, c->in, c->in_len);
    ssize_t k = recv(c->fd, read_buffer + c->in_len, READ_MAX - c->in_len, 0);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (k <= 0) {
        if (c->state == CLOSING) c->state = DEAD, close(c->fd);
        else client_lose(c);
        return;
    }
    uint64_t now = now_ns();
    const uint8_t *p = read_buffer, *end = read_buffer + c->in_len + k;
    while (c->state != DEAD && end - p >= 2) {
        uint32_t len;
        const uint8_t *body = get_varint(p + 1, end, &len);
        if (!body || end - body < (long)len) break;
        on_packet(c, p[0], body, body + len, now);
        p = body + len;
    }
    if (c->state == DEAD) return;
    keep_incomplete(c, p, (uint32_t)(end - p));
    if (c->out_len && !c->want_out) client_flush(c);
}

static void find_slowest_subscriber(void) {
    fan_min = UINT64_MAX;
    for (int i = 0; i < subscriber_count; i++)
        if (clients[i].state == READY && clients[i].stream->next < fan_min) fan_min = clients[i].stream->next;
}

static void wait_events(uint64_t ns) {
    struct epoll_event events[EVENTS];
    struct timespec t = {(time_t)(ns / SEC), (long)(ns % SEC)};
    int k = epoll_pwait2(epoll_fd, events, EVENTS, &t, NULL);
    for (int i = 0; i < k; i++) {
        struct client *c = events[i].data.ptr;
        if (c->state == DEAD) continue;
        if (events[i].events & EPOLLOUT) {
            if (c->state == CONNECTING) client_check_connected(c);
            else client_flush(c);
        }
        bool readable = events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP);
        if (readable && c->state != DEAD && c->state != CONNECTING) on_readable(c);
    }
    if (opt.scenario == FANOUT) find_slowest_subscriber();
}

static void connect_all(void) {
    uint64_t deadline = now_ns() + (uint64_t)CONNECT_LIMIT_S * SEC;
    int wanted = opt.part == RECEIVE_PART ? subscriber_count : client_count;
    for (int opened = 0; ready_count < wanted;) {
        while (opened < wanted && pending_count < PENDING_MAX) client_open(&clients[opened++]);
        wait_events(SEC / 10);
        if (now_ns() > deadline) fail("%d of %d connections ready in time", ready_count, wanted);
    }
}

static uint64_t expected(void) {
    if (opt.part == RECEIVE_PART) return opt.count * (uint64_t)publisher_count;
    return total.published * (opt.scenario == FANOUT ? (uint64_t)subscriber_count : 1);
}

static uint64_t arrived_once(void) { return total.received - total.twice; }

// Lost messages must not hold the end-to-end window for ever.
static void release_stalled(uint64_t now) {
    for (int i = 0; i < publisher_count; i++) publishers[i].released = publishers[i].sent;
    total.stalls++;
    last_progress = now;
}

static uint64_t drive_publishers(uint64_t start) {
    uint64_t pause = SEC / 100;
    if (opt.rate > 0) {
        uint64_t next = pace(start);
        return next < pause ? next : pause;
    }
    for (int i = 0; i < publisher_count; i++) pump(&publishers[i]);
    if (opt.e2e || opt.qos) return pause;
    for (int i = 0; i < publisher_count; i++)      // unlimited: do not sleep while some publisher can still write
        if (publishers[i].state == READY && publishers[i].out_len == 0) return 0;
    return pause;
}

static void run_traffic(struct usage *a, struct usage *b) {
    uint64_t start = now_ns(), from = start + (opt.count ? 0 : (uint64_t)(opt.warmup * 1e9));
    uint64_t until = opt.count ? UINT64_MAX : from + (uint64_t)(opt.secs * 1e9), all = opt.count * (uint64_t)publisher_count;
    bool done = opt.part == SUBSCRIBE_PART || opt.part == RECEIVE_PART;    // there is nothing to publish
    last_progress = start;
    while (disconnects < (uint64_t)client_count) {
        uint64_t now = now_ns();
        if (!measuring && !done && now >= from) {
            *a = sample();
            measuring = true;
        }
        if (!done && (now >= until || (opt.count && total.published >= all))) {
            done = true;
            last_progress = now;
            if (!opt.count) {
                *b = sample();
                measuring = false;
            }
        }
        bool is_complete = arrived_once() >= expected() && !settlements_open;
        if (done && (is_complete || now > last_progress + (uint64_t)(opt.drain * 1e9))) break;
        if (opt.count && now > last_progress + 10 * SEC) break;     // the broker stands still
        uint64_t pause = done ? SEC / 100 : drive_publishers(start);
        if (!done && opt.e2e && now > last_progress + SEC) release_stalled(now);
        wait_events(pause);
    }
    if (opt.count || !done) *b = sample();
    if (opt.count && last_progress > a->at) b->at = last_progress;
}

static void run_idle(struct usage *a, struct usage *b) {
    *a = sample();
    uint64_t until = a->at + (uint64_t)(opt.secs * 1e9), every = (uint64_t)opt.keepalive * SEC / 2, pings = 0;
    for (uint64_t now; (now = now_ns()) < until;) {                 // spread evenly over half the keep-alive
        uint64_t due = every ? (now - a->at) * (uint64_t)client_count / every : 0;
        for (; pings < due; pings++) {
            struct client *c = &clients[pings % (uint64_t)client_count];
            if (c->state != READY) continue;
            put_packet(c, PINGREQ << 4, NULL, 0);
            client_flush(c);
        }
        wait_events(SEC / 100);
    }
    *b = sample();
}

static void reopen_closed(uint64_t now) {
    for (int i = 0; i < client_count; i++) {
        struct client *c = &clients[i];
        if (c->state == CLOSING && now > c->since + SEC) {          // the broker ought to have closed
            total.unclosed++;
            close(c->fd);
            c->state = DEAD;
        }
        if (c->state != DEAD) continue;
        c->cycle++;
        client_open(c);
    }
    if (disconnects > STORM_FAILURES_MAX) fail("more than %d connections failed", STORM_FAILURES_MAX);
}

// Connect, CONNACK, DISCONNECT, close, again: n connections are under way at any time.
static void run_storm(struct usage *a, struct usage *b) {
    uint64_t start = now_ns(), from = start + (opt.count ? 0 : (uint64_t)(opt.warmup * 1e9));
    uint64_t until = opt.count ? start + (uint64_t)(SECS_MAX * 1e9) : from + (uint64_t)(opt.secs * 1e9);
    for (int i = 0; i < client_count; i++) client_open(&clients[i]);
    for (uint64_t now; (now = now_ns()) < until && !(opt.count && total.connects >= opt.count);) {
        if (!measuring && now >= from) {
            *a = sample();
            measuring = true;
        }
        wait_events(SEC / 100);
        reopen_closed(now_ns());
    }
    *b = sample();
    measuring = false;
}

static void report_traffic(double secs, double cpu) {
    uint64_t lost = expected() > arrived_once() ? expected() - arrived_once() : 0;
    double got = (double)total.measured;
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = 0; i < subscriber_count; i++) {
        if (clients[i].received < least) least = clients[i].received;
        if (clients[i].received > most) most = clients[i].received;
    }
    if (subscriber_count) printf(" \"slowest_rate\": %.0f, \"fastest_rate\": %.0f,", (double)least / secs, (double)most / secs);
    printf(" \"published\": %lu, \"expected\": %lu, \"received\": %lu, \"lost\": %lu, \"duplicates\": %lu, \"disordered\": %lu,"
           " \"downgraded\": %lu, \"refused\": %lu, \"corrupt\": %lu, \"stalls\": %lu, \"rate\": %.0f, \"msgs_per_cpu_s\": %.0f,"
           " \"send_lag_max_us\": %.1f,", total.published, expected(), total.received, lost, total.twice, total.late,
           total.downgraded, total.refused, total.corrupt, total.stalls, got / secs, cpu > 0 ? got / cpu : 0, (double)lag_max / 1e3);
}

static void report_storm(double secs, double cpu) {
    double got = (double)total.measured;
    printf(" \"connects\": %lu, \"unclosed\": %lu, \"connects_per_s\": %.0f, \"connects_per_cpu_s\": %.0f, \"cpu_us_per_connect\": %.2f,",
           total.connects, total.unclosed, got / secs, cpu > 0 ? got / cpu : 0, got > 0 ? cpu / got * 1e6 : 0);
}

static void report_opening(const struct usage *before, const struct usage *open, const struct usage *b) {
    double secs = (double)(open->at - before->at) / 1e9, cpu = open->broker_cpu - before->broker_cpu;
    printf(" \"connect_s\": %.3f, \"connects_per_s\": %.0f, \"connects_per_cpu_s\": %.0f,",
           secs, client_count / secs, cpu > 0 ? client_count / cpu : 0);
    if (opt.scenario == IDLE) printf(" \"bytes_per_conn\": %.0f,", (double)(b->rss_kb - before->rss_kb) * 1024 / client_count);
}

static void report(const struct usage *before, const struct usage *open, const struct usage *a, const struct usage *b) {
    double secs = (double)(b->at - a->at) / 1e9, cpu = b->broker_cpu - a->broker_cpu, own = b->own_cpu - a->own_cpu;
    printf("{\"scenario\": \"%s\", \"n\": %d, \"subs\": %d, \"qos\": %d, \"size\": %d, \"window\": %lu, \"e2e\": %lu, \"version\": %d,"
           " \"target_rate\": %.0f, \"secs\": %.3f,", scenario_names[opt.scenario], opt.n, opt.subs, opt.qos, opt.size, opt.window, opt.e2e,
           opt.version, opt.rate, secs);
    if (opt.scenario == STORM) report_storm(secs, cpu);
    else report_opening(before, open, b);
    if (publisher_count) report_traffic(secs, cpu);
    if (opt.scenario != IDLE)
        printf(" \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f,",
               histogram_quantile_us(&latency, .5), histogram_quantile_us(&latency, .9), histogram_quantile_us(&latency, .99),
               histogram_quantile_us(&latency, .999), (double)latency.max / 1e3);
    printf(" \"disconnects\": %lu, \"broker_cpu_s\": %.3f, \"broker_cores\": %.3f, \"rss_kb_before\": %ld, \"rss_kb\": %ld,"
           " \"rss_kb_peak\": %ld, \"load_cpu_s\": %.3f, \"load_cores\": %.3f}\n", disconnects, cpu, cpu / secs,
           before->rss_kb, b->rss_kb, b->peak_kb, own, own / secs);
    fflush(stdout);
}

static void allow_open_files(rlim_t needed) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur >= needed) return;
    files.rlim_cur = needed;
    if (files.rlim_max < needed) files.rlim_max = needed;
    if (setrlimit(RLIMIT_NOFILE, &files)) fail("cannot open %lu files", (unsigned long)needed);
}

static void make_clients(void) {
    subscriber_count = opt.scenario == FANIN ? opt.subs * opt.groups : opt.scenario == PUBLISH_ONLY ? 0 : opt.n;
    if (opt.part == PUBLISH_PART) subscriber_count = 0;
    publisher_count = opt.part == SUBSCRIBE_PART || opt.scenario == IDLE || opt.scenario == STORM ? 0 : opt.scenario == FANOUT ? 1 : opt.n;
    client_count = subscriber_count + publisher_count;
    clients = calloc((size_t)client_count, sizeof *clients);
    read_buffer = malloc(READ_MAX);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!clients || !read_buffer || epoll_fd < 0) fail("out of memory or files");
    publishers = clients + subscriber_count;
    for (int i = 0; i < client_count; i++) {
        struct client *c = &clients[i];
        c->role = i < subscriber_count ? SUBSCRIBER : PUBLISHER;
        c->index = (uint32_t)(i < subscriber_count ? i : i - subscriber_count);
        if (c->role == PUBLISHER) make_template(c);
        if (publisher_count && !(c->stream = calloc(1, sizeof *c->stream))) fail("out of memory");
    }
}

static void disconnect_all(void) {
    for (int i = 0; i < client_count; i++) {
        if (clients[i].state != READY) continue;
        put_packet(&clients[i], DISCONNECT << 4, NULL, 0);
        client_flush(&clients[i]);
    }
    usleep(20000);                       // a close with unread input would reset the connection before DISCONNECT is read
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prctl(PR_SET_TIMERSLACK, 1);
    alarm((unsigned)(CONNECT_LIMIT_S + 4 * SECS_MAX));              // whatever happens, it ends
    make_clients();
    allow_open_files((rlim_t)client_count + 64);
    struct usage before = sample(), open = before, a = before, b = before;
    if (opt.scenario == STORM) {
        run_storm(&a, &b);
    } else {
        if (opt.part == RECEIVE_PART) measuring = true;            // the first message may come right behind the CONNACK
        connect_all();
        open = sample();
        if (opt.scenario == IDLE) run_idle(&a, &b);
        else run_traffic(&a, &b);
    }
    report(&before, &open, &a, &b);
    disconnect_all();
    return 0;
}
