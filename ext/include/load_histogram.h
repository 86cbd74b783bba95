/* Latency histogram: 64 linear steps per power of two, so a value is known to 1.6 % in constant memory and time. */
#ifndef PENSTOCK_LOAD_HISTOGRAM_H
#define PENSTOCK_LOAD_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

enum { HIST_STEPS = 64, HIST_POWERS = 48, HIST_BINS = HIST_STEPS * HIST_POWERS };

struct histogram {
    uint64_t bins[HIST_BINS], count, max;
};

static inline void histogram_record(struct histogram *h, uint64_t ns, uint64_t count) {
    int shift = ns < HIST_STEPS ? -1 : 63 - __builtin_clzll(ns) - 6;
    uint64_t bin = shift < 0 ? ns : (uint64_t)(shift + 1) * HIST_STEPS + (ns >> shift) - HIST_STEPS;
    h->bins[bin < HIST_BINS ? bin : HIST_BINS - 1] += count;
    h->count += count;
    if (ns > h->max) h->max = ns;
}

/* The smallest value that is counted in a bin. */
static inline uint64_t histogram_ns(uint64_t bin) {
    return bin < HIST_STEPS ? bin : (bin % HIST_STEPS + HIST_STEPS) << (bin / HIST_STEPS - 1);
}

/* The largest value of the bin: so many took at most this long. Its smallest would be faster than what was measured. */
static double histogram_quantile_us(const struct histogram *h, double q) {
    uint64_t want = (uint64_t)((double)h->count * q), seen = 0, ns = h->max;
    for (uint64_t i = 0; i + 1 < HIST_BINS; i++)
        if ((seen += h->bins[i]) > want) {
            if (histogram_ns(i + 1) - 1 < ns) ns = histogram_ns(i + 1) - 1;
            break;
        }
    return (double)ns / 1e3;
}

/* What has been recorded since the last call: `last` is made equal to h. The maximum is not known of a part. */
static void histogram_since(const struct histogram *h, struct histogram *last, struct histogram *part) {
    for (size_t i = 0; i < HIST_BINS; i++) part->bins[i] = h->bins[i] - last->bins[i];
    part->count = h->count - last->count;
    part->max = h->max;
    *last = *h;
}

static void histogram_add(struct histogram *sum, const struct histogram *part) {
    for (size_t i = 0; i < HIST_BINS; i++) sum->bins[i] += part->bins[i];
    sum->count += part->count;
    if (part->max > sum->max) sum->max = part->max;
}

#endif
