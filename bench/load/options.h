// Command line of the load generator, and its bounds.
#pragma once
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum scenario { P2P, FANOUT, FANIN, PUBLISH_ONLY, IDLE, STORM, SCENARIOS };
enum part { WHOLE, SUBSCRIBE_PART, PUBLISH_PART, RECEIVE_PART, PARTS };
enum { STAMP_SIZE = 16, PAYLOAD_MAX = 65536, MAX_PIDS = 64, CLIENTS_MAX = 200000, QUEUE_NAME_MAX = 30 };
static const double SECS_MAX = 60;
static const char *const scenario_names[SCENARIOS] = {"p2p", "fanout", "fanin", "publish", "idle", "storm"};
static const char *const part_names[PARTS] = {"all", "subscribe", "publish", "receive"};

static struct options {
    int scenario, part, port, subscriber_port, n, subs, groups, qos, size, version, keepalive, settle, prefetch;
    uint64_t window, e2e, count;
    double secs, warmup, drain, rate;
    bool subscribe, abrupt;
    const char *session, *queue, *start;
    int pids[MAX_PIDS], pid_count;
} opt = {.scenario = -1, .n = 10, .subs = 1, .groups = 1, .size = 64, .version = 4, .keepalive = 60,
         .settle = -1, .window = 100, .secs = 5, .warmup = 1, .drain = 3};

static void usage(void) {
    fprintf(stderr,
        "usage: load --scenario p2p|fanout|fanin|publish|idle|storm --port P [options]    (broker on 127.0.0.1)\n"
        "  --n N           pairs (p2p), subscribers (fanout), publishers (fanin, publish), connections (idle),\n"
        "                  connections being opened at a time (storm) (10)\n"
        "                  publish: QoS 1 or 2 without subscribers; what is acknowledged counts as received\n"
        "  --subs M        fanin: M > 1 subscribers share one subscription ($share) (1)\n"
        "  --groups G      fanin: G subscribers, each to the publishers of its own group (1)\n"
        "  --session NAME  fanin: the subscribers are NAME0, NAME1, ... and their sessions stay when they leave\n"
        "  --part PART     fanin with --session and --count, one after the other: subscribe (and leave), publish,\n"
        "                  receive (what was published meanwhile); all at once (all)\n"
        "  --queue NAME    fanin, publish: through the durable queue of that name; subscribers are one group of its consumers;\n"
        "                  the parts publish and receive need no --session\n"
        "  --settle Q      MQTT 5: each delivery is settled by a PUBLISH with QoS Q (0 or 1) to $queue/NAME/$ack\n"
        "  --prefetch N    at most so many unsettled deliveries per consumer, as the user property says\n"
        "  --start WHERE   the x-stream-offset with which consumers of a stream subscribe: first, last, ...\n"
        "  --subscriber-port P  subscribers connect there, to a proxy before the broker\n"
        "  --qos Q         publish and subscribe QoS (0)      --size B     payload bytes, 16..65536 (64)\n"
        "  --window W      unacknowledged QoS 1/2 messages per publisher (100)\n"
        "  --e2e W         undelivered messages per publisher, 0 = no such limit (0)\n"
        "  --count C       messages per publisher, or connects in all (storm), instead of a duration\n"
        "  --secs S        measured seconds, at most 60 (5)   --warmup S   before them (1)\n"
        "  --rate R        total messages/s published, 0 = as fast as possible (0)\n"
        "  --drain S       give up on missing messages after S quiet seconds (3)\n"
        "  --version 4|5   MQTT 3.1.1 or 5 (4)                --keepalive S (60)\n"
        "  --subscribe     idle, storm: each connection subscribes to one topic of its own\n"
        "  --abrupt        storm: reset the connection instead of DISCONNECT and waiting for the broker's close\n"
        "  --pids a,b,...  broker processes to account (CPU of all threads, resident memory)\n");
    exit(2);
}

static int scenario_by_name(const char *name) {
    for (int i = 0; i < SCENARIOS; i++)
        if (!strcmp(name, scenario_names[i])) return i;
    usage();
    return -1;
}

static int part_by_name(const char *name) {
    for (int i = 0; i < PARTS; i++)
        if (!strcmp(name, part_names[i])) return i;
    usage();
    return -1;
}

static void parse_pids(char *list) {
    for (char *t = strtok(list, ","); t && opt.pid_count < MAX_PIDS; t = strtok(NULL, ","))
        opt.pids[opt.pid_count++] = atoi(t);
}

static bool queue_options_valid(void) {
    if ((opt.scenario != FANIN && opt.scenario != PUBLISH_ONLY) || opt.session || opt.groups > 1) return false;
    if (strlen(opt.queue) > QUEUE_NAME_MAX || (opt.start && strlen(opt.start) > QUEUE_NAME_MAX)) return false;
    if (opt.version == 4) return opt.settle < 0 && !opt.prefetch && !opt.start;
    return opt.settle >= -1 && opt.settle <= 1 && opt.prefetch >= 0 && opt.prefetch < 65536;
}

static bool session_options_valid(void) {
    if (opt.groups < 1 || opt.groups > opt.n || opt.subscriber_port < 0 || opt.subscriber_port >= 65536) return false;
    if (opt.groups > 1 && (opt.scenario != FANIN || opt.subs > 1)) return false;
    if (opt.session && (opt.scenario != FANIN || !opt.qos || strlen(opt.session) > 40)) return false;
    if (opt.queue) return opt.part != SUBSCRIBE_PART && (opt.part == WHOLE || (opt.count && !opt.e2e)) && queue_options_valid();
    if (opt.settle >= 0 || opt.prefetch || opt.start) return false;
    return opt.part == WHOLE || (opt.session && opt.count && !opt.e2e && opt.subs == 1);
}

static bool options_valid(void) {
    return session_options_valid() && opt.scenario >= 0 && opt.port > 0 && opt.port < 65536 && opt.n >= 1 && opt.n <= CLIENTS_MAX / 2
        && opt.subs >= 1 && opt.subs <= CLIENTS_MAX / 2 && (opt.subs == 1 || opt.scenario == FANIN)
        && opt.qos >= 0 && opt.qos <= 2 && (opt.qos || opt.scenario != PUBLISH_ONLY) && opt.size >= STAMP_SIZE && opt.size <= PAYLOAD_MAX
        && opt.secs > 0 && opt.secs <= SECS_MAX && opt.warmup >= 0 && opt.warmup <= SECS_MAX
        && opt.drain >= 0 && opt.drain <= SECS_MAX && opt.rate >= 0 && opt.count <= UINT32_MAX
        && opt.window >= 1 && opt.window <= 32768 && opt.keepalive >= 0 && opt.keepalive < 65536
        && (opt.version == 4 || opt.version == 5) && (!opt.abrupt || opt.scenario == STORM);
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"scenario", 1, 0, 's'}, {"port", 1, 0, 'p'}, {"n", 1, 0, 'n'}, {"subs", 1, 0, 'm'}, {"qos", 1, 0, 'q'},
        {"size", 1, 0, 'b'}, {"window", 1, 0, 'w'}, {"e2e", 1, 0, 'e'}, {"count", 1, 0, 'c'}, {"secs", 1, 0, 't'},
        {"warmup", 1, 0, 'u'}, {"rate", 1, 0, 'r'}, {"drain", 1, 0, 'd'}, {"version", 1, 0, 'v'},
        {"keepalive", 1, 0, 'k'}, {"subscribe", 0, 0, 'S'}, {"abrupt", 0, 0, 'A'}, {"pids", 1, 0, 'P'},
        {"groups", 1, 0, 'g'}, {"session", 1, 0, 'i'}, {"part", 1, 0, 'a'}, {"subscriber-port", 1, 0, 'o'},
        {"queue", 1, 0, 'Q'}, {"settle", 1, 0, 'E'}, {"prefetch", 1, 0, 'f'}, {"start", 1, 0, 'F'}, {0}};
    for (int k; (k = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (k) {
        case 's': opt.scenario = scenario_by_name(optarg); break;
        case 'p': opt.port = atoi(optarg); break;
        case 'n': opt.n = atoi(optarg); break;
        case 'm': opt.subs = atoi(optarg); break;
        case 'q': opt.qos = atoi(optarg); break;
        case 'b': opt.size = atoi(optarg); break;
        case 'w': opt.window = strtoull(optarg, NULL, 10); break;
        case 'e': opt.e2e = strtoull(optarg, NULL, 10); break;
        case 'c': opt.count = strtoull(optarg, NULL, 10); break;
        case 't': opt.secs = atof(optarg); break;
        case 'u': opt.warmup = atof(optarg); break;
        case 'r': opt.rate = atof(optarg); break;
        case 'd': opt.drain = atof(optarg); break;
        case 'v': opt.version = atoi(optarg); break;
        case 'k': opt.keepalive = atoi(optarg); break;
        case 'S': opt.subscribe = true; break;
        case 'A': opt.abrupt = true; break;
        case 'g': opt.groups = atoi(optarg); break;
        case 'i': opt.session = optarg; break;
        case 'a': opt.part = part_by_name(optarg); break;
        case 'o': opt.subscriber_port = atoi(optarg); break;
        case 'Q': opt.queue = optarg; break;
        case 'E': opt.settle = atoi(optarg); break;
        case 'f': opt.prefetch = atoi(optarg); break;
        case 'F': opt.start = optarg; break;
        case 'P': parse_pids(optarg); break;
        default: usage();
        }
    }
    if (optind != argc || !options_valid()) usage();
}
