/* Whether bytes are UTF-8 as Unicode defines it (no surrogates, nothing over U+10FFFF, no long forms). */
#ifndef PENSTOCK_UTF8_H
#define PENSTOCK_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `zero_allowed` is a constant of every caller, so that each of them has a loop of its own. */
static inline int utf8_is_valid(const uint8_t *p, size_t n, int zero_allowed) {
    const uint8_t *end = p + n;
    while (p < end) {
        /* likeliest: eight ASCII bytes, none of them zero */
        while (end - p >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            if (w & 0x8080808080808080ull) break;
            if (!zero_allowed && ((w - 0x0101010101010101ull) & ~w & 0x8080808080808080ull)) break;
            p += 8;
        }
        if (p >= end) return 1;
        uint8_t c = *p;
        if (c < 0x80) {
            if (c == 0 && !zero_allowed) return 0;
            p++;
        } else if (c < 0xC2) {
            return 0;
        } else if (c < 0xE0) {
            if (end - p < 2 || (p[1] & 0xC0) != 0x80) return 0;
            p += 2;
        } else if (c < 0xF0) {
            if (end - p < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
            if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F)) return 0;
            p += 3;
        } else if (c < 0xF5) {
            if (end - p < 4 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
            if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return 0;
            p += 4;
        } else {
            return 0;
        }
    }
    return 1;
}

static inline int is_utf8(const uint8_t *p, size_t n) { return utf8_is_valid(p, n, 1); }

#endif
