# Retained messages: the last one of each topic, found by topic or by filter.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock._ext.hub.message cimport Message
from penstock._ext.match.topic_tree cimport LevelList, SlotTable, TopicTree


cdef struct MessageList:
    Message** items
    uint32_t count
    uint32_t capacity


# Retained messages of one user. Number 0 has no limit: it is the broker itself.
cdef struct Share:
    uint64_t hash           # of the user name
    uint64_t bytes
    uint32_t count
    uint32_t next           # of the free ones


cdef class RetainedTree:
    cdef readonly uint64_t count        # messages held
    cdef readonly uint64_t bytes        # their weight (message_weight)
    cdef readonly uint64_t steps        # nodes that filters have looked at
    cdef TopicTree _tree
    cdef LevelList _levels              # of the topic or filter at hand
    cdef Share* _shares
    cdef uint32_t _share_count, _share_capacity, _free_share
    cdef SlotTable _share_table
    cdef uint32_t _sweep_at             # where the next sweep goes on

    # Takes a reference of its own; replaces what was there. Returns 1 if the topic is new, 0 if it was replaced.
    cdef int store(self, Message* message) except -1
    # The number of a user's share for Message.source_partition, before store(): it lives as long as it has messages.
    cdef uint32_t take_share(self, const uint8_t* user, uint32_t size) except? 0
    # Borrowed, or NULL if the user has nothing retained.
    cdef Share* find_share(self, const uint8_t* user, uint32_t size) noexcept
    cdef void _leave_share(self, const Message* message) noexcept
    # 1 if something was there.
    cdef int remove(self, const uint8_t* topic, uint32_t size) except -1
    # Borrowed, or NULL.
    cdef Message* find(self, const uint8_t* topic, uint32_t size) noexcept
    # Appends borrowed messages whose topic matches the filter ($-topics only by a filter that names them), leaving out
    # what has expired by now_ms. The caller frees list.items.
    cdef int collect(self, const uint8_t* filter, uint32_t size, int64_t now_ms, MessageList* found) except -1
    cdef int _collect(self, const uint8_t* filter, uint32_t size, int64_t now_ms, MessageList* found,
                      uint32_t limit) except -1
    cdef uint32_t _find_node(self, const uint8_t* topic, uint32_t size) except? 0
    cdef void _drop(self, uint32_t index) noexcept
