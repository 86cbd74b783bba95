# Part of connection.pxd: the state of one client.

cdef class Session(Subscriber):
    cdef readonly Hub hub
    cdef readonly str client_id
    cdef readonly object username       # str or None
    cdef public object identity         # penstock.access.base.Identity: who has the session; None: nobody has said
    cdef const uint8_t* id_text         # UTF-8 of client_id and username, borrowed from them
    cdef const uint8_t* user_text       # NULL without a user name
    cdef uint32_t id_size, user_size
    cdef public object will             # penstock.sessions's business
    cdef public object timer            # the same: when the session ends, when its will is due
    cdef public uint32_t expiry_interval
    cdef public int64_t since           # ms since the epoch: a replay of the log is not for sessions that are younger
    cdef public str client_type         # "device" or "application", by its credentials
    cdef public bint is_assigned        # the broker assigned the client id: the client cannot come back with it
    cdef public Outlet intake           # takes its messages with QoS > 0 from the log; None: they are sent directly
    cdef public bint is_adopted         # came from another broker; what that one has not dispatched is repeated for it
    cdef bint wants_room                # an outlet waits for the next acknowledgement, whoever's it is
    cdef bint received_changed
    cdef readonly uint32_t left_unreleased      # QoS 2 packet ids it still held when it ended
    cdef readonly list left_shares              # filters of the share groups it was in when it ended
    cdef list outlets                   # where else than directly its messages come from, or None
    cdef uint32_t first_outlet          # whose turn it is to send first
    cdef uint32_t log_outlets           # those that read the log
    cdef dict parts                     # of the window, by name; None before there is one
    cdef uint32_t reserve_each, kept_free       # places reserved for each part, and those of all that are not taken
    cdef uint32_t plan_each             # records that a part may have planned
    cdef uint32_t in_parts              # of `outstanding`, those of parts
    cdef uint32_t round, log_round      # of turns at the last free place, see window_parts.pxi; the log's last turn
    cdef uint8_t round_hops             # iterations until the round ends, 0 = no place is free
    cdef bint is_contended              # something has had its turn in this round
    cdef public uint8_t version
    cdef readonly uint32_t generation   # moves with every attach and detach
    cdef readonly Connection connection     # None while offline
    cdef bint _keeps                    # outlives its connection: what is in flight may have to be sent again
    cdef bint _ended
    cdef uint64_t _client_hash
    cdef Window window
    cdef Queue queue
    cdef IdSet received                 # QoS 2 packet ids awaiting PUBREL
    cdef readonly uint32_t received_sequence    # of the newest QoS 2 message that is logged with its packet id
    cdef uint32_t limit                 # of the client's receive maximum and ours
    cdef uint32_t outstanding           # sent on this connection and not acknowledged
    cdef uint32_t backlog               # retained messages waiting in the queue: everything live waits behind them
    cdef uint64_t backlog_bytes
    cdef uint16_t* resend               # packet ids to be sent again on this connection, in order
    cdef uint32_t resend_at, resend_count
    cdef readonly uint64_t delivered    # messages sent to it
    cdef uint32_t _dropped[12]          # DROP_CAUSES of them
    cdef int64_t* turns                 # until when its share of the rates is used up, in and out; NULL = not at all
    cdef bint congested                 # makes its publishers wait
    cdef int64_t congested_since
    cdef int64_t forgiven_at            # until then it may not make anybody wait
    cdef list waiters                   # connections waiting for it, or None

    cdef inline bint is_full(self) noexcept
    cdef inline bint take(self, Queued* item) noexcept
    cdef int pump(self) except -1
    cdef bint take_retained(self, Queued* item) noexcept
    cdef int enqueue(self, void* message, void* extras, uint8_t qos, uint16_t flags) except -1
    cdef inline bint over(self, uint32_t part) noexcept
    cdef int _plan_resend(self) except -1
    cdef int resend_one(self, Connection c) except -1
    cdef int watch(self) except -1
    cdef int maybe_ease(self) except -1
    cdef int ease(self) except -1
    cdef int give_up(self) except -1
    cdef int release_waiters(self) except -1
