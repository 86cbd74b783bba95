"""Names of the topics and groups of APPLICATION clients, made so that two clients or two filters never share one.

client topic    [prefix.]tbmq.msg.app.<client>
clients' group  [prefix.]application-persisted-msg-consumer-group
shared topic    [prefix.]tbmq.msg.app.shared.<filter>
shared group    [prefix.]application-shared-msg-consumer-group-<share>-<shared topic>

<client> is the client id when it is of letters and digits only, else its SHA-256 in hexadecimal. <filter> has `.` for
`/`, `slw` for `+` and `mlw` for `#`:

    test/topic  test.topic        test/+  test.slw        test/#  test.mlw

A name that another client or filter could have as well is hashed too: an id or filter that is itself 64 hexadecimal
digits, and a filter with a level that is `slw` or `mlw`, or that is empty (`a//b`, `/a`). So is one that would be too
long. A <client> has no dot, so `tbmq.msg.app.shared` of the client `shared` is the topic of no filter.
"""

from __future__ import annotations

import hashlib
import re

CLIENT_TOPIC = "tbmq.msg.app."
SHARED_TOPIC = "tbmq.msg.app.shared."
CLIENTS_GROUP = "application-persisted-msg-consumer-group"
SHARED_GROUP = "application-shared-msg-consumer-group-"
LONGEST = 249  # what Kafka takes
LONGEST_SHARE = 128

_PLAIN_CLIENT = re.compile(r"[a-zA-Z0-9]+")
_PLAIN_FILTER = re.compile(rb"[a-zA-Z0-9/+#]+")
_PLAIN_SHARE = re.compile(rb"[a-zA-Z0-9._-]+")
_LIKE_A_HASH = re.compile(r"[0-9a-fA-F]{64}")
_WILDCARDS = {b"+": b"slw", b"#": b"mlw"}


class ApplicationNames:
    """The names of one broker or cluster. `prefix` is that of all its queues (`services.prefix`)."""

    def __init__(
        self, prefix: str = "", *, client_id_validation: bool = True, shared_topic_validation: bool = True
    ) -> None:
        self._before = f"{prefix}." if prefix else ""
        self._hashes_clients = client_id_validation
        self._hashes_filters = shared_topic_validation
        self.client_topics = self._before + CLIENT_TOPIC
        self.shared_topics = self._before + SHARED_TOPIC
        self.clients_group = self._before + CLIENTS_GROUP

    def client_topic(self, client_id: str) -> str | None:
        """None where the id has other characters than letters and digits and the settings say not to hash it: that
        client is served as a DEVICE."""
        if not self._hashes_clients and not _PLAIN_CLIENT.fullmatch(client_id):
            return None
        return self.client_topics + self._client_name(client_id)

    def serves(self, client_id: str, client_type: str, expiry_interval: int) -> bool:
        """Return whether a client with these credentials and this session has a topic of its own."""
        return client_type == "application" and expiry_interval > 0 and self.client_topic(client_id) is not None

    def shared_topic(self, topic_filter: bytes) -> str | None:
        """Of a filter without its `$share/<name>/`. None where it has characters that no name can have and the settings
        say not to hash it: that subscription is shared as those of DEVICE clients are."""
        if not self._hashes_filters and not _PLAIN_FILTER.fullmatch(topic_filter):
            return None
        return self.shared_topics + self._filter_name(topic_filter)

    def is_client_topic(self, topic: str, client_id: str) -> bool:
        """Whether it is that of the client, or was with other settings."""
        return topic == self.client_topics + self._client_name(client_id)

    def is_shared_topic(self, topic: str, topic_filter: bytes) -> bool:
        return topic == self.shared_topics + self._filter_name(topic_filter)

    def shared_group(self, share: bytes, topic_filter: bytes) -> str:
        """The group of all clients that share this filter under this name."""
        topic = self.shared_topics + self._filter_name(topic_filter)
        return f"{self._before}{SHARED_GROUP}{_share_name(share)}-{topic}"

    def _client_name(self, client_id: str) -> str:
        room = LONGEST - len(self.client_topics)
        if len(client_id) <= room and _PLAIN_CLIENT.fullmatch(client_id) and not _LIKE_A_HASH.fullmatch(client_id):
            return client_id
        return _hash(client_id.encode())

    def _filter_name(self, topic_filter: bytes) -> str:
        name = _spell_out(topic_filter)
        if name is None or len(name) > LONGEST - len(self.shared_topics) or _LIKE_A_HASH.fullmatch(name):
            return _hash(topic_filter)
        return name


def _spell_out(topic_filter: bytes) -> str | None:
    """The filter in words; None when it has none, or when another filter has the same."""
    if not _PLAIN_FILTER.fullmatch(topic_filter):
        return None
    levels = topic_filter.split(b"/")
    for level in levels:
        is_wild = level in _WILDCARDS
        if not level or level in _WILDCARDS.values() or (not is_wild and (b"+" in level or b"#" in level)):
            return None
    return b".".join(_WILDCARDS.get(level, level) for level in levels).decode()


def _share_name(share: bytes) -> str:
    # The topic in a group's name begins where SHARED_TOPIC is first seen: a share name must not show it before.
    is_plain = len(share) <= LONGEST_SHARE and _PLAIN_SHARE.fullmatch(share) and SHARED_TOPIC.encode() not in share
    if not is_plain or _LIKE_A_HASH.fullmatch(share.decode()):
        return _hash(share)
    return share.decode()


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
