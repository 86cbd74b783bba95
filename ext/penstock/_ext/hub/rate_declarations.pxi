cdef enum:
    MOST_RATES = 4


# So many messages in so long, for several times at once; none = no limit.
cdef struct Rates:
    uint32_t count
    int64_t period[4]       # ns; MOST_RATES of them
    int64_t each[4]         # ns of it that a message takes up
