# Messages that Python has, on their way to one client, with word of their acknowledgement: the rows of a query topic,
# few and large, and what another node delivers for a queue. The client's receive maximum, its socket and its session's
# resumption hold for them as for all.

cdef enum:
    MOST_CARRIED = 64       # messages of one courier that are not acknowledged: each of them may be a block of rows


@final
cdef class Courier(Outlet):
    """For one session, over all its connections: what is not acknowledged when one goes is sent again on the next."""

    def __init__(self, Session session not None, on_news not None, *, uint8_t qos=1, uint32_t identifier=0):
        """`on_news()` is called, once per iteration, after acknowledgements and when there may be room again."""
        self.session = session
        self.qos = qos
        self.identifier = identifier
        self._on_news = on_news
        self._tell_soon = self._tell
        self._acked = []
        self.number = next_number(session.hub)
        add_outlet(session, self)

    @property
    def is_connected(self):
        cdef Connection c = self.session.connection
        return c is not None and c.state == CONNECTED and not self.is_closed

    @property
    def has_room(self):
        cdef Session s = self.session
        cdef Connection c = s.connection
        if self.is_closed or c is None or c.state != CONNECTED or not c.writable or s.resend_count or s.queue.count:
            return False
        return self.qos == 0 or (s.outstanding + s.kept_free < s.limit and self.carried < MOST_CARRIED
                                 and s.window.count < s.hub.limits.max_inflight and self.turn != s.round)

    def send(self, bytes topic not None, bytes payload not None, bytes properties not None, int64_t token):
        """Whether it went out; a message larger than the client takes never does [MQTT-3.1.2-24] [MQTT-3.1.2-25]. Only
        with room. `properties` are as the codec has them; `token` comes back when it is acknowledged."""
        cdef PublishView view
        if not self.has_room:
            raise RuntimeError("a courier without room")
        memset(&view, 0, sizeof(PublishView))
        view.topic, view.topic_size = <const uint8_t*> PyBytes_AS_STRING(topic), <uint32_t> PyBytes_GET_SIZE(topic)
        view.props = <const uint8_t*> PyBytes_AS_STRING(properties)
        view.props_size = <uint32_t> PyBytes_GET_SIZE(properties)
        view.payload = <const uint8_t*> PyBytes_AS_STRING(payload)
        view.payload_size = <uint32_t> PyBytes_GET_SIZE(payload)
        return self.carry(&view, token)

    def forward(self, uint8_t flags, bytes body not None):
        """The same for a PUBLISH (MQTT 5, no alias) that came from another node, as it is; its packet id is the token.
        Raises ValueError if it is none."""
        cdef PublishView view
        if not self.has_room:
            raise RuntimeError("a courier without room")
        if parse_publish(flags, <const uint8_t*> PyBytes_AS_STRING(body), <uint32_t> PyBytes_GET_SIZE(body), 5,
                         0xFFFFFFFFu, &view, &self.session.hub._props) or view.topic_size == 0:
            raise ValueError("not a PUBLISH of another node")
        return self.carry(&view, view.packet_id)

    cdef bint carry(self, const PublishView* view, int64_t token) except -1:
        cdef Session s = self.session
        cdef Message* m
        cdef Extras* extras
        cdef int sent
        m = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload, view.payload_size,
                        self.qos, 0, s.hub.wall, s.hub.wall + <int64_t> view.expiry * 1000 if view.has_expiry else 0)
        m.source_partition = self.number
        m.source_offset = token
        extras = make_extras(&self.identifier, 1 if self.identifier else 0, NULL)
        try:
            sent = send_message(s.connection, s, m, self.qos, DELIVERY_NUMBERED, extras, 0, False)
        finally:
            message_unref(m)
        if not sent or self.qos == 0:
            free(extras)
        if not sent:
            count_drop(s, DROP_TOO_LARGE)
        elif self.qos:
            self.carried += 1
            bind_last(s, self)
            end_turn(s, &self.turn)
        return sent != 0

    def take_acked(self):
        """The tokens of what was acknowledged since the last call."""
        cdef list acked = self._acked
        self._acked = []
        return acked

    def close(self):
        """What it has under way is still the client's, but nobody is told of its acknowledgement."""
        if self.is_closed:
            return
        self.is_closed = True
        remove_outlet(self.session, self)

    # ---- as an outlet ----

    cdef bint pump(self, Session s, Connection c) except -1:
        self.note()
        return False

    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1:
        if slot.message == NULL:
            return 0
        self._acked.append(slot.message.source_offset)
        if self.carried:
            self.carried -= 1
        return self.note()

    cdef int on_detach(self, Session s) except -1:
        return self.note()

    cdef int note(self) except -1:
        if not self._is_told:
            self._is_told = True
            self.session.hub.loop.call_soon(self._tell_soon)
        return 0

    def _tell(self):
        self._is_told = False
        if not self.is_closed:
            self._on_news()


cdef bint has_courier(Session s) noexcept:
    cdef Py_ssize_t i
    if s.outlets is not None:
        for i in range(PyList_GET_SIZE(s.outlets)):
            if type(<object> PyList_GET_ITEM(s.outlets, i)) is Courier:
                return True
    return False
