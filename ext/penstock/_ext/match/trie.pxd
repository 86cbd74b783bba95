# Topic filters: who gets what is published on a topic. Filters are a tree of levels; matching a topic walks down the
# literal child, the `+` child and the `#` subscriptions of each level, so its cost does not depend on how many
# filters do not match. Results are cached per topic (bounded) and void as soon as `version` moves.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.match.acl cimport AclProgram
from penstock._ext.match.topic_tree cimport LevelList, Node, SlotTable, TopicTree


cdef enum:
    QOS_NONE = 0xFF
    TARGET_RETAIN_AS_PUBLISHED = 1
    TARGET_NO_LOCAL = 2             # some matching filter is no-local: look at own_qos for the owner's own messages


# What one subscriber gets, all its matching filters merged.
cdef struct Target:
    void* owner             # borrowed Subscriber; valid while the match's version is the trie's
    uint8_t qos             # highest over the matching filters
    uint8_t own_qos         # the same without no-local filters, QOS_NONE if none is left
    uint8_t flags
    uint16_t id_count       # subscription identifiers, those of filters without no-local first
    uint16_t own_id_count   # how many of them belong to filters without no-local
    const uint32_t* ids     # NULL without identifiers


cdef struct Member:
    void* owner             # borrowed Subscriber
    uint32_t identifier     # 0 = none
    uint8_t qos
    uint8_t flags           # TARGET_RETAIN_AS_PUBLISHED
    uint8_t options         # as subscribed, for `subscriptions`


# The subscribers of one $share/<name>/<filter>. Lives as long as it has members.
cdef struct ShareGroup:
    Member* members
    uint32_t count
    uint32_t capacity
    uint32_t cursor         # for the caller's strategy (round robin, sticky); survives changes of the trie
    uint32_t node           # internal: where it hangs
    uint32_t via            # the caller's: a number for its name and filter, 0 = not asked for yet
    uint16_t name_size
    char* name
    void* feed              # the caller's, borrowed: the log topic of its members that have one, or NULL
    # the caller's: which turns of all members, here and at other brokers, are those of the members here
    uint32_t turns          # of everybody; 0 = nobody else has members
    uint32_t turn_from
    uint32_t turn_count
    uint32_t old_turns      # the same as it was before, while others may not know the new numbers yet
    uint32_t old_from
    uint32_t old_count


# A counted result. Give back with match_unref.
cdef struct Match:
    uint64_t hash           # hash_bytes(topic, trie.seed)
    uint64_t version        # void when it is not the trie's any more
    uint32_t refs
    uint32_t topic_size
    uint32_t target_count
    uint32_t group_count
    Target* targets
    ShareGroup** groups     # each gets the message once; members the ACL denies this topic are NOT filtered here
    const uint8_t* topic
    uint64_t weight         # internal: bytes of this block
    uint8_t recent          # internal: used since the cache last looked


cdef void match_free(Match* match) noexcept nogil

cdef inline Match* match_ref(Match* match) noexcept nogil:
    match.refs += 1
    return match

cdef inline void match_unref(Match* match) noexcept nogil:
    match.refs -= 1
    if match.refs == 0:
        match_free(match)


# Base of whatever can subscribe (connection.Session). The trie keeps a strong reference while there are subscriptions.
cdef class Subscriber:
    cdef public AclProgram acl          # None: everything is allowed
    # Internal to the trie. A match reads and writes these two beside acl, in one cache line:
    cdef uint64_t _mark                 # the last match this subscriber was found in
    cdef uint32_t _mark_index           # which of its targets is this subscriber's
    # Two words per subscription, its node and its place among the subscriptions of the node, so that leaving costs the
    # same however many others share the filter.
    cdef uint32_t _node_count
    cdef uint32_t _node_capacity
    cdef uint32_t* _nodes
    cdef void* _trie                    # the trie the subscriptions are in, NULL without any
    cdef uint64_t _weight               # of its subscriptions, see filter_weight


# The match cache: entries in no order, found by the hash of the topic; a clock hand evicts what was not used lately.
cdef struct MatchCache:
    SlotTable table
    Match** entries
    uint32_t count
    uint32_t capacity
    uint32_t hand
    uint32_t max_topics
    uint64_t max_bytes
    uint64_t bytes


# Working memory of a match, kept between matches.
cdef struct MatchScratch:
    LevelList levels
    uint32_t* here                      # nodes reached at the current level
    uint32_t* below                     # nodes reached one level further down
    uint32_t reach_capacity             # of each of the two
    uint32_t hit_count
    uint32_t hit_capacity
    uint32_t* hits                      # nodes whose subscriptions match
    uint32_t group_count
    uint32_t group_capacity
    ShareGroup** groups
    uint32_t target_capacity
    Target* targets
    uint64_t steps                      # nodes and subscriptions the match has looked at
    bint checks_acl


# A node on the way of a long walk. Changes may free the node meanwhile and use it again: then its hash is another.
cdef struct Mark:
    uint64_t hash
    uint32_t node
    uint32_t depth


cdef struct MarkList:
    Mark* items
    uint32_t count
    uint32_t capacity


# A match that is too expensive to be made at once. It continues where it stopped, even if
# subscriptions have changed in between.
cdef struct LongWalk:
    bint is_active
    uint8_t* topic                      # a copy
    uint32_t size
    uint64_t hash
    uint64_t steps
    LevelList levels
    MarkList stack                      # nodes that wait to be looked at, at most two for each level
    MarkList hits                       # filters and share groups that match


cdef class Trie:
    cdef readonly uint64_t version      # moves with every change
    cdef readonly uint64_t seed         # of hash_bytes, random per process

    cdef readonly uint64_t filter_count         # filters with a subscriber; each share group of a filter is one more
    cdef readonly uint64_t subscription_count
    cdef readonly uint64_t subscription_bytes   # weight of the filters of all subscriptions, as if they shared no nodes
    cdef readonly uint64_t group_count
    cdef readonly uint64_t cache_hits
    cdef readonly uint64_t cache_misses
    cdef readonly uint64_t steps        # nodes and subscriptions that all matches have looked at
    cdef TopicTree _tree
    cdef MatchCache _cache
    cdef MatchScratch _scratch
    cdef LongWalk _long
    cdef Match* _walked                 # what the last long walk found, for its topic's next match

    # The merged subscribers of a valid topic name; a new reference. Subscribers whose acl denies ACL_RECEIVE are left
    # out. Cached; a topic over the cache's bound is matched afresh.
    cdef Match* match(self, const uint8_t* topic, uint32_t size, uint64_t hash) except NULL
    # The cached match, or NULL.
    cdef Match* remembered(self, const uint8_t* topic, uint32_t size, uint64_t hash) noexcept
    # Match, or NULL if that takes more than `limit` steps: then make a long walk of it.
    cdef Match* match_within(self, const uint8_t* topic, uint32_t size, uint64_t hash, uint64_t limit) except? NULL
    cdef Match* _match_afresh(self, const uint8_t* topic, uint32_t size, uint64_t hash, uint64_t limit) except? NULL
    # One long walk at a time. After go_on() has returned True, match_within() for its topic needs no steps as long as
    # the subscriptions stay as they are.
    cdef int begin_walk(self, const uint8_t* topic, uint32_t size, uint64_t hash) except -1
    cdef bint go_on(self, uint64_t limit) except -1
    cdef void end_walk(self) noexcept
    cdef int _note_new(self, uint32_t index) except -1
    cdef void _weigh(self, Subscriber subscriber, uint32_t index, int sign) noexcept
    cdef uint32_t _find_node(self, bytes filter, bint create) except? 0
    cdef int _add_subscription(self, uint32_t index, Subscriber subscriber, uint8_t options,
                               uint32_t identifier) except -1
    cdef int _add_member(self, uint32_t index, Subscriber subscriber, uint8_t options, uint32_t identifier) except -1
    cdef void _leave(self, Subscriber subscriber, uint32_t slot) noexcept
    cdef void _drop_empty_group(self, Node* node) noexcept
    # The group of `$share/<name>/<filter>`, NULL if nobody is in it.
    cdef ShareGroup* find_group(self, bytes filter) except? NULL
    # `$share/<name>/<filter>` of a group
    cdef bytes group_path(self, const ShareGroup* group)
