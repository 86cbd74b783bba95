"""Lines that cannot be forged, secrets that are not shown."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from penstock.core.logging import (
    JsonFormatter,
    RateLimited,
    TextFormatter,
    Throttled,
    configure_logging,
    escape,
    get_logger,
)

FORGERIES = [
    "a\nb",
    "a\r\nlevel=error",
    'a" level="error',
    "a\x1b[2Jb",
    "a\x9b2Jb",
    "a\u2028b",
    "a\u202eb",
    "a\x00b",
    "a\x7fb",
    "a b=c",
    "\ud800",
]


@pytest.fixture
def stream():
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before = (list(root.handlers), root.level, ours.level, logging.raiseExceptions)
    yield io.StringIO()
    root.handlers[:], level, our_level, logging.raiseExceptions = before[0], *before[1:]
    root.setLevel(level)
    ours.setLevel(our_level)


def test_json_lines_when_it_is_no_terminal(stream):
    configure_logging("info", "auto", stream)
    get_logger("penstock.mqtt").info("client connected", client_id="a", port=5, clean=True, none=None)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["event"]) == ("info", "penstock.mqtt", "client connected")
    assert (line["client_id"], line["port"], line["clean"], line["none"]) == ("a", 5, True, None)
    assert line["time"].endswith("Z")


def test_key_value_on_a_terminal(stream, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream.isatty = lambda: True
    configure_logging("info", "auto", stream)
    get_logger("penstock.mqtt").warning("client left", client_id="a b", peer="[::1]:5", empty="", ok=False)
    line = stream.getvalue()
    assert line.endswith(' warning mqtt: client left client_id="a b" peer=[::1]:5 empty="" ok=false\n')


def test_colour_only_on_a_terminal_that_wants_it(stream, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream.isatty = lambda: True
    configure_logging("info", "auto", stream)
    get_logger("penstock").error("x")
    assert "\x1b[31merror" in stream.getvalue()


@pytest.mark.parametrize("value", FORGERIES)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_value_cannot_forge_a_line(stream, value, form):
    configure_logging("info", form, stream)
    get_logger("penstock").info("event", client_id=value, second="end")
    get_logger("penstock").info(f"event {value}")
    assert len(stream.getvalue().splitlines()) == 2
    assert stream.getvalue().replace("\n", "").isprintable()
    if form == "text":
        first = stream.getvalue().splitlines()[0]
        # outside of quotes there is nothing but what we wrote
        assert first.endswith(" second=end")
        quoted = first.partition(" client_id=")[2].removesuffix(" second=end")
        assert quoted.startswith('"')
        assert quoted.endswith('"')
        assert '"' not in quoted[1:-1].replace('\\"', "")


def test_keys_cannot_forge_either(stream):
    configure_logging("info", "text", stream)
    get_logger("penstock").info("event", **{"a\nb=c d": 1})
    assert stream.getvalue().endswith(" a_b_c_d=1\n")


def test_secrets_are_masked(stream):
    configure_logging("info", "json", stream)
    get_logger("penstock").info(
        "connect",
        password=b"hunter2",
        user_password="hunter2",
        private_key="hunter2",
        auth_data=b"hunter2",
        nested={"token": "hunter2", "fine": "shown"},
        keep_alive=60,
        password_file="/path",
    )
    assert "hunter2" not in stream.getvalue()
    line = json.loads(stream.getvalue())
    assert (line["password"], line["nested"]) == ("***", {"token": "***", "fine": "shown"})
    assert (line["keep_alive"], line["password_file"]) == (60, "/path")


def test_long_values_are_cut(stream):
    configure_logging("info", "json", stream)
    get_logger("penstock").info("x", topic="t" * 70_000, payload=b"p" * 70_000, many=list(range(1000)))
    line = json.loads(stream.getvalue())
    assert len(stream.getvalue()) < 2_000
    assert line["topic"].endswith("…(+69744)")
    assert len(line["many"]) == 32


def test_fields_do_not_hide_ours(stream):
    configure_logging("info", "json", stream)
    get_logger("penstock").info("x", level="forged", time="forged", event="forged")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["level_"]) == ("info", "x", "forged")


def test_levels_and_bound_fields(stream):
    configure_logging("warning", "json", stream)
    log = get_logger("penstock.x").bind(listener="a")
    assert not log.is_enabled(logging.INFO)
    log.info("hidden")
    log.debug("hidden")
    log.warning("shown", peer="b")
    logging.getLogger("other").warning("from %s", "elsewhere")
    logging.getLogger("other").info("hidden")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("listener")) for line in lines] == [("shown", "a"), ("from elsewhere", None)]


def test_configuring_again_replaces(stream):
    configure_logging("info", "json", stream)
    configure_logging("info", "json", stream)
    get_logger("penstock").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_exception_in_text_is_indented():
    try:
        raise ValueError("first\n2026-01-01T00:00:00Z info forged\x1b[2J")
    except ValueError:
        record = logging.LogRecord("penstock", logging.ERROR, "", 0, "boom", None, sys.exc_info())
    lines = TextFormatter().format(record).splitlines()
    assert all(line.startswith("    | ") for line in lines[1:])
    assert "\x1b" not in "".join(lines)
    assert "forged" in json.loads(JsonFormatter().format(record))["exception"]


def test_escape_leaves_plain_text_alone():
    assert escape("größe/温度 ok") == "größe/温度 ok"
    assert escape("a\tb") == "a\\tb"


class Writes(io.StringIO):
    """What was given to each write."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)

    def counts(self) -> list[int]:
        return [text.count("\n") for text in self.texts]


def writes_of(act: Callable[[Writes], None], level: str = "info") -> Writes:
    """What a loop writes that does this, before and after it had the time to write what waits."""
    target = Writes()

    async def run() -> None:
        configure_logging(level, "json", target)
        get_logger("penstock.test").info("first")
        act(target)
        for _ in range(1_000):
            await asyncio.sleep(0.01)
            if "last" in "".join(target.texts):
                return

    asyncio.run(run())
    return target


def log_many(target: Writes) -> None:
    log = get_logger("penstock.test")
    for number in range(50):
        log.info("one of many", number=number)
    log.info("last")
    assert target.counts()[0] == 1, "the first does not wait"


def test_lines_of_a_storm_are_written_together_in_order(stream):
    # A machine that stands still for 10 ms in between makes it two writes; fifty-two would be one for each line.
    written = writes_of(log_many)
    assert sum(written.counts()) == 52
    assert len(written.texts) < 10
    lines = [json.loads(line) for line in "".join(written.texts).splitlines()]
    assert [line.get("number") for line in lines] == [None, *range(50), None]


def test_a_warning_and_a_line_for_debugging_are_written_at_once(stream):
    def warn(target: Writes) -> None:
        log_ten = get_logger("penstock.test")
        for _ in range(10):
            log_ten.info("waits perhaps")
        log_ten.warning("does not")
        assert "".join(target.texts).endswith('"event": "does not"}\n')
        assert sum(target.counts()) == 12, "with all that came before"
        get_logger("penstock.test").info("last")

    writes_of(warn)

    def debug(target: Writes) -> None:
        get_logger("penstock.test").debug("at once")
        assert "at once" in target.texts[-1]
        get_logger("penstock.test").info("last")

    writes_of(debug, "debug")


def test_without_a_loop_nothing_waits(stream):
    target = Writes()
    configure_logging("info", "json", target)
    for _ in range(5):
        get_logger("penstock.test").info("line")
    assert target.counts() == [1] * 5


@pytest.mark.parametrize(
    "end", ["pass", "sys.exit(3)", "raise ValueError('crash')", "asyncio.get_running_loop().stop()"]
)
def test_a_process_that_ends_has_written_all(end):
    program = f"""
import asyncio, sys
from penstock.core.logging import configure_logging, get_logger
async def main():
    for number in range(20):
        get_logger("penstock.test").info("line", number=number)
    {end}
configure_logging("info", "json")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    numbers = [json.loads(line)["number"] for line in done.stderr.splitlines() if line.startswith("{")]
    assert numbers == list(range(20))


def test_other_formatters_find_what_a_record_has(stream):
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s:%(lineno)d %(threadName)s %(message)s"))
    logging.getLogger().addHandler(handler)
    configure_logging("info", "json", io.StringIO())
    get_logger("penstock.test").warning("100 % seen")
    assert stream.getvalue() == "WARNING :0 None 100 % seen\n"


def test_a_reader_that_went_away_costs_nothing(stream):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    configure_logging("info", "json", Gone())
    get_logger("penstock.test").error("nobody hears it")


def test_rate_limit_counts_what_it_holds_back():
    now = [0.0]
    limited = RateLimited(10, max_keys=2, clock=lambda: now[0])
    assert limited.try_pass("a") == 0
    assert limited.try_pass("a") is None
    assert limited.try_pass("a") is None
    assert limited.try_pass("b") == 0
    now[0] = 10
    assert limited.try_pass("a") == 2
    assert limited.try_pass("a") is None


def test_rate_limit_forgets_the_oldest_key():
    limited = RateLimited(10, max_keys=2, clock=lambda: 0.0)
    assert [limited.try_pass(key) for key in "abc"] == [0, 0, 0]
    assert len(limited._seen) == 2
    assert limited.try_pass("a") == 0


def test_a_throttled_logger_writes_one_line_per_event_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Throttled(get_logger("penstock.test"), interval=3600)
    assert warnings.warning("log full", error="a") == 0
    assert warnings.warning("log full", error="b") is None
    assert warnings.error("log gone") == 0
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "log full"),
        ("ERROR", "log gone"),
    ]


def test_a_throttled_logger_can_be_limited_by_something_else_and_counts_what_it_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = Throttled(get_logger("penstock.test"), interval=0.05)
    assert [warnings.warning("refused", per=user) for user in ("ann", "bob", "ann")] == [0, 0, None]
    time.sleep(0.06)
    assert warnings.warning("refused", per="ann") == 1
    assert vars(caplog.records[-1])["penstock_fields"] == {"suppressed": 1}
