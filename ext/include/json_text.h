/* JSON strings: writing one, and reading one whose syntax was checked. */
#ifndef PENSTOCK_JSON_TEXT_H
#define PENSTOCK_JSON_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The first byte that is a quote, a backslash or a control character, or the end; eight bytes at a time. */
static inline const uint8_t *plain_end(const uint8_t *p, const uint8_t *end) {
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    while (end - p >= 8) {
        uint64_t w, quote, slash, found;
        memcpy(&w, p, 8);
        quote = w ^ (ones * '"');
        slash = w ^ (ones * '\\');
        found = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 0x20) & ~w)) & highs;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (found) return p + (__builtin_ctzll(found) >> 3);
#else
        if (found) break;
#endif
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\' && *p >= 0x20) p++;
    return p;
}

/* Size with quotes and escapes. */
static inline size_t json_string_size(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    size_t size = n + 2;
    while ((p = plain_end(p, end)) < end) {
        size += *p == '"' || *p == '\\' || (*p >= 8 && *p <= 13 && *p != 11) ? 1 : 5;
        p++;
    }
    return size;
}

static inline uint8_t *put_json_string(uint8_t *out, const uint8_t *p, size_t n) {
    static const char hex[] = "0123456789ABCDEF";
    const uint8_t *end = p + n;
    *out++ = '"';
    while (p < end) {
        const uint8_t *stop = plain_end(p, end);
        memcpy(out, p, (size_t)(stop - p));
        out += stop - p;
        p = stop;
        if (p == end) break;
        *out++ = '\\';
        if (*p == '"' || *p == '\\') {
            *out++ = *p;
        } else if (*p >= 8 && *p <= 13 && *p != 11) {
            *out++ = (uint8_t) "btn\0fr"[*p - 8];
        } else {
            memcpy(out, "u00", 3);
            out[3] = (uint8_t)hex[*p >> 4];
            out[4] = (uint8_t)hex[*p & 15];
            out += 5;
        }
        p++;
    }
    *out++ = '"';
    return out;
}

static inline uint32_t hex4(const uint8_t *p) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 4 | (uint32_t)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    return value;
}

static inline uint8_t *put_utf8(uint8_t *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (uint8_t)c;
    } else if (c < 0x800) {
        *out++ = (uint8_t)(0xC0 | c >> 6);
        *out++ = (uint8_t)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *out++ = (uint8_t)(0xE0 | c >> 12);
        *out++ = (uint8_t)(0x80 | (c >> 6 & 63));
        *out++ = (uint8_t)(0x80 | (c & 63));
    } else {
        *out++ = (uint8_t)(0xF0 | c >> 18);
        *out++ = (uint8_t)(0x80 | (c >> 12 & 63));
        *out++ = (uint8_t)(0x80 | (c >> 6 & 63));
        *out++ = (uint8_t)(0x80 | (c & 63));
    }
    return out;
}

/* The text between the quotes without its escapes; never longer than it was. Its end. */
static inline uint8_t *unescape_json(uint8_t *out, const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        const uint8_t *stop = (const uint8_t *)memchr(p, '\\', (size_t)(end - p));
        if (stop == NULL) stop = end;
        memcpy(out, p, (size_t)(stop - p));
        out += stop - p;
        p = stop;
        if (p == end) break;
        switch (p[1]) {
        case 'b': *out++ = 8; break;
        case 't': *out++ = 9; break;
        case 'n': *out++ = 10; break;
        case 'f': *out++ = 12; break;
        case 'r': *out++ = 13; break;
        case 'u': {
            uint32_t c = hex4(p + 2);
            if (c >= 0xD800 && c < 0xDC00) { /* the other half follows */
                c = 0x10000 + ((c - 0xD800) << 10) + (hex4(p + 8) - 0xDC00);
                p += 6;
            }
            out = put_utf8(out, c);
            p += 4;
            break;
        }
        default: *out++ = p[1];
        }
        p += 2;
    }
    return out;
}

#endif
