"""A cluster in one process: simulated nodes, clock, log, stores and clients, driven by one random generator.

The nodes follow the rules in ledger.py and lease.py; around them everything can happen at any moment:
a request is on its way for as long as the schedule likes, also while its sender is stopped, cut off or dead.

Clients:  `x` subscribes with a persistent session and a will; `p` publishes QoS 2 with two packet ids and sends again
          what was not answered; `g` is a share group, served by the node that holds it.
Checked:  nothing acknowledged is missing in the stores of x and g, nothing is in the log twice, order is kept, and each
          will is published once.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.lease import Lease, Watch
from tests.simulation.ledger import Beat, Claim, Fence, Ledger, LedgerRecord, Life, Marks, Release, Settled

LEASE = 60.0
KEYS = ("x", "p", "g")
FED = ("x", "g")
CLIENTS = ("x", "p")
WIRES = ("ledger", "message", "state", "commit", "store")  # order holds within each, not between them


class Finding(AssertionError):
    """A promise that does not hold in this schedule."""


@dataclass(slots=True)
class Message:
    """A record of the message log: a publish, a will, or the mark after which records of a life are void."""

    life: Life
    kind: str  # publish, will, mark
    number: int
    seq: int = 0
    packet_id: int = 0
    marked: Life | None = None


@dataclass(slots=True)
class Store:
    """Stored messages of a client or a group. Writes carry the epoch of their holder."""

    epoch: int = 0
    offsets: list[int] = field(default_factory=list)
    high: int = -1


@dataclass(slots=True)
class State:
    """The compacted record of a session, as of the highest epoch."""

    epoch: int = 0
    seq: int = 0
    received: frozenset[int] = frozenset()
    will: int = 0  # number of the connection whose will has not been published
    is_publishing: bool = False


@dataclass(slots=True)
class Client:
    name: str
    node: int = -1  # where its connection is, -1 = none
    asked: int = -1  # where it waits for CONNACK
    connection: int = 0  # number of the last one
    next_message: int = 1
    in_flight: dict[int, tuple[int, str]] = field(default_factory=dict)  # packet id: message, "publish" or "release"
    acked: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)  # connections that ended without DISCONNECT


@dataclass(slots=True)
class Held:
    """A key at the node that holds it."""

    epoch: int
    stage: str = "load"  # load, repeat, settle, open
    next: int = 0  # the next record to repeat
    is_inserted: bool = False
    is_leaving: bool = False
    seq: int = 0
    received: dict[int, bool] = field(default_factory=dict)  # packet id: whether its record is durable
    will: int = 0
    will_stage: str = ""  # "", marking, appending, clearing
    connection: int = 0
    answering: int = 0  # number of the connection that gets CONNACK when its will is stored
    writes: int = 0  # under way


@dataclass(slots=True)
class Node:
    index: int
    life: Life
    is_up: bool = True
    is_paused: bool = False
    is_cut: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    lease: Lease = field(default_factory=lambda: Lease(LEASE))
    watch: Watch = field(default_factory=lambda: Watch(LEASE))
    held: dict[str, Held] = field(default_factory=dict)
    wires: dict[str, deque[tuple[Any, ...]]] = field(default_factory=lambda: {kind: deque() for kind in WIRES})
    inbox: deque[tuple[Any, ...]] = field(default_factory=deque)
    position: int = 0  # of dispatch
    committed: int = 0
    undurable: set[int] = field(default_factory=set)  # offsets whose copies are under way
    marked: set[Life] = field(default_factory=set)
    marking: dict[Life, int] = field(default_factory=dict)  # -1 = under way, else the offset
    fencing: set[Life] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    beats: int = 0
    last_beat: float = -100.0


class World:
    def __init__(self, seed: int, *, nodes: int = 3, planted: str = "") -> None:
        self.random = random.Random(seed)
        self.planted = planted
        self.now = 0.0
        self.lives = 0
        self.ledger_log: list[LedgerRecord] = []
        self.messages: list[Message] = []
        self.commits: dict[str, int] = {}
        self.stores = {key: Store() for key in FED}
        self.states = {key: State() for key in CLIENTS}
        self.clients = {name: Client(name) for name in CLIENTS}
        self.nodes = [Node(i, self._new_life(i)) for i in range(nodes)]
        self.most_messages = 6
        self.is_calm = False
        self.faulty: Node | None = None
        self.armed = -1  # a fault after so many more requests of nodes that take over keys

    def _new_life(self, index: int) -> Life:
        self.lives += 1
        return Life(f"node-{index}", self.lives)

    # ---- faults ----

    def crash(self, node: Node) -> None:
        """kill -9: what is on the wire may still arrive, up to some point."""
        node.is_up = node.is_paused = False
        for wire in node.wires.values():
            for _ in range(len(wire) if node.is_cut else self.random.randint(0, len(wire))):
                wire.pop()
        for client in self.clients.values():
            self._drop(client, node)
        self._reset(node)

    def _reset(self, node: Node) -> None:
        fresh = Node(node.index, self._new_life(node.index))
        for name in Node.__slots__:
            # Requests that were sent cannot be called back.
            if name not in ("index", "is_up", "is_paused", "is_cut", "wires"):
                setattr(node, name, getattr(fresh, name))

    def restart(self, node: Node) -> None:
        node.is_up = True
        node.position = node.committed = self.commits.get(node.life.node, 0)

    def _drop(self, client: Client, node: Node) -> None:
        """The client notices that its connection ended."""
        if client.node == node.index:
            client.node = -1
            client.lost.add(client.connection)
        if client.asked == node.index:
            client.asked = -1

    def give_up_life(self, node: Node) -> None:
        """A node that was fenced closes its clients' connections and begins a new life."""
        for client in self.clients.values():
            self._drop(client, node)
        self._reset(node)
        node.position = node.committed = self.commits.get(node.life.node, 0)

    # ---- the servers: Kafka and Redis ----

    def land(self, node: Node) -> None:
        """The oldest request on a node's wire arrives, and its answer is on the way back."""
        wire = node.wires[self.random.choice(WIRES)]
        if not wire:
            return
        request = wire.popleft()
        kind, life = request[0], request[1]
        answer: Any = None
        if kind == "ledger":
            self.ledger_log.append(request[2])
        elif kind == "message":
            self.messages.append(request[2])
            answer = len(self.messages) - 1
        elif kind == "commit":
            self.commits[life.node] = max(self.commits.get(life.node, 0), request[2])
        elif kind == "store":
            _, _, key, epoch, offset = request
            store = self.stores[key]
            answer = epoch >= store.epoch or self.planted == "no-epochs"
            if answer:
                store.epoch = max(store.epoch, epoch)
                if offset > store.high:
                    store.high = offset
                    store.offsets.append(offset)
        elif kind == "state":
            _, _, key, state = request[:4]
            if state.epoch >= self.states[key].epoch or self.planted == "no-epochs":
                self.states[key] = state
        if node.is_up and node.life == life:
            node.inbox.append((request, answer))

    def send(self, node: Node, kind: str, *what: Any) -> None:
        node.wires[kind].append((kind, node.life, *what))
        if self.armed >= 0 and any(held.stage in ("repeat", "settle") for held in node.held.values()):
            self.armed -= 1
            if self.armed < 0:
                self.faulty = node

    # ---- a node ----

    def may_act(self, node: Node) -> bool:
        return node.lease.is_valid(self.now) or self.planted == "no-lease"

    def step(self, node: Node) -> None:
        choice = self.random.random()
        self.keep_lease(node)
        if choice < 0.3:
            self.read_ledger(node)
        elif choice < 0.5:
            self.read_inbox(node)
        elif choice < 0.7:
            self.dispatch(node)
        elif choice < 0.78:
            self.commit(node)
        else:
            self.work(node)

    def keep_lease(self, node: Node) -> None:
        if self.now - node.last_beat >= LEASE / 6 and node.beats < 3:
            node.last_beat = self.now
            node.beats += 1
            node.lease.beat(self.now)
            self.send(node, "ledger", Beat(node.life))
        for member in list(node.ledger.members.values()):
            life = member.life
            if life == node.life or life in node.fencing:
                continue
            if node.watch.has_lapsed(life, self.now):
                # Also the earlier life of this node, if its process was restarted quickly.
                node.fencing.add(life)
                self.send(node, "ledger", Fence(life, member.beat))

    def read_ledger(self, node: Node) -> None:
        if node.is_cut:
            return
        ledger = node.ledger
        behind = len(self.ledger_log) - ledger.position
        for _ in range(self.random.randint(1, 4) if behind < 16 else behind):
            at = ledger.position
            if at >= len(self.ledger_log):
                return
            record = self.ledger_log[at]
            if isinstance(record, Fence) and self.planted == "blind-fence":
                record = Fence(record.life, 1 << 30)
            changed = ledger.apply(at, record)
            self._note_lease(node, record)
            if node.life in ledger.fenced:
                self.give_up_life(node)
                return
            for key in changed:
                self.follow(node, key)
            if isinstance(record, Claim):
                if record.life == node.life:
                    node.claimed.discard(record.key)
                self.heed(node, record.key)

    def _note_lease(self, node: Node, record: LedgerRecord) -> None:
        if isinstance(record, Fence):
            node.fencing.discard(record.life)
        elif isinstance(record, Beat) and record.life != node.life:
            node.watch.read(record.life, self.now)
        elif isinstance(record, Beat):
            node.beats -= 1
            node.lease.read_back()
            if not node.ledger.is_member(node.life):
                node.lease.until = float("-inf")

    def follow(self, node: Node, key: str) -> None:
        """The holder of a key has changed."""
        if node.ledger.holds(node.life, key):
            node.claimed.discard(key)
            node.held[key] = Held(node.ledger.epoch_of(key))
        elif key in node.held:
            del node.held[key]
            if key in self.clients:
                self._drop(self.clients[key], node)

    def heed(self, node: Node, key: str) -> None:
        """Another node wants a key: this one closes the client's connection and lets go when all is durable."""
        held = node.held.get(key)
        entry = node.ledger.entries.get(key)
        if held is not None and entry is not None and entry.claimant is not None and not held.is_leaving:
            held.is_leaving = True
            if key in self.clients:
                self._drop(self.clients[key], node)

    def read_inbox(self, node: Node) -> None:
        if not node.inbox or node.is_cut:
            return
        request, answer = node.inbox.popleft()
        kind = request[0]
        if kind == "store":
            held = node.held.get(request[2])
            if held is not None and held.epoch == request[3]:
                held.writes -= 1
            if not answer and self.planted != "zombie-goes-on":
                self.give_up_life(node)  # the key has a later holder: this life has been fenced
                return
            node.undurable.discard(request[4])
        elif kind == "message":
            message: Message = request[2]
            if message.kind == "mark":
                assert message.marked is not None
                node.marking[message.marked] = answer
            elif message.kind == "publish":
                self.on_logged(node, message)
            else:
                held = node.held.get("x")
                if held is not None and held.will == message.number:
                    held.will_stage = "clearing"
                    self.save_state(node, "x", held, will=0)
        elif kind == "state":
            self.on_saved(node, request)

    def save_state(
        self, node: Node, key: str, held: Held, *, will: int = -1, publishing: bool = False, then: str = ""
    ) -> None:
        received = frozenset(held.received)
        state = State(held.epoch, held.seq, received, held.will if will < 0 else will, publishing)
        held.writes += 1
        self.send(node, "state", key, state, then)

    def on_saved(self, node: Node, request: tuple[Any, ...]) -> None:
        _, _, key, state, then = request
        held = node.held.get(key)
        if held is None or held.epoch != state.epoch:
            return
        held.writes -= 1
        client = self.clients[key]
        if key == "x":
            if held.will_stage == "marking" and state.is_publishing:
                held.will_stage = "appending"
                self.send(node, "message", Message(node.life, "will", held.will))
            elif held.will_stage == "clearing" and state.will == 0:
                held.will_stage, held.will = "", 0
        if then == "connack" and client.asked == node.index:
            client.asked = -1
            if self.may_act(node) and not held.is_leaving:  # else the connection is closed, and the client tries again
                client.node = node.index
                held.connection = client.connection
        elif then.startswith("pubcomp") and self.may_act(node) and client.node == node.index:
            client.in_flight.pop(int(then[7:]), None)

    def on_logged(self, node: Node, message: Message) -> None:
        held = node.held.get("p")
        if held is None or message.packet_id not in held.received:
            return
        held.received[message.packet_id] = True
        self.answer(node, message.packet_id)

    def answer(self, node: Node, packet_id: int) -> None:
        """PUBREC, if the node may still promise anything."""
        client = self.clients["p"]
        if self.may_act(node) and client.node == node.index and packet_id in client.in_flight:
            number, stage = client.in_flight[packet_id]
            if stage == "publish":
                client.acked.append(number)
                client.in_flight[packet_id] = (number, "release")

    # ---- dispatch ----

    def judge(self, node: Node, offset: int) -> str:
        """Whether a record counts: yes, void, or wait."""
        message = self.messages[offset]
        if message.kind == "mark":
            assert message.marked is not None
            node.marked.add(message.marked)
            return "void"
        life = message.life
        if self.planted == "no-marks":
            return "yes"
        if life in node.ledger.fenced:
            if node.ledger.fenced[life] is None:
                return "wait"
            return "void" if node.ledger.is_void(life, 0, offset) else "yes"
        return "wait" if life in node.marked else "yes"

    def dispatch(self, node: Node) -> None:
        if node.is_cut or node.position >= len(self.messages) or not self.may_act(node):
            return
        if any(held.stage == "repeat" for held in node.held.values()) and self.random.random() < 0.5:
            return
        offset = node.position
        judged = self.judge(node, offset)
        if judged == "wait":
            return
        node.position += 1
        if judged == "yes":
            for key in FED:
                held = node.held.get(key)
                if held is not None and held.is_inserted:
                    self.store(node, key, held, offset)

    def store(self, node: Node, key: str, held: Held, offset: int) -> None:
        held.writes += 1
        node.undurable.add(offset)
        self.send(node, "store", key, held.epoch, offset)

    def commit(self, node: Node) -> None:
        if self.planted != "commit-over-marks" and any(life.node == node.life.node for life in node.ledger.unmarked()):
            return  # the commits of the node's earlier life are still to be read
        durable = min(node.undurable, default=node.position)
        if self.planted == "commit-early":
            durable = node.position
        if durable > node.committed and self.may_act(node) and not node.is_cut:
            node.committed = durable
            self.send(node, "commit", durable)

    # ---- keys ----

    def work(self, node: Node) -> None:
        if node.is_cut:
            return
        for life in node.ledger.unmarked():
            self.mark(node, life)
        if not self.may_act(node):
            return
        for key in KEYS:
            held = node.held.get(key)
            if held is not None:
                self.serve(node, key, held)
            elif key not in node.claimed and self.wants(node, key):
                node.claimed.add(key)
                self.send(node, "ledger", Claim(key, node.life))

    def wants(self, node: Node, key: str) -> bool:
        entry = node.ledger.entries.get(key)
        client = self.clients.get(key)
        if client is not None and client.asked == node.index:
            return True
        if entry is None:
            return key == "g" and self.random.random() < 0.2
        return entry.holder is None and self.random.random() < 0.2

    def mark(self, node: Node, life: Life) -> None:
        """Put the mark of a fenced life into the message log, then into the ledger with how far it had dispatched."""
        at = node.marking.get(life)
        if at is None:
            node.marking[life] = -1
            self.send(node, "message", Message(node.life, "mark", 0, marked=life))
        elif at >= 0:
            node.marking[life] = -2
            self.send(node, "ledger", Marks(life, {0: at}, {0: self.commits.get(life.node, 0)}))

    def serve(self, node: Node, key: str, held: Held) -> None:
        if held.stage == "load":
            self.load(node, key, held)
        elif held.stage == "repeat":
            self.repeat(node, key, held)
        elif held.stage == "settle":
            if held.writes == 0 or self.planted == "settle-early":
                held.stage = "open"
                self.send(node, "ledger", Settled(key, held.epoch, node.life))
        elif held.is_leaving:
            if held.writes == 0 and not held.will_stage and all(held.received.values()):
                if held.is_inserted:
                    held.is_inserted = False
                    held.next = node.position
                self.send(node, "ledger", Release(key, held.epoch, node.life, {0: held.next}))
                held.stage = "released"
        elif held.stage == "open":
            self.serve_client(node, key, held)

    def load(self, node: Node, key: str, held: Held) -> None:
        """Read what earlier holders have left, now that none of them can add to it."""
        entry = node.ledger.entries[key]
        try:
            owed = node.ledger.owed_from(key)
        except LookupError:
            return
        if key in self.clients and any(True for _ in node.ledger.unmarked()):
            return
        if key in self.clients:
            state = self.states[key]
            held.seq, held.will = state.seq, state.will
            held.received = dict.fromkeys(state.received, True)
            for offset, message in enumerate(self.messages):
                if (
                    message.kind == "publish"
                    and key == "p"
                    and message.seq > state.seq
                    and not self.is_void(node, offset)
                ):
                    if self.planted != "no-received-scan":
                        held.received[message.packet_id] = True
                    held.seq = max(held.seq, message.seq)
                elif (
                    message.kind == "will"
                    and key == "x"
                    and message.number == held.will
                    and not self.is_void(node, offset)
                ) and self.planted != "no-will-scan":
                    held.will = 0
        if key not in FED:
            held.stage = "settle" if entry.owed is not None else "open"
            return
        if owed is None and held.epoch == 1:
            held.next = node.position
        else:
            held.next = node.position if owed is None else owed.get(0, 0)
        held.stage = "repeat"

    def is_void(self, node: Node, offset: int) -> bool:
        life = self.messages[offset].life
        return self.planted != "no-marks" and node.ledger.is_void(life, 0, offset)

    def repeat(self, node: Node, key: str, held: Held) -> None:
        """Write what is owed, in order, up to where dispatch is now; from there the key is dispatched to."""
        while held.next < node.position:
            offset = held.next
            judged = self.judge(node, offset)
            if judged == "wait":
                return
            held.next += 1
            if judged == "yes":
                self.store(node, key, held, offset)
            if self.random.random() < 0.3:
                return
        held.next = min(held.next, node.position)
        held.is_inserted = True
        node.position = min(node.position, held.next)
        held.stage = "settle" if node.ledger.entries[key].owed is not None else "open"

    def serve_client(self, node: Node, key: str, held: Held) -> None:
        client = self.clients.get(key)
        if client is None:
            return
        if key == "x":
            is_here = client.node == node.index and held.connection == client.connection
            is_awaited = client.asked == node.index and held.answering == client.connection
            if held.will_stage or (held.will and (is_here or is_awaited)):
                return
            if held.will:
                held.will_stage = "marking"
                self.save_state(node, key, held, publishing=True)
            elif client.asked == node.index:
                held.will = held.answering = client.connection
                self.save_state(node, key, held, then="connack")
        elif client.asked == node.index and held.writes == 0:
            self.save_state(node, key, held, then="connack")

    # ---- clients ----

    def step_client(self, client: Client) -> None:
        if client.node < 0:
            if client.asked < 0 or self.random.random() < (0.002 if self.is_calm else 0.03):
                client.connection += 1
                client.asked = self.random.randrange(len(self.nodes))
            if not self.nodes[client.asked].is_up:
                client.asked = -1
            return
        node = self.nodes[client.node]
        if not self.is_calm and self.random.random() < 0.03:
            self._drop(client, node)
            return
        if client.name != "p" or node.is_paused:
            return
        held = node.held.get("p")
        if held is None or held.stage != "open" or held.is_leaving:
            return
        free = [i for i in (1, 2) if i not in client.in_flight]
        if free and client.next_message <= self.most_messages and self.random.random() < 0.6:
            client.in_flight[free[0]] = (client.next_message, "publish")
            client.next_message += 1
        for packet_id, (number, stage) in list(client.in_flight.items()):
            self.receive(node, held, packet_id, number, stage)

    def receive(self, node: Node, held: Held, packet_id: int, number: int, stage: str) -> None:
        if not self.may_act(node) or node.is_cut:
            return
        if stage == "publish":
            if packet_id not in held.received:
                held.seq += 1
                held.received[packet_id] = False
                self.send(node, "message", Message(node.life, "publish", number, held.seq, packet_id))
            elif held.received[packet_id]:
                self.answer(node, packet_id)
        elif held.writes == 0:
            held.received.pop(packet_id, None)
            if all(held.received.values()):
                self.save_state(node, "p", held, then=f"pubcomp{packet_id}")
            else:
                held.received[packet_id] = True

    # ---- a schedule ----

    def run(self, steps: int, faults: int) -> None:
        choose = self.random
        when = sorted(choose.randrange(steps) for _ in range(faults))
        for at in range(steps):
            while when and when[0] <= at:
                when.pop(0)
                self.fault(self.nodes[choose.randrange(len(self.nodes))])
                # The next one while the cluster still deals with this one, half of the time.
                if when and choose.random() < 0.5:
                    self.armed = choose.randrange(6)
                    when.pop(0)
            self.tick()
        self.heal()
        self.is_calm, self.armed = True, -1
        self.most_messages += 2
        for _ in range(20_000):
            self.tick()
            if self.is_done():
                break
        else:
            raise Finding(f"stuck: {self.describe()}")
        self.check()

    def tick(self) -> None:
        choose = self.random
        self.now += choose.random() * (0.1 if self.is_calm else 0.6)
        node = self.nodes[choose.randrange(len(self.nodes))]
        choice = choose.random()
        if choice < 0.5:
            if not node.is_cut:
                self.land(node)
        elif choice < 0.9:
            if node.is_up and not node.is_paused:
                self.step(node)
            elif not node.is_up and choose.random() < 0.02:
                self.restart(node)
            elif node.is_paused and choose.random() < 0.015:
                node.is_paused = False
        else:
            self.step_client(self.clients[CLIENTS[choose.randrange(2)]])
        if node.is_cut and choose.random() < 0.01:
            node.is_cut = False
        if self.faulty is not None:
            self.fault(self.faulty)
            self.faulty = None

    def fault(self, node: Node) -> None:
        kind = self.random.choice(("crash", "crash", "pause", "cut"))
        if kind == "crash" and node.is_up:
            self.crash(node)
        elif kind == "pause" and node.is_up:
            node.is_paused = True
        elif kind == "cut":
            node.is_cut = True

    def heal(self) -> None:
        for node in self.nodes:
            node.is_cut = node.is_paused = False
            if not node.is_up:
                self.restart(node)

    def is_done(self) -> bool:
        client = self.clients["p"]
        if client.next_message <= self.most_messages or client.in_flight or self.clients["x"].node < 0:
            return False
        if any(
            any(wire for kind, wire in node.wires.items() if kind != "ledger")
            or node.inbox
            or node.position < len(self.messages)
            for node in self.nodes
        ):
            return False
        holders = self._holders()
        return len(holders) == len(KEYS) and all(held.stage == "open" and not held.writes for held in holders.values())

    def _holders(self) -> dict[str, Held]:
        return {key: held for node in self.nodes for key, held in node.held.items() if held.stage == "open"}

    def check(self) -> None:
        ledger = Ledger()
        for offset, record in enumerate(self.ledger_log):
            ledger.apply(offset, record)
        valid = {
            offset: message
            for offset, message in enumerate(self.messages)
            if message.kind != "mark" and not (self.planted != "no-marks" and ledger.is_void(message.life, 0, offset))
        }
        numbers = [message.number for message in valid.values() if message.kind == "publish"]
        acked = self.clients["p"].acked
        if missing := set(acked) - set(numbers):
            raise Finding(f"acknowledged and not in the log: {missing}")
        if len(numbers) != len(set(numbers)):
            raise Finding(f"QoS 2 twice in the log: {numbers}")
        if numbers != sorted(numbers):
            raise Finding(f"out of order: {numbers}")
        wills = [message.number for message in valid.values() if message.kind == "will"]
        if len(wills) != len(set(wills)):
            raise Finding(f"will twice: {wills}")
        first = {"x": 0, "g": 0}
        for key in FED:
            stored = self.stores[key].offsets
            publishes = [offset for offset in stored if offset in valid]
            if stored != sorted(set(stored)):
                raise Finding(f"{key}: order or doubles: {stored}")
            if extra := [offset for offset in stored if offset not in valid]:
                raise Finding(f"{key}: void records were stored: {extra}")
            begin = min(publishes, default=len(self.messages))
            first[key] = begin
            if missing_here := [offset for offset in valid if offset >= begin and offset not in set(stored)]:
                raise Finding(f"{key}: lost {missing_here} of {sorted(valid)}")

    def describe(self) -> str:
        return (
            repr(
                [
                    (
                        n.index,
                        n.is_up,
                        n.lease.until - self.now,
                        n.position,
                        {k: (h.stage, h.writes, h.is_leaving) for k, h in n.held.items()},
                    )
                    for n in self.nodes
                ]
            )
            + repr(self.clients)
            + repr({k: (e.holder, e.claimant, e.owed) for k, e in self.nodes[0].ledger.entries.items()})
        )
