"""Listeners with a stand-in connection: every transport, on the loop the broker runs on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from typing import Any

import pytest
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.listen.listener import Listener, ListenerError
from penstock.listen.tls import TlsError
from penstock.settings.model import ListenerSettings
from tests.support.brokers.listening import (
    V1_HEADER,
    V2_HEADER,
    V2_SIGNATURE,
    Started,
    assert_closed,
    assert_echo,
    run,
    started,
    tls_settings,
)
from tests.support.clients.echo import EchoConnection
from tests.support.servers.certificates import CertificateSet, Identity


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateSet:
    return CertificateSet(tmp_path_factory.mktemp("certificates"))


def test_tcp_echoes_and_says_which_port_it_got():
    async def test() -> None:
        async with started("tcp") as it:
            assert it.port != 0
            await assert_echo(await it.connect(), b"x" * 100_000)
            raw = it.made[0].transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

    run(test())


def test_stop_accepting_keeps_who_is_here():
    async def test() -> None:
        async with started("tcp") as it:
            here = await it.connect()
            await assert_echo(here)
            it.listener.stop_accepting()
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionRefusedError):
                await it.connect()
            await assert_echo(here)

    run(test())


def test_several_listeners_at_once_and_the_loopback_of_ipv6():
    async def test() -> None:
        async with started("tcp") as one, started("ws") as two, started("tcp", "localhost:0") as named:
            assert len({one.port, two.port, named.port}) == 3
            await assert_echo(await named.connect())

    run(test())


def test_an_address_in_use_says_what_to_do():
    async def test() -> None:
        async with started("tcp") as it:
            with pytest.raises(ListenerError, match="in use") as caught:
                async with started("tcp", it.listener.address):
                    pass
            assert caught.value.exit_code == 71
            assert "another address" in caught.value.hint

    run(test())


@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1", "port"), ("192.0.2.1:0", "no such address"), ("no.such.host.invalid:0", "cannot listen")],
)
def test_an_address_that_cannot_be_is_a_configuration_error(address, message):
    async def test() -> None:
        with pytest.raises(ListenerError, match=message) as caught:
            async with started("tcp", address):
                pass
        assert caught.value.exit_code == 78

    run(test())


def test_tls_echoes_with_version_and_alpn(certificates):
    async def test() -> None:
        async with started("tls", **tls_settings(certificates.server)) as it:
            context = certificates.client_context()
            context.set_alpn_protocols(["mqtt"])
            streams = await it.connect(ssl=context)
            await assert_echo(streams, b"y" * 200_000)
            assert streams[1].get_extra_info("ssl_object").selected_alpn_protocol() == "mqtt"
            assert streams[1].get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
            raw = it.made[0].transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

    run(test())


def test_tls_refuses_what_is_older_than_the_setting(certificates):
    async def test() -> None:
        async with started("tls", **tls_settings(certificates.server, tls_minimum="1.3")) as it:
            context = certificates.client_context()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await it.connect(ssl=context)
            await it.until("tls_handshake")

    run(test())


def test_client_certificates_required(certificates):
    settings = tls_settings(certificates.server, client_ca=str(certificates.ca.path), client_certificate="required")

    async def test() -> None:
        async with started("tls", **settings) as it:
            await assert_echo(await it.connect(ssl=certificates.client_context(certificates.client)))
            subject = it.made[0].transport.get_extra_info("peercert")["subject"]
            assert (("commonName", "pump-7"),) in subject
            for count, bad in enumerate([None, certificates.expired_client, certificates.stranger], 1):
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    # TLS 1.3: the client learns of the refusal only when it reads
                    streams = await it.connect(ssl=certificates.client_context(bad))
                    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                        await assert_echo(streams)
                await it.until("tls_handshake", count)
            assert len(it.made) == 1

    run(test())


def test_client_certificates_optional(certificates):
    settings = tls_settings(certificates.server, client_ca=str(certificates.ca.path), client_certificate="optional")

    async def test() -> None:
        async with started("tls", **settings) as it:
            await assert_echo(await it.connect(ssl=certificates.client_context()))
            await assert_echo(await it.connect(ssl=certificates.client_context(certificates.client)))
            assert not it.made[0].transport.get_extra_info("peercert")
            assert it.made[1].transport.get_extra_info("peercert")

    run(test())


def test_new_certificates_for_new_connections_and_old_ones_kept_when_the_new_are_bad(certificates, tmp_path):
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"

    def install(identity: Identity) -> None:
        certificate.write_bytes(identity.certificate.read_bytes())
        key.write_bytes(identity.key.read_bytes())

    def shown_to(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> str:
        subject = streams[1].get_extra_info("peercert")["subject"]
        return dict(pair for relative in subject for pair in relative)["commonName"]

    async def test() -> None:
        install(certificates.server)
        async with started("tls", certificate=str(certificate), key=str(key)) as it:
            before = await it.connect(ssl=certificates.client_context())
            install(certificates.new_server)
            it.listener.reload_certificates()
            after = await it.connect(ssl=certificates.client_context())
            assert (shown_to(before), shown_to(after)) == ("localhost", "renewed.localhost")
            await assert_echo(before)
            key.write_bytes(certificates.server.key.read_bytes())  # no longer the key of the certificate
            with pytest.raises(TlsError, match="key"):
                it.listener.reload_certificates()
            assert shown_to(await it.connect(ssl=certificates.client_context())) == "renewed.localhost"

    run(test())


def test_a_tls_handshake_that_never_comes_is_ended(certificates):
    async def test() -> None:
        async with started("tls", **tls_settings(certificates.server), handshake_seconds=0.2) as it:
            await assert_closed(await it.connect())
            await it.until("tls_handshake")
            assert it.made == []

    run(test())


def test_handshakes_under_way_are_bounded(certificates):
    async def test() -> None:
        async with started("tls", **tls_settings(certificates.server), max_handshakes=2) as it:
            waiting = [await it.connect(), await it.connect()]
            await assert_closed(await it.connect())
            assert it.refused["handshake_limit"] == 1
            for _, writer in waiting:
                writer.close()
            await it.until("tls_handshake", 2)
            await assert_echo(await it.connect(ssl=certificates.client_context()))

    run(test())


def websocket(it: Started, scheme: str = "ws", path: str = "/mqtt", **options: Any) -> Any:
    options.setdefault("subprotocols", ["mqtt"])
    return websocket_connect(f"{scheme}://127.0.0.1:{it.port}{path}", compression=None, proxy=None, **options)


@pytest.mark.parametrize("transport", ["ws", "wss"])
def test_websocket_with_a_real_client(certificates, transport):
    """[MQTT-6.0.0-1] [MQTT-6.0.0-2] [MQTT-6.0.0-4] and the same of 3.1.1 [MQTT3-6.0.0-4]"""
    secure = tls_settings(certificates.server) if transport == "wss" else {}
    options = {"ssl": certificates.client_context()} if transport == "wss" else {}

    async def test() -> None:
        async with started(transport, **secure) as it, websocket(it, transport, **options) as client:
            assert client.subprotocol == "mqtt"
            await client.send(b"\xc0\x00")
            assert await client.recv() == b"\xc0\x00"
            await client.send([b"frag", b"ment", b"ed"])
            assert b"".join([await client.recv() for _ in range(3)]) == b"fragmented"
            await client.send(b"z" * 70_000)
            received = b""
            while len(received) < 70_000:
                received += await client.recv()
            assert received == b"z" * 70_000
            await (await client.ping(b"still there"))
            await client.send("text")
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1003

    run(test())


def test_websocket_of_an_mqtt_3_1_client():
    async def test() -> None:
        async with started("ws") as it, websocket(it, subprotocols=["mqttv3.1"]) as client:
            assert client.subprotocol == "mqttv3.1"

    run(test())


@pytest.mark.parametrize(
    ("options", "status"),
    [({"path": "/other"}, 404), ({"subprotocols": ["stomp"]}, 400), ({"subprotocols": None}, 400)],
)
def test_websocket_refused(options, status):
    """[MQTT-6.0.0-3] [MQTT3-6.0.0-3]"""

    async def test() -> None:
        async with started("ws") as it:
            with pytest.raises(InvalidStatus) as caught:
                async with websocket(it, **options):
                    pass
            assert caught.value.response.status_code == status
            assert it.refused["websocket_handshake"] == 1
            assert it.made == []

    run(test())


def upgrade_request(path: str = "/mqtt") -> bytes:
    key = base64.b64encode(b"0123456789abcdef").decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


FRAME = b"\x82\x82\x00\x00\x00\x00\xc0\x00"


async def read_payload(reader: asyncio.StreamReader, size: int) -> bytes:
    """The payload of as many short frames as it takes: the echo comes in pieces when the frame did."""
    payload = b""
    while len(payload) < size:
        header = await reader.readexactly(2)
        payload += await reader.readexactly(header[1])
    return payload


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_request_in_pieces_and_frames_right_behind_it(step):
    async def test() -> None:
        async with started("ws") as it:
            reader, writer = await it.connect()
            stream = upgrade_request() + FRAME
            for i in range(0, len(stream), step):
                writer.write(stream[i : i + step])
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            assert await read_payload(reader, 2) == b"\xc0\x00"

    run(test())


def test_the_answer_is_on_the_wire_before_the_connection_takes_over():
    """The broker's connection writes to the descriptor itself: nothing of ours may still wait in the transport."""

    class Direct(EchoConnection):
        def start_websocket(self, transport: asyncio.Transport, leftover: bytes) -> None:
            super().start_websocket(transport, leftover)
            os.write(transport.get_extra_info("socket").fileno(), b"DIRECT")

    async def test() -> None:
        made: list[EchoConnection] = []
        listener = Listener(ListenerSettings(transport="ws", address="127.0.0.1:0"), lambda: Direct(made))
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.address.rpartition(":")[2]))
        writer.write(upgrade_request())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(6) == b"DIRECT"
        await listener.close()
        made[0].transport.abort()
        writer.transport.abort()
        await asyncio.sleep(0)

    run(test())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x10\x0c\x00\x04MQTT", b"400"),
        (b"\x16\x03\x01\x02\x00", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 9000, b"431"),
        (b"GET /mqtt HTTP/1.1\r\nHost: here\r\n\r\n", b"426"),
    ],
)
def test_wrong_requests_get_an_answer_and_are_closed(request_bytes, status):
    async def test() -> None:
        async with started("ws") as it:
            reader, writer = await it.connect()
            writer.write(request_bytes)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"text/plain" in answer

    run(test())


def test_a_request_that_never_ends_is_ended():
    async def test() -> None:
        async with started("ws", handshake_seconds=0.2) as it:
            reader, writer = await it.connect()
            writer.write(b"GET /mqtt HTTP/1.1\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            assert it.refused["websocket_handshake"] == 1

    run(test())


def test_websocket_handshakes_are_bounded_and_closed_with_the_listener():
    async def test() -> None:
        async with started("ws", max_handshakes=1) as it:
            first = await it.connect()
            await asyncio.sleep(0.05)
            await assert_closed(await it.connect())
            assert it.refused["handshake_limit"] == 1
        await assert_closed(first)

    run(test())


@pytest.mark.parametrize("header", [V1_HEADER, V2_HEADER], ids=["v1", "v2"])
@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "unix"])
def test_proxy_protocol_in_front_of(transport, header, certificates, tmp_path):
    async def test() -> None:
        secure = tls_settings(certificates.server) if transport == "tls" else {}
        address = str(tmp_path / "mqtt.sock") if transport == "unix" else "127.0.0.1:0"
        async with started(transport, address, proxy_protocol=True, **secure) as it:
            streams = await it.connect()
            reader, writer = streams
            if transport == "ws":
                writer.write(header + upgrade_request() + FRAME)
                await reader.readuntil(b"\r\n\r\n")
                assert await read_payload(reader, 2) == b"\xc0\x00"
            elif transport == "tls":
                writer.write(header)
                await writer.start_tls(certificates.client_context(), server_hostname="localhost")
                await assert_echo(streams)
            else:
                await assert_echo(streams, first=header)
            assert it.made[0].peer == "192.0.2.7:56324"
            if transport != "unix":
                raw = it.made[0].transport.get_extra_info("socket")
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

    run(test())


@pytest.mark.parametrize("header", [V1_HEADER, V2_HEADER], ids=["v1", "v2"])
def test_proxy_header_one_byte_at_a_time(header):
    async def test() -> None:
        async with started("tcp", proxy_protocol=True) as it:
            streams = await it.connect()
            for i in range(len(header)):
                streams[1].write(header[i : i + 1])
                await asyncio.sleep(0.002)
            await assert_echo(streams)
            assert it.made[0].peer == "192.0.2.7:56324"

    run(test())


def test_a_connection_the_balancer_opens_for_itself_keeps_its_own_address():
    async def test() -> None:
        async with started("tcp", proxy_protocol=True) as it:
            await assert_echo(await it.connect(), first=V2_SIGNATURE + bytes.fromhex("20 00 0000"))
            await assert_echo(await it.connect(), first=b"PROXY UNKNOWN\r\n")
            assert [connection.peer for connection in it.made] == [None, None]

    run(test())


def test_no_proxy_header_no_connection():
    async def test() -> None:
        async with started("tcp", proxy_protocol=True, handshake_seconds=0.3) as it:
            without = await it.connect()
            without[1].write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
            await assert_closed(without)
            gone = await it.connect()
            gone[1].close()
            await it.until("proxy_header", 2)
            silent = await it.connect()
            await assert_closed(silent)
            assert it.refused == {"proxy_header": 2, "proxy_timeout": 1}
            assert it.made == []

    run(test())
