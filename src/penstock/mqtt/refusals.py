"""Reason codes of MQTT for the refusals of the core."""

from __future__ import annotations

from penstock._ext.wire.packets import Reason
from penstock.core.refusal import Refusal

SUBACK_REASONS = {
    Refusal.NOT_AUTHORISED: Reason.NOT_AUTHORIZED,
    Refusal.NOT_FOUND: Reason.TOPIC_FILTER_INVALID,
    Refusal.ALREADY_EXISTS: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.IN_USE: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.INVALID_NAME: Reason.TOPIC_FILTER_INVALID,
    Refusal.INVALID_ARGUMENT: Reason.TOPIC_FILTER_INVALID,
    Refusal.NOT_SUPPORTED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Refusal.QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Refusal.UNAVAILABLE: Reason.UNSPECIFIED_ERROR,
    Refusal.INTERNAL: Reason.UNSPECIFIED_ERROR,
}
"""The codec sends each of them as 0x80 to clients of MQTT 3."""
