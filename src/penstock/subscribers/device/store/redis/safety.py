"""What in a Redis can lose messages that were acknowledged: said at the start, and by `penstock doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import hiredis

from penstock.settings.redis import RedisSettings
from penstock.subscribers.device.store.redis import topology
from penstock.subscribers.device.store.redis.connection import Endpoint, NotRedis

OLDEST_VERSION = (6, 2)
NEARLY_FULL = 0.8

Information = Mapping[str, str]


class Weakness(NamedTuple):
    what: str
    advice: str


class ServerReport(NamedTuple):
    """A server that holds messages. `fsync` is empty where it may not be asked for."""

    endpoint: Endpoint
    information: Information
    fsync: str


def parse_information(answer: object) -> dict[str, str]:
    """The answer to INFO; raises NotRedis for what is none."""
    if not isinstance(answer, bytes):
        raise NotRedis(answer)
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon and not name.startswith("#")}


def version_of(information: Information) -> tuple[int, ...]:
    return tuple(int(part) for part in information.get("redis_version", "").split(".")[:2] if part.isdigit())


def find_weaknesses(information: Information) -> list[Weakness]:
    """What INFO does not tell is not held against the server."""
    found = []
    if information.get("aof_enabled") == "0":
        found.append(
            Weakness(
                "it has no append-only file: when it dies, messages since its last snapshot are lost",
                "CONFIG SET appendonly yes, and the same in redis.conf",
            )
        )
    policy = information.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        limit = information.get("maxmemory_human") if information.get("maxmemory", "0") != "0" else "not set now"
        found.append(
            Weakness(
                f"it removes messages when its memory is full: maxmemory-policy is {policy} (maxmemory: {limit})",
                "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; publishers wait then instead",
            )
        )
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        if information.get("aof_enabled") == "1" and information.get(name, "ok") != "ok":
            found.append(
                Weakness(f"its append-only file cannot be written ({name})", "look into its log; is its disk full?")
            )
    return found


async def inspect(settings: RedisSettings) -> list[ServerReport]:
    """Every server that would hold messages. Raises OSError, TimeoutError, or ReplyError of hiredis."""
    tls = topology.make_tls(settings)
    known = topology.parse_endpoints(settings)
    if settings.mode == "sentinel":
        endpoints = [await topology.find_master(settings, tls)]
    elif settings.mode == "cluster":
        ranges = await topology.find_slots(settings, tls, known)
        endpoints = sorted({endpoint for _, _, endpoint in ranges})
    else:
        endpoints = known[:1]
    credentials = (settings.username, settings.password)
    reports = []
    for endpoint in endpoints:
        answer = await topology.ask(endpoint, tls, credentials, settings.connect_timeout, "INFO")
        try:
            pair = await topology.ask(
                endpoint, tls, credentials, settings.connect_timeout, "CONFIG", "GET", "appendfsync"
            )
            fsync = pair[1].decode() if pair else ""
        except (hiredis.ReplyError, LookupError, TypeError, AttributeError):
            fsync = ""  # managed servers do not let everybody ask, or answer as they like
        reports.append(ServerReport(endpoint, parse_information(answer), fsync))
    return reports


def is_nearly_full(information: Information) -> bool:
    limit = int(information.get("maxmemory", "0") or 0)
    return bool(limit) and int(information.get("used_memory", "0") or 0) > NEARLY_FULL * limit


FAILURES = (OSError, TimeoutError, hiredis.HiredisError)
