# Matching a topic costs as many steps as there are nodes of filters that fit it, and clients choose both. So the steps
# are counted, and a connection that has used up its budget waits while others get their turn:
#
# - A connection whose publishes took more steps than the budget rests: it is not read until it has paid for them. All
#   that rest pay together, in the order they stopped, one budget for each iteration of the loop.
# - So does one whose subscriptions looked at many retained messages.
# - A publish whose match alone would take more than the budget is kept until its match is made, a slice of one budget
#   for each iteration (trie_walk.pxi). Nothing is lost, and nothing of its connection overtakes it.
#
# Topics that were matched before cost no steps and do not get here.

cdef enum:
    BUDGETS_AT_ONCE = 8         # in an iteration, by all connections that do not rest
    DISPATCH_TRIES = 3          # long walks for one record before it is matched at once: subscriptions keep changing


# The match of a publish, a new reference; NULL: the connection has to wait, and its packet is parsed again later.
cdef Match* match_in_turn(Connection c, const PublishView* view, uint64_t hash) except? NULL:
    cdef Turns turns = c.hub.turns
    cdef Trie trie = c.hub.trie
    cdef uint64_t before = trie.steps
    cdef Match* match
    if c.steps > turns.budget or turns.used > BUDGETS_AT_ONCE * turns.budget:
        turns.rest(c)
        return NULL
    match = trie.match_within(view.topic, view.topic_size, hash, turns.budget)
    c.steps += trie.steps - before
    turns.used += trie.steps - before
    if match == NULL:
        turns.await_match(c, view.topic, view.topic_size)
    return match


@final
cdef class Turns:
    """Connections and messages that wait because matching takes long, in turn."""

    def __init__(self, Hub hub not None):
        self.hub = hub
        self.resting = []
        self.walkers = []
        self._give_soon = self._give

    @property
    def is_busy(self):
        """Whether publishes wait for their match."""
        return bool(self.resting or self.walkers)

    @property
    def waiting(self):
        """Connections that wait for their turn."""
        return len(self.resting) + len(self.walkers)

    cdef int schedule(self) except -1:
        if not self.is_scheduled:
            self.is_scheduled = True
            self.hub.loop.call_soon(self._give_soon)
        return 0

    cdef int rest(self, Connection c) except -1:
        self.pauses += 1
        c.blocked = True
        c.pause_reading()
        if c.steps <= self.budget:
            # other connections have used up the steps of this iteration: continue in the next one
            self.hub.loop.call_soon(c.unblock)
        elif not c.is_resting:
            c.is_resting = True
            self.resting.append(c)
        return self.schedule()

    cdef int await_match(self, Connection c, const uint8_t* topic, uint32_t size) except -1:
        self.pauses += 1
        c.blocked = True
        c.pause_reading()
        if not c.awaits_match:
            c.awaits_match = True
            self.walkers.append((PyBytes_FromStringAndSize(<const char*> topic, size), c))
        return self.schedule()

    def publish_later(self, bytes topic not None, tuple message not None):
        """Publish a message of the broker's own, or a will, when its match is made; see Hub.publish."""
        self.walkers.append((topic, message))
        self.schedule()

    # Dispatch asks before it matches a record: its subscriptions may have changed since the record was published.
    cdef bint dispatch_must_wait(self, const uint8_t* topic, uint32_t size) except -1:
        if self.dispatch_tries >= DISPATCH_TRIES:
            return False
        self.dispatch_tries += 1
        self.dispatch_waits = True
        self.walkers.append((PyBytes_FromStringAndSize(<const char*> topic, size), None))
        self.schedule()
        return True

    def _give(self):
        """Called once per loop iteration while a connection or message waits."""
        self.is_scheduled = False
        self.used = 0
        try:
            self.pay()
            self.walk_on()
        finally:
            if self.resting or self.walkers:
                self.schedule()

    cdef int pay(self) except -1:
        cdef uint64_t credit = self.budget
        cdef uint64_t paid
        cdef Connection c
        while credit and self.resting:
            c = <Connection> self.resting[0]
            if c.state < CLOSING:
                paid = min(credit, c.steps)
                c.steps -= paid
                credit -= paid
                if c.steps:
                    return 0
            self.resting.pop(0)
            c.is_resting = False
            c.unblock()
        return 0

    cdef int walk_on(self) except -1:
        cdef Trie trie = self.hub.trie
        cdef Connection c = None
        cdef bytes topic
        if not self.walkers:
            return 0
        topic, owner = self.walkers[0]
        if isinstance(owner, Connection):
            c = <Connection> owner
            if c.state >= CLOSING:
                trie.end_walk()
                c.awaits_match = False
                self.walkers.pop(0)
                return 0
        try:
            if not trie._long.is_active:
                trie.start_walk(topic)
            if not trie.go_on(self.budget):
                return 0
        except BaseException:
            trie.end_walk()
            self.walkers.pop(0)
            if c is not None:
                c.fail_hard(MemoryError())
            elif owner is None:
                self.dispatch_waits = False     # it tries again, and after DISPATCH_TRIES matches at once
            raise
        self.walkers.pop(0)
        self.long_matches += 1
        if c is not None:
            c.awaits_match = False
            try:
                c.handler.on_long_match(c, topic, trie._long.steps)
            except BaseException as error:
                c.fail_hard(error)
                return 0
            # the match is remembered now, and the connection has paid for it by waiting
            c.steps = self.used = 0
            c.unblock()
        elif owner is None:
            self.dispatch_waits = False
        else:
            name, payload, qos, retain, properties, expiry, origin = owner
            self.hub.publish(name, payload, qos=qos, retain=retain, properties=properties, expiry=expiry, origin=origin)
        return 0
