"""A broker that reads its settings from a TOML file, rewritten by a test before a SIGHUP; its log as events."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO, Broker, Listener, toml_value

RELOAD_SECONDS = 30.0
RELOADED, RELOAD_REFUSED = "reloaded", "reload refused, the old settings stay"


def toml_entry(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        inline = ", ".join(f"{toml_value(name)} = {toml_value(item)}" for name, item in value.items())
        return f"{key} = {{ {inline} }}"
    return f"{key} = {toml_value(value)}"


class FileBroker(Broker):
    """`tables` are the sections of the settings file: {"limits": {"max_subscriptions": 3}}."""

    def __init__(
        self,
        directory: Path,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.settings_path = directory / "penstock.toml"
        self.tables = {"server": {"data_dir": str(directory / "data")}, "admin": {"address": ""}}
        for section, table in (tables or {}).items():
            self.tables.setdefault(section, {}).update(table)
        super().__init__(directory, {}, listeners)

    def _penstock_command(self) -> list[str]:
        self.write_settings()
        return [sys.executable, "-m", "penstock", "serve", "--config", str(self.settings_path)]

    def write_settings(self, **changes: Mapping[str, Any]) -> None:
        """The settings file anew, with these sections changed: write_settings(limits={"max_subscriptions": 5})."""
        for section, table in changes.items():
            self.tables.setdefault(section, {}).update(table)
        text = self._listener_tables()
        for section, table in self.tables.items():
            text += "\n".join([f"\n[{section}]", *(toml_entry(key, value) for key, value in table.items())]) + "\n"
        self.settings_path.write_text(text)

    def events(self, event: str | None = None, start: int = 0) -> list[dict[str, Any]]:
        """The lines of the log as objects, all or those of one event."""
        lines = [json.loads(line) for line in self.log(start).splitlines() if line.startswith("{")]
        return [line for line in lines if event is None or line["event"] == event]

    def await_event(self, *names: str, start: int = 0, seconds: float = RELOAD_SECONDS) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self.events(start=start):
                if event["event"] in names:
                    return event
            time.sleep(0.01)
        raise AssertionError(f"no {' or '.join(names)} in the log within {seconds} s:\n{self.log(start)}")

    def await_events(self, name: str, count: int, seconds: float = RELOAD_SECONDS) -> list[dict[str, Any]]:
        """So many of them: lines that follow each other closely are written a little later, together."""
        deadline = time.monotonic() + seconds
        while len(found := self.events(name)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {name} in the log:\n{self.log()}"
            time.sleep(0.01)
        return found

    def find_data_port(self) -> int:
        """The port of the data listener."""
        events = self.await_events("listening", 2 + len(self.listeners))
        (address,) = [event["address"] for event in events if event["listener"] == "data"]
        return int(address.rpartition(":")[2])

    def reload(self, *, refused: bool = False) -> dict[str, Any]:
        """SIGHUP; gives the line of the log that tells what came of it."""
        start = self.log_size()
        self.process.send_signal(signal.SIGHUP)
        event = self.await_event(RELOADED, RELOAD_REFUSED, start=start)
        assert (event["event"] == RELOAD_REFUSED) == refused, event
        return event


@contextlib.contextmanager
def running_broker(
    directory: Path, tables: Mapping[str, Mapping[str, Any]] | None = None, listeners: Sequence[Listener] = ()
) -> Iterator[FileBroker]:
    """For fixtures that several tests share: well until its end, exit code 0."""
    if IS_MOSQUITTO:
        pytest.skip("the settings file is Penstock's own")
    broker = FileBroker(directory, tables, listeners)
    try:
        broker.wait_until_listening()
        yield broker
        if broker.is_alive:
            broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
