/* MurmurHash3 (x64 128-bit and x86 32-bit, seed 0) and Kafka's MurmurHash2, as 32-bit results.
 * The algorithms are Austin Appleby's, in the public domain; the constants are theirs. */
#ifndef PENSTOCK_MURMUR_H
#define PENSTOCK_MURMUR_H

#include <stdint.h>
#include <string.h>

static inline uint32_t load_le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static inline uint64_t load_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

/* The last size < 8 bytes of a key, little-endian, without reading behind them. */
static inline uint64_t load_tail(const uint8_t *p, uint32_t size) {
    if (size >= 4) return load_le32(p) | (uint64_t)load_le32(p + size - 4) << (8 * (size - 4));
    if (size == 0) return 0;
    return p[0] | (uint64_t)p[size / 2] << (8 * (size / 2)) | (uint64_t)p[size - 1] << (8 * (size - 1));
}

static inline uint32_t rotl32(uint32_t v, int bits) { return v << bits | v >> (32 - bits); }
static inline uint64_t rotl64(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }

static inline uint64_t murmur3_mix64(uint64_t v) {
    v = (v ^ v >> 33) * 0xff51afd7ed558ccdULL;
    v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return v ^ v >> 33;
}

/* The first 64 bits of the digest; its low half is the partitioner's hash. */
static inline uint64_t murmur3_128_low(const uint8_t *data, uint32_t size) {
    const uint64_t c1 = 0x87c37b91114253d5ULL, c2 = 0x4cf5ad432745937fULL;
    const uint8_t *p = data, *blocks_end = data + (size & ~15u);
    uint32_t rest = size & 15;
    uint64_t h1 = 0, h2 = 0, k1, k2;
    for (; p != blocks_end; p += 16) {
        k1 = load_le64(p), k2 = load_le64(p + 8);
        h1 ^= rotl64(k1 * c1, 31) * c2;
        h1 = (rotl64(h1, 27) + h2) * 5 + 0x52dce729;
        h2 ^= rotl64(k2 * c2, 33) * c1;
        h2 = (rotl64(h2, 31) + h1) * 5 + 0x38495ab5;
    }
    if (rest > 8) {
        k2 = load_tail(p + 8, rest - 8);
        h2 ^= rotl64(k2 * c2, 33) * c1;
    }
    if (rest) {
        k1 = rest >= 8 ? load_le64(p) : load_tail(p, rest);
        h1 ^= rotl64(k1 * c1, 31) * c2;
    }
    h1 ^= size, h2 ^= size;
    h1 += h2, h2 += h1;
    return murmur3_mix64(h1) + murmur3_mix64(h2);
}

static inline uint32_t murmur3_32_scramble(uint32_t k) { return rotl32(k * 0xcc9e2d51u, 15) * 0x1b873593u; }
static inline uint32_t murmur3_32_step(uint32_t h, uint32_t k) {
    return rotl32(h ^ murmur3_32_scramble(k), 13) * 5 + 0xe6546b64u;
}

static inline uint32_t murmur3_32_end(uint32_t h, uint32_t last, uint32_t size) {
    h ^= murmur3_32_scramble(last) ^ size;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

static inline uint32_t murmur3_32(const uint8_t *data, uint32_t size) {
    const uint8_t *p = data, *blocks_end = data + (size & ~3u);
    uint32_t h = 0;
    for (; p != blocks_end; p += 4) h = murmur3_32_step(h, load_le32(p));
    return murmur3_32_end(h, (uint32_t)load_tail(p, size & 3), size);
}

/* As in Kafka's own clients, its seed included. */
static inline uint32_t kafka_murmur2(const uint8_t *data, uint32_t size) {
    const uint32_t m = 0x5bd1e995u;
    const uint8_t *p = data, *blocks_end = data + (size & ~3u);
    uint32_t h = 0x9747b28cu ^ size, k;
    for (; p != blocks_end; p += 4) {
        k = load_le32(p) * m;
        h = h * m ^ (k ^ k >> 24) * m;
    }
    if (size & 3) h = (h ^ (uint32_t)load_tail(p, size & 3)) * m;
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

#endif
