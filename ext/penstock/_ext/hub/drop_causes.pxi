# Why a message did not reach somebody; DROP_NAMES (hub.pxi) has the words for metrics and the command line.


cdef enum DropCause:
    DROP_NOT_WRITABLE = 0   # QoS 0 for a connection above its high watermark
    DROP_QUEUE_FULL = 1
    DROP_EXPIRED = 2
    DROP_TOO_LARGE = 3      # for the client's Maximum Packet Size, or for the log
    DROP_DENIED = 4         # the publisher may not publish there, or the subscriber may not have it
    DROP_RETAINED_FULL = 5  # delivered, but not retained: the retained store is at its limit
    DROP_SESSION_ENDED = 6  # waiting in a session that ended
    DROP_INCOMING_RATE = 7  # its publisher sends too much
    DROP_OUTGOING_RATE = 8  # its subscriber is sent too much
    DROP_TOTAL_RATE = 9     # all together send and are sent too much
    DROP_STORED_RATE = 10   # too much is stored for DEVICE clients
    DROP_STORE_FULL = 11    # stored for a DEVICE client or group, it gave way to newer ones
    DROP_CAUSES = 12
