# From a topic to its subscribers: walk the tree, merge per subscriber, pack into one block. Part of trie.pyx.
#
# The walk keeps the set of nodes reached so far and goes down one level at a time, so it needs no recursion and visits
# a node at most once. What it costs is the number of nodes that match a prefix of the topic: for exact filters one per
# level. The worst anybody can build is every combination of a level and `+`: n filters over such a tree make a topic
# that matches them all reach 2n nodes (65,536 filters over 16 levels: 131,071 nodes, a few milliseconds, then cached).
# So the walk counts its steps and stops at the caller's limit; trie_walk.pxi makes such a match in slices.
# Merging looks at each matching subscription twice at most, whatever the number of subscribers.

cdef enum:
    DENIED = 0xFFFFFFFF         # _mark_index of a subscriber whose acl says no to this topic
    OWNERS_AHEAD = 8

# Every match has its own mark, also across tries.
cdef uint64_t last_mark = 0


cdef inline int add_hit(TopicTree* tree, MatchScratch* scratch, uint32_t index) except -1 nogil:
    cdef Node* node = tree_node(tree, index)
    cdef uint32_t group = node.link
    if node.state != CARRIES_NOTHING:
        if scratch.hit_count == scratch.hit_capacity:
            reserve(<void**> &scratch.hits, &scratch.hit_capacity, scratch.hit_count + 1, sizeof(uint32_t))
        scratch.hits[scratch.hit_count] = index
        scratch.hit_count += 1
    while group != NO_NODE:
        node = tree_node(tree, group)
        if scratch.group_count == scratch.group_capacity:
            reserve(<void**> &scratch.groups, &scratch.group_capacity, scratch.group_count + 1, sizeof(ShareGroup*))
        scratch.groups[scratch.group_count] = filter_part(node).carried.shared.group
        scratch.group_count += 1
        group = node.link
    return 0


cdef int reserve_reach(MatchScratch* scratch, uint32_t wanted) except -1 nogil:
    cdef uint32_t capacity = scratch.reach_capacity
    reserve(<void**> &scratch.here, &capacity, wanted, sizeof(uint32_t))
    capacity = scratch.reach_capacity
    reserve(<void**> &scratch.below, &capacity, wanted, sizeof(uint32_t))
    scratch.reach_capacity = capacity
    return 0


# 0, or 1 when it would look at more than `limit` nodes.
cdef int walk(TopicTree* tree, MatchScratch* scratch, uint64_t limit) except -1 nogil:
    cdef LevelList* levels = &scratch.levels
    cdef Level* level
    cdef Node* node
    cdef FilterPart* part
    cdef uint32_t depth, i, child, reached
    cdef uint32_t count = 1
    cdef uint64_t steps = 0
    # names are compared byte for byte [MQTT-4.7.3-4] [MQTT3-4.7.3-4]
    # [MQTT-4.7.2-1]: wildcards in front do not match a topic that starts with $ [MQTT3-4.7.2-1]
    cdef bint wildcards = levels.items[0].size == 0 or levels.items[0].name[0] != c'$'
    scratch.hit_count = scratch.group_count = 0
    reserve_reach(scratch, 2)
    scratch.here[0] = ROOT
    for depth in range(levels.count):
        level = levels.items + depth
        reached = 0
        steps += count
        if steps > limit:
            scratch.steps = limit
            return 1
        if 2 * count > scratch.reach_capacity:
            reserve_reach(scratch, 2 * count)
        for i in range(count):
            node = tree_node(tree, scratch.here[i])
            part = filter_part(node)
            if wildcards:
                if part.rest != NO_NODE:
                    add_hit(tree, scratch, part.rest)
                if part.plus != NO_NODE:
                    scratch.below[reached] = part.plus
                    reached += 1
            if node.children > <uint32_t> (part.plus != NO_NODE) + <uint32_t> (part.rest != NO_NODE):
                child = tree_find(tree, scratch.here[i], NODE_LITERAL, child_hash(node.hash, level.hash), level.name,
                                  level.size)
                if child != NO_NODE:
                    scratch.below[reached] = child
                    reached += 1
        if reached == 0:
            scratch.steps = steps
            return 0
        scratch.here, scratch.below = scratch.below, scratch.here
        count = reached
        wildcards = True
    scratch.steps = steps + count
    for i in range(count):
        add_hit(tree, scratch, scratch.here[i])
        part = filter_part(tree_node(tree, scratch.here[i]))
        # a/# matches a as well
        if part.rest != NO_NODE:
            add_hit(tree, scratch, part.rest)
    return 0


cdef inline void add_to_target(Target* target, uint64_t packed, uint64_t* id_total) noexcept nogil:
    cdef uint8_t options = packed_options(packed)
    cdef uint8_t qos = options & OPTION_QOS
    # Overlapping filters of one subscriber: one message with the highest QoS of them [MQTT-3.3.4-2] [MQTT3-3.3.5-1]
    if qos > target.qos:
        target.qos = qos
    if options & OPTION_RETAIN_AS_PUBLISHED:
        target.flags |= TARGET_RETAIN_AS_PUBLISHED
    if options & OPTION_NO_LOCAL:
        target.flags |= TARGET_NO_LOCAL
    elif target.own_qos == QOS_NONE or qos > target.own_qos:
        target.own_qos = qos
    # ... and with all their identifiers, equal ones as often as they match [MQTT-3.3.4-4]
    if packed_identifier(packed) and target.id_count < UINT16_MAX:
        target.id_count += 1
        id_total[0] += 1
        if not options & OPTION_NO_LOCAL:
            target.own_id_count += 1


cdef inline void start_target(Target* target, void* owner) noexcept nogil:
    target.owner = owner
    target.qos = target.flags = 0
    target.own_qos = QOS_NONE
    target.id_count = target.own_id_count = 0
    target.ids = NULL


# Fills scratch.targets from scratch.hits; returns how many.
cdef int64_t merge(TopicTree* tree, MatchScratch* scratch, const uint8_t* topic, uint32_t size,
                   uint64_t* id_total) except -1:
    global last_mark
    cdef uint64_t total = 0
    cdef uint32_t found = 0
    cdef uint32_t h, i, count
    cdef Subscription* items
    cdef void* owner
    cdef Target* target
    for h in range(scratch.hit_count):
        subscriptions_of(tree_node(tree, scratch.hits[h]), &count)
        total += count
    if total >= UINT32_MAX:
        raise MemoryError()
    scratch.steps += total
    reserve(<void**> &scratch.targets, &scratch.target_capacity, <uint32_t> total, sizeof(Target))
    if total == 1 and not scratch.checks_acl:
        # likeliest: nothing to merge and no rules, so the subscriber itself need not be looked at
        items = subscriptions_of(tree_node(tree, scratch.hits[0]), &count)
        if count and packed_identifier(items[0].packed) == 0:
            start_target(scratch.targets, items[0].owner)
            add_to_target(scratch.targets, items[0].packed, id_total)
            return 1
    last_mark += 1
    for h in range(scratch.hit_count):
        items = subscriptions_of(tree_node(tree, scratch.hits[h]), &count)
        for i in range(count):
            if i + OWNERS_AHEAD < count:
                prefetch(&(<Subscriber> items[i + OWNERS_AHEAD].owner)._mark)
            owner = items[i].owner
            if (<Subscriber> owner)._mark != last_mark:
                (<Subscriber> owner)._mark = last_mark
                if not may_receive(owner, topic, size):
                    (<Subscriber> owner)._mark_index = DENIED
                    continue
                (<Subscriber> owner)._mark_index = found
                target = scratch.targets + found
                found += 1
                start_target(target, owner)
            elif (<Subscriber> owner)._mark_index == DENIED:
                continue
            else:
                target = scratch.targets + (<Subscriber> owner)._mark_index
            add_to_target(target, items[i].packed, id_total)
    return found


cdef inline bint may_receive(void* owner, const uint8_t* topic, uint32_t size) noexcept:
    if (<Subscriber> owner).acl is None:
        return True
    return (<Subscriber> owner).acl.allows(topic, size, ACL_RECEIVE)


# Second look at the hits: every identifier into its owner's part of `ids`.
cdef void place_identifiers(TopicTree* tree, MatchScratch* scratch, Target* targets, uint32_t found,
                            uint32_t* ids) noexcept:
    cdef uint32_t h, i, count, identifier
    cdef Subscription* items
    cdef Target* target
    cdef Target* whole
    for i in range(found):
        if targets[i].id_count:
            targets[i].ids = ids
            ids += targets[i].id_count
            targets[i].id_count = targets[i].own_id_count = 0
    for h in range(scratch.hit_count):
        items = subscriptions_of(tree_node(tree, scratch.hits[h]), &count)
        for i in range(count):
            identifier = packed_identifier(items[i].packed)
            if identifier == 0 or (<Subscriber> items[i].owner)._mark_index == DENIED:
                continue
            # `whole` knows how many there will be, `target` counts how many are there
            target = targets + (<Subscriber> items[i].owner)._mark_index
            whole = scratch.targets + (<Subscriber> items[i].owner)._mark_index
            if target.id_count == whole.id_count:
                continue
            if packed_options(items[i].packed) & OPTION_NO_LOCAL:
                (<uint32_t*> target.ids)[whole.own_id_count + target.id_count - target.own_id_count] = identifier
            else:
                (<uint32_t*> target.ids)[target.own_id_count] = identifier
                target.own_id_count += 1
            target.id_count += 1


# One block: the match, its targets, its groups, the identifiers, the topic.
cdef Match* match_new(TopicTree* tree, MatchScratch* scratch, const uint8_t* topic, uint32_t size) except NULL:
    cdef uint64_t id_total = 0
    cdef uint32_t found = <uint32_t> merge(tree, scratch, topic, size, &id_total)
    cdef size_t weight = (sizeof(Match) + found * sizeof(Target) + scratch.group_count * sizeof(ShareGroup*)
                          + id_total * sizeof(uint32_t) + size)
    cdef Match* match = <Match*> malloc(weight)
    cdef uint32_t* ids
    if match == NULL:
        raise MemoryError()
    match.refs = 1
    match.recent = 0
    match.weight = weight
    match.topic_size = size
    match.target_count = found
    match.group_count = scratch.group_count
    match.targets = <Target*> (match + 1)
    match.groups = <ShareGroup**> (match.targets + found)
    ids = <uint32_t*> (match.groups + scratch.group_count)
    match.topic = <uint8_t*> (ids + id_total)
    if found:  # memcpy of nothing from NULL, as in a tree without filters, is undefined
        memcpy(match.targets, scratch.targets, found * sizeof(Target))
    if scratch.group_count:
        memcpy(match.groups, scratch.groups, scratch.group_count * sizeof(ShareGroup*))
    memcpy(<void*> match.topic, topic, size)
    if id_total:
        place_identifiers(tree, scratch, match.targets, found, ids)
    return match


cdef void match_free(Match* match) noexcept nogil:
    free(match)
