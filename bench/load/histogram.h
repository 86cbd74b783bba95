// Latency histogram: 64 linear steps per power of two, so a value is known to 1.6 % in constant memory and time.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { HIST_STEPS = 64, HIST_POWERS = 48, HIST_BINS = HIST_STEPS * HIST_POWERS };

struct histogram {
    uint64_t bins[HIST_BINS], count, max;
};

static inline void histogram_record(struct histogram *h, uint64_t ns) {
    int shift = ns < HIST_STEPS ? -1 : 63 - __builtin_clzll(ns) - 6;
    uint64_t bin = shift < 0 ? ns : (uint64_t)(shift + 1) * HIST_STEPS + (ns >> shift) - HIST_STEPS;
    h->bins[bin < HIST_BINS ? bin : HIST_BINS - 1]++;
    h->count++;
    if (ns > h->max) h->max = ns;
}

static double histogram_quantile_us(const struct histogram *h, double q) {
    uint64_t want = (uint64_t)((double)h->count * q), seen = 0;
    for (uint64_t i = 0; i < HIST_BINS; i++) {
        if ((seen += h->bins[i]) > want) {
            uint64_t ns = i < HIST_STEPS ? i : (i % HIST_STEPS + HIST_STEPS) << (i / HIST_STEPS - 1);
            return (double)ns / 1e3;
        }
    }
    return (double)h->max / 1e3;
}
