# Part of connection.pxd: one client's socket.

cdef class Connection:
    cdef Hub hub
    cdef readonly object handler
    cdef readonly object listener
    cdef readonly object transport
    cdef readonly Session session
    cdef public object context          # the handler's, while CONNECT is decided or AUTH runs
    cdef object _peer
    cdef public object certificate
    cdef public object authentication   # the handler's: the AUTH method of a connected client
    cdef public bint listener_refused   # the handler's: it was never admitted
    cdef readonly str close_reason
    cdef int fd                         # of a plain socket, -1 when only the transport may write
    cdef readonly uint8_t version
    cdef uint8_t state
    cdef bint ended                     # on_closed was called
    cdef bint writable                  # below the high watermark
    cdef bint transport_busy            # the transport holds bytes of ours
    cdef bint dirty
    cdef bint broken                    # the socket failed; the transport will tell
    cdef bint blocked                   # waits for a subscriber: what was read is kept
    cdef bint reading
    cdef bint is_resting                # in Turns.resting; so is the next in Turns.walkers
    cdef bint awaits_match
    cdef uint64_t steps                 # of matching that it has not paid for by waiting
    cdef bint clean_close               # the client said DISCONNECT
    cdef public bint explains           # the client wants reasons in words [MQTT-3.1.2-29]
    cdef uint32_t index                 # in the hub's list
    cdef uint32_t keep_alive            # ms after which silence ends it, 0 = never
    cdef int64_t last_packet            # hub.now of the last whole packet, or of a state that limits time
    cdef Buffer out
    cdef uint32_t usual_output          # bytes sent at once of late, FLUSH_SIZE at most
    cdef uint32_t transport_pending     # bytes of ours that the transport holds
    cdef uint32_t max_out_packet        # the client's Maximum Packet Size
    cdef uint8_t* partial               # an incomplete packet, only while there is one
    cdef uint32_t partial_size, partial_capacity
    cdef TopicSlot* topics              # made at the first PUBLISH
    cdef QueueSlot* queue_topics        # made at the first PUBLISH under $queue/
    cdef Alias* aliases_in              # made at the first alias, topic_alias_maximum of them
    cdef Alias* aliases_out
    cdef uint16_t aliases_in_max, aliases_out_max, aliases_out_count
    cdef WsReader* websocket
    cdef bytes words                    # of answers with TEXT_HELD
    cdef PendingAck* acks               # ring of answers that wait for the log, in order
    cdef uint32_t acks_capacity, acks_head, acks_count
    cdef uint32_t acks_qos1             # PUBACKs among them: they take part of our receive maximum
    cdef bint awaits_log
    cdef uint32_t denials_held          # publishes denied since one was reported
    cdef int64_t denial_at             # when that was, 0 = never
    cdef uint32_t acked_at              # hub.now, cut to 32 bits, when the log last released answers
    cdef Session acks_session           # whose publishes they answer, also after the connection has ended

    cdef int feed(self, uint8_t* data, uint32_t size) except -1
    cdef int feed_partial(self) except -1
    cdef void drop_partial(self) noexcept
    cdef int keep_partial(self, const uint8_t* data, uint32_t size) except -1
    cdef Py_ssize_t parse(self, uint8_t* data, uint32_t size) except -1
    cdef int dispatch(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int dispatch_control(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int feed_websocket(self, uint8_t* data, uint32_t size) except -1
    cdef inline void frame_output(self) noexcept
    cdef inline void note_output(self, uint32_t size) noexcept
    cdef int make_room(self) except -1
    cdef int flush(self) except -1
    cdef int watch_output(self) except -1
    cdef int settle(self) except -1
    cdef int wait_for(self, Session subscriber) except -1
    cdef int wait_for_log(self) except -1
    cdef int violation(self, int reason, str text) except -1
    cdef void release(self) noexcept
    cdef void drop_acks(self) noexcept
