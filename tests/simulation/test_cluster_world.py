"""Does the cluster protocol keep its promises in thousands of schedules, and does the simulation notice broken rules?

docs/cluster-protocol.md explains the protocol. `PENSTOCK_TEST_SCHEDULES` sets how many schedules are run.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.cluster_world import Finding, World

STEPS = 700
SCHEDULES = int(os.environ.get("PENSTOCK_TEST_SCHEDULES", "600"))
BLOCKS = 4
# A rule that is switched off, and a schedule in which that loses or doubles something.
PLANTED = {"no-lease": 81, "blind-fence": 176, "no-received-scan": 6, "no-will-scan": 56}


def run(seed: int, planted: str = "") -> None:
    World(seed, planted=planted).run(STEPS, faults=1 + seed % 3)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_schedules(block: int) -> None:
    for seed in range(block, SCHEDULES, BLOCKS):
        try:
            run(seed)
        except Finding as finding:
            raise AssertionError(f"schedule {seed}: {finding}") from finding


@pytest.mark.parametrize(("planted", "seed"), PLANTED.items())
def test_a_broken_rule_is_noticed(planted: str, seed: int) -> None:
    with pytest.raises(Finding):
        run(seed, planted)
    run(seed)
