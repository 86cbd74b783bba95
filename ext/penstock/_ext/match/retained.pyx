"""The last message of each topic; see retained.pxd.

A topic's last node carries the message. Siblings are linked in the order in which they came, so a filter is answered
by walking first child, next sibling and parent: no recursion, no stack, no memory but the result.
"""

import os

from libc.stdint cimport UINT32_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from penstock._ext.hub.message cimport (message_new, message_payload, message_props, message_ref, message_topic,
                                        message_unref, message_weight)
from penstock._ext.match.topic_tree cimport (NO_NODE, NODE_FREE, NODE_LITERAL, NODE_REST, ROOT, Level, Node, Slot,
                                             child_hash, levels_free, node_name, split_filter, split_topic, table_add,
                                             table_free, table_remove, table_reserve, tree_add, tree_drop,
                                             tree_find_level, tree_free, tree_init, tree_node, tree_prefetch)
from penstock._ext.wire.numbers cimport hash_bytes

cdef enum:
    MAX_TOPIC = 65_535
    SMALLEST_LIST = 16


# The body of a node.
cdef struct TopicPart:
    Message* message        # NULL: only a level on the way to others; first, as it is fetched ahead (tree_prefetch)
    uint32_t first
    uint32_t last
    uint32_t next
    uint32_t previous


cdef inline TopicPart* topic_part(Node* node) noexcept nogil:
    return <TopicPart*> node.body


cdef uint32_t add_child(TopicTree* tree, uint32_t parent, const Level* level) except NO_NODE:
    cdef uint64_t hash = child_hash(tree_node(tree, parent).hash, level.hash)
    cdef uint32_t child = tree_add(tree, parent, NODE_LITERAL, hash, level.name, level.size)
    cdef TopicPart* siblings = topic_part(tree_node(tree, parent))
    if siblings.last == NO_NODE:
        siblings.first = child
    else:
        topic_part(tree_node(tree, siblings.last)).next = child
        topic_part(tree_node(tree, child)).previous = siblings.last
    siblings.last = child
    return child


# Removes a node that carries nothing and has no children, then its parents as far as that holds for them.
cdef void prune(TopicTree* tree, uint32_t index) noexcept nogil:
    cdef Node* node
    cdef TopicPart* part
    cdef TopicPart* siblings
    cdef uint32_t parent
    while index != ROOT:
        node = tree_node(tree, index)
        part = topic_part(node)
        if node.children or part.message != NULL:
            return
        parent = node.parent
        siblings = topic_part(tree_node(tree, parent))
        if part.previous == NO_NODE:
            siblings.first = part.next
        else:
            topic_part(tree_node(tree, part.previous)).next = part.next
        if part.next == NO_NODE:
            siblings.last = part.previous
        else:
            topic_part(tree_node(tree, part.next)).previous = part.previous
        tree_drop(tree, index)
        index = parent


# The next node among the siblings from `index` on that a wildcard of this depth may stand for: in front, those
# without $ [MQTT-4.7.2-1].
cdef uint32_t wildcard_from(TopicTree* tree, uint32_t index, uint32_t depth) noexcept nogil:
    cdef Node* node
    while index != NO_NODE and depth == 0:
        node = tree_node(tree, index)
        if node.name_size == 0 or node_name(node)[0] != c'$':
            break
        index = topic_part(node).next
    return index


cdef int append(MessageList* found, Message* message) except -1 nogil:
    cdef uint32_t capacity
    cdef Message** items
    if found.count == found.capacity:
        capacity = 2 * found.capacity if found.capacity else SMALLEST_LIST
        items = <Message**> realloc(found.items, capacity * sizeof(Message*))
        if items == NULL:
            with gil:
                raise MemoryError()
        found.items = items
        found.capacity = capacity
    found.items[found.count] = message
    found.count += 1
    return 0


cdef inline bint has_expired(const Message* message, int64_t now_ms) noexcept nogil:
    return message.expires_at != 0 and message.expires_at <= now_ms


# Where the walk goes from a node of this depth (the root's is 0) to find the first match below it.
cdef uint32_t step_down(TopicTree* tree, LevelList* levels, uint32_t index, uint32_t depth) noexcept nogil:
    cdef Level* level
    if depth >= levels.count:
        # below the end of the filter only # leads on
        level = levels.items + levels.count - 1
        return topic_part(tree_node(tree, index)).first if level.kind == NODE_REST else NO_NODE
    level = levels.items + depth
    if level.kind == NODE_LITERAL:
        return tree_find_level(tree, index, level)
    return wildcard_from(tree, topic_part(tree_node(tree, index)).first, depth)


# Where the walk goes when all below a node of this depth is done, if it stays on that level.
cdef uint32_t step_aside(TopicTree* tree, LevelList* levels, uint32_t index, uint32_t depth) noexcept nogil:
    cdef uint32_t next = topic_part(tree_node(tree, index)).next
    if depth <= levels.count and levels.items[depth - 1].kind == NODE_LITERAL:
        return NO_NODE
    return wildcard_from(tree, next, depth - 1)


cdef inline bint is_match(LevelList* levels, uint32_t depth) noexcept nogil:
    if levels.items[levels.count - 1].kind == NODE_REST:
        return depth + 1 >= levels.count        # a/# matches a as well
    return depth == levels.count


cdef class RetainedTree:
    def __cinit__(self):
        tree_init(&self._tree, int.from_bytes(os.urandom(8), "little"))
        self._sweep_at = ROOT + 1

    def __dealloc__(self):
        cdef uint32_t index
        cdef Node* node
        if self._tree.chunks != NULL:
            for index in range(ROOT + 1, self._tree.top):
                node = tree_node(&self._tree, index)
                if node.kind != NODE_FREE and topic_part(node).message != NULL:
                    message_unref(topic_part(node).message)
        tree_free(&self._tree)
        levels_free(&self._levels)
        free(self._shares)
        table_free(&self._share_table)

    cdef Share* find_share(self, const uint8_t* user, uint32_t size) noexcept:
        cdef uint64_t hash = hash_bytes(user, size, self._tree.seed)
        cdef uint32_t tag = <uint32_t> (hash >> 32)
        cdef uint32_t at = tag & self._share_table.mask
        cdef Slot* slot
        if self._share_table.used == 0:
            return NULL
        while True:
            slot = self._share_table.slots + at
            if slot.value == 0:
                return NULL
            if slot.tag == tag and self._shares[slot.value].hash == hash:
                return self._shares + slot.value
            at = (at + 1) & self._share_table.mask

    cdef uint32_t take_share(self, const uint8_t* user, uint32_t size) except? 0:
        cdef Share* share = self.find_share(user, size)
        cdef uint32_t number, capacity
        if share != NULL:
            return <uint32_t> (share - self._shares)
        if table_reserve(&self._share_table) < 0:
            raise MemoryError()
        if self._free_share:
            number = self._free_share
            self._free_share = self._shares[number].next
        else:
            if self._share_count + 1 >= self._share_capacity:
                capacity = 2 * self._share_capacity + SMALLEST_LIST
                share = <Share*> realloc(self._shares, capacity * sizeof(Share))
                if share == NULL:
                    raise MemoryError()
                self._shares = share
                self._share_capacity = capacity
            self._share_count += 1
            number = self._share_count
        memset(self._shares + number, 0, sizeof(Share))
        self._shares[number].hash = hash_bytes(user, size, self._tree.seed)
        table_add(&self._share_table, <uint32_t> (self._shares[number].hash >> 32), number)
        return number

    cdef void _leave_share(self, const Message* message) noexcept:
        cdef uint32_t number = message.source_partition
        cdef Share* share = self._shares + number
        if number == 0:
            return
        share.bytes -= message_weight(message)
        share.count -= 1
        if share.count == 0:
            table_remove(&self._share_table, <uint32_t> (share.hash >> 32), number)
            share.next = self._free_share
            self._free_share = number

    cdef int store(self, Message* message) except -1:
        cdef uint32_t index = ROOT
        cdef uint32_t child, i
        cdef Message* old
        split_topic(&self._levels, message_topic(message), message.topic_size, self._tree.seed)
        try:
            for i in range(self._levels.count):
                child = tree_find_level(&self._tree, index, self._levels.items + i)
                if child == NO_NODE:
                    child = add_child(&self._tree, index, self._levels.items + i)
                index = child
        except MemoryError:
            prune(&self._tree, index)
            raise
        # [MQTT-3.3.1-5] [MQTT3-3.3.1-5]: it replaces what was retained for the topic
        old = topic_part(tree_node(&self._tree, index)).message
        topic_part(tree_node(&self._tree, index)).message = message_ref(message)
        self.bytes += message_weight(message)
        if message.source_partition:
            self._shares[message.source_partition].bytes += message_weight(message)
            self._shares[message.source_partition].count += 1
        if old == NULL:
            self.count += 1
            return 1
        self.bytes -= message_weight(old)
        self._leave_share(old)
        message_unref(old)
        return 0

    cdef uint32_t _find_node(self, const uint8_t* topic, uint32_t size) except? 0:
        cdef uint32_t index = ROOT
        cdef uint32_t i
        split_topic(&self._levels, topic, size, self._tree.seed)
        tree_prefetch(&self._tree, &self._levels)
        for i in range(self._levels.count):
            index = tree_find_level(&self._tree, index, self._levels.items + i)
            if index == NO_NODE:
                break
        return index

    cdef void _drop(self, uint32_t index) noexcept:
        cdef TopicPart* part = topic_part(tree_node(&self._tree, index))
        cdef Message* message = part.message
        part.message = NULL
        self.count -= 1
        self.bytes -= message_weight(message)
        self._leave_share(message)
        message_unref(message)
        prune(&self._tree, index)

    cdef int remove(self, const uint8_t* topic, uint32_t size) except -1:
        cdef uint32_t index = self._find_node(topic, size)
        if index == NO_NODE or topic_part(tree_node(&self._tree, index)).message == NULL:
            return 0
        self._drop(index)
        return 1

    cdef Message* find(self, const uint8_t* topic, uint32_t size) noexcept:
        cdef uint32_t index
        try:
            index = self._find_node(topic, size)
        except MemoryError:
            return NULL
        return topic_part(tree_node(&self._tree, index)).message if index != NO_NODE else NULL

    cdef int collect(self, const uint8_t* filter, uint32_t size, int64_t now_ms, MessageList* found) except -1:
        return self._collect(filter, size, now_ms, found, UINT32_MAX)

    cdef int _collect(self, const uint8_t* filter, uint32_t size, int64_t now_ms, MessageList* found,
                      uint32_t limit) except -1:
        cdef TopicTree* tree = &self._tree
        cdef LevelList* levels = &self._levels
        cdef uint32_t index = ROOT
        cdef uint32_t depth = 0
        cdef uint32_t next
        cdef Message* message
        split_filter(levels, filter, size, tree.seed)
        while True:
            self.steps += 1
            message = topic_part(tree_node(tree, index)).message
            if message != NULL and is_match(levels, depth) and not has_expired(message, now_ms):
                if found.count >= limit:
                    return 0
                append(found, message)
            next = step_down(tree, levels, index, depth)
            if next != NO_NODE:
                depth += 1
            while next == NO_NODE:
                if index == ROOT:
                    return 0
                next = step_aside(tree, levels, index, depth)
                if next == NO_NODE:
                    index = tree_node(tree, index).parent
                    depth -= 1
            index = next

    def put(self, bytes topic not None, bytes payload not None, uint8_t qos=0, bytes props not None=b"",
            int64_t expires_at=0):
        """True if the topic is new."""
        cdef Message* message
        if not 0 < len(topic) <= MAX_TOPIC:
            raise ValueError("a topic name has 1 to 65,535 bytes")
        message = message_new(<const uint8_t*> (<char*> topic), <uint32_t> len(topic),
                              <const uint8_t*> (<char*> props), <uint32_t> len(props),
                              <const uint8_t*> (<char*> payload), <uint32_t> len(payload), qos, 1, 0, expires_at)
        try:
            return self.store(message) == 1
        finally:
            message_unref(message)

    def get(self, bytes topic not None):
        """(payload, qos, props, expires_at), or None."""
        cdef Message* message = self.find(<const uint8_t*> (<char*> topic), <uint32_t> len(topic))
        if message == NULL:
            return None
        return (<char*> message_payload(message))[:message.payload_size], message.qos, \
            (<char*> message_props(message))[:message.props_size], message.expires_at

    def discard(self, bytes topic not None):
        """True if something was retained for the topic."""
        return self.remove(<const uint8_t*> (<char*> topic), <uint32_t> len(topic)) == 1

    def match(self, bytes filter not None, int64_t now_ms=0):
        """(topic, payload, qos) of what a subscription to the filter gets."""
        return listed(self, filter, now_ms, UINT32_MAX)

    def topics(self, bytes filter not None, uint32_t limit):
        """At most `limit` of the topics that match, expired or not."""
        return [topic for topic, _, _ in listed(self, filter, 0, limit)]

    def sweep(self, int64_t now_ms, uint32_t limit):
        """Removes what has expired, looking at `limit` nodes and going on there next time; returns how many."""
        cdef uint32_t removed = 0
        cdef uint32_t _looked
        cdef Node* node
        for _looked in range(min(limit, self._tree.top)):
            if self._sweep_at >= self._tree.top:
                self._sweep_at = ROOT + 1
                if self._sweep_at >= self._tree.top:
                    break
            node = tree_node(&self._tree, self._sweep_at)
            if node.kind != NODE_FREE and topic_part(node).message != NULL \
                    and has_expired(topic_part(node).message, now_ms):
                self._drop(self._sweep_at)
                removed += 1
            self._sweep_at += 1
        return removed

    def share_of(self, bytes user not None):
        """Return (messages, bytes) that the user has retained; clients without a user name have an empty one."""
        cdef Share* share = self.find_share(<const uint8_t*> (<char*> user), <uint32_t> len(user))
        if share == NULL:
            return 0, 0
        return share.count, share.bytes

    @property
    def node_count(self):
        return self._tree.count

    def bench_collect(self, bytes filter not None, uint32_t rounds):
        """Collects `rounds` times without a Python call between; returns the number of messages found."""
        cdef MessageList found
        cdef uint64_t total = 0
        cdef uint32_t _round
        found.items = NULL
        found.capacity = 0
        try:
            for _round in range(rounds):
                found.count = 0
                self.collect(<const uint8_t*> (<char*> filter), <uint32_t> len(filter), 0, &found)
                total += found.count
        finally:
            free(found.items)
        return total


cdef list listed(RetainedTree tree, bytes filter, int64_t now_ms, uint32_t limit):
    cdef MessageList found
    cdef Message* message
    cdef uint32_t i
    cdef list result = []
    found.items = NULL
    found.count = found.capacity = 0
    try:
        tree._collect(<const uint8_t*> (<char*> filter), <uint32_t> len(filter), now_ms, &found, limit)
        for i in range(found.count):
            message = found.items[i]
            result.append(((<char*> message_topic(message))[:message.topic_size],
                           (<char*> message_payload(message))[:message.payload_size], message.qos))
    finally:
        free(found.items)
    return result
