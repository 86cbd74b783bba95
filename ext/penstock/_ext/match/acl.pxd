# The access rules of one client, compiled when it connects, so that asking costs no Python.
from libc.stdint cimport uint8_t, uint32_t


cdef enum AclAction:
    ACL_PUBLISH = 1
    ACL_RECEIVE = 2         # delivery of one topic to a subscriber; asked once per topic when a match is built
    ACL_SUBSCRIBE = 4       # used in rules: a rule for `subscribe` answers both may_subscribe and ACL_RECEIVE


# One level of a pattern. A literal that no topic level can equal (it has + # or / in it) makes its rule match nothing.
cdef struct AclLevel:
    const uint8_t* text
    uint32_t size
    uint8_t kind            # AclLevelKind

cdef enum AclLevelKind:
    ACL_LITERAL = 0
    ACL_PLUS = 1
    ACL_REST = 2            # `#`, always last

cdef struct AclPattern:
    const AclLevel* levels
    uint32_t count

cdef struct AclRule:
    AclPattern pattern
    uint8_t allow
    uint8_t actions         # bits of AclAction
    uint8_t dead            # matches nothing


cdef class AclProgram:
    # rules in file order, first match decides; nothing matches = denied
    cdef void* _rules               # AclRule[_rule_count], then the levels and their text, in one block
    cdef uint32_t _rule_count
    cdef readonly tuple rules       # what it was compiled from, for people

    cdef const AclRule* find(self, const uint8_t* topic, uint32_t size, AclAction action) noexcept
    cdef const AclRule* find_filter(self, bytes filter) except? NULL
    cdef object _number(self, const AclRule* rule)
    cdef bint allows(self, const uint8_t* topic, uint32_t size, AclAction action) noexcept
    # Whether an allow rule names the topic's last level in full: `$queue/events/$commit` and `$queue/+/$commit` name
    # the verb, `$queue/events/#` does not.
    cdef bint names_verb(self, const uint8_t* topic, uint32_t size) noexcept
    # Whether every topic of the filter may be received.
    cdef bint covers_filter(self, bytes filter) except -1
    cdef int _compile(self) except -1
