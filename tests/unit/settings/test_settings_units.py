"""Sizes, durations and addresses as people write them."""

import pytest

from penstock.settings.address import Address, is_loopback, parse_address
from penstock.settings.units import parse_duration, parse_size, show_age, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("1280KB", 1280 * 1024),
        ("1280 KiB", 1280 * 1024),
        ("1MiB", 1 << 20),
        ("1.5m", 3 << 19),
        ("2GB", 2 << 30),
        ("17179869184", 1 << 34),
        ("12b", 12),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "-1", "1.3", "1e3", "5 bananas", "1KiBs", "0x10"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="not a"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("10s", 10), ("100ms", 0.1), ("1.5m", 90), ("2 h", 7200), ("7d", 604800)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1y", "inf", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", Address("127.0.0.1", 1883)),
        ("[::1]:0", Address("::1", 0)),
        ("*:1883", Address("", 1883)),
        (":1883", Address("", 1883)),
        ("broker.local:8883", Address("broker.local", 8883)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


def test_an_address_prints_as_it_is_written():
    assert [str(parse_address(text)) for text in ("*:1", "[::1]:2", "a:3")] == ["*:1", "[::1]:2", "a:3"]


@pytest.mark.parametrize(
    "text", ["", "1883", "host", "host:", "host:x", "host:65536", "::1:1883", "[::1:1883", "[x]:1"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "::ffff:10.0.0.1"])
def test_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(604_800.0, "7d"), (5400.0, "1h30m"), (0.25, "250ms"), (90.5, "1m30s500ms"), (0.0, "0"), (0.000_25, "0.00025s")],
)
def test_durations_are_shown_as_they_are_written(seconds, text):
    assert show_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (12.7, "12s"), (312, "5m12s"), (7261, "2h1m"), (273_900, "3d4h"), (-5, "0s")]
)
def test_ages(seconds, text):
    assert show_age(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0"), (1500, "1500"), (10 << 20, "10MiB"), (1 << 40, "1TiB")])
def test_sizes_are_shown_as_they_are_written(size, text):
    assert show_size(size) == text
    assert parse_size(text) == size
