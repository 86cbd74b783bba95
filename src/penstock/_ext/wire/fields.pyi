from typing import Final

class Reason:
    SUCCESS: Final = 0x00
    DISCONNECT_WITH_WILL: Final = 0x04
    NO_MATCHING_SUBSCRIBERS: Final = 0x10
    NO_SUBSCRIPTION_EXISTED: Final = 0x11
    CONTINUE_AUTHENTICATION: Final = 0x18
    RE_AUTHENTICATE: Final = 0x19
    UNSPECIFIED_ERROR: Final = 0x80
    MALFORMED_PACKET: Final = 0x81
    PROTOCOL_ERROR: Final = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
    UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
    CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
    BAD_USER_NAME_OR_PASSWORD: Final = 0x86
    NOT_AUTHORIZED: Final = 0x87
    SERVER_UNAVAILABLE: Final = 0x88
    SERVER_BUSY: Final = 0x89
    BANNED: Final = 0x8A
    SERVER_SHUTTING_DOWN: Final = 0x8B
    BAD_AUTHENTICATION_METHOD: Final = 0x8C
    KEEP_ALIVE_TIMEOUT: Final = 0x8D
    SESSION_TAKEN_OVER: Final = 0x8E
    TOPIC_FILTER_INVALID: Final = 0x8F
    TOPIC_NAME_INVALID: Final = 0x90
    PACKET_IDENTIFIER_IN_USE: Final = 0x91
    PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
    RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
    TOPIC_ALIAS_INVALID: Final = 0x94
    PACKET_TOO_LARGE: Final = 0x95
    MESSAGE_RATE_TOO_HIGH: Final = 0x96
    QUOTA_EXCEEDED: Final = 0x97
    ADMINISTRATIVE_ACTION: Final = 0x98
    PAYLOAD_FORMAT_INVALID: Final = 0x99
    RETAIN_NOT_SUPPORTED: Final = 0x9A
    QOS_NOT_SUPPORTED: Final = 0x9B
    USE_ANOTHER_SERVER: Final = 0x9C
    SERVER_MOVED: Final = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
    CONNECTION_RATE_EXCEEDED: Final = 0x9F
    MAXIMUM_CONNECT_TIME: Final = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

def reason_name(code: int) -> str: ...

class ProtocolViolation(ValueError):
    reason_code: int
    message: str
    version: int | None
    limit: int | None
    def __init__(self, reason_code: int, message: str, version: int | None = None) -> None: ...
