# A match made in slices, for topics that very many filters nearly match. Part of trie.pyx.
#
# Depth first, so that what waits is at most two nodes for each level. Between two slices subscriptions may come and go:
# - A node that was removed is skipped: it is free, or has another hash because it was reused. A path has only one hash,
#   so a node with the same hash stands for the same filter.
# - A filter that has its first subscriber is compared with the topic at once (Trie._note_new).
# - Subscribers, options and access rules are read at the end.
# So the result is the same as that of a match made at once in the last slice.

cdef int add_mark(MarkList* marks, TopicTree* tree, uint32_t index, uint32_t depth) except -1 nogil:
    cdef Mark* mark
    if marks.count == marks.capacity:
        reserve(<void**> &marks.items, &marks.capacity, marks.count + 1, sizeof(Mark))
    mark = marks.items + marks.count
    mark.node = index
    mark.depth = depth
    mark.hash = tree_node(tree, index).hash
    marks.count += 1
    return 0


cdef inline bint is_marked(TopicTree* tree, const Mark* mark) noexcept nogil:
    cdef Node* node = tree_node(tree, mark.node)
    return node.kind != NODE_FREE and node.hash == mark.hash


# The filter of a node and its share groups.
cdef int mark_hits(LongWalk* long_walk, TopicTree* tree, uint32_t index) except -1 nogil:
    cdef uint32_t group = tree_node(tree, index).link
    if tree_node(tree, index).state != CARRIES_NOTHING:
        add_mark(&long_walk.hits, tree, index, 0)
    while group != NO_NODE:
        add_mark(&long_walk.hits, tree, group, 0)
        group = tree_node(tree, group).link
    return 0


cdef inline bint starts_with_dollar(const LevelList* levels) noexcept nogil:
    return levels.items[0].size != 0 and levels.items[0].name[0] == c'$'


cdef int walk_begin(LongWalk* long_walk, TopicTree* tree, const uint8_t* topic, uint32_t size,
                    uint64_t hash) except -1:
    cdef uint8_t* copy = <uint8_t*> malloc(max(size, 1))
    if copy == NULL:
        raise MemoryError()
    memcpy(copy, topic, size)
    free(long_walk.topic)
    long_walk.topic = copy
    long_walk.size = size
    long_walk.hash = hash
    long_walk.steps = 0
    long_walk.is_active = False
    long_walk.stack.count = long_walk.hits.count = 0
    split_topic(&long_walk.levels, copy, size, tree.seed)
    add_mark(&long_walk.stack, tree, ROOT, 0)
    long_walk.is_active = True
    return 0


# At most `limit` nodes; True when all are done.
cdef bint walk_some(LongWalk* long_walk, TopicTree* tree, uint64_t limit) except -1 nogil:
    cdef LevelList* levels = &long_walk.levels
    cdef MarkList* stack = &long_walk.stack
    cdef uint64_t end = long_walk.steps + limit
    cdef Level* level
    cdef Mark mark
    cdef Node* node
    cdef FilterPart* part
    cdef uint32_t child
    while stack.count:
        if long_walk.steps >= end:
            return False
        long_walk.steps += 1
        stack.count -= 1
        mark = stack.items[stack.count]
        if not is_marked(tree, &mark):
            continue
        node = tree_node(tree, mark.node)
        part = filter_part(node)
        if part.rest != NO_NODE and (mark.depth or not starts_with_dollar(levels)):     # a/# matches a as well
            mark_hits(long_walk, tree, part.rest)
        if mark.depth == levels.count:
            mark_hits(long_walk, tree, mark.node)
            continue
        if part.plus != NO_NODE and (mark.depth or not starts_with_dollar(levels)):
            add_mark(stack, tree, part.plus, mark.depth + 1)
        level = levels.items + mark.depth
        child = tree_find(tree, mark.node, NODE_LITERAL, child_hash(node.hash, level.hash), level.name, level.size)
        if child != NO_NODE:
            add_mark(stack, tree, child, mark.depth + 1)
    return True


# Whether the filter of a node, or of a share group's node, matches the topic of the walk.
cdef bint is_on_the_way(const LongWalk* long_walk, const TopicTree* tree, uint32_t index) noexcept nogil:
    cdef const LevelList* levels = &long_walk.levels
    cdef const Level* level
    cdef Node* node = tree_node(tree, index)
    cdef uint32_t depth = 0
    if node.kind == NODE_GROUP:
        index = node.parent
    node = tree_node(tree, index)
    while node != tree_node(tree, ROOT):
        depth += 1
        node = tree_node(tree, node.parent)
    node = tree_node(tree, index)
    if node.kind == NODE_REST:
        if depth == 1 and starts_with_dollar(levels):
            return False
        depth -= 1
        node = tree_node(tree, node.parent)
        if depth > levels.count:
            return False
    elif depth != levels.count:
        return False
    while depth:
        depth -= 1
        level = levels.items + depth
        if node.kind == NODE_PLUS:
            if depth == 0 and starts_with_dollar(levels):
                return False
        elif node.name_size != level.size or memcmp(node_name(node), level.name, level.size) != 0:
            return False
        node = tree_node(tree, node.parent)
    return True


cdef int compare_marks(const void* a, const void* b) noexcept nogil:
    cdef uint32_t left = (<const Mark*> a).node
    cdef uint32_t right = (<const Mark*> b).node
    return (left > right) - (left < right)


# Put the nodes that the walk has found and that still exist into the scratch, each once, as `walk` does.
cdef int collect_walked(LongWalk* long_walk, TopicTree* tree, MatchScratch* scratch) except -1:
    cdef MarkList* hits = &long_walk.hits
    cdef Node* node
    cdef uint32_t i
    cdef uint32_t last = NO_NODE
    scratch.hit_count = scratch.group_count = 0
    scratch.steps = hits.count
    qsort(hits.items, hits.count, sizeof(Mark), compare_marks)
    reserve(<void**> &scratch.hits, &scratch.hit_capacity, hits.count, sizeof(uint32_t))
    reserve(<void**> &scratch.groups, &scratch.group_capacity, hits.count, sizeof(ShareGroup*))
    for i in range(hits.count):
        node = tree_node(tree, hits.items[i].node)
        if hits.items[i].node == last or not is_marked(tree, hits.items + i) or node.state == CARRIES_NOTHING:
            continue
        last = hits.items[i].node
        if node.kind == NODE_GROUP:
            scratch.groups[scratch.group_count] = filter_part(node).carried.shared.group
            scratch.group_count += 1
        else:
            scratch.hits[scratch.hit_count] = last
            scratch.hit_count += 1
    return 0


cdef void walk_free(LongWalk* long_walk) noexcept nogil:
    free(long_walk.topic)
    levels_free(&long_walk.levels)
    free(long_walk.stack.items)
    free(long_walk.hits.items)
