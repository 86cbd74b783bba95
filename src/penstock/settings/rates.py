"""Rate limits of messages, with TBMQ's names and defaults: all of them are off."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from penstock.settings.section import Section, about

# At most four, as the compiled hub has room for.
PAIR = r"[1-9]\d{0,8}:[1-9]\d{0,4}"
Rates = Annotated[str, Meta(pattern=rf"^{PAIR}(,{PAIR}){{0,3}}$")]


class RateSettings(Section, frozen=True):
    """How many messages may pass: `messages:seconds`, separated by commas, which all have to hold."""

    incoming_enabled: Annotated[bool, about("limit what each client publishes", live=True)] = False
    incoming: Annotated[Rates, about("messages each client may publish", live=True)] = "10:1,300:60"
    outgoing_enabled: Annotated[
        bool, about("limit what is sent with QoS 0 to each client whose session ends with its connection", live=True)
    ] = False
    outgoing: Annotated[Rates, about("messages each of them may be sent", live=True)] = "10:1,300:60"
    total_enabled: Annotated[bool, about("limit what is published and sent with QoS 0, of all clients", live=True)] = (
        False
    )
    total: Annotated[Rates, about("messages of all clients together", live=True)] = "1000:1,50000:60"
    device_enabled: Annotated[bool, about("limit what is stored for DEVICE clients before it is sent", live=True)] = (
        False
    )
    device: Annotated[Rates, about("messages stored for all of them together", live=True)] = "100:1,1000:60"

    def in_force(self) -> dict[str, list[tuple[int, int]]]:
        """(messages, seconds) of each limit that is on."""
        texts = {
            "incoming": self.incoming if self.incoming_enabled else "",
            "outgoing": self.outgoing if self.outgoing_enabled else "",
            "total": self.total if self.total_enabled else "",
            "device": self.device if self.device_enabled else "",
        }
        return {
            name: [(int(messages), int(seconds)) for messages, seconds in re.findall(r"(\d+):(\d+)", text)]
            for name, text in texts.items()
            if text
        }
