"""The flags that `pub` and `sub` share, with the letters of mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import typer
from typer.core import TyperCommand

from penstock.cli.option_groups import with_options
from penstock.cli.properties import join_arguments, parse_properties
from penstock.core.errors import UsageError
from penstock_client.mqtt.client import ConnectRequest
from penstock_client.mqtt.packets import Will
from penstock_client.mqtt.stream import Target

VERSIONS = {"mqttv31": 3, "31": 3, "mqttv311": 4, "311": 4, "mqttv5": 5, "5": 5}
NEVER = 0xFFFFFFFF
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}

Host = Annotated[str | None, typer.Option("-h", "--host", help="Broker to connect to.  [default: localhost]")]
Port = Annotated[
    int | None,
    typer.Option("-p", "--port", min=1, max=65535, help="[default: 1883, TLS 8883, WebSocket 8083, both 8084]"),
]
Url = Annotated[
    str | None,
    typer.Option("-L", "--url", metavar="URL", help="mqtt(s)|ws(s)://[user[:password]@]host[:port]/topic"),
]
Unix = Annotated[str | None, typer.Option("--unix", metavar="PATH", help="Connect through a unix socket.")]
WebSocket = Annotated[bool, typer.Option("--ws", help="Speak MQTT over WebSocket.")]
WebSocketPath = Annotated[str, typer.Option("--ws-path", help="Path of the WebSocket.")]
Username = Annotated[str | None, typer.Option("-u", "--username", help="User name.")]
Password = Annotated[str | None, typer.Option("-P", "--pw", help="Password; other users of this machine can see it.")]
PasswordFile = Annotated[
    Path | None, typer.Option("--pw-file", metavar="FILE", help="Read the password from the first line of a file.")
]
ClientId = Annotated[str | None, typer.Option("-i", "--id", help="Client id.  [default: a random one]")]
IdPrefix = Annotated[str | None, typer.Option("-I", "--id-prefix", help="Client id: this prefix and the process id.")]
Version = Annotated[
    str | None,
    typer.Option(
        "-V", "--protocol-version", help="mqttv31, mqttv311 or mqttv5.  [default: mqttv311; -D and -x: mqttv5]"
    ),
]
KeepAlive = Annotated[int, typer.Option("-k", "--keepalive", min=0, max=65535, help="Keep-alive in seconds.")]
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")]
NoCleanSession = Annotated[
    bool, typer.Option("-c", "--disable-clean-session", help="Keep the session of this client id.")
]
SessionExpiry = Annotated[
    str | None,
    typer.Option("-x", "--session-expiry-interval", help="Seconds the session is kept; -1 or ∞ = forever."),
]
WillTopic = Annotated[str | None, typer.Option("--will-topic", help="Topic of the will.")]
WillPayload = Annotated[str | None, typer.Option("--will-payload", help="Payload of the will.")]
WillQos = Annotated[int, typer.Option("--will-qos", min=0, max=2, help="QoS of the will.")]
WillRetain = Annotated[bool, typer.Option("--will-retain", help="Retain the will.")]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "-D", "--property", metavar="COMMAND NAME VALUE", help="MQTT 5 property; user-property takes two values."
    ),
]
CaFile = Annotated[
    str | None, typer.Option("--cafile", metavar="FILE", help="PEM file with trusted authorities; enables TLS.")
]
Cert = Annotated[str | None, typer.Option("--cert", metavar="FILE", help="PEM file with the client's certificate.")]
Key = Annotated[str | None, typer.Option("--key", metavar="FILE", help="PEM file with the client's key.")]
SystemCertificates = Annotated[bool, typer.Option("--tls-use-os-certs", help="Use TLS with the system's authorities.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the host name in the broker's certificate.")]
Debug = Annotated[bool, typer.Option("-d", "--debug", help="Show the packets on standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print error messages.")]

T = TypeVar("T")


class MosquittoCommand(TyperCommand):
    """A command whose -D takes three or four words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, join_arguments(args))


def pick(options: type[T], given: Mapping[str, Any]) -> T:
    """The fields of a dataclass out of all that was given on the command line."""
    return options(**{entry.name: given[entry.name] for entry in fields(options)})  # type: ignore[arg-type] # a dataclass


@dataclass(frozen=True)
class ConnectionOptions:
    """Everything about the connection; field names are those of the command's parameters."""

    host: Host = None
    port: Port = None
    url: Url = None
    unix: Unix = None
    ws: WebSocket = False
    ws_path: WebSocketPath = "/mqtt"
    username: Username = None
    password: Password = None
    password_file: PasswordFile = None
    client_id: ClientId = None
    id_prefix: IdPrefix = None
    version: Version = None
    keep_alive: KeepAlive = 60
    no_clean_session: NoCleanSession = False
    session_expiry: SessionExpiry = None
    will_topic: WillTopic = None
    will_payload: WillPayload = None
    will_qos: WillQos = 0
    will_retain: WillRetain = False
    properties: Properties = None
    cafile: CaFile = None
    cert: Cert = None
    key: Key = None
    system_certificates: SystemCertificates = False
    insecure: Insecure = False
    debug: Debug = False


Connect = Callable[[], ConnectionOptions]
with_connection = with_options("connect", ConnectionOptions)
"""Decorates a command with a parameter `connect: Connect`."""


@dataclass(frozen=True)
class Connection:
    """What the flags mean: where to go, what to say there, and the topic the URL named."""

    target: Target
    request: ConnectRequest
    properties: dict[str, dict[str, Any]]
    topic: str | None


def make_connection(options: ConnectionOptions) -> Connection:
    """Raises UsageError when the flags contradict each other."""
    url = urlsplit(options.url or "")
    if options.url and (url.scheme not in _PORTS or not url.hostname):
        raise UsageError(f"-L {options.url!r}: write mqtt://[user[:password]@]host[:port]/topic")
    if options.url and (options.host or options.port or options.unix):
        raise UsageError("-L says where the broker is: leave out -h, -p and --unix")
    properties = parse_properties(options.properties or [])
    version = _version(options)
    if version < 5 and any(properties.values()):
        raise UsageError("-D needs -V mqttv5")
    return Connection(
        target=_target(options, url.scheme, url.hostname, url.port),
        request=_request(options, version, properties, _credentials(options, url.username, url.password)),
        properties=properties,
        topic=unquote(url.path[1:]) or None if options.url else None,
    )


def _version(options: ConnectionOptions) -> int:
    if options.version is None:
        return 5 if options.properties or options.session_expiry is not None else 4
    if options.version not in VERSIONS:
        raise UsageError(f"-V {options.version!r}: use mqttv31, mqttv311 or mqttv5")
    return VERSIONS[options.version]


def _target(options: ConnectionOptions, scheme: str, host: str | None, port: int | None) -> Target:
    uses_tls = bool(options.cafile or options.cert or options.system_certificates) or scheme in ("mqtts", "wss")
    uses_websocket = options.ws or scheme in ("ws", "wss")
    default = {(False, False): "mqtt", (True, False): "mqtts", (False, True): "ws", (True, True): "wss"}
    return Target(
        host=host or options.host or "localhost",
        port=port or options.port or _PORTS[default[uses_tls, uses_websocket]],
        unix=options.unix or "",
        websocket_path=options.ws_path if uses_websocket else "",
        tls=_tls(options) if uses_tls else None,
    )


def _tls(options: ConnectionOptions) -> ssl.SSLContext:
    if bool(options.cert) != bool(options.key):
        raise UsageError("--cert and --key go together")
    for option, path in (("--cafile", options.cafile), ("--cert", options.cert), ("--key", options.key)):
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:  # ssl does not say of which file it speaks
            raise UsageError(f"{option} {path}: {error.strerror}") from None
    try:
        context = ssl.create_default_context(cafile=options.cafile)
        if options.cert:
            context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the files of --cafile, --cert and --key: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = not options.insecure
    return context


def _credentials(options: ConnectionOptions, name: str | None, word: str | None) -> tuple[str | None, bytes | None]:
    username = options.username if options.username is not None else (unquote(name) if name else None)
    if options.password is not None:
        return username, os.fsencode(options.password)
    if options.password_file is not None:
        try:
            lines = options.password_file.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(f"--pw-file {options.password_file}: {error.strerror}") from None
        return username, lines[0] if lines else b""
    return username, unquote(word).encode() if word else None


def _request(
    options: ConnectionOptions,
    version: int,
    properties: dict[str, dict[str, Any]],
    credentials: tuple[str | None, bytes | None],
) -> ConnectRequest:
    username, password = credentials
    if version < 5 and password is not None and username is None:
        raise UsageError("a password needs a user name (-u) before MQTT 5")
    if options.client_id is not None and options.id_prefix is not None:
        raise UsageError("-i and -I cannot be used together")
    if options.no_clean_session and options.client_id is None and options.id_prefix is None:
        raise UsageError("-c needs a client id (-i) to find the session by")
    client_id = options.client_id
    if client_id is None:
        # 21 characters: MQTT 3.1 allows 23.
        client_id = f"{options.id_prefix}{os.getpid()}" if options.id_prefix else f"penstock-cli-{secrets.token_hex(4)}"
    connect = properties["connect"]
    expiry = _session_expiry(options)
    if version == 5 and expiry is not None:
        connect.setdefault("session_expiry", expiry)
    return ConnectRequest(
        client_id=client_id,
        version=version,
        clean_start=not options.no_clean_session,
        keep_alive=options.keep_alive,
        username=username,
        password=password,
        will=_will(options, properties["will"]),
        properties=connect if version == 5 else {},
    )


def _session_expiry(options: ConnectionOptions) -> int | None:
    text = options.session_expiry
    if text is None:
        return NEVER if options.no_clean_session else None
    if text in ("-1", "∞"):
        return NEVER
    if not (text.isascii() and text.isdigit()) or int(text) > NEVER:
        raise UsageError(f"-x {text!r}: write seconds from 0 to {NEVER}, or -1 for ever")
    return int(text)


def _will(options: ConnectionOptions, properties: dict[str, Any]) -> Will | None:
    if options.will_topic is None:
        if options.will_payload is not None or options.will_qos or options.will_retain or properties:
            raise UsageError("a will needs --will-topic")
        return None
    payload = os.fsencode(options.will_payload or "")
    return Will(options.will_topic, payload, options.will_qos, options.will_retain, properties)
