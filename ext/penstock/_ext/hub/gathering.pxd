# When a batch of publishes leaves for the log; see is_due in ingest.pxi.
from libc.stdint cimport int64_t, uint8_t, uint64_t


# How urgent the open batch is, which publishes are being added to.
cdef enum OpenWait:
    WAIT_NOTHING = 0        # QoS 0 only
    WAIT_ANSWER = 1         # an acknowledgement depends on it
    WAIT_NONE_LONGER = 2    # a publisher sends nothing before it is acknowledged, or a persistent subscriber matches


cdef struct Gathering:
    bint is_on              # the log runs one commit at a time
    uint8_t awaited         # OpenWait of the open batch
    bint is_quiet           # nothing waits for the batch under way, and its commit may not be reported by itself
    int64_t linger          # ms that QoS 0 waits for other publishes
    int64_t ack_linger      # ms between two commits that only acknowledgements wait for
    uint64_t linger_bytes   # an open batch of this size does not linger
    int64_t submitted_at    # Hub.now when the last batch left
    int64_t opened_at       # Hub.now when the open batch got its first publish
    int64_t timer_at        # Hub.now when the timer submits the open batch; 0 = there is none
