"""What a queue has done, under the names the compatible original prints; per tenant too, for the busiest few."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from penstock.services.packs.message import PackMessage
from penstock.services.packs.pack import RoundResult

NAMES = (
    "totalMsgs",
    "successfulMsgs",
    "timeoutMsgs",
    "failedMsgs",
    "tmpTimeout",
    "tmpFailed",
    "successfulIterations",
    "failedIterations",
)
MAX_TENANTS = 1_000


class QueueStatistics:
    """Rising counters. A message counts in `totalMsgs` once for each round it was in; `tmp…` are those sent again."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self.counts = dict.fromkeys((*NAMES, "lateMsgs", "undecodableMsgs", "deadLetterFailures"), 0)
        self.tenants: OrderedDict[Hashable, dict[str, int]] = OrderedDict()

    def add_round(self, result: RoundResult) -> None:
        self._add("successfulMsgs", result.succeeded)
        self._add("timeoutMsgs", result.timed_out)
        self._add("failedMsgs", result.failed)
        self._add("tmpTimeout", result.to_retry_timed_out)
        self._add("tmpFailed", result.to_retry_failed)
        self.counts["successfulIterations" if result.is_success else "failedIterations"] += 1

    def add_late(self, message: PackMessage) -> None:
        """It had timed out and was not sent again, and has succeeded after all."""
        self.counts["successfulMsgs"] += 1
        self.counts["lateMsgs"] += 1
        if message.tenant is not None:
            self._of(message.tenant)["successfulMsgs"] += 1

    def _add(self, name: str, messages: Sequence[PackMessage]) -> None:
        self.counts[name] += len(messages)
        self.counts["totalMsgs"] += len(messages)
        for message in messages:
            if message.tenant is not None:
                counts = self._of(message.tenant)
                counts[name] += 1
                counts["totalMsgs"] += 1

    def _of(self, tenant: Hashable) -> dict[str, int]:
        counts = self.tenants.get(tenant)
        if counts is None:
            counts = self.tenants[tenant] = dict.fromkeys(NAMES, 0)
            if len(self.tenants) > self._max_tenants:
                self.tenants.popitem(last=False)
        else:
            self.tenants.move_to_end(tenant)
        return counts
