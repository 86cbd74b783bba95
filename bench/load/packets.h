// MQTT 3.1.1 and 5 packets as the load generator needs them: building into a caller's buffer, reading in place.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum packet_type {
    CONNECT = 1, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, PINGREQ = 12, PINGRESP, DISCONNECT
};
enum { PROTOCOL_5 = 5, FIRST_ERROR_CODE = 0x80, SESSION_EXPIRY = 0x11, RECEIVE_MAXIMUM = 0x21, USER_PROPERTY = 0x26 };

static inline uint8_t *put_u16(uint8_t *p, unsigned v) {
    *p++ = (uint8_t)(v >> 8);
    *p++ = (uint8_t)v;
    return p;
}

static inline unsigned get_u16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

static uint8_t *put_text(uint8_t *p, const char *s) {
    size_t k = strlen(s);
    return (uint8_t *)memcpy(put_u16(p, (unsigned)k), s, k) + k;
}

static uint8_t *put_varint(uint8_t *p, uint32_t v) {
    do *p++ = (uint8_t)((v & 127) | (v > 127 ? 128 : 0)); while (v >>= 7);
    return p;
}

static uint8_t *put_user_property(uint8_t *p, const char *name, const char *value) {
    *p++ = USER_PROPERTY;
    return put_text(put_text(p, name), value);
}

// The properties of an MQTT 5 CONNECT: how long the session outlives its connection.
static uint8_t *put_session_expiry(uint8_t *p, unsigned seconds) {
    *p++ = seconds ? 5 : 0;
    if (!seconds) return p;
    *p++ = SESSION_EXPIRY;
    return put_u16(put_u16(p, seconds >> 16), seconds & 65535);
}

// The byte after the variable length integer at p, or NULL while it is incomplete.
static inline const uint8_t *get_varint(const uint8_t *p, const uint8_t *end, uint32_t *value) {
    uint32_t v = 0;
    for (unsigned shift = 0; p < end && shift < 28; shift += 7) {
        v |= (uint32_t)(*p & 127) << shift;
        if (!(*p++ & 128)) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

// Length of the value of a property of a CONNACK or PUBLISH, or -1 for one that is not allowed there.
static long property_length(int id, const uint8_t *value, const uint8_t *end) {
    switch (id) {
    case 0x01: case 0x24: case 0x25: case 0x28: case 0x29: case 0x2a: return 1;
    case 0x13: case RECEIVE_MAXIMUM: case 0x22: case 0x23: return 2;
    case 0x02: case 0x11: case 0x27: return 4;
    case 0x03: case 0x08: case 0x09: case 0x12: case 0x15: case 0x16: case 0x1a: case 0x1c: case 0x1f:
        return end - value < 2 ? -1 : 2 + (long)get_u16(value);
    case 0x0b: {
        uint32_t number;
        const uint8_t *after = get_varint(value, end, &number);
        return after ? after - value : -1;
    }
    case USER_PROPERTY: {                // two strings
        if (end - value < 2) return -1;
        const uint8_t *second = value + 2 + get_u16(value);
        return end - second < 2 ? -1 : second - value + 2 + (long)get_u16(second);
    }
    default: return -1;
    }
}

// The value of the first property of that kind (and name, of user properties) from p on, with *after behind it; or NULL.
static const uint8_t *find_property(const uint8_t *p, const uint8_t *end, int wanted, const char *name, const uint8_t **after) {
    size_t size = name ? strlen(name) : 0;
    while (p < end) {
        int id = *p++;
        long k = property_length(id, p, end);
        if (k < 0 || k > end - p) break;
        if (id == wanted && (!name || (get_u16(p) == size && !memcmp(p + 2, name, size)))) {
            *after = p + k;
            return p;
        }
        p += k;
    }
    return NULL;
}

// Receive Maximum of an MQTT 5 CONNACK's properties: how many QoS 1 and 2 messages the broker takes at a time.
static unsigned connack_receive_maximum(const uint8_t *p, const uint8_t *end) {
    uint32_t length;
    if (p >= end || !(p = get_varint(p, end, &length))) return 65535;
    if (end - p > (long)length) end = p + length;
    const uint8_t *after, *found = find_property(p, end, RECEIVE_MAXIMUM, NULL, &after);
    return found ? get_u16(found) : 65535;
}
