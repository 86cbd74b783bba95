# Part of connection.pxd: access rules of consumers of queues and of their groups, see queue_rights.pxi.

# Whether a consumer may receive a topic, remembered.
cdef struct Verdict:
    uint64_t hash
    uint32_t size               # of the topic, 0 = nothing is remembered here
    bint is_allowed
    uint8_t topic[96]           # LONGEST_JUDGED


cdef class ConsumerRights(Outlet):
    cdef public bint is_owner           # its user has created the group
    cdef bint has_namesake              # the client is in another group of this stream with the same name
    cdef AclProgram rules               # for which has_all and verdicts hold
    cdef bint has_all                   # it may receive everything the group reads
    cdef Verdict* verdicts
    cdef AclProgram held_rules          # for which the sets of held messages hold
    cdef uint32_t bit                   # in these sets


# Messages that no consumer with room may receive.
cdef class GroupRights:
    cdef dict held                      # HeldMessages by the set of consumers that may receive them
    cdef dict released                  # of them: by offset, read again and not given yet
    cdef uint32_t held_count            # offsets in held and released
    cdef bint has_held                  # the pending list may have HELD entries
    cdef int64_t barrier                # of a stream: the first record that was passed over and stays uncommitted
    cdef bytes barrier_topic
    cdef bytes _exact_names             # the properties of a delivery, with the id of the group instead of its name
