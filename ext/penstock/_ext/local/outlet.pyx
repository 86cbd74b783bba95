"""Subscribers inside the broker, such as a rule or a link to another broker. Their messages with QoS > 0 come from the
log, like those of persistent clients: a batch for each iteration of the loop, at least once, and the log is not
committed before a message is settled. If more wait than the subscriber has credit for, publishers to its topics
wait."""

from cython cimport final
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from penstock._ext.hub.connection cimport (DROP_EXPIRED, Delivery, Desk, Hub, Outlet, Session, add_outlet, count_drop,
                                           remove_outlet)
from penstock._ext.hub.inflight cimport Hold
from penstock._ext.record.envelope cimport delivery_size, put_delivery
from penstock._ext.record.segment cimport RecordPack

cdef enum:
    PACK_RECORDS = 200          # of a full pack


@final
cdef class LocalDesk(Desk):
    """The subscribers inside the broker."""

    def __init__(self, Hub hub not None):
        Desk.__init__(self, hub)
        self._news = []

    cdef int tell(self) except -1:
        cdef list news = self._news
        self.is_waiting = False
        self._news = []
        for outlet in news:
            (<LocalOutlet> outlet)._has_news = False
        for outlet in news:
            (<LocalOutlet> outlet).hand_over()
        return 0


@final
cdef class LocalOutlet(Outlet):
    """One subscriber inside the broker. Its session has subscriptions and never a connection."""

    def __init__(self, LocalDesk desk not None, Session session not None, receive not None, *, uint32_t credit=1_000):
        """`receive(pack)` gets the records of an iteration, while fewer than `credit` of them are not settled; each
        value is an envelope, as in the topic of an APPLICATION client. If it raises, that is reported, and the
        records are settled: they would fail again, and the log is not committed before them."""
        if session._ended:
            raise ValueError("the session has ended")
        self.desk = desk
        self.session = session
        self.from_log = True
        self.live = True
        self.credit = max(credit, 1)
        self._receive = receive
        self._packs = []
        self.is_open = True
        add_outlet(session, self)
        session.intake = self

    def __dealloc__(self):
        free(self._holds)

    @property
    def waiting(self):
        """Records that are not handed over yet."""
        return self._count - self.unsettled

    def settle(self, uint32_t count=1):
        """The oldest records that were handed over are done: the log may be committed after them."""
        if count > self.unsettled:
            raise ValueError(f"{count} records are settled, and {self.unsettled} were handed over")
        self.unsettled -= count
        self.release(count)
        self.note()

    def close(self):
        """Nothing more comes. Records that are not settled come again after a restart, if there is a subscriber."""
        if not self.is_open:
            return
        self.is_open = False
        if self.session.intake is self:
            self.session.intake = None
        self._packs = []
        self._pack = None
        self.unsettled = 0
        self.release(self._count)
        remove_outlet(self.session, self)

    cdef int accept(self, Hub hub, Delivery* d) except -1:
        cdef uint32_t extra
        cdef uint8_t* p
        if d.view.expires_at and d.view.expires_at <= hub.wall:
            count_drop(self.session, DROP_EXPIRED)
            return 0
        if self._pack is None:
            self._pack = RecordPack()
        extra = delivery_size(d.qos, d.retain, d.ids, d.id_count, d.partition, d.record.offset)
        p = self._pack.reserve(d.record.timestamp, d.record.key, d.record.key_size, d.record.value_size + extra)
        memcpy(p, d.record.value, d.record.value_size)
        put_delivery(p + d.record.value_size, d.qos, d.retain, d.ids, d.id_count, d.partition, d.record.offset)
        self.keep_hold(d.hold)
        if self._pack.count == PACK_RECORDS:
            self._packs.append(self._pack)
            self._pack = None
        if self._count >= 2 * self.credit and not self.session.congested:
            self.session.congested = True
            self.session.congested_since = hub.now
            hub.congested_count += 1
        return self.note()

    cdef int on_end(self, Session s) except -1:
        self.close()
        return 0

    cdef int note(self) except -1:
        if not self._has_news and self.is_open and self._count > self.unsettled and self.unsettled < self.credit:
            self._has_news = True
            (<LocalDesk> self.desk)._news.append(self)
            return self.desk.wake()
        return 0

    cdef int hand_over(self) except -1:
        cdef RecordPack pack
        while self.is_open and self.unsettled < self.credit and self._count > self.unsettled:
            if self._packs:
                pack = <RecordPack> self._packs.pop(0)
            else:
                pack, self._pack = self._pack, None
            self.unsettled += pack.count
            try:
                self._receive(pack)
            except BaseException as error:
                self.give_up(pack.count)
                self.session.hub.loop.call_exception_handler(
                    {"message": f"a local subscriber failed, and {pack.count} messages are lost to it",
                     "exception": error})
        return 0

    # The newest records that were handed over are not settled by the subscriber.
    cdef int give_up(self, uint32_t count) except -1:
        cdef uint32_t i, mask = self._capacity - 1
        count = min(count, self.unsettled)      # it may have settled some before it failed
        self.unsettled -= count
        for i in range(self._head + self.unsettled, self._head + self.unsettled + count):
            self._holds[i & mask].pending -= 1
        for i in range(self._head + self.unsettled, self._head, -1):
            self._holds[(i - 1 + count) & mask] = self._holds[(i - 1) & mask]
        self._head = (self._head + count) & mask
        self._count -= count
        return self.ease()

    cdef int keep_hold(self, Hold* hold) except -1:
        cdef Hold** larger
        cdef uint32_t i, capacity
        if self._count == self._capacity:
            capacity = self._capacity * 2 if self._capacity else 64
            larger = <Hold**> malloc(capacity * sizeof(Hold*))
            if larger == NULL:
                raise MemoryError()
            for i in range(self._count):
                larger[i] = self._holds[(self._head + i) & (self._capacity - 1)]
            free(self._holds)
            self._holds, self._head, self._capacity = larger, 0, capacity
        self._holds[(self._head + self._count) & (self._capacity - 1)] = hold
        self._count += 1
        hold.pending += 1
        return 0

    cdef int release(self, uint32_t count) except -1:
        cdef uint32_t _i
        for _i in range(count):
            self._holds[self._head].pending -= 1
            self._head = (self._head + 1) & (self._capacity - 1)
        self._count -= count
        return self.ease()

    cdef int ease(self) except -1:
        if self.session.congested and self._count < self.credit:
            self.session.ease()
        return 0
