/* SipHash-2-4 with 128 bits of output: a hash that nobody who does not know the key can find collisions of. */
#ifndef PENSTOCK_SIPHASH_H
#define PENSTOCK_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t sip_rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

static inline uint64_t sip_load(const uint8_t* p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = sip_rotate(v[1], 13) ^ v[0];
    v[0] = sip_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = sip_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = sip_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = sip_rotate(v[1], 17) ^ v[2];
    v[2] = sip_rotate(v[2], 32);
}

static inline void siphash128(const uint64_t key[2], const uint8_t* data, size_t size, uint64_t out[2]) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL ^ 0xee,
                     key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL};
    uint64_t last = (uint64_t)size << 56;
    size_t whole = size & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t word = sip_load(data + i);
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < (size & 7); i++) last |= (uint64_t)data[whole + i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xee;
    for (int i = 0; i < 4; i++) sip_round(v);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int i = 0; i < 4; i++) sip_round(v);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
