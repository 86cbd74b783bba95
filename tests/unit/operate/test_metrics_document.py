"""The reference of the metrics is made from the table, up to date, and names all that a broker shows."""

import re
import urllib.request
from pathlib import Path

from penstock.core.metrics import EXACT
from penstock.operate import metrics_document
from tests.support.clients.packets import V5
from tests.support.worlds.application import running_app_broker

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_up_to_date():
    made = metrics_document.render()
    assert (DOCS / "metrics.md").read_text() == made, (
        "run: python -m penstock.operate.metrics_document > docs/metrics.md"
    )


def test_everything_is_in_it_once():
    named = re.findall(r"^\| `(\w+)` \|", metrics_document.render(), re.M)
    assert len(named) == len(set(named))
    assert {metrics_document.exported_name(meaning) for meaning in EXACT.values()} <= set(named)


def test_what_a_broker_shows_is_in_it(tmp_path):
    named = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.M))
    with running_app_broker(tmp_path, "embedded", {}) as broker:
        client = broker.client(V5)
        client.connect("app1", clean_start=False, properties={"session_expiry_interval": 60})
        client.subscribe("$share/group/a/#", qos=1)
        client.publish("a/b", b"c", qos=1)
        text = urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=30).read().decode()
        client.close()
    shown = set(re.findall(r"^([a-z_]+)[ {]", text, re.M))
    assert shown
    assert not {name for name in shown if not name.endswith("_created")} - named
