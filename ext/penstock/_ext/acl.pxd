# The access rules of one client, compiled when it connects, so that asking costs no Python.
from libc.stdint cimport uint8_t, uint32_t


cdef enum AclAction:
    ACL_PUBLISH = 1
    ACL_RECEIVE = 2         # delivery of one topic to a subscriber; asked once per topic when a match is built
    ACL_SUBSCRIBE = 4       # used in rules: a rule for `subscribe` answers both may_subscribe and ACL_RECEIVE


cdef class AclProgram:
    # rules in file order, first match decides; nothing matches = denied
    cdef void* _rules
    cdef uint32_t _rule_count
    cdef readonly tuple rules       # what it was compiled from, for people

    cdef bint allows(self, const uint8_t* topic, uint32_t size, AclAction action) noexcept
