// What arrived of one ordered stream of messages: in order, late or twice. A sliding bitmap remembers the last
// SEEN_BITS sequence numbers; what is older than that and arrives again is counted as late, not as duplicate.
#pragma once
#include <stdint.h>
#include <string.h>

enum { SEEN_BITS = 4096 };
enum arrival { ARRIVED_IN_ORDER, ARRIVED_LATE, ARRIVED_TWICE };

struct stream {
    uint64_t next;                       // highest sequence number seen, plus one
    uint64_t seen[SEEN_BITS / 64];
};

static inline uint64_t *stream_word(struct stream *s, uint64_t seq) { return &s->seen[seq % SEEN_BITS / 64]; }

static inline enum arrival stream_arrive(struct stream *s, uint64_t seq) {
    uint64_t bit = 1ull << (seq % 64);
    if (seq >= s->next) {
        // the likeliest case is seq == next: the loop does not run and the bit of seq - SEEN_BITS is taken over
        if (seq - s->next >= SEEN_BITS) memset(s->seen, 0, sizeof s->seen);
        else for (uint64_t gap = s->next; gap < seq; gap++) *stream_word(s, gap) &= ~(1ull << (gap % 64));
        *stream_word(s, seq) |= bit;
        s->next = seq + 1;
        return ARRIVED_IN_ORDER;
    }
    if (s->next - seq > SEEN_BITS) return ARRIVED_LATE;
    if (*stream_word(s, seq) & bit) return ARRIVED_TWICE;
    *stream_word(s, seq) |= bit;
    return ARRIVED_LATE;
}
