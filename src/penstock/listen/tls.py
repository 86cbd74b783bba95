"""Certificates of a listener: the context its handshakes use, exchanged as a whole when the files change."""

from __future__ import annotations

import ssl

from penstock.core import exit_codes
from penstock.core.errors import PenstockError
from penstock.settings.model import ListenerSettings

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATE = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# Offered, not demanded: a client without ALPN, or with another name, gets its connection all the same.
_ALPN = {"tls": ["mqtt"], "wss": ["http/1.1"]}


class TlsError(PenstockError):
    """The files a TLS listener needs cannot be used."""

    exit_code = exit_codes.CONFIGURATION


class TlsContext:
    """What new handshakes use. Connections keep the certificates they began with."""

    def __init__(self, settings: ListenerSettings) -> None:
        self._settings = settings
        self.current = build_context(settings)

    def reload(self) -> None:
        """Reads the files again; raises TlsError and keeps the old certificates when the new ones are bad."""
        self.current = build_context(self._settings)


def build_context(settings: ListenerSettings) -> ssl.SSLContext:
    """The context a listener's settings describe; raises TlsError naming the setting and the file."""
    where = f"listener {settings.name}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.tls_minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(_ALPN[settings.transport])
    if not settings.certificate:
        raise TlsError(
            f"{where}: transport {settings.transport} needs a certificate",
            "Set `certificate` and `key` to PEM files.",
        )
    try:
        # An empty password: a key that needs one fails here instead of asking on the terminal.
        context.load_cert_chain(settings.certificate, settings.key or None, password=lambda: "")
    except OSError as error:
        raise TlsError(
            f"{where}: certificate {settings.certificate!r} with key {settings.key!r}: {_reason(error)}",
            "`certificate` is a PEM chain, the server's own first; `key` is its private key without a pass phrase.",
        ) from error
    if settings.client_certificate != "none":
        _expect_client_certificates(context, settings, where)
    return context


def _expect_client_certificates(context: ssl.SSLContext, settings: ListenerSettings, where: str) -> None:
    if not settings.client_ca:
        raise TlsError(
            f"{where}: client_certificate = {settings.client_certificate!r} needs client_ca",
            "Set `client_ca` to a PEM file with the authorities that signed the clients' certificates.",
        )
    try:
        context.load_verify_locations(settings.client_ca)
    except OSError as error:
        raise TlsError(f"{where}: client_ca {settings.client_ca!r}: {_reason(error)}") from error
    context.verify_mode = _CLIENT_CERTIFICATE[settings.client_certificate]
    # A resumed session is not verified again: an expired client, or one of an authority since removed, would stay in.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not usable").replace("_", " ").lower()
    return error.strerror or str(error)


# Explanations of the usual handshake failures, by the names that OpenSSL gives them.
HANDSHAKE_FAILURES = {
    "WRONG_VERSION_NUMBER": "the client does not speak TLS, or a version that is not allowed",
    "HTTP_REQUEST": "the client sent a plain HTTP request",
    "UNSUPPORTED_PROTOCOL": "the client offers only TLS versions that are not allowed",
    "NO_SHARED_CIPHER": "the client and the listener have no cipher in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the listener's certificate (unknown CA)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the listener's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the listener's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the listener's certificate has expired",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, and the listener requires one",
}


def explain_handshake(error: OSError) -> str:
    """Explain why a TLS handshake failed; empty if the client only disconnected, as port checks do."""
    words = ""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = f"the client's certificate is not accepted: {error.verify_message}"
    elif isinstance(error, ssl.SSLError):
        words = HANDSHAKE_FAILURES.get(error.reason or "", error.reason or str(error))
    elif "timeout" in str(error).lower() or "longer than" in str(error):
        words = "the client did not finish it in time"
    return words and f"TLS handshake failed: {words}"
