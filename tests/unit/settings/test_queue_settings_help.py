"""What is told about settings of queues that are accepted elsewhere, or that do nothing."""

import pytest

from penstock.core.errors import SettingsError
from penstock.settings import load_settings as load
from penstock.settings.units import parse_duration


def test_topics_through_which_nothing_enters(tmp_path):
    """`topics` outside of `$queue/` need `capture`."""
    path = tmp_path / "penstock.toml"
    path.write_text('[[queues]]\nname = "telemetry"\ntopics = ["sensors/#", "$queue/orders/#"]\n')
    [warning] = load(path, environ={}).warnings
    assert "telemetry" in warning
    assert "sensors/#" in warning
    assert "$queue/orders" not in warning
    assert "capture = true" in warning
    path.write_text('[[queues]]\nname = "telemetry"\ntopics = ["sensors/#"]\ncapture = true\n')
    assert load(path, environ={}).warnings == []


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", "- queues"), ("a.toml", "queues:\n  - name: orders\n"), ("b.yml", "queues:\n")]
)
def test_yaml(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SettingsError) as failure:
        load(path, environ={})
    assert "TOML" in failure.value.hint


def test_other_mistakes_are_not_taken_for_yaml(tmp_path):
    path = tmp_path / "penstock.toml"
    path.write_text('[[queues]\nname = "orders"\n')
    with pytest.raises(SettingsError) as failure:
        load(path, environ={})
    assert "YAML" not in (failure.value.hint or "")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400.0), ("1d12h", 129_600.0), ("1m30s500ms", 90.5), ("90m", 5400.0)]
)
def test_durations_of_several_units(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["1h30", "h30m", "1h 30m", "", "1h-30m"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)
