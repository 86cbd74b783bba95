"""Runs the stages of a scenario and watches them: what happened when, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock._ext.load.generator import PHASES, Load, LoadError
from penstock_bench.connection_memory import Opening, judge_memory
from penstock_bench.options import LoadOptions
from penstock_bench.scenarios import SCENARIOS, Request, Stage
from penstock_bench.system import allow_open_files
from penstock_bench.units import rates

STEP_SECONDS = 0.1
# Where the table has other words for a figure.
FAULT_NAMES = {"disconnects": "connections lost", "unclosed": "not closed after DISCONNECT"}
SHORTEST_MOMENT = 0.002  # of a stage that may be over in no time
MOMENTS_OF_A_LENGTH = 100  # then they are twice as long
MOST_MOMENTS = 300
LEAST_OF_THE_RATE = 0.95
OPENING_SECONDS = 0.001  # between two looks at the memory of a broker that gets connections
OPENING_PHASE = PHASES[0]
SILENT_SECONDS = 30.0
COUNTED = ("published", "received", "connects")


@dataclass(frozen=True)
class Moment:
    """The figures of one interval; rates are per second, latencies µs."""

    at: float  # seconds since the stage began
    stage: str
    phase: str
    ready: int  # connections
    published: float
    received: float
    connects: float
    count: int  # latencies that were measured
    p50_us: float
    p90_us: float
    p99_us: float
    broker_cores: float | None
    load_cores: float
    rss_mb: float | None


@dataclass
class Outcome:
    """All that is known of a run."""

    request: Request
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the title of the stage
    moments: list[Moment] = field(default_factory=list)
    latencies: list[tuple[float, int]] = field(default_factory=list)  # of the last stage with figures
    is_interrupted: bool = False
    other_cores: float | None = None  # of other programs meanwhile, where that is known

    @property
    def figures(self) -> dict[str, Any]:
        """Those of the last stage, which is the one a scenario is about."""
        return list(self.results.values())[-1] if self.results else {}

    def total(self, name: str) -> int:
        return sum(int(result.get(name, 0)) for result in self.results.values())

    def faults(self) -> list[str]:
        """Return what a correct broker does not do at this QoS."""
        qos = self.request.qos or 0
        wrong = {
            "lost": qos >= 1,
            "unacknowledged": True,
            "duplicates": qos != 1,
            "disordered": True,
            "downgraded": True,
            "refused": True,
            "corrupt": True,
            "disconnects": True,
            "unclosed": True,
        }
        counted = [
            f"{FAULT_NAMES.get(name, name)} {self.total(name):,}"
            for name, counts in wrong.items()
            if counts and self.total(name)
        ]
        slow = [
            rates(result["asked_rate"], result["sent_rate"], result["send_lag_max_us"])
            for result in self.results.values()
            if is_too_slow(result) and not self.is_interrupted  # too short a time to judge a rate by
        ]
        return [*counted, *slow, *self._idleness()]

    def _idleness(self) -> list[str]:
        """Where nothing happened nothing can have gone wrong, and nothing was right either. Of a stage alone: what is
        published for sessions that are away may all be lost at QoS 0."""
        if self.is_interrupted or len(self.results) != 1:
            return []
        figures = self.figures
        if "rate" not in figures:  # idle connections were all accepted, or it would not have begun
            return [] if figures.get("connects", 1) else ["no connection was accepted"]
        if not figures["published"]:
            return ["no message could be published"]
        if figures["received"]:
            return []
        is_queue = self.request.scenario == "queue"
        return [f"no message arrived{': only Penstock has such queues' if is_queue else ''}"]


def is_too_slow(result: dict[str, Any]) -> bool:
    """Whether much less was sent than asked for: latencies then tell of a load that was not there."""
    asked = result.get("asked_rate", 0.0)
    # one that is due at the very end may not be sent any more
    return bool(asked and result["sent"] + 1 < LEAST_OF_THE_RATE * asked * result["sent_secs"])


class Watch:
    """Turns the counters of a load into moments."""

    def __init__(self, load: Load, stage: Stage, every: float):
        self._load = load
        self._stage = stage
        self.every = every
        self._is_local = bool(stage.options.pids)
        self._counters = load.counters()
        self._began, self._cpu, self._own, _ = load.resources()
        self._at = self._began
        self._phase = load.phase_name
        self._count = 0

    def look(self, *, is_last: bool = False) -> Moment | None:
        """The moment that has ended, when it is time for one."""
        now, cpu, own, rss = self._load.resources()
        took, phase = now - self._at, self._phase
        self._phase = self._load.phase_name
        # one that was half in the warm-up would be neither
        if took < self.every and not is_last and (phase == self._phase or took < SHORTEST_MOMENT):
            return None
        if is_last and self._count and took < SHORTEST_MOMENT:
            return None  # a rate of so short a time would be a spike, or nothing, at the end of each chart
        self._count += 1
        if self._stage.options.count and self._count % MOMENTS_OF_A_LENGTH == 0:
            self.every *= 2
        counters, recent = self._load.counters(), self._load.take_recent()
        rates = {name: (counters[name] - self._counters[name]) / took for name in COUNTED}
        moment = Moment(
            at=round(now - self._began, 3),
            stage=self._stage.title,
            phase=phase,
            ready=self._load.ready,
            count=int(recent["count"]),
            p50_us=recent["p50_us"],
            p90_us=recent["p90_us"],
            p99_us=recent["p99_us"],
            broker_cores=round((cpu - self._cpu) / took, 3) if self._is_local else None,
            load_cores=round((own - self._own) / took, 3),
            rss_mb=round(rss / 1024, 1) if self._is_local else None,
            **{name: round(rate) for name, rate in rates.items()},
        )
        self._at, self._cpu, self._own, self._counters = now, cpu, own, counters
        return moment


class Patience:
    """Many connections may take long to open; a server that accepts none of them for that time does not speak
    MQTT, or hangs. A storm has no such phase."""

    def __init__(self, load: Load, options: LoadOptions):
        self._load = load
        self._where = f"{options.host}:{options.port}"
        self._connects = 0
        self._since = time.monotonic()

    def look(self) -> None:
        """Raises LoadError when it is over."""
        if self._load.phase_name != OPENING_PHASE:
            return
        connects, now = self._load.counters()["connects"], time.monotonic()
        if connects != self._connects:
            self._connects, self._since = connects, now
        elif now - self._since > SILENT_SECONDS:
            some = f"{connects:,} connections, and then nothing," if connects else "no CONNACK"
            raise LoadError(f"{self._where} does not answer: {some} in {SILENT_SECONDS:g} s")


def run_scenario(request: Request, shown: Callable[[Moment], None] = lambda _: None) -> Outcome:
    """Raises LoadError when it cannot be run, UsageError when the request makes no sense."""
    scenario = SCENARIOS[request.scenario]
    outcome = Outcome(scenario.complete(request))
    stages = scenario.stages(outcome.request)
    every = max(0.25, request.duration / MOST_MOMENTS) if request.duration > 1 else STEP_SECONDS / 10
    try:
        for stage in stages:
            if not stage.options.forget and not outcome.is_interrupted:
                _run_stage(stage, every, outcome, shown)
    finally:
        for stage in stages:
            if stage.options.forget:
                _clean_up(stage)
    return outcome


def figures_of(load: Load, stage: Stage, opening: Opening | None = None) -> dict[str, Any]:
    """Those the generator has counted, without what they cannot tell."""
    result = load.result()
    if stage.options.rate:
        result["asked_rate"] = stage.options.rate
    judge_memory(result, opening)
    return result


def _clean_up(stage: Stage) -> None:
    try:
        _run_stage(stage, 1.0, None, lambda _: None)
    except LoadError:
        return  # a broker that has ended is reported already, and holds nothing that could be removed


def _run_stage(stage: Stage, every: float, outcome: Outcome | None, shown: Callable[[Moment], None]) -> None:
    options = stage.options
    if options.count:
        every = SHORTEST_MOMENT
    allow_open_files(options.n * (2 if options.scenario == "p2p" else 1) + options.subs * options.groups)
    load = Load(options)
    try:
        watch = Watch(load, stage, every)
        patience = Patience(load, options)
        opening = Opening(options.pids, options.n, load.resources()[3]) if _is_about_memory(options) else None
        goes_on = True
        while goes_on:
            try:
                goes_on = _step(load, watch, opening)
                patience.look()
                moment = watch.look(is_last=not goes_on)
                if moment is not None and outcome is not None and stage.is_figure:
                    outcome.moments.append(moment)
                    shown(moment)
            except KeyboardInterrupt:
                if outcome is None or outcome.is_interrupted:
                    raise
                outcome.is_interrupted = True
                load.stop()
        if outcome is not None and stage.is_figure:
            outcome.results[stage.title] = figures_of(load, stage, opening)
            outcome.latencies = load.latencies()
    finally:
        load.close()


def _is_about_memory(options: LoadOptions) -> bool:
    return options.scenario == "idle" and bool(options.pids)


def _step(load: Load, watch: Watch, opening: Opening | None) -> bool:
    """Whether the run goes on."""
    if opening is None or load.phase_name != OPENING_PHASE:
        return load.step(min(watch.every, STEP_SECONDS))
    goes_on = load.step(OPENING_SECONDS)
    opening.look(load.ready, load.counters()["connects"], load.resources()[3])
    return goes_on
