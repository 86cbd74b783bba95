"""Brokers measured in turns: side by side, each frozen (SIGSTOP) while another is measured, in the order A B, A B."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_bench.brokers import Broker, wait_quiet
from penstock_bench.neighbours import Neighbours
from penstock_bench.summary import Run


@dataclass(frozen=True)
class Measurement:
    """A measurement made with each broker in its turn."""

    name: str
    measure: Callable[[Broker], Run]
    needs_fresh_process: bool = False  # memory is told only by a process that has served nothing yet
    prepare: Callable[[int], None] = lambda rep: None  # before the first turn, while all brokers are frozen


@dataclass(frozen=True)
class Turns:
    """How often, and how patiently."""

    reps: int = 3
    quiet: float = 20.0  # seconds to wait at most for the machine to be idle
    warm: Callable[[Broker], None] = lambda broker: None  # unmeasured load after a start
    told: Callable[[str, int, Run], None] = lambda name, rep, run: None
    doing: Callable[[str], None] = lambda what: None  # progress for a person: runs take long, and waiting longer


class Comparison:
    """Measures everything with every broker, repetition by repetition."""

    def __init__(self, brokers: Sequence[Broker], measurements: Sequence[Measurement], turns: Turns):
        self.brokers = brokers
        self.measurements = measurements
        self.turns = turns
        self.runs: list[Run] = []

    def run(self) -> list[Run]:
        try:
            for rep in range(self.turns.reps):
                self._run_side_by_side(rep)
                self._run_fresh(rep)
        finally:
            self._stop_all()
        return self.runs

    def _run_side_by_side(self, rep: int) -> None:
        measurements = [each for each in self.measurements if not each.needs_fresh_process]
        if not measurements:
            return
        for broker in self.brokers:
            self._start(broker)
            self.turns.warm(broker)
            broker.settle()
            broker.freeze()
        for measurement in measurements:
            measurement.prepare(rep)
            for broker in self.brokers:
                broker.thaw()
                self._measure(rep, measurement, broker)
                broker.settle()
                broker.freeze()
        self._stop_all()

    def _run_fresh(self, rep: int) -> None:
        for measurement in self.measurements:
            for broker in self.brokers if measurement.needs_fresh_process else ():
                self._start(broker)
                broker.settle()
                self._measure(rep, measurement, broker)
                broker.stop()

    def _start(self, broker: Broker) -> None:
        # A runtime that is still starting up must not take CPU from the one before it.
        self._wait(broker.name)
        self.turns.doing(f"{broker.name}: starting")
        broker.start()

    def _wait(self, for_whom: str) -> None:
        if self.turns.quiet:
            self.turns.doing(f"{for_whom}: waiting for an idle machine, at most {self.turns.quiet:g} s")
            wait_quiet(self.turns.quiet)

    def _stop_all(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def _measure(self, rep: int, measurement: Measurement, broker: Broker) -> None:
        if not broker.is_alive():
            broker.stop()
            self._start(broker)
        self._wait(broker.name)
        self.turns.doing(f"{rep + 1} of {self.turns.reps}, {measurement.name}, {broker.name}: measuring")
        run = {"rep": rep, "test": measurement.name, "broker": broker.name, **measurement.measure(broker)}
        self.runs.append(run)
        self.turns.told(measurement.name, rep, run)


def watch_others(broker: Broker, own_cpu_seconds: Callable[[], float], measure: Callable[[], Run]) -> Run:
    """A run with what the rest of the machine did meanwhile, in `other_cores`."""
    others = Neighbours(broker.pids(), own_cpu_seconds)
    result = measure()
    cores = others.cores() if broker.is_alive() else None
    if cores is not None:
        result["other_cores"] = cores
    return result
