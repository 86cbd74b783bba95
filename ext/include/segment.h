/* The bit work under record packs: CRC32C, 64-bit varints, and numbers as they lie in the segment files (little-endian). */
#ifndef PENSTOCK_SEGMENT_H
#define PENSTOCK_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "segment files are little-endian and are read in place"
#endif

static inline uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline int64_t load_i64(const uint8_t *p) {
    int64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline void store_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store_i64(uint8_t *p, int64_t v) { memcpy(p, &v, 8); }

static inline uint64_t zigzag(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }
static inline int64_t unzigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

static inline uint32_t varint64_size(uint64_t v) {
    return (uint32_t)(70 - __builtin_clzll(v | 1)) / 7;
}

static inline uint8_t *put_varint64(uint8_t *p, uint64_t v) {
    while (v > 127) *p++ = (uint8_t)(v | 128), v >>= 7;
    *p++ = (uint8_t)v;
    return p;
}

/* Where the number ends, or NULL if the bytes end before it does or it does not fit 64 bits. */
static inline const uint8_t *get_varint64(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    if (p < end && *p < 128) { /* likeliest: one byte */
        *value = *p;
        return p + 1;
    }
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && p < end; shift += 7) {
        uint8_t c = *p++;
        if (shift == 63 && c > 1) return NULL;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

/* CRC32C (Castagnoli), eight bytes at a time from tables, or with the processor's instruction where it has one. */
static uint32_t crc32c_table[8][256];
static int crc32c_in_hardware;

static void crc32c_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        crc32c_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc32c_table[k][i] = crc32c_table[0][crc32c_table[k - 1][i] & 255] ^ (crc32c_table[k - 1][i] >> 8);
#if defined(__x86_64__)
    crc32c_in_hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t crc32c_soft(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = load_u32(p) ^ crc, high = load_u32(p + 4);
        crc = crc32c_table[7][low & 255] ^ crc32c_table[6][(low >> 8) & 255] ^ crc32c_table[5][(low >> 16) & 255] ^
              crc32c_table[4][low >> 24] ^ crc32c_table[3][high & 255] ^ crc32c_table[2][(high >> 8) & 255] ^
              crc32c_table[1][(high >> 16) & 255] ^ crc32c_table[0][high >> 24];
    }
    while (n--) crc = crc32c_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        wide = __builtin_ia32_crc32di(wide, w);
    }
    crc = (uint32_t)wide;
    while (n--) crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#endif

/* Continues the checksum `crc` (0 at the start) over n more bytes. */
static inline uint32_t crc32c_extend(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (crc32c_in_hardware) return ~crc32c_sse42(crc, p, n);
#endif
    return ~crc32c_soft(crc, p, n);
}

#endif
