# Part of connection.pxd: what the hub counts.

cdef struct Counters:
    uint64_t received[3]    # PUBLISH by QoS
    uint64_t sent[3]
    uint64_t payload_received
    uint64_t payload_sent
    uint64_t bytes_received
    uint64_t bytes_sent
    uint64_t packets_received
    uint64_t packets_sent
    uint64_t reads
    uint64_t writes
    uint64_t flushes
    uint64_t connects       # transports opened
    uint64_t unmatched
    uint64_t protocol_errors
    uint64_t paused         # times a publisher was made to wait
    uint64_t inflight       # of all sessions, now; so are the two below
    uint64_t queued
    uint64_t queued_bytes
    uint64_t logged         # publishes handed to the log
    uint64_t log_failures   # publishes the log did not take
    uint64_t foreign        # messages that another broker took, with a subscriber here
    uint64_t dispatched     # copies written to the logs of APPLICATION clients
    uint64_t dropped[12]    # DROP_CAUSES of them
