# What the nodes of the filter tree carry: subscriptions or a share group. Part of trie.pyx.
#
# A filter's last node carries its subscriptions: one in the node itself, more in an array. The children for + and #
# are linked directly, literal ones are in the tree's table. A share group is a child of the filter's last node, so
# every subscription of any kind is at exactly one node.

cdef enum:
    CARRIES_NOTHING = 0
    CARRIES_ONE = 1
    CARRIES_MANY = 2

cdef enum:
    OPTION_QOS = 3
    OPTION_NO_LOCAL = 4
    OPTION_RETAIN_AS_PUBLISHED = 8
    ALL_OPTIONS = 63
    MAX_IDENTIFIER = (1 << 28) - 1
    MAX_SUBSCRIPTIONS = (1 << 30) - 1       # of one subscriber: what a slot number can hold
    SMALLEST_LIST = 4


# A word for what does not need one each, so that a subscription fits into its node: the slot in the owner's list in
# the low 30 bits, then 6 bits of options, then 28 bits of subscription identifier.
cdef struct Subscription:
    void* owner
    uint64_t packed

cdef struct SubscriptionList:
    Subscription* items
    uint32_t count
    uint32_t capacity

cdef struct GroupLink:
    ShareGroup* group
    uint32_t previous

cdef union Carried:
    Subscription one
    SubscriptionList many
    GroupLink shared

# The body of a node. Node.link is the first share group of a filter's node, the next group in a group's node.
cdef struct FilterPart:
    Carried carried         # first: what it points to is fetched ahead, see tree_prefetch
    uint32_t plus
    uint32_t rest


cdef inline FilterPart* filter_part(Node* node) noexcept nogil:
    return <FilterPart*> node.body


cdef inline uint64_t pack_subscription(uint32_t slot, uint8_t options, uint32_t identifier) noexcept nogil:
    return slot | <uint64_t> options << 30 | <uint64_t> identifier << 36


cdef inline uint32_t packed_slot(uint64_t packed) noexcept nogil:
    return packed & MAX_SUBSCRIPTIONS


cdef inline uint8_t packed_options(uint64_t packed) noexcept nogil:
    return packed >> 30 & ALL_OPTIONS


cdef inline uint32_t packed_identifier(uint64_t packed) noexcept nogil:
    return <uint32_t> (packed >> 36)


cdef inline Subscription* subscriptions_of(Node* node, uint32_t* count) noexcept nogil:
    cdef FilterPart* part = filter_part(node)
    if node.state == CARRIES_MANY:
        count[0] = part.carried.many.count
        return part.carried.many.items
    count[0] = node.state
    return &part.carried.one


# Room in a growing array for `wanted` items; item_size is that of one.
cdef int reserve(void** items, uint32_t* capacity, uint32_t wanted, size_t item_size) except -1 nogil:
    cdef uint64_t larger
    cdef void* moved
    if wanted <= capacity[0]:
        return 0
    larger = max(<uint64_t> wanted, 2 * <uint64_t> capacity[0], <uint64_t> SMALLEST_LIST)
    moved = realloc(items[0], larger * item_size) if larger < UINT32_MAX else NULL
    if moved == NULL:
        with gil:
            raise MemoryError()
    items[0] = moved
    capacity[0] = <uint32_t> larger
    return 0


# Makes room for one more subscription; the node carries what it carried.
cdef int reserve_subscription(Node* node) except -1 nogil:
    cdef Carried* carried = &filter_part(node).carried
    cdef Subscription* items
    if node.state == CARRIES_NOTHING:
        return 0
    if node.state == CARRIES_ONE:
        items = <Subscription*> malloc(SMALLEST_LIST * sizeof(Subscription))
        if items == NULL:
            with gil:
                raise MemoryError()
        items[0] = carried.one
        carried.many.items = items
        carried.many.count = 1
        carried.many.capacity = SMALLEST_LIST
        node.state = CARRIES_MANY
        return 0
    return reserve(<void**> &carried.many.items, &carried.many.capacity, carried.many.count + 1, sizeof(Subscription))


# After reserve_subscription; returns the place.
cdef uint32_t append_subscription(Node* node, void* owner, uint64_t packed) noexcept nogil:
    cdef Carried* carried = &filter_part(node).carried
    cdef uint32_t place = 0
    if node.state == CARRIES_NOTHING:
        node.state = CARRIES_ONE
        carried.one.owner = owner
        carried.one.packed = packed
        return 0
    place = carried.many.count
    carried.many.items[place].owner = owner
    carried.many.items[place].packed = packed
    carried.many.count += 1
    return place


# The last subscription takes the place of the one that goes. Returns it, so that its owner can be told, or NULL.
cdef Subscription* take_subscription(Node* node, uint32_t place) noexcept nogil:
    cdef Carried* carried = &filter_part(node).carried
    cdef Subscription* items = carried.many.items
    cdef Subscription remaining
    cdef bint moved
    if node.state == CARRIES_ONE:
        node.state = CARRIES_NOTHING
        return NULL
    carried.many.count -= 1
    moved = place != carried.many.count
    if moved:
        items[place] = items[carried.many.count]
    if carried.many.count > 1:
        return items + place if moved else NULL
    if carried.many.count == 0:
        free(items)
        node.state = CARRIES_NOTHING
        return NULL
    remaining = items[0]
    free(items)
    carried.one = remaining
    node.state = CARRIES_ONE
    return &carried.one if moved else NULL


# Removes a node that carries nothing and has no children, then its parents as far as that holds for them.
cdef void prune(TopicTree* tree, uint32_t index) noexcept nogil:
    cdef Node* node
    cdef FilterPart* parent_part
    cdef uint32_t parent
    while index != ROOT:
        node = tree_node(tree, index)
        if node.children or node.state != CARRIES_NOTHING:
            return
        parent = node.parent
        parent_part = filter_part(tree_node(tree, parent))
        if node.kind == NODE_PLUS:
            parent_part.plus = NO_NODE
        elif node.kind == NODE_REST:
            parent_part.rest = NO_NODE
        elif node.kind == NODE_GROUP:
            unlink_group(tree, node)
        tree_drop(tree, index)
        index = parent


# The most memory that a subscription at this node takes: its text, and a node for each level.
cdef uint64_t filter_weight(const TopicTree* tree, uint32_t index) noexcept nogil:
    cdef uint64_t weight = 0
    cdef const Node* node
    while index != ROOT:
        node = tree_node(tree, index)
        weight += sizeof(Node) + 1 + (1 if node.kind == NODE_PLUS or node.kind == NODE_REST else node.name_size)
        index = node.parent
    return weight


cdef void link_group(TopicTree* tree, uint32_t index) noexcept nogil:
    cdef Node* node = tree_node(tree, index)
    cdef Node* parent = tree_node(tree, node.parent)
    node.link = parent.link
    if parent.link != NO_NODE:
        filter_part(tree_node(tree, parent.link)).carried.shared.previous = index
    filter_part(node).carried.shared.previous = NO_NODE
    parent.link = index


cdef void unlink_group(TopicTree* tree, Node* node) noexcept nogil:
    cdef uint32_t previous = filter_part(node).carried.shared.previous
    if previous != NO_NODE:
        tree_node(tree, previous).link = node.link
    else:
        tree_node(tree, node.parent).link = node.link
    if node.link != NO_NODE:
        filter_part(tree_node(tree, node.link)).carried.shared.previous = previous


cdef ShareGroup* group_new(Node* node, uint32_t index) except NULL nogil:
    cdef ShareGroup* group = <ShareGroup*> calloc(1, sizeof(ShareGroup))
    if group == NULL:
        with gil:
            raise MemoryError()
    group.node = index
    group.name = <char*> node_name(node)        # nodes do not move
    group.name_size = node.name_size
    filter_part(node).carried.shared.group = group
    return group


cdef void group_free(Node* node) noexcept nogil:
    cdef ShareGroup* group = filter_part(node).carried.shared.group
    filter_part(node).carried.shared.group = NULL
    node.state = CARRIES_NOTHING
    free(group.members)
    free(group)
