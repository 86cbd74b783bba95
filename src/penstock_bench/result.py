"""A run as a document (JSON) and as a table for a person."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError, UsageError
from penstock_bench.connection_memory import describe_memory
from penstock_bench.machine import describe_machine, penstock_version
from penstock_bench.neighbours import DOUBT, is_disturbed
from penstock_bench.runner import Outcome
from penstock_bench.scenarios import SCENARIOS, Request
from penstock_bench.units import latency, rates

FORMAT = 1
VERSION_NAMES = {4: "3.1.1", 5: "5"}
BUSY_CORES = 0.95
LATENCIES = (("p50 / p90 / p99", ("p50_us", "p90_us", "p99_us")), ("p99.9 / max", ("p999_us", "max_us")))
UNORDERED = ("shared", "retained")
CHECKED = ("lost", "unacknowledged", "duplicates", "disordered", "corrupt", "downgraded", "refused")


def document_of(outcome: Outcome, left_behind: str | None = None, version: str | None = None) -> dict[str, Any]:
    """Everything, for a script; the HTML report is made from it too."""
    request = outcome.request
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).replace(microsecond=0).isoformat(),
        "scenario": request.scenario,
        "about": SCENARIOS[request.scenario].about,
        "broker": {"host": request.host, "port": request.port, "pids": list(request.pids), "version": version},
        "settings": settings_of(request),
        "generator": penstock_version(),
        "machine": describe_machine(),
        "figures": outcome.figures,
        "stages": [{"title": title, **result} for title, result in outcome.results.items()],
        "faults": outcome.faults(),
        "interrupted": outcome.is_interrupted,
        "other_cores": outcome.other_cores,
        "left_behind": left_behind,
        "timeline": [asdict(moment) for moment in outcome.moments],
        "latency_us": outcome.latencies,
    }


def settings_of(request: Request) -> dict[str, Any]:
    """The load that was asked for, with the defaults of its scenario."""
    return {
        "clients": request.clients,
        "subscribers": request.subscribers,
        "mqtt": VERSION_NAMES[request.version or 4],
        "tls": request.tls is not None,
        "qos": request.qos,
        "payload": request.payload,
        "rate": request.rate,
        "duration": request.duration,
        "warmup": request.warmup,
        "drain": request.drain,
        "keep_alive": request.keep_alive,
        "window": request.window,
        "undelivered": request.undelivered,
        "messages": request.messages,
        "queue": request.queue,
        "threads": request.threads,
    }


def check_target(path: Path, option: str) -> None:
    """Raises UsageError for a file that could not be written at the end of a long test."""
    if path.exists():
        is_right, why = os.access(path, os.W_OK) and not path.is_dir(), "it cannot be written"
    else:
        is_right, why = os.access(path.parent, os.W_OK | os.X_OK), f"{path.parent} is not a writable directory"
    if not is_right:
        raise UsageError(f"{option} {path}: {why}")


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"cannot write {path}: {error.strerror}") from None


def write_json(path: Path, document: dict[str, Any]) -> None:
    write_text(path, json_of(document))


def json_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def settings_line(document: dict[str, Any]) -> str:
    """`50 clients, MQTT 5, QoS 1, 64 bytes, ...`: what was asked for, in one line."""
    settings, lacks = document["settings"], SCENARIOS[document["scenario"]].lacks
    words = [f"{settings['clients']:,} {SCENARIOS[document['scenario']].clients_are}"]
    if settings["subscribers"]:
        words.append(f"{settings['subscribers']:,} subscribers")
    words.append(f"MQTT {settings['mqtt']}{' over TLS' if settings['tls'] else ''}")
    if "qos" not in lacks:
        words += [f"QoS {settings['qos']}", f"{settings['payload']:,} bytes"]
        words.append(f"{settings['rate']:,.0f} messages/s" if settings["rate"] else "as fast as it goes")
    if settings["messages"]:
        words.append(f"{settings['messages']:,} messages")
    else:
        warmup = f" after {settings['warmup']:g} s of warm-up" if "warmup" not in lacks else ""
        words.append(f"{settings['duration']:g} s{warmup}")
    if settings["queue"]:
        words.append(f"queue {settings['queue']}")
    if "window" not in lacks and settings["qos"]:
        words.append(f"window {settings['window']:,}{_allowed_window(document)}")
    if "undelivered" not in lacks:
        words.append(f"undelivered {settings['undelivered'] or 'without limit'}")
    if "drain" not in lacks:
        words.append(f"drain {settings['drain']:g} s")
    words.append(f"keep-alive {settings['keep_alive']} s")
    words.append(f"{settings['threads']} thread{'s' if settings['threads'] > 1 else ''}")
    return ", ".join(words)


def _allowed_window(document: dict[str, Any]) -> str:
    """A comparison prints its loads before it has figures."""
    used = document.get("figures", {}).get("window", document["settings"]["window"])
    return f" (the broker allows {used:,})" if used < document["settings"]["window"] else ""


def figures_of(document: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each stage its title, empty when there is only one, and its figures with their units, in the order of their
    importance. A name and its value fit into 80 columns."""
    stages = document["stages"]
    return [(stage["title"] if len(stages) > 1 else "", _stage_rows(stage, document)) for stage in stages]


def _stage_rows(stage: dict[str, Any], document: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    is_local = bool(document["broker"]["pids"])
    if "rate" in stage:
        rows.append(("messages/s", f"{stage['rate']:,}"))
        if document["settings"]["messages"]:
            rows.append(("took", latency(stage["secs"] * 1e6)))
        if "asked_rate" in stage:
            rows.append(("rate", rates(stage["asked_rate"], stage["sent_rate"], stage["send_lag_max_us"])))
        rows.append(("published", f"{stage['published']:,}" if stage["published"] else "earlier"))
        rows.append(("received", f"{stage['received']:,} of {stage['expected']:,}"))
        rows += [(name, f"{stage[name]:,}") for name in CHECKED]
    else:
        rows.append(("connects/s", f"{stage['connects_per_s']:,}"))
        if stage["scenario"] == "idle" and is_local:
            rows.append(("broker memory per connection", describe_memory(stage)))
    if stage.get("max_us"):
        since = " since connecting" if document["settings"]["messages"] else ""
        for label, names in LATENCIES:
            rows.append((f"latency {label}", " / ".join(latency(stage[name]) for name in names) + since))
    if is_local:
        rows += _broker_rows(stage)
    rows.append(("load generator", f"{stage['load_cores']:.2f} cores{headroom(stage)}"))
    rows.append(("connections lost", f"{stage['disconnects']:,}"))
    return rows


def headroom(stage: dict[str, Any]) -> str:
    """How much less CPU it took than the broker; whether it was the limit itself."""
    if stage["load_busiest_thread"] > BUSY_CORES:
        return ", busy all the time: it may be the limit, not the broker (--threads)"
    if stage["load_cpu_s"] and stage["broker_cpu_s"] and stage.get("rate"):
        ratio = stage["broker_cpu_s"] / stage["load_cpu_s"]
        return (
            f", {ratio:.1f} times less than the broker"
            if ratio >= 1
            else f", {1 / ratio:.1f} times more than the broker"
        )
    return ""


def _broker_rows(stage: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("broker", f"{stage['broker_cores']:.2f} cores, {stage['rss_kb'] / 1024:,.1f} MiB resident")]
    if stage.get("msgs_per_cpu_s"):
        rows.append(("messages per CPU-second", f"{stage['msgs_per_cpu_s']:,}"))
    if stage.get("connects_per_cpu_s") and "rate" not in stage:
        rows.append(("connects per CPU-second", f"{stage['connects_per_cpu_s']:,}"))
    return rows


def broker_of(document: dict[str, Any]) -> str:
    """`127.0.0.1:1883 (mosquitto version 2.0.18)`."""
    broker = document["broker"]
    version = f" ({broker['version']})" if broker["version"] else ""
    return f"{broker['host']}:{broker['port']}{version}"


def remarks_of(document: dict[str, Any]) -> list[str]:
    """Return remarks on the figures: what makes them doubtful, and what the test left in the broker."""
    cores = document["other_cores"]
    ended = [f"! ended early, {_measured(document)}"] if document["interrupted"] else []
    doubt = [f"! {DOUBT} ({cores:.1f} cores)"] if is_disturbed(cores) else []
    return [*ended, *doubt, *([document["left_behind"]] if document["left_behind"] else [])]


def _measured(document: dict[str, Any]) -> str:
    """Describe how much was measured; a run that ended in its warm-up has the figures of the warm-up."""
    if document["settings"]["messages"]:
        return "before all messages were there"
    phases = {moment["phase"] for moment in document["timeline"]}
    if "warming up" in phases and "measuring" not in phases:
        return "in the warm-up"
    return f"after {document['figures'].get('secs', 0):.1f} of {document['settings']['duration']:g} s"


def verdict(document: dict[str, Any]) -> str:
    """One line: was everything right?"""
    if document["faults"]:
        return "NOT OK: " + ", ".join(document["faults"])
    figures = document["figures"]
    if document["interrupted"] and not (figures.get("published") or figures.get("received") or figures.get("connects")):
        return "ended before anything was measured"
    if "rate" not in figures:
        return "ok: every connection was served"
    lost, again = (sum(stage.get(name, 0) for stage in document["stages"]) for name in ("lost", "duplicates"))
    order, reordered = ("", "") if document["scenario"] in UNORDERED else (", in order", ", reordered")
    if lost:
        return f"ok: {lost:,} messages were lost, as QoS 0 allows; none was duplicated{reordered} or damaged"
    if again:
        return f"ok: {again:,} messages arrived again, as QoS 1 allows; none was lost{reordered} or damaged"
    return f"ok: every message arrived once{order} and undamaged"
