cdef enum:
    MOST_RATES = 4


# So many messages in so long, for several times at once; none = no limit.
cdef struct Rates:
    uint32_t count
    int64_t period[4]       # ns; MOST_RATES of them
    int64_t each[4]         # ns of it that a message takes up


# Rates of the whole process; for total and stored messages also until when they are used up.
cdef struct RateLimits:
    bint is_on                      # one of the first three has a limit
    Rates incoming, outgoing, total, stored
    int64_t total_turns[4]
    int64_t stored_turns[4]
