// Consumers of a durable queue settle what they get: a PUBLISH to $queue/NAME/$ack for each delivery, no more of them
// unacknowledged at a time than the broker takes.
#pragma once
#include "client.h"

enum { SETTLEMENT_MAX = 63, UNSETTLED_MAX = 1 << 16 };

// The message-id of a delivery, as the property it came with.
struct settlement {
    uint8_t length, property[SETTLEMENT_MAX];
};

static uint64_t settlements_open;        // to be sent, or without an answer yet

static void put_settlement(struct client *c, const struct settlement *s) {
    static uint8_t topic[64], group[64];
    static uint32_t topic_len, group_len;
    if (!topic_len) {
        char text[64];
        snprintf(text, sizeof text, "$queue/%s/$ack", opt.queue);
        topic_len = (uint32_t)(put_text(topic, text) - topic);
        group_len = (uint32_t)(put_user_property(group, "group-id", QUEUE_GROUP) - group);
    }
    uint32_t properties = s->length + group_len, id = opt.settle ? 2 : 0;
    uint32_t length = topic_len + id + 1 + properties;              // two properties are never longer than 127 bytes
    uint8_t *p = client_reserve(c, 1 + (length < 128 ? 1 : 2) + length);
    *p++ = (uint8_t)(PUBLISH << 4 | opt.settle << 1);
    p = (uint8_t *)memcpy(put_varint(p, length), topic, topic_len) + topic_len;
    if (opt.settle) {
        if (++c->packet_id == 0) c->packet_id = 1;
        p = put_u16(p, c->packet_id);
    }
    *p++ = (uint8_t)properties;
    memcpy(p, s->property, s->length);
    memcpy(p + s->length, group, group_len);
    c->sent++;
    if (!opt.settle) settlements_open--;
}

static void settle_waiting(struct client *c) {
    while (c->unsettled_count && (!opt.settle || c->sent - c->acked < opt.window)) {
        put_settlement(c, &c->unsettled[c->unsettled_at]);
        c->unsettled_at = (c->unsettled_at + 1) % UNSETTLED_MAX;
        c->unsettled_count--;
    }
}

// The delivery with these properties is to be settled; false if it cannot be.
static bool settle_delivery(struct client *c, const uint8_t *properties, const uint8_t *end) {
    const uint8_t *after, *value = find_property(properties, end, USER_PROPERTY, "message-id", &after);
    if (!value || after - value + 1 > SETTLEMENT_MAX || c->unsettled_count == UNSETTLED_MAX) return false;
    if (!c->unsettled && !(c->unsettled = malloc(UNSETTLED_MAX * sizeof *c->unsettled))) fail("out of memory");
    struct settlement *s = &c->unsettled[(c->unsettled_at + c->unsettled_count++) % UNSETTLED_MAX];
    s->length = (uint8_t)(after - value + 1);
    s->property[0] = USER_PROPERTY;
    memcpy(s->property + 1, value, s->length - 1u);
    settlements_open++;
    settle_waiting(c);
    return true;
}
