"""The level tree under trie and retained: storage of nodes and of the hash table; see topic_tree.pxd."""

from libc.stdint cimport UINT32_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>

    /* What is large is read at random: huge pages spare most of the waiting for address translation. */
    static inline void *lines_alloc(size_t size, int large) {
        void *memory = NULL;
        size_t huge = (size_t)1 << 21;
        large = large && size >= huge;
        if (posix_memalign(&memory, large ? huge : 64, size)) return NULL;
    #ifdef MADV_HUGEPAGE
        if (large) madvise(memory, size, MADV_HUGEPAGE);
    #endif
        return memory;
    }
    """
    void* lines_alloc(size_t size, bint large) nogil

cdef enum:
    CHUNK_NODES = 1 << CHUNK_BITS
    SMALLEST_TABLE = 64
    SMALLEST_LEVELS = 16

NODE_SIZE = sizeof(Node)            # one cache line; a test looks that it stays so


cdef int table_reserve(SlotTable* table) noexcept nogil:
    cdef size_t old_size, size
    cdef size_t i
    cdef Slot* old
    cdef Slot* slots
    if table.slots != NULL and table.used < (<uint64_t> table.mask + 1) * 5 / 8:
        return 0
    old = table.slots
    old_size = 0 if old == NULL else <size_t> table.mask + 1
    size = 2 * old_size if old_size else SMALLEST_TABLE
    if size > <size_t> UINT32_MAX:
        return -1
    slots = <Slot*> lines_alloc((size + TABLE_MARGIN) * sizeof(Slot), True)
    if slots == NULL:
        return -1
    memset(slots, 0, (size + TABLE_MARGIN) * sizeof(Slot))
    table.slots = slots
    table.mask = <uint32_t> (size - 1)
    table.used = 0
    # The place of an entry is the low bits of its tag, so the old table is read and the new one written in order and
    # no node is touched: doubling a table of millions of slots takes milliseconds.
    for i in range(old_size):
        if old[i].value:
            table_add(table, old[i].tag, old[i].value)
    free(old)
    return 0


cdef void table_add(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil:
    cdef uint32_t at = tag & table.mask
    while table.slots[at].value:
        at = (at + 1) & table.mask
    table.slots[at].tag = tag
    table.slots[at].value = value
    table.used += 1


cdef Slot* table_slot(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil:
    cdef uint32_t at = tag & table.mask
    while table.slots[at].value != value:
        at = (at + 1) & table.mask
    return table.slots + at


cdef void table_remove(SlotTable* table, uint32_t tag, uint32_t value) noexcept nogil:
    cdef uint32_t hole = <uint32_t> (table_slot(table, tag, value) - table.slots)
    cdef uint32_t at = hole
    cdef uint32_t home
    # Later entries of the chain move up into the hole unless they would land before their own place.
    while True:
        at = (at + 1) & table.mask
        if table.slots[at].value == 0:
            break
        home = table.slots[at].tag & table.mask
        if ((at - home) & table.mask) >= ((at - hole) & table.mask):
            table.slots[hole] = table.slots[at]
            hole = at
    table.slots[hole].value = 0
    table.used -= 1


cdef void table_free(SlotTable* table) noexcept nogil:
    free(table.slots)
    table.slots = NULL
    table.mask = table.used = 0


cdef int add_chunk(TopicTree* tree) except -1:
    cdef Node** chunks = <Node**> realloc(tree.chunks, (tree.chunk_count + 1) * sizeof(Node*))
    cdef Node* chunk
    if chunks == NULL:
        raise MemoryError()
    tree.chunks = chunks
    # the first chunk fills page by page: a small broker stays small
    chunk = <Node*> lines_alloc(CHUNK_NODES * sizeof(Node), tree.chunk_count > 0)
    if chunk == NULL:
        raise MemoryError()
    chunks[tree.chunk_count] = chunk
    tree.chunk_count += 1
    return 0


cdef int tree_init(TopicTree* tree, uint64_t seed) except -1:
    cdef Node* root
    memset(tree, 0, sizeof(TopicTree))
    tree.seed = seed
    if table_reserve(&tree.table) < 0:
        raise MemoryError()
    add_chunk(tree)
    memset(tree_node(tree, NO_NODE), 0, sizeof(Node))      # never used, but tree_prefetch may look at it
    root = tree_node(tree, ROOT)
    memset(root, 0, sizeof(Node))
    root.hash = hash_fold(seed, 0x2D358DCCAA6C78A5ULL)
    root.kind = NODE_LITERAL
    tree.top = ROOT + 1
    return 0


cdef void tree_free(TopicTree* tree) noexcept nogil:
    cdef uint32_t i
    cdef Node* node
    if tree.chunks == NULL:
        return
    for i in range(ROOT, tree.top):
        node = tree_node(tree, i)
        if node.kind != NODE_FREE and node.name_size > INLINE_NAME:
            free(node.name.outside)
    for i in range(tree.chunk_count):
        free(tree.chunks[i])
    free(tree.chunks)
    tree.chunks = NULL
    table_free(&tree.table)


cdef uint32_t tree_add(TopicTree* tree, uint32_t parent, uint8_t kind, uint64_t hash, const uint8_t* name,
                       uint32_t size) except NO_NODE:
    cdef uint32_t index
    cdef uint8_t* outside = NULL
    cdef Node* node
    # everything that can fail first: a tree without memory stays as it was
    if table_reserve(&tree.table) < 0:
        raise MemoryError()
    if tree.free == NO_NODE and tree.top == tree.chunk_count << CHUNK_BITS:
        if tree.chunk_count == 1 << (32 - CHUNK_BITS) - 1:
            raise MemoryError("too many topic levels")
        add_chunk(tree)
    if size > INLINE_NAME:
        outside = <uint8_t*> malloc(size)
        if outside == NULL:
            raise MemoryError()
    if tree.free != NO_NODE:
        index = tree.free
        tree.free = tree_node(tree, index).link
    else:
        index = tree.top
        tree.top += 1
    node = tree_node(tree, index)
    memset(node, 0, sizeof(Node))
    node.hash = hash
    node.parent = parent
    node.kind = kind
    node.name_size = <uint16_t> size
    if outside != NULL:
        node.name.outside = outside
        memcpy(outside, name, size)
    else:
        memcpy(node.name.inside, name, size)
    if kind == NODE_LITERAL or kind == NODE_GROUP:
        table_add(&tree.table, <uint32_t> (hash >> 32), index)
    tree_node(tree, parent).children += 1
    tree.count += 1
    return index


cdef void tree_drop(TopicTree* tree, uint32_t index) noexcept nogil:
    cdef Node* node = tree_node(tree, index)
    if node.kind == NODE_LITERAL or node.kind == NODE_GROUP:
        table_remove(&tree.table, <uint32_t> (node.hash >> 32), index)
    if node.name_size > INLINE_NAME:
        free(node.name.outside)
    tree_node(tree, node.parent).children -= 1
    tree.count -= 1
    node.kind = NODE_FREE
    node.link = tree.free
    tree.free = index


cdef bytes tree_path(const TopicTree* tree, uint32_t index):
    cdef list names = []
    cdef const Node* node
    while index != ROOT:
        node = tree_node(tree, index)
        if node.kind == NODE_PLUS:
            names.append(b"+")
        elif node.kind == NODE_REST:
            names.append(b"#")
        else:
            names.append((<const char*> node_name(node))[:node.name_size])
        index = node.parent
    names.reverse()
    return b"/".join(names)


cdef int levels_grow(LevelList* levels) except -1 nogil:
    cdef uint32_t capacity = 2 * levels.capacity if levels.capacity else SMALLEST_LEVELS
    cdef Level* items = <Level*> realloc(levels.items, capacity * sizeof(Level))
    if items == NULL:
        with gil:
            raise MemoryError()
    levels.items = items
    levels.capacity = capacity
    return 0


cdef void levels_free(LevelList* levels) noexcept nogil:
    free(levels.items)
    levels.items = NULL
    levels.count = levels.capacity = 0
