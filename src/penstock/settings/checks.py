"""Checks of several settings together: contradictions, missing files, listeners without authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from penstock.core.errors import SettingsError
from penstock.settings.address import TLS_TRANSPORTS, is_loopback, parse_address
from penstock.settings.cluster import OFF, ClusterSettings
from penstock.settings.datasub import DataSubscriptionSettings
from penstock.settings.environment import INSECURE
from penstock.settings.model import AUTHENTICATORS, AUTHORISERS, AccessSettings, ListenerSettings, Settings
from penstock.settings.providers import log_capabilities

Where = Callable[[str], str]
SHORTEST_TOKEN = 16
LONGEST_TOKEN = 512


def is_local(listener: ListenerSettings) -> bool:
    """Whether only this machine can reach the listener."""
    return listener.transport == "unix" or is_loopback(parse_address(listener.address).host)


def is_anonymous_allowed(listener: ListenerSettings, access: AccessSettings) -> bool:
    """Whether a client of this listener may connect without a user name."""
    if "anonymous" not in access.authenticators:
        return False
    rule = access.anonymous if listener.anonymous == "inherit" else listener.anonymous
    return rule == "allow" or (rule == "loopback" and is_local(listener))


def can_authenticate(listener: ListenerSettings, access: AccessSettings) -> bool:
    """Whether there is any way for a client of this listener to prove who it is."""
    has_certificates = listener.client_certificate == "required" or (
        listener.client_certificate == "optional" and listener.certificate_username != "none"
    )
    is_there = {
        "certificate": has_certificates,
        "password_file": bool(access.password_file),
        "enhanced": bool(access.enhanced),
        "anonymous": False,
    }
    # One that is plugged in may know anybody.
    return any(is_there.get(name, True) for name in access.authenticators)


def data_listener(settings: DataSubscriptionSettings) -> ListenerSettings:
    """The listener of data subscription, to which the rules of all listeners apply."""
    return ListenerSettings(
        name="data",
        transport=settings.transport,
        address=settings.address,
        certificate=settings.certificate,
        key=settings.key,
        client_ca=settings.client_ca,
        client_certificate=settings.client_certificate,
        certificate_username=settings.certificate_username,
        tls_minimum=settings.tls_minimum,
        max_connections=settings.max_connections,
        anonymous=settings.anonymous,
    )


def is_data_shut(settings: Settings) -> bool:
    """Whether the listener of data subscription refuses every client; it has no enhanced authentication."""
    listener = data_listener(settings.data_subscription)
    return _is_shut(listener, msgspec.structs.replace(settings.access, enhanced={}))


def open_insecure_listeners(
    settings: Settings, environ: Mapping[str, str], origins: dict[str, str], warnings: list[str]
) -> Settings:
    """Allow anonymous clients, with PENSTOCK_INSECURE=1, where no client could connect otherwise, and warn about it."""
    value = environ.get(INSECURE, "")
    if value not in ("", "0", "1"):
        raise SettingsError(f"environment {INSECURE} = {value!r} is not allowed: use 1 or 0")
    if value != "1":
        return settings
    listeners = []
    for index, listener in enumerate(settings.listeners):
        _check_address(listener, f"listeners.{index}.address")
        if not _is_shut(listener, settings.access):
            listeners.append(listener)
            continue
        listeners.append(msgspec.structs.replace(listener, anonymous="allow"))
        origins[f"listeners.{index}.anonymous"] = f"environment {INSECURE}"
        warnings.append(
            f"{INSECURE}=1: listener {listener.name} on {listener.address} accepts clients without authentication"
        )
    settings = msgspec.structs.replace(settings, listeners=listeners)
    data = settings.data_subscription
    if not data.enabled:
        return settings
    _check_address(data_listener(data), "data_subscription.address")
    if not is_local(data_listener(data)) and is_data_shut(settings):
        opened = msgspec.structs.replace(data, anonymous="allow")
        settings = msgspec.structs.replace(settings, data_subscription=opened)
        origins["data_subscription.anonymous"] = f"environment {INSECURE}"
        warnings.append(f"{INSECURE}=1: the data listener on {data.address} accepts consumers without authentication")
    return settings


def _is_shut(listener: ListenerSettings, access: AccessSettings) -> bool:
    return not is_anonymous_allowed(listener, access) and not can_authenticate(listener, access)


def check_settings(settings: Settings, where: Where) -> None:
    """Raises the first SettingsError found."""
    _check_watermarks(settings, where)
    _check_token(settings.admin.token, where)
    for index, listener in enumerate(settings.listeners):
        prefix = f"listeners.{index}"
        _check_address(listener, where(f"{prefix}.address"))
        _check_tls(listener, prefix, where)
        _check_entrance(listener, settings.access)
    _check_data_subscription(settings, where)
    _check_duplicates(settings, where)
    _check_queue_names(settings, where)
    _check_service_type(settings, where)
    _check_heartbeats(settings.cluster, where)
    _check_relay(settings.cluster, where)
    for key in ("password_file", "acl_file"):
        _check_file(getattr(settings.access, key), where(f"access.{key}"))
    _check_providers(settings.access, where)


def _check_providers(access: AccessSettings, where: Where) -> None:
    for method, factory in access.enhanced.items():
        if not is_plugin(factory):
            raise SettingsError(
                f"{where('access.enhanced')}: {method} = {factory!r} is not allowed: use module:factory"
            )
    for key, built_in in (("authenticators", AUTHENTICATORS), ("authorisers", AUTHORISERS)):
        names: tuple[str, ...] = getattr(access, key)
        for name in names:
            if name not in built_in and not is_plugin(name):
                raise SettingsError(
                    f"{where(f'access.{key}')}: {name!r} is not known: use {', '.join(built_in)} or module:factory"
                )
            if names.count(name) > 1:
                raise SettingsError(f"{where(f'access.{key}')}: {name!r} is there twice")
    for key, uses, names in (
        ("password_file", access.password_file, access.authenticators),
        ("enhanced", access.enhanced, access.authenticators),
        ("acl_file", access.acl_file, access.authorisers),
    ):
        if uses and key not in names:
            kind = "authorisers" if key == "acl_file" else "authenticators"
            raise SettingsError(f"{where(f'access.{key}')} has no effect: access.{kind} does not name {key}")


def is_plugin(target: str) -> bool:
    """Return whether the setting names code as `module:factory`."""
    module, colon, name = target.partition(":")
    return bool(colon and module and name.isidentifier())


def _check_watermarks(settings: Settings, where: Where) -> None:
    low, high = settings.limits.write_low_watermark, settings.limits.write_high_watermark
    if low >= high:
        raise SettingsError(
            f"{where('limits.write_low_watermark')} = {low} must be less than limits.write_high_watermark = {high}"
        )


def _check_token(token: str, where: Where) -> None:
    # Whoever knows it rules the broker; it travels in a header, so it is one printable word.
    if token and not (SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN and all("!" <= letter <= "~" for letter in token)):
        raise SettingsError(
            f"{where('admin.token')} is not allowed: use {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable ASCII "
            "characters without spaces, or nothing for a random one"
        )


def _check_address(listener: ListenerSettings, where: str) -> None:
    if listener.transport == "unix":
        if len(listener.address.encode()) > 107:
            raise SettingsError(f"{where} = {listener.address!r} is too long: a unix socket path has at most 107 bytes")
        return
    try:
        parse_address(listener.address)
    except ValueError as error:
        raise SettingsError(
            f"{where} = {listener.address!r} is not allowed: {error}; use host:port, [ipv6]:port or *:port"
        ) from None


def _check_tls(listener: ListenerSettings, prefix: str, where: Where) -> None:
    speaks_tls = listener.transport in TLS_TRANSPORTS
    if not speaks_tls:
        for key in ("certificate", "key", "client_ca"):
            if getattr(listener, key):
                raise SettingsError(
                    f"{where(f'{prefix}.{key}')} has no effect on transport {listener.transport}: "
                    "use transport tls or wss, or leave it out"
                )
        if listener.client_certificate != "none":
            raise SettingsError(f"{where(f'{prefix}.client_certificate')} needs transport tls or wss")
    for key in ("certificate", "key") if speaks_tls else ():
        if not getattr(listener, key):
            raise SettingsError(f"{prefix}.{key} is missing: listener {listener.name} speaks TLS and needs a PEM file")
    if listener.client_certificate != "none" and not listener.client_ca:
        raise SettingsError(
            f"{prefix}.client_ca is missing: it names the authorities whose client certificates are accepted, "
            f"and client_certificate is {listener.client_certificate}"
        )
    if listener.certificate_username != "none" and listener.client_certificate == "none":
        raise SettingsError(f"{where(f'{prefix}.certificate_username')} needs client_certificate optional or required")
    if speaks_tls:
        _load_certificates(listener, prefix, where)


def _load_certificates(listener: ListenerSettings, prefix: str, where: Where) -> None:
    import ssl  # noqa: PLC0415 - slow to import, and most brokers have no TLS listener

    for key in ("certificate", "key", "client_ca"):
        _check_file(getattr(listener, key), where(f"{prefix}.{key}"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key must not stop the start with a prompt.
        context.load_cert_chain(listener.certificate, listener.key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"{where(f'{prefix}.certificate')}: {listener.certificate} and {listener.key} "
            f"must be a certificate and its unencrypted key in PEM form: {error}"
        ) from None
    if listener.client_ca:
        try:
            context.load_verify_locations(listener.client_ca)
        except ssl.SSLError as error:
            raise SettingsError(
                f"{where(f'{prefix}.client_ca')}: {listener.client_ca} holds no PEM certificate: {error}"
            ) from None


def _check_entrance(listener: ListenerSettings, access: AccessSettings) -> None:
    if not _is_shut(listener, access):
        return
    if is_local(listener):
        raise SettingsError(
            f"listener {listener.name} on {listener.address} refuses every client: anonymous clients are denied "
            "and no authentication is configured",
            'set access.password_file, or access.anonymous = "loopback"',
        )
    raise SettingsError(
        f"listener {listener.name} on {listener.address} is open to the network without authentication: "
        'set access.password_file, or access.anonymous = "allow" if that is meant',
        '  [access]\n  password_file = "passwords"    # made with: penstock passwd -c passwords alice',
    )


def _check_duplicates(settings: Settings, where: Where) -> None:
    names: dict[str, int] = {}
    addresses: dict[str, str] = {}
    for index, listener in enumerate(settings.listeners):
        if listener.name in names:
            raise SettingsError(
                f"{where(f'listeners.{index}.name')} = {listener.name!r} "
                f"is the name of listener {names[listener.name]} too"
            )
        names[listener.name] = index
        _claim(listener.address, f"listener {listener.name}", addresses, where(f"listeners.{index}.address"))
    if settings.data_subscription.enabled:
        address = settings.data_subscription.address
        _claim(address, "the data listener", addresses, where("data_subscription.address"))
    if settings.admin.address:
        try:
            parse_address(settings.admin.address)
        except ValueError as error:
            raise SettingsError(
                f"{where('admin.address')} = {settings.admin.address!r} is not allowed: {error}; "
                "use host:port, or nothing for off"
            ) from None
        _claim(settings.admin.address, "the admin address", addresses, where("admin.address"))


def _check_data_subscription(settings: Settings, where: Where) -> None:
    data = settings.data_subscription
    if not data.enabled:
        return
    listener = data_listener(data)
    _check_address(listener, where("data_subscription.address"))
    _check_tls(listener, "data_subscription", where)
    # One that only this machine can reach is there by default: it must not keep a broker from starting that lets
    # clients in by certificates only.
    if not is_local(listener) and is_data_shut(settings):
        _check_entrance(listener, msgspec.structs.replace(settings.access, enhanced={}))


def _check_queue_names(settings: Settings, where: Where) -> None:
    names: dict[str, int] = {}
    for index, queue in enumerate(settings.queues):
        if not queue.name:
            raise SettingsError(f"{where(f'queues.{index}')}.name is missing: it is the <queue> of $queue/<queue>/…")
        if queue.name in names:
            raise SettingsError(
                f"{where(f'queues.{index}.name')} = {queue.name!r} is the name of queue {names[queue.name]} too"
            )
        names[queue.name] = index


def _check_service_type(settings: Settings, where: Where) -> None:
    """The queues between services are where the broker's log is."""
    kind, provider = settings.services.type, settings.log.provider
    if kind and (kind == "kafka") != log_capabilities(settings).uses_kafka:
        raise SettingsError(
            f"{where('services.type')} = {kind}, but log.provider = {provider}: these queues are in the broker's log",
            'Set log.provider = "kafka" for queues in Kafka, another provider for queues of this process; or leave '
            "services.type out.",
        )


def _check_heartbeats(cluster: ClusterSettings, where: Where) -> None:
    interval, timeout = cluster.heartbeat_interval, cluster.member_timeout
    if timeout < 2 * interval:
        raise SettingsError(
            f"{where('cluster.member_timeout')} = {timeout:g} is not allowed with heartbeat_interval = {interval:g}",
            f"Use {2 * interval:g} or more, or a heartbeat_interval of {timeout / 5:g} s.",
        )


def _check_relay(cluster: ClusterSettings, where: Where) -> None:
    for name in ("relay_address", "relay_advertised"):
        text: str = getattr(cluster, name)
        try:
            if text not in ("", OFF) and not parse_address(text).port and name == "relay_advertised":
                raise ValueError("it has no port")
        except ValueError as error:
            key = where(f"cluster.{name}")
            raise SettingsError(f"{key} = {text!r} is not allowed: {error}; use host:port") from None


def _claim(address: str, owner: str, taken: dict[str, str], where: str) -> None:
    # Port 0 is a different port every time.
    if address.endswith(":0"):
        return
    if address in taken:
        raise SettingsError(f"{where} = {address!r} is the address of {taken[address]} too")
    taken[address] = owner


def _check_file(name: str, where: str) -> None:
    if not name:
        return
    try:
        with Path(name).open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{where}: cannot read {name}: {error.strerror}") from None


def unused_bindings(settings: Settings) -> Iterator[str]:
    """Yield a warning for each queue with topics through which no message can enter it."""
    for queue in settings.queues:
        ordinary = [topic for topic in queue.topics if not topic.startswith("$queue/")]
        if ordinary and not queue.capture:
            yield (
                f"queue {queue.name!r}: no message enters through {', '.join(ordinary)}, because topics outside $queue/"
                " need capture = true: set it, or remove them from topics"
            )
