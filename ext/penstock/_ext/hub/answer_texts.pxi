# Reason Strings (MQTT 5) of refused publishes and settlements.

cdef enum AnswerText:
    TEXT_NONE = 0
    TEXT_NO_QUEUES = 1
    TEXT_FULL = 2
    TEXT_TOO_LARGE = 3
    TEXT_NO_QUEUE = 4
    TEXT_WRONG_WORD = 5
    TEXT_NO_MESSAGE_ID = 6
    TEXT_NO_GROUP_ID = 7
    TEXT_NOT_A_MEMBER = 8
    TEXT_NOT_PENDING = 9
    TEXT_NOT_YOURS = 10
    TEXT_NOT_A_STREAM = 11
    TEXT_NO_GROUP = 12
    TEXT_BEYOND = 13
    TEXT_NO_OFFSET = 14
    TEXT_CLOSED = 15
    TEXT_MANY = 16
    TEXT_AWAY = 17
    TEXT_NO_MEMORY = 18
    TEXT_LOG_TOO_LARGE = 19
    TEXT_LOG_AWAY = 20
    TEXT_AMBIGUOUS = 21
    TEXT_NOT_WHOLE = 22
    TEXT_RETAINED_FULL = 23
    TEXT_OFF = 24
    TEXT_LIMIT = 25
    TEXT_BAD_TIME = 26
    TEXT_TWICE = 27
    TEXT_DENIED = 28
    TEXT_BUSY = 29
    TEXT_BAD_TOPIC = 30
    TEXT_COUNT = 31
    TEXT_HELD = 0xFD            # Connection.words: they name the group that holds the queue back
    TEXT_CAPTURED = 0xFE        # no text: a queue has taken the message

cdef const char* ANSWER_TEXTS[31]
ANSWER_TEXTS[:] = [
    "",
    "durable queues need a log: ingest.log is none",
    "the queue has reached limits.max_depth",
    "the message is larger than limits.max_message_size of the queue",
    "there is no such queue",
    "not an address of a queue: $queue/<name>/<key>, with $ack, $nack, $reject, $commit or $extend at its end only",
    "the user property message-id is missing or not <queue>:<offset>",
    "the user property group-id is missing",
    "this client does not consume that queue in that group",
    "the message is not pending: settled before, or never delivered",
    "the message is with another consumer",
    "only streams are committed",
    "there is no such group",
    "the offset is beyond what the group has read",
    "the user property x-offset is missing or no number",
    "only the broker publishes dead letters",
    "there is no such queue, and one cannot be made for this topic",
    "the node that serves the queue cannot be reached now",
    "the queue has no more room in memory: queue_manager.ephemeral_bytes",
    "the message is larger than the log takes: kafka.max_request_size",
    "the log cannot store messages now: publish it again later",
    "several groups of this client have that name: use <name>@<filter>",
    "only a client that may receive everything the group reads, or its owner, moves the group's place",
    "no room for retained messages: limits.max_retained_messages, max_retained_bytes or max_retained_share",
    "there is no such queue, and none is created: queue_manager.auto_create is off",
    "no queue is created: the limit queue_manager.max_auto_queues or max_queues is reached",
    "delay or timeout is not a duration such as 30s, or over max_delay of the queue",
    "a user property of the settlement is given twice, with different values",
    "the access rules do not allow it",
    "the log has too much to write now: publish it again later",
    "not a topic of a queue: $queue/<name>[/<key>]",
]

# Answers of penstock.subscribers.queue if it creates no queue.
QUEUE_OFF = <int> TEXT_OFF
QUEUE_LIMIT = <int> TEXT_LIMIT


def answer_text(int number):
    """Return the Reason String of an answer, for answers other than PUBACK."""
    return ANSWER_TEXTS[number].decode("ascii") if 0 <= number < TEXT_COUNT else ""
