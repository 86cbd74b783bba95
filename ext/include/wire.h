/* Byte order, UTF-8 and hashing: the bit work under the codec, in one place. */
#ifndef PENSTOCK_WIRE_H
#define PENSTOCK_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "utf8.h"

static inline uint16_t get_be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static inline uint32_t get_be32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void put_be16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8), p[1] = (uint8_t)v; }

static inline void put_be32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8), p[3] = (uint8_t)v;
}

/* Bytes a variable byte integer takes; v is below 268,435,456. */
static inline uint32_t varint_size(uint32_t v) { return v < 128 ? 1 : v < 16384 ? 2 : v < 2097152 ? 3 : 4; }

static inline uint8_t *put_varint(uint8_t *p, uint32_t v) {
    while (v > 127) *p++ = (uint8_t)(v | 128), v >>= 7;
    *p++ = (uint8_t)v;
    return p;
}

/* Reads a variable byte integer: its length in bytes, 0 if the bytes end before it does, -1 if it is malformed
 * (longer than four bytes, or longer than its value needs [MQTT-1.5.5-1]). */
static inline int get_varint(const uint8_t *p, const uint8_t *end, uint32_t *value) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        if (p + i >= end) return 0;
        v |= (uint32_t)(p[i] & 127) << (7 * i);
        if (!(p[i] & 128)) {
            *value = v;
            return i && p[i] == 0 ? -1 : i + 1;
        }
    }
    return -1;
}

/* 1 if the bytes are well-formed UTF-8 without U+0000 and without surrogates [MQTT-1.5.4-1] [MQTT-1.5.4-2]. */
static inline int is_mqtt_utf8(const uint8_t *p, size_t n) { return utf8_is_valid(p, n, 0); }

/* 64-bit hash of short strings (topics, levels): multiply and fold, seeded per process so that nobody outside can
 * aim for collisions. */
static inline uint64_t hash_fold(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* The first n bytes (0 to 7) as a number, little-endian: two loads that may overlap, put together in a register. A memcpy
 * of n bytes into the number would be stored in pieces and loaded whole, which the processor can do only after all stores
 * before it, the last payload's among them, have reached its cache: a fifth of our own time in a publish of 1 KB. */
static inline uint64_t load_few(const uint8_t *p, size_t n) {
    uint32_t low, high;
    if (n >= 4) {
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return low | (uint64_t)high << 8 * (n - 4);
    }
    return n ? p[0] | (uint64_t)p[n / 2] << 8 * (n / 2) | (uint64_t)p[n - 1] << 8 * (n - 1) : 0;
}

static inline uint64_t hash_bytes(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t h = seed ^ (0x9E3779B97F4A7C15ull + n), w;
    while (n >= 8) {
        memcpy(&w, p, 8);
        h = hash_fold(h ^ w, 0xA0761D6478BD642Full);
        p += 8, n -= 8;
    }
    return hash_fold(h ^ load_few(p, n), 0xE7037ED1A0B428DBull);
}

#endif
