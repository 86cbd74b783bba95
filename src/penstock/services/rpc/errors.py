"""How a call can fail. No call is repeated by itself: the caller knows whether that is safe."""

from __future__ import annotations

from enum import StrEnum

from penstock.core.errors import PenstockError


class RpcError(PenstockError):
    """A call failed."""


class TooManyPending(RpcError):
    """As many calls as allowed wait for their answers already; this one was not sent."""


class RequestTooLarge(RpcError):
    """The request is larger than a message may be; it was not sent."""


class TemplateClosed(RpcError):
    """The template is not started or was closed before the answer came."""


class RequestNotSent(RpcError):
    """The log did not take the request; the reason is its cause."""


class RequestTimeout(RpcError):
    """No answer within the call's own time. The request may have been handled all the same."""


class ErrorCode(StrEnum):
    """Why a responder answered with an error."""

    HANDLER_FAILED = "HANDLER_FAILED"
    HANDLER_TIMEOUT = "HANDLER_TIMEOUT"
    BAD_REQUEST = "BAD_REQUEST"
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE"


class RemoteError(RpcError):
    """The responder answered with an error; `code` is an ErrorCode, or another word from a newer responder."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
