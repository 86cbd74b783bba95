/* What arrived of one ordered stream of messages: in order, late or twice. A sliding bitmap remembers the last `bits`
 * sequence numbers (a power of two); what is older than that and arrives again is counted as late, not as duplicate. */
#ifndef PENSTOCK_LOAD_SEQUENCE_H
#define PENSTOCK_LOAD_SEQUENCE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum arrival { ARRIVED_IN_ORDER, ARRIVED_LATE, ARRIVED_TWICE };

struct stream {
    uint64_t next; /* highest sequence number seen, plus one */
    uint64_t bits;
    uint64_t seen[];
};

static inline struct stream *stream_new(uint64_t bits) {
    struct stream *s = calloc(1, sizeof *s + bits / 8);
    if (s) s->bits = bits;
    return s;
}

static inline uint64_t *stream_word(struct stream *s, uint64_t seq) { return &s->seen[(seq & (s->bits - 1)) / 64]; }

static inline enum arrival stream_arrive(struct stream *s, uint64_t seq) {
    uint64_t bit = 1ull << (seq % 64);
    if (seq >= s->next) {
        /* the likeliest case is seq == next: the loop does not run and the bit of seq - bits is taken over */
        if (seq - s->next >= s->bits) memset(s->seen, 0, s->bits / 8);
        else for (uint64_t gap = s->next; gap < seq; gap++) *stream_word(s, gap) &= ~(1ull << (gap % 64));
        *stream_word(s, seq) |= bit;
        s->next = seq + 1;
        return ARRIVED_IN_ORDER;
    }
    if (s->next - seq > s->bits) return ARRIVED_LATE;
    if (*stream_word(s, seq) & bit) return ARRIVED_TWICE;
    *stream_word(s, seq) |= bit;
    return ARRIVED_LATE;
}

/* As many messages as that, the next ones in order. */
static inline void stream_arrive_in_order(struct stream *s, uint64_t count) {
    while (count) {
        uint64_t first = s->next % 64, n = count < 64 - first ? count : 64 - first;
        *stream_word(s, s->next) |= ~0ull >> (64 - n) << first;
        s->next += n;
        count -= n;
    }
}

#endif
