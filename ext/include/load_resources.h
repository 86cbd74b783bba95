/* CPU time and resident memory of the broker's processes and CPU time of this one. */
#ifndef PENSTOCK_LOAD_RESOURCES_H
#define PENSTOCK_LOAD_RESOURCES_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

struct usage {
    uint64_t at;                /* monotonic ns */
    double broker_cpu, own_cpu; /* seconds, user and system, all threads */
    double thread_cpu;          /* of the thread that asks */
    long rss_kb, peak_kb;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void add_memory(int pid, struct usage *u) {
    char text[256];
    snprintf(text, sizeof text, "/proc/%d/status", pid);
    FILE *f = fopen(text, "r");
    if (!f) return;
    for (long kb; fgets(text, sizeof text, f);) {
        if (sscanf(text, "VmRSS: %ld", &kb) == 1) u->rss_kb += kb;
        if (sscanf(text, "VmHWM: %ld", &kb) == 1) u->peak_kb += kb;
    }
    fclose(f);
}

static struct usage usage_now(const int *pids, int count) {
    struct usage u = {.at = now_ns(), .own_cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID)};
    u.thread_cpu = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < count; i++) {
        clockid_t clock; /* nanosecond accounting, where /proc/PID/stat counts ticks of 10 ms */
        if (!clock_getcpuclockid(pids[i], &clock)) u.broker_cpu += clock_seconds(clock);
        add_memory(pids[i], &u);
    }
    return u;
}

#endif
