"""Topic filters and who subscribed to them; see trie.pxd.

The tree's nodes are in trie_nodes.pxi, matching in trie_match.pxi and, where it takes long, trie_walk.pxi, the cache of
results in trie_cache.pxi. Here: the life of a subscription, and what Python sees.
"""

import os

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport UINT16_MAX, UINT32_MAX, UINT64_MAX, int64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from penstock._ext.match.acl cimport ACL_RECEIVE
from penstock._ext.match.topic_tree cimport (NO_NODE, NODE_FREE, NODE_GROUP, NODE_LITERAL, NODE_PLUS, NODE_REST, ROOT,
                                             Level, Node, Slot, child_hash, group_hash, levels_free, node_name,
                                             prefetch, split_filter, split_topic, table_add, table_free, table_remove,
                                             table_reserve, table_slot, tree_add, tree_drop, tree_find, tree_find_level,
                                             tree_free, tree_init, tree_node, tree_path, tree_prefetch)
from penstock._ext.wire.numbers cimport hash_bytes

include "trie_nodes.pxi"
include "trie_match.pxi"
include "trie_walk.pxi"
include "trie_cache.pxi"

cdef enum:
    MAX_FILTER = 65_535
    SHARE_PREFIX = 7        # of `$share/`

# One for the process, so that a topic's hash is good for every trie.
cdef uint64_t process_seed = int.from_bytes(os.urandom(8), "little")


cdef class Subscriber:
    """Whatever can subscribe. Its subscriptions are all in one trie, which keeps it alive while it has any."""

    def __dealloc__(self):
        free(self._nodes)


cdef class Trie:
    """Finds the subscribers of a topic. `cache_topics` and `cache_bytes` bound the cache of results."""

    def __cinit__(self, uint32_t cache_topics=100_000, uint64_t cache_bytes=64 << 20):
        self.seed = process_seed
        self.version = 1
        self._cache.max_topics = cache_topics
        self._cache.max_bytes = cache_bytes
        self._scratch.checks_acl = True
        tree_init(&self._tree, self.seed)

    def __dealloc__(self):
        cdef uint32_t index
        if self._tree.chunks != NULL:
            for index in range(ROOT + 1, self._tree.top):
                let_go(tree_node(&self._tree, index))
        tree_free(&self._tree)
        cache_free(&self._cache)
        levels_free(&self._scratch.levels)
        free(self._scratch.here)
        free(self._scratch.below)
        free(self._scratch.hits)
        free(self._scratch.groups)
        free(self._scratch.targets)
        walk_free(&self._long)
        if self._walked != NULL:
            match_unref(self._walked)

    cdef Match* match(self, const uint8_t* topic, uint32_t size, uint64_t hash) except NULL:
        cdef uint32_t entry = cache_find(&self._cache, topic, size, hash)
        cdef Match* match
        # likeliest: the topic was published before and nobody has subscribed since
        if entry:
            match = self._cache.entries[entry - 1]
            if match.version == self.version:
                match.recent = 1
                self.cache_hits += 1
                return match_ref(match)
        self.cache_misses += 1
        return self._match_afresh(topic, size, hash, UINT64_MAX)

    cdef Match* remembered(self, const uint8_t* topic, uint32_t size, uint64_t hash) noexcept:
        cdef uint32_t entry = cache_find(&self._cache, topic, size, hash)
        cdef Match* match
        if entry:
            match = self._cache.entries[entry - 1]
            if match.version == self.version:
                match.recent = 1
                self.cache_hits += 1
                return match_ref(match)
        return NULL

    cdef Match* match_within(self, const uint8_t* topic, uint32_t size, uint64_t hash, uint64_t limit) except? NULL:
        cdef Match* match = self.remembered(topic, size, hash)
        if match != NULL:
            return match
        self.cache_misses += 1
        return self._match_afresh(topic, size, hash, limit)

    cdef Match* _match_afresh(self, const uint8_t* topic, uint32_t size, uint64_t hash, uint64_t limit) except? NULL:
        cdef Match* match = self._walked
        if match != NULL and match.version == self.version and match.hash == hash and match.topic_size == size:
            if memcmp(match.topic, topic, size) == 0:
                return match_ref(match)
        split_topic(&self._scratch.levels, topic, size, self.seed)
        tree_prefetch(&self._tree, &self._scratch.levels)
        if walk(&self._tree, &self._scratch, limit):
            self.steps += self._scratch.steps
            return NULL
        match = match_new(&self._tree, &self._scratch, topic, size)
        self.steps += self._scratch.steps
        match.hash = hash
        match.version = self.version
        cache_put(&self._cache, match)
        return match

    cdef int begin_walk(self, const uint8_t* topic, uint32_t size, uint64_t hash) except -1:
        return walk_begin(&self._long, &self._tree, topic, size, hash)

    cdef bint go_on(self, uint64_t limit) except -1:
        cdef uint64_t before = self._long.steps
        cdef Match* match
        cdef bint is_done = walk_some(&self._long, &self._tree, limit)
        if is_done:
            collect_walked(&self._long, &self._tree, &self._scratch)
            match = match_new(&self._tree, &self._scratch, self._long.topic, self._long.size)
            self._long.steps += self._scratch.steps
            match.hash = self._long.hash
            match.version = self.version
            if self._walked != NULL:
                match_unref(self._walked)
            self._walked = match
            cache_put(&self._cache, match)
            self.end_walk()
        self.steps += self._long.steps - before
        return is_done

    cdef void end_walk(self) noexcept:
        self._long.is_active = False

    cdef void _weigh(self, Subscriber subscriber, uint32_t index, int sign) noexcept:
        cdef uint64_t weight = filter_weight(&self._tree, index)
        if sign < 0:
            weight = -weight
        subscriber._weight += weight
        self.subscription_bytes += weight

    # A filter or share group has its first subscriber, where a long walk may have passed already.
    cdef int _note_new(self, uint32_t index) except -1:
        if self._long.is_active and is_on_the_way(&self._long, &self._tree, index):
            add_mark(&self._long.hits, &self._tree, index, 0)
        return 0

    cdef uint32_t _find_node(self, bytes filter, bint create) except? 0:
        """The node where subscriptions to the filter are: the last level's, or the share group's under it."""
        cdef const uint8_t* text = <const uint8_t*> (<char*> filter)
        cdef const uint8_t* group = NULL
        cdef const uint8_t* slash
        cdef Py_ssize_t size = len(filter)
        cdef uint32_t group_size = 0
        cdef uint32_t index = ROOT
        cdef uint32_t child, i
        cdef uint64_t hash
        if size > MAX_FILTER:
            raise ValueError("a topic filter has at most 65,535 bytes")
        if size > SHARE_PREFIX and memcmp(text, b"$share/", SHARE_PREFIX) == 0:
            group = text + SHARE_PREFIX
            size -= SHARE_PREFIX
            slash = <const uint8_t*> memchr(group, c'/', <size_t> size)
            group_size = 0 if slash == NULL else <uint32_t> (slash - group)
            # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
            if group_size == 0:
                raise ValueError("a shared subscription is $share/<group>/<filter>")
            text = slash + 1
            size -= group_size + 1
        if size == 0:
            raise ValueError("a topic filter has at least one character")
        split_filter(&self._scratch.levels, text, <uint32_t> size, self.seed)
        try:
            for i in range(self._scratch.levels.count):
                child = find_child(&self._tree, index, self._scratch.levels.items + i)
                if child == NO_NODE:
                    if not create:
                        return NO_NODE
                    child = add_child(&self._tree, index, self._scratch.levels.items + i)
                index = child
            if group == NULL:
                return index
            hash = group_hash(tree_node(&self._tree, index).hash, hash_bytes(group, group_size, self.seed))
            child = tree_find(&self._tree, index, NODE_GROUP, hash, group, group_size)
            if child == NO_NODE and create:
                child = tree_add(&self._tree, index, NODE_GROUP, hash, group, group_size)
                link_group(&self._tree, child)
            return child
        except MemoryError:
            prune(&self._tree, index)
            raise

    def subscribe(self, Subscriber subscriber not None, bytes filter not None, int options, uint32_t identifier=0):
        """True if the subscription is new, False if it took the place of one [MQTT-3.8.4-3] [MQTT3-3.8.4-3]."""
        cdef uint32_t index
        if subscriber._trie != NULL and subscriber._trie != <void*> self:
            raise ValueError("the subscriber has subscriptions in another trie")
        if not 0 <= options <= ALL_OPTIONS or options & OPTION_QOS == 3 or identifier > MAX_IDENTIFIER:
            raise ValueError(f"no such subscription options or identifier: {options}, {identifier}")
        index = self._find_node(filter, True)
        try:
            if tree_node(&self._tree, index).kind == NODE_GROUP:
                return self._add_member(index, subscriber, <uint8_t> options, identifier) == 1
            return self._add_subscription(index, subscriber, <uint8_t> options, identifier) == 1
        except MemoryError:
            prune(&self._tree, index)
            raise

    cdef int _add_subscription(self, uint32_t index, Subscriber subscriber, uint8_t options,
                               uint32_t identifier) except -1:
        cdef Node* node = tree_node(&self._tree, index)
        cdef int64_t slot = find_slot(&self._tree, subscriber, index)
        cdef uint64_t packed
        cdef Subscription* items
        cdef uint32_t count
        if slot >= 0:
            items = subscriptions_of(node, &count) + subscriber._nodes[2 * slot + 1]
            packed = pack_subscription(<uint32_t> slot, options, identifier)
            if items.packed != packed:
                items.packed = packed
                self.version += 1
            return 0
        reserve_slot(subscriber)
        reserve_subscription(node)
        if node.state == CARRIES_NOTHING:
            self.filter_count += 1
        packed = pack_subscription(subscriber._node_count, options, identifier)
        hold(subscriber, <void*> self, index, append_subscription(node, <void*> subscriber, packed))
        self._note_new(index)
        self._weigh(subscriber, index, 1)
        self.subscription_count += 1
        self.version += 1
        return 1

    cdef int _add_member(self, uint32_t index, Subscriber subscriber, uint8_t options, uint32_t identifier) except -1:
        cdef Node* node = tree_node(&self._tree, index)
        cdef ShareGroup* group = filter_part(node).carried.shared.group
        cdef int64_t place = -1
        cdef bint is_new
        if group != NULL:
            place = find_member(group, <void*> subscriber)
        is_new = place < 0
        if is_new:
            reserve_slot(subscriber)
            if group == NULL:
                group = group_new(node, index)
                self.filter_count += 1
                self.group_count += 1
                node.state = CARRIES_ONE
            try:
                reserve(<void**> &group.members, &group.capacity, group.count + 1, sizeof(Member))
            except MemoryError:
                self._drop_empty_group(node)
                raise
            place = group.count
            group.count += 1
            hold(subscriber, <void*> self, index, 0)
            self._note_new(index)
            self._weigh(subscriber, index, 1)
            self.subscription_count += 1
        group.members[place].owner = <void*> subscriber
        group.members[place].identifier = identifier
        group.members[place].qos = options & OPTION_QOS
        group.members[place].flags = TARGET_RETAIN_AS_PUBLISHED if options & OPTION_RETAIN_AS_PUBLISHED else 0
        group.members[place].options = options
        self.version += 1
        return is_new

    cdef void _drop_empty_group(self, Node* node) noexcept:
        if filter_part(node).carried.shared.group.count == 0:
            group_free(node)
            self.filter_count -= 1
            self.group_count -= 1

    cdef void _leave(self, Subscriber subscriber, uint32_t slot) noexcept:
        """Ends one subscription. May drop the trie's reference: the caller holds one."""
        cdef uint32_t index = subscriber._nodes[2 * slot]
        cdef uint32_t place = subscriber._nodes[2 * slot + 1]
        cdef Node* node = tree_node(&self._tree, index)
        cdef Subscription* moved
        if node.kind == NODE_GROUP:
            remove_member(filter_part(node).carried.shared.group, <void*> subscriber)
            self._drop_empty_group(node)
        else:
            moved = take_subscription(node, place)
            if moved != NULL:
                (<Subscriber> moved.owner)._nodes[2 * packed_slot(moved.packed) + 1] = place
            if node.state == CARRIES_NOTHING:
                self.filter_count -= 1
        release_slot(&self._tree, subscriber, slot)
        self._weigh(subscriber, index, -1)
        prune(&self._tree, index)
        self.subscription_count -= 1
        self.version += 1
        if subscriber._node_count == 0:
            subscriber._trie = NULL
            Py_DECREF(subscriber)

    cdef ShareGroup* find_group(self, bytes filter) except? NULL:
        cdef uint32_t index = self._find_node(filter, False)
        cdef Node* node
        if index == NO_NODE:
            return NULL
        node = tree_node(&self._tree, index)
        return filter_part(node).carried.shared.group if node.kind == NODE_GROUP else NULL

    cdef bytes group_path(self, const ShareGroup* group):
        cdef Node* node = tree_node(&self._tree, group.node)
        return b"$share/%b/%b" % (group_name(node), tree_path(&self._tree, node.parent))

    def unsubscribe(self, Subscriber subscriber not None, bytes filter not None):
        """True if there was one: filters are compared byte for byte [MQTT-3.10.4-1] [MQTT3-3.10.4-1]."""
        cdef uint32_t index
        cdef int64_t slot
        if subscriber._trie != <void*> self:
            return False
        index = self._find_node(filter, False)
        if index == NO_NODE:
            return False
        slot = find_slot(&self._tree, subscriber, index)
        if slot < 0:
            return False
        self._leave(subscriber, <uint32_t> slot)
        return True

    def remove(self, Subscriber subscriber not None):
        """Ends all subscriptions of a subscriber; returns how many there were."""
        cdef uint32_t count = 0
        while subscriber._trie == <void*> self:
            self._leave(subscriber, subscriber._node_count - 1)
            count += 1
        return count

    def subscriptions(self, Subscriber subscriber not None):
        """(filter, options, identifier) of each subscription, in no particular order."""
        cdef list found = []
        cdef uint32_t slot, count
        cdef Node* node
        cdef Member* member
        cdef uint64_t packed
        if subscriber._trie != <void*> self:
            return found
        for slot in range(subscriber._node_count):
            node = tree_node(&self._tree, subscriber._nodes[2 * slot])
            if node.kind == NODE_GROUP:
                member = filter_part(node).carried.shared.group.members
                member += find_member(filter_part(node).carried.shared.group, <void*> subscriber)
                path = b"$share/%b/%b" % (group_name(node), tree_path(&self._tree, node.parent))
                found.append((path, member.options, member.identifier))
            else:
                packed = subscriptions_of(node, &count)[subscriber._nodes[2 * slot + 1]].packed
                path = tree_path(&self._tree, subscriber._nodes[2 * slot])
                found.append((path, packed_options(packed), packed_identifier(packed)))
        return found

    def shares(self, Subscriber subscriber not None):
        """The filters of its shared subscriptions, in no particular order."""
        cdef list found = []
        cdef uint32_t slot
        cdef Node* node
        for slot in range(subscriber._node_count if subscriber._trie == <void*> self else 0):
            node = tree_node(&self._tree, subscriber._nodes[2 * slot])
            if node.kind == NODE_GROUP:
                found.append(self.group_path(filter_part(node).carried.shared.group))
        return found

    def has(self, Subscriber subscriber not None, bytes filter not None):
        """Whether it is subscribed to exactly this filter."""
        cdef uint32_t index
        if subscriber._trie != <void*> self:
            return False
        index = self._find_node(filter, False)
        return index != NO_NODE and find_slot(&self._tree, subscriber, index) >= 0

    def count(self, Subscriber subscriber not None):
        return subscriber._node_count if subscriber._trie == <void*> self else 0

    def weight(self, Subscriber subscriber not None):
        """Return the bytes that the filters of a subscriber count for, see `weigh`."""
        return subscriber._weight if subscriber._trie == <void*> self else 0

    @staticmethod
    def weigh(bytes filter not None):
        """Return the bytes that a filter counts for: its text, and a node for each of its levels."""
        return len(filter) + 1 + sizeof(Node) * (filter.count(b"/") + 1)

    @property
    def checks_acl(self):
        """Whether subscribers have rules at all: without any, a match need not ask them."""
        return self._scratch.checks_acl

    @checks_acl.setter
    def checks_acl(self, bint value):
        self._scratch.checks_acl = value
        self.version += 1

    def bump(self):
        """Voids every match, e.g. after the access rules have changed."""
        self.version += 1

    @property
    def node_count(self):
        return self._tree.count

    @property
    def cache_size(self):
        return self._cache.count

    @property
    def cache_bytes(self):
        return self._cache.bytes

    def matches(self, bytes topic not None):
        """(subscriber, qos, own_qos, flags, identifiers, own_id_count) of each target; see Target in trie.pxd."""
        cdef Match* match = match_text(self, topic)
        cdef list found = []
        cdef Target* target
        cdef uint32_t i, k
        try:
            for i in range(match.target_count):
                target = match.targets + i
                found.append((<Subscriber> target.owner, target.qos, target.own_qos, target.flags,
                              tuple([target.ids[k] for k in range(target.id_count)]), target.own_id_count))
        finally:
            match_unref(match)
        return found

    def groups(self, bytes topic not None):
        """(name, filter, [(subscriber, qos, identifier, flags)]) of each share group that matches."""
        cdef Match* match = match_text(self, topic)
        cdef list found = []
        cdef Member* member
        cdef Node* node
        cdef uint32_t i, k
        try:
            for i in range(match.group_count):
                members = []
                for k in range(match.groups[i].count):
                    member = match.groups[i].members + k
                    members.append((<Subscriber> member.owner, member.qos, member.identifier, member.flags))
                node = tree_node(&self._tree, match.groups[i].node)
                found.append((group_name(node), tree_path(&self._tree, node.parent), members))
        finally:
            match_unref(match)
        return found

    def start_walk(self, bytes topic not None):
        """Begin a long walk, instead of the one under way if there is one; `continue_walk` continues it."""
        self.begin_walk(<const uint8_t*> (<char*> topic), <uint32_t> len(topic),
                        hash_bytes(<const uint8_t*> (<char*> topic), <uint32_t> len(topic), self.seed))

    def continue_walk(self, uint64_t limit):
        """Take at most `limit` steps; True when the walk is done and `matches` needs no steps for its topic."""
        return self.go_on(limit)

    def bench_match(self, list topics not None, uint32_t rounds):
        """Matches every topic `rounds` times without a Python call between; returns the number of targets."""
        cdef uint64_t targets = 0
        cdef Match* match
        cdef bytes topic
        cdef uint32_t _round
        for _round in range(rounds):
            for topic in topics:
                match = match_text(self, topic)
                targets += match.target_count
                match_unref(match)
        return targets


cdef inline Match* match_text(Trie trie, bytes topic) except NULL:
    cdef const uint8_t* text = <const uint8_t*> (<char*> topic)
    cdef uint32_t size = <uint32_t> len(topic)
    return trie.match(text, size, hash_bytes(text, size, trie.seed))


cdef bytes group_name(const Node* node):
    return (<const char*> node_name(node))[:node.name_size]


cdef uint32_t find_child(TopicTree* tree, uint32_t parent, const Level* level) noexcept nogil:
    if level.kind == NODE_PLUS:
        return filter_part(tree_node(tree, parent)).plus
    if level.kind == NODE_REST:
        return filter_part(tree_node(tree, parent)).rest
    return tree_find_level(tree, parent, level)


cdef uint32_t add_child(TopicTree* tree, uint32_t parent, const Level* level) except NO_NODE:
    cdef uint64_t hash = child_hash(tree_node(tree, parent).hash, level.hash)
    cdef uint32_t child = tree_add(tree, parent, level.kind, hash, level.name,
                                   level.size if level.kind == NODE_LITERAL else 0)
    if level.kind == NODE_PLUS:
        filter_part(tree_node(tree, parent)).plus = child
    elif level.kind == NODE_REST:
        filter_part(tree_node(tree, parent)).rest = child
    return child


# Which of the subscriber's subscriptions is at this node, -1 if none is: looks through the shorter of the two lists.
cdef int64_t find_slot(TopicTree* tree, Subscriber subscriber, uint32_t index) noexcept:
    cdef Node* node = tree_node(tree, index)
    cdef Subscription* items
    cdef uint32_t count, i
    if node.kind != NODE_GROUP:
        items = subscriptions_of(node, &count)
        if count < subscriber._node_count:
            for i in range(count):
                if items[i].owner == <void*> subscriber:
                    return packed_slot(items[i].packed)
            return -1
    for i in range(subscriber._node_count):
        if subscriber._nodes[2 * i] == index:
            return i
    return -1


cdef int reserve_slot(Subscriber subscriber) except -1:
    cdef uint32_t words = 2 * subscriber._node_capacity
    if subscriber._node_count >= MAX_SUBSCRIPTIONS:
        raise MemoryError("too many subscriptions")
    reserve(<void**> &subscriber._nodes, &words, 2 * subscriber._node_count + 2, sizeof(uint32_t))
    subscriber._node_capacity = words / 2
    return 0


# After reserve_slot. The first subscription brings the trie's reference.
cdef void hold(Subscriber subscriber, void* trie, uint32_t index, uint32_t place) noexcept:
    subscriber._nodes[2 * subscriber._node_count] = index
    subscriber._nodes[2 * subscriber._node_count + 1] = place
    subscriber._node_count += 1
    if subscriber._node_count == 1:
        subscriber._trie = trie
        Py_INCREF(subscriber)


# The last subscription of the list takes the slot of the one that went.
cdef void release_slot(TopicTree* tree, Subscriber subscriber, uint32_t slot) noexcept:
    cdef uint32_t last = subscriber._node_count - 1
    cdef uint32_t* nodes = subscriber._nodes
    cdef Subscription* moved
    cdef Node* node
    cdef uint32_t count
    if slot != last:
        nodes[2 * slot] = nodes[2 * last]
        nodes[2 * slot + 1] = nodes[2 * last + 1]
        node = tree_node(tree, nodes[2 * slot])
        if node.kind != NODE_GROUP:
            moved = subscriptions_of(node, &count) + nodes[2 * slot + 1]
            moved.packed = pack_subscription(slot, packed_options(moved.packed), packed_identifier(moved.packed))
    subscriber._node_count = last
    if last == 0:
        free(nodes)
        subscriber._nodes = NULL
        subscriber._node_capacity = 0


cdef int64_t find_member(const ShareGroup* group, void* owner) noexcept nogil:
    cdef uint32_t i
    for i in range(group.count):
        if group.members[i].owner == owner:
            return i
    return -1


# The others keep their order, and the cursor stays on the member it was on.
cdef void remove_member(ShareGroup* group, void* owner) noexcept nogil:
    cdef int64_t place = find_member(group, owner)
    group.count -= 1
    memmove(group.members + place, group.members + place + 1, (group.count - place) * sizeof(Member))
    if group.cursor > place:
        group.cursor -= 1


# What a node of a dying trie carries: its subscribers are released with their last subscription.
cdef void let_go(Node* node) noexcept:
    cdef ShareGroup* group
    cdef Subscription* items
    cdef uint32_t count, i
    if node.kind == NODE_FREE or node.state == CARRIES_NOTHING:
        return
    if node.kind == NODE_GROUP:
        group = filter_part(node).carried.shared.group
        for i in range(group.count):
            forget(group.members[i].owner)
        group_free(node)
        return
    items = subscriptions_of(node, &count)
    for i in range(count):
        forget(items[i].owner)
    if node.state == CARRIES_MANY:
        free(items)


cdef void forget(void* owner) noexcept:
    cdef Subscriber subscriber = <Subscriber> owner
    subscriber._node_count -= 1
    if subscriber._node_count == 0:
        free(subscriber._nodes)
        subscriber._nodes = NULL
        subscriber._node_capacity = 0
        subscriber._trie = NULL
        Py_DECREF(subscriber)
