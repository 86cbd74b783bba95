"""Reason codes of MQTT for the refusals of the core."""

from __future__ import annotations

from penstock._ext.wire.packets import Reason
from penstock.core.refusal import Refusal

CONNACK_REASONS = {
    **dict.fromkeys(Refusal, Reason.UNSPECIFIED_ERROR),
    Refusal.NOT_AUTHORISED: Reason.NOT_AUTHORIZED,
    Refusal.BAD_CREDENTIALS: Reason.BAD_USER_NAME_OR_PASSWORD,
    Refusal.BUSY: Reason.SERVER_BUSY,
    Refusal.QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Refusal.UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
}
