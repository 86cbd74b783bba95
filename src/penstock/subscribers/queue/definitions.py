"""What a queue is: its settings, however they came, checked and kept.

A definition comes from `[[queues]]`, from a command or, for queues made on first use, from nobody; it is stored as
JSON. Parts that say nothing of their own are shared by all queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from penstock.core.errors import PenstockError, SettingsError, UsageError
from penstock.settings import Settings
from penstock.settings.queues import (
    QueueDeadLetters,
    QueueLimits,
    QueueReplication,
    QueueRetention,
    QueueRetry,
    QueueSettings,
)
from penstock.settings.schema import convert, describe
from penstock.subscribers.queue.names import (
    ROOT,
    check_filter,
    check_name,
    dead_letters_of,
    default_binding,
    is_dead_letters,
    parse_publish,
    verb_of,
)

Limits = QueueLimits
Retry = QueueRetry
DeadLetters = QueueDeadLetters
Retention = QueueRetention
Replication = QueueReplication

DEFAULT_QUEUE = "mqtt"
ALL_QUEUES = f"{ROOT}/#"

_PARTS: dict[str, msgspec.Struct] = {
    "limits": Limits(),
    "retry": Retry(),
    "dlq": DeadLetters(),
    "retention": Retention(),
    "replication": Replication(),
}
_TIMES = {name: value for name, value in msgspec.structs.asdict(QueueSettings()).items() if isinstance(value, float)}
_KEYS = describe(QueueSettings)
# What its log was made with: another one would need another log.
_FIXED = ("type", "durable")


class QueueError(PenstockError):
    """Something about a queue cannot be."""


class BadDefinitionError(QueueError, UsageError):
    """A definition makes no sense, or does not fit the queue that is there."""


class QueueDefinition(QueueSettings, frozen=True):
    """A queue as it is kept: its settings, and what happened to it."""

    paused: bool = False
    origin: Literal["config", "admin", "auto"] = "admin"

    @property
    def bindings(self) -> tuple[str, ...]:
        """Filters of what enters; ordinary topics only where capture says so."""
        own = default_binding(self.name)
        return (own, *(topic for topic in self.topics if topic != own and (self.capture or _is_of_queues(topic))))

    @property
    def dead_letter_topic(self) -> str:
        """Where dead letters of this queue are published; their routing keys come behind it."""
        return self.dlq.topic or f"{ROOT}/{dead_letters_of(self.name)}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(QueueDefinition)


def encode(definition: QueueDefinition) -> bytes:
    return _encoder.encode(definition)


def decode(stored: bytes) -> QueueDefinition:
    """Raises QueueError when this is no definition."""
    try:
        return share_parts(_decoder.decode(stored))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise QueueError(f"a stored definition of a queue cannot be read: {error}") from None


class Ending(msgspec.Struct, frozen=True):
    """Stands in place of the definition of a queue whose deletion has begun."""

    deleted_by: str
    """The broker that goes on with it."""
    definition: QueueDefinition


_ending_decoder = msgspec.json.Decoder(Ending)


def encode_ending(definition: QueueDefinition, node: str) -> bytes:
    return _encoder.encode(Ending(node, definition))


def decode_ending(stored: bytes) -> Ending | None:
    """None: the queue is there."""
    if b'"deleted_by"' not in stored:
        return None
    try:
        return _ending_decoder.decode(stored)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None  # a queue of that name, say


def share_parts(definition: QueueDefinition) -> QueueDefinition:
    """The same with the parts of all queues where its own say nothing else: 10,000 queues have one of each."""
    plain = {name: part for name, part in (_PARTS | _TIMES).items() if getattr(definition, name) == part}
    return msgspec.structs.replace(definition, **plain)


def define(table: Mapping[str, Any]) -> QueueDefinition:
    """The queue a table describes, with times and sizes as people write them; raises BadDefinitionError."""
    given: dict[str, Any] = {}
    for dotted, value in _leaves(table):
        key = _KEYS.get(dotted)
        if key is None:
            raise BadDefinitionError(f"{dotted[:100]!r} is no setting of a queue", f"There are {', '.join(_KEYS)}.")
        try:
            converted = convert(key, value, dotted)
        except SettingsError as error:
            raise BadDefinitionError(error.message, error.hint) from None
        *tables, name = dotted.split(".")
        part = given
        for inner in tables:
            part = part.setdefault(inner, {})
        part[name] = converted
    definition = share_parts(msgspec.convert(given, QueueDefinition))
    check(definition)
    return definition


def configured(settings: Settings) -> list[QueueDefinition]:
    """The queues of the settings; raises SettingsError. Without any there is the reserved one, unless it is not
    wanted."""
    definitions = []
    for queue in settings.queues:
        given = msgspec.structs.asdict(queue)
        definition = share_parts(QueueDefinition(**given, origin="config"))
        try:
            check(definition)
        except QueueError as error:
            raise SettingsError(error.message, error.hint) from None
        definitions.append(definition)
    if not definitions and settings.durable_queues.default_queue:
        definitions.append(QueueDefinition(name=DEFAULT_QUEUE, topics=(ALL_QUEUES,), origin="config"))
    return definitions


def on_first_use(name: str, *, durable: bool) -> QueueDefinition:
    """Return the definition of a queue that is created when a client uses an unknown name."""
    definition = QueueDefinition(name=name, durable=durable, origin="auto")
    check(definition)
    return definition


def dead_letters(definition: QueueDefinition) -> QueueDefinition:
    """The queue of another one's dead letters: as durable as that one, without an end, and without dead letters of its
    own: what is rejected there is discarded."""
    return QueueDefinition(
        name=dead_letters_of(definition.name),
        durable=definition.durable,
        limits=Limits(max_message_size=definition.limits.max_message_size, max_depth=0, message_ttl=0.0),
        dlq=DeadLetters(enabled=False),
        replication=definition.replication,
        ack_durability=definition.ack_durability,
        origin="auto",
    )


def check(definition: QueueDefinition) -> None:
    """Raises BadDefinitionError that says what is wrong and what may stand there."""
    name = definition.name
    try:
        check_name(name)
        for topic in definition.topics:
            _check_binding(topic)
        if definition.dlq.topic:
            _check_dead_letter_topic(definition)
        msgspec.convert(msgspec.to_builtins(definition), QueueDefinition)
    except (ValueError, msgspec.ValidationError) as error:
        raise BadDefinitionError(f"queue {name[:100]!r}: {error}") from None
    retry, replication = definition.retry, definition.replication
    if retry.max_backoff < retry.initial_backoff:
        raise BadDefinitionError(f"queue {name!r}: retry.max_backoff is less than retry.initial_backoff")
    if replication.enabled and replication.min_in_sync_replicas > replication.replication_factor:
        raise BadDefinitionError(
            f"queue {name!r}: replication.min_in_sync_replicas = {replication.min_in_sync_replicas} "
            f"is more than replication.replication_factor = {replication.replication_factor}"
        )


def changed(old: QueueDefinition, new: QueueDefinition) -> QueueDefinition:
    """What a queue becomes when its definition is edited: all of the new one, but it stays paused if it was."""
    for key in _FIXED:
        if getattr(old, key) != getattr(new, key):
            raise BadDefinitionError(
                f"queue {old.name!r} has {key} = {_shown(getattr(old, key))} and cannot become "
                f"{_shown(getattr(new, key))}: its messages would be lost",
                f"Take back the change, or delete the queue first: penstock queue delete '{old.name}'",
            )
    return share_parts(msgspec.structs.replace(new, paused=old.paused))


def _is_of_queues(topic_filter: str) -> bool:
    return topic_filter.startswith(f"{ROOT}/")


def _check_binding(topic_filter: str) -> None:
    check_filter(topic_filter)
    if verb_of(topic_filter):
        raise ValueError(f"{topic_filter!r} cannot be bound: {verb_of(topic_filter)} never enters a queue")
    if topic_filter.startswith("$share/"):
        raise ValueError(f"{topic_filter!r} cannot be bound: a shared subscription is no filter of topics")


def _check_dead_letter_topic(definition: QueueDefinition) -> None:
    topic = definition.dlq.topic
    queue, key = parse_publish(topic)
    if verb_of(key) or "+" in key or "#" in key:
        raise ValueError(f"dlq.topic {topic!r} is no topic to publish to: use {ROOT}/<queue>[/<key>]")
    if queue == definition.name:
        raise ValueError(f"dlq.topic {topic!r} is the queue itself: its dead letters would never end")
    if is_dead_letters(definition.name):
        raise ValueError("a dead-letter queue has no dead letters of its own")


def _leaves(table: Mapping[str, Any]) -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for name, value in table.items():
        if name in _PARTS and isinstance(value, Mapping):
            leaves += [(f"{name}.{inner}", setting) for inner, setting in value.items()]
        else:
            leaves.append((name, value))
    return leaves


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
