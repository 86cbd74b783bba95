# A tree of topic levels, shared by the filters (trie) and the retained messages (retained).
#
# A node is one cache line, lies in a chunk that never moves and is known by its number. Children are not listed in
# their parent: one hash table finds them by (parent, level). The hash of a node is made of its parent's hash and its
# level, so the hashes of a whole topic can be computed, and their slots fetched from memory, before the first node is
# looked at: a lookup among millions of nodes waits for memory twice, not twice per level.
# What a node carries (subscriptions, a message) is its owner's business: 24 bytes of body, one byte and one link.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from penstock._ext.wire.numbers cimport hash_bytes

cdef extern from "wire.h" nogil:
    uint64_t hash_fold(uint64_t a, uint64_t b)

cdef extern from * nogil:
    """
    /* The empty asm keeps GCC from taking a function that only fetches ahead for one without effect and dropping it. */
    static inline void penstock_prefetch(const void *address) {
        __builtin_prefetch(address);
        __asm__ volatile("" : : "r"(address));
    }
    """
    void prefetch "penstock_prefetch" (const void* address)


cdef enum:
    NO_NODE = 0
    ROOT = 1
    INLINE_NAME = 16            # longer level names lie outside the node
    CHUNK_BITS = 15             # 32,768 nodes, 2 MiB: one huge page
    TABLE_MARGIN = 2            # empty slots behind the last one, so that reading ahead needs no wrapping
    FETCH_OFFSET = 24           # what is read first where a node points to: Subscriber._mark, Message.expires_at
    FETCH_AHEAD = 16            # levels of a topic whose nodes are fetched before they are needed

cdef enum NodeKind:
    NODE_FREE = 0
    NODE_LITERAL = 1
    NODE_PLUS = 2
    NODE_REST = 3               # `#`
    NODE_GROUP = 4              # not a level: a share group hanging at its filter


# Open addressing with linear probing; the tag is the upper half of a hash. Values are never 0: that is an empty slot.
cdef struct Slot:
    uint32_t tag
    uint32_t value

cdef struct SlotTable:
    Slot* slots
    uint32_t mask
    uint32_t used

cdef int table_reserve(SlotTable* table) noexcept nogil         # room for one more; 0, or -1 without memory
cdef void table_add(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil      # after table_reserve
cdef Slot* table_slot(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil    # of an entry that is there
cdef void table_remove(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil
cdef void table_free(SlotTable* table) noexcept nogil


cdef union NodeName:
    uint8_t inside[16]
    uint8_t* outside

cdef struct Node:
    uint64_t hash               # of the path that leads here
    uint32_t parent
    uint32_t children           # of every kind
    uint32_t link               # the owner's; links the free nodes
    uint16_t name_size
    uint8_t kind
    uint8_t state               # the owner's
    uint64_t body[3]            # the owner's; zero in a new node. A pointer in the first word is fetched ahead
    NodeName name

cdef struct TopicTree:
    Node** chunks
    uint32_t chunk_count
    uint32_t top                # the first number never used
    uint32_t free               # the first of the free nodes
    uint32_t count              # nodes in use without the root
    uint64_t seed
    SlotTable table

cdef int tree_init(TopicTree* tree, uint64_t seed) except -1
cdef void tree_free(TopicTree* tree) noexcept nogil
# A new child; the caller has looked that it is not there. PLUS and REST have no name and are not in the table: the
# owner keeps their numbers.
cdef uint32_t tree_add(TopicTree* tree, uint32_t parent, uint8_t kind, uint64_t hash, const uint8_t* name,
                       uint32_t size) except NO_NODE
# The node has no children and its owner has emptied it.
cdef void tree_drop(TopicTree* tree, uint32_t index) noexcept nogil
cdef bytes tree_path(const TopicTree* tree, uint32_t index)


# The levels of one topic or filter.
cdef struct Level:
    const uint8_t* name         # borrowed
    uint32_t size
    uint8_t kind                # only split_filter sets other kinds than NODE_LITERAL
    uint64_t hash

cdef struct LevelList:
    Level* items
    uint32_t count
    uint32_t capacity

cdef int levels_grow(LevelList* levels) except -1 nogil
cdef void levels_free(LevelList* levels) noexcept nogil


cdef inline Node* tree_node(const TopicTree* tree, uint32_t index) noexcept nogil:
    return tree.chunks[index >> CHUNK_BITS] + (index & ((1 << CHUNK_BITS) - 1))


cdef inline const uint8_t* node_name(const Node* node) noexcept nogil:
    if node.name_size <= INLINE_NAME:
        return node.name.inside
    return node.name.outside


cdef inline uint64_t child_hash(uint64_t parent_hash, uint64_t level_hash) noexcept nogil:
    return hash_fold(parent_hash ^ level_hash, 0x8EBC6AF09C88C6E3ULL)


# A group and a literal level of the same name are different children.
cdef inline uint64_t group_hash(uint64_t parent_hash, uint64_t name_hash) noexcept nogil:
    return hash_fold(parent_hash ^ name_hash, 0x589965CC75374CC3ULL)


cdef inline uint32_t tree_find(const TopicTree* tree, uint32_t parent, uint8_t kind, uint64_t hash,
                               const uint8_t* name, uint32_t size) noexcept nogil:
    cdef uint32_t tag = <uint32_t> (hash >> 32)
    cdef uint32_t at = tag & tree.table.mask
    cdef const Slot* slot
    cdef const Node* node
    while True:
        slot = tree.table.slots + at
        if slot.value == NO_NODE:
            return NO_NODE
        if slot.tag == tag:
            node = tree_node(tree, slot.value)
            if (node.hash == hash and node.parent == parent and node.name_size == size and node.kind == kind
                    and memcmp(node_name(node), name, size) == 0):
                return slot.value
        at = (at + 1) & tree.table.mask


cdef inline uint32_t tree_find_level(const TopicTree* tree, uint32_t parent, const Level* level) noexcept nogil:
    return tree_find(tree, parent, NODE_LITERAL, child_hash(tree_node(tree, parent).hash, level.hash), level.name,
                     level.size)


# Splits at the slashes. An empty text is one empty level, as everywhere in MQTT.
cdef inline int split_topic(LevelList* levels, const uint8_t* text, uint32_t size, uint64_t seed) except -1 nogil:
    cdef const uint8_t* end = text + size
    cdef const uint8_t* start = text
    cdef Level* level
    levels.count = 0
    while True:
        while text < end and text[0] != c'/':
            text += 1
        if levels.count == levels.capacity:
            levels_grow(levels)
        level = levels.items + levels.count
        levels.count += 1
        level.name = start
        level.size = <uint32_t> (text - start)
        level.kind = NODE_LITERAL
        level.hash = hash_bytes(start, level.size, seed)
        if text == end:
            return 0
        text += 1
        start = text


# The same for a filter whose syntax was checked: + and # as whole levels are wildcards [MQTT-4.7.1-2].
cdef inline int split_filter(LevelList* levels, const uint8_t* text, uint32_t size, uint64_t seed) except -1 nogil:
    cdef uint32_t i
    cdef Level* level
    split_topic(levels, text, size, seed)
    for i in range(levels.count):
        level = levels.items + i
        if level.size == 1:
            if level.name[0] == c'+':
                level.kind = NODE_PLUS
            elif level.name[0] == c'#':
                level.kind = NODE_REST
    return 0


cdef inline uint32_t all_ones_if(bint condition) noexcept nogil:
    return 0 - <uint32_t> condition


# Asks memory for the nodes of a literal path, all at once.
cdef inline void tree_prefetch(const TopicTree* tree, const LevelList* levels) noexcept nogil:
    cdef uint32_t tags[FETCH_AHEAD]
    cdef uint32_t count = levels.count if levels.count < FETCH_AHEAD else FETCH_AHEAD
    cdef uint32_t i
    cdef uint32_t value = ROOT
    cdef uint64_t hash = tree_node(tree, ROOT).hash
    cdef const Slot* slot
    for i in range(count):
        hash = child_hash(hash, levels.items[i].hash)
        tags[i] = <uint32_t> (hash >> 32)
        prefetch(tree.table.slots + (tags[i] & tree.table.mask))
    for i in range(count):
        slot = tree.table.slots + (tags[i] & tree.table.mask)
        # Most entries are in the first three slots of their chain. Choosing without a branch matters: a wrong guess
        # would wait for this slot before asking for the next. A node fetched in vain does no harm.
        value = slot[2].value
        value ^= (value ^ slot[1].value) & all_ones_if(slot[1].tag == tags[i])
        value ^= (value ^ slot[0].value) & all_ones_if(slot[0].tag == tags[i])
        prefetch(tree_node(tree, value))
    # What the last node points to arrives while the walk is still on its way there. If the node is not the right one
    # this is no address at all; asking for it is harmless.
    prefetch(<const void*> (tree_node(tree, value).body[0] + FETCH_OFFSET))
