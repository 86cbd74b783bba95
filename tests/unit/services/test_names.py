"""How topics and groups are called. Every form is listed here."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.services import names

TENANT = UUID("784f394c-42b6-435a-983c-b7beff2784f9")
EDGE = UUID("13814000-1dd2-11b2-8080-808080808080")


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (names.topic_name("tb_core"), "tb_core"),
        (names.topic_name("tb_core", partition=3), "tb_core.3"),
        (names.topic_name("tb_core", prefix="prod", partition=0), "prod.tb_core.0"),
        (names.topic_name("tb_rule_engine", tenant=TENANT, partition=5), f"tb_rule_engine.isolated.{TENANT}.5"),
        (names.topic_name("edqs.events", prefix="a.b"), "a.b.edqs.events"),
        (names.notifications_topic("tb_core", "core-1"), "tb_core.notifications.core-1"),
        (names.notifications_topic("tb_transport", "mqtt-3", prefix="prod"), "prod.tb_transport.notifications.mqtt-3"),
        (
            names.edge_events_topic("tb_edge_event", TENANT, EDGE, prefix="prod"),
            f"prod.tb_edge_event.notifications.{TENANT}.{EDGE}",
        ),
        (names.responses_topic("js_eval", "re-1"), "js_eval.responses.re-1"),
        (names.responses_topic("tb_transport.api", "t", prefix="p"), "p.tb_transport.api.responses.t"),
        (names.group_name("TB_RULE_ENGINE", "Main"), "tb_rule_engine_main-consumer"),
        (names.group_name("TB_RULE_ENGINE", "Main", partition=3), "tb_rule_engine_main-consumer-3"),
        (
            names.group_name("TB_CORE", "Main", tenant=TENANT, partition=0),
            f"tb_core_main-isolated-{TENANT}-consumer-0",
        ),
        (names.group_name("TB_CORE", "Edge", prefix="prod"), "prod.tb_core_edge-consumer"),
        (names.notifications_group("TB_CORE", "core-svc-1"), "tb-core-notifications-node-core-svc-1"),
        (names.notifications_group("TB_TRANSPORT", "t", prefix="p"), "p.tb-transport-notifications-node-t"),
        (names.responses_group("js_eval", "re-1"), "js_eval-responses-node-re-1"),
    ],
)
def test_name(built: str, expected: str) -> None:
    assert built == expected


@pytest.mark.parametrize("bad", ["", " ", "a b", "ä", "a/b", ".a", "a.", "a..b", "x" * 300])
def test_bad_names_are_refused(bad: str) -> None:
    for build in (
        lambda: names.topic_name(bad),
        lambda: names.notifications_topic("tb_core", bad),
        lambda: names.responses_topic(bad, "re-1"),
        lambda: names.group_name("TB_CORE", bad),
        lambda: names.notifications_group("TB_CORE", bad),
        lambda: names.responses_group("js_eval", bad),
    ):
        with pytest.raises(ValueError, match="use"):
            build()
    if bad:
        with pytest.raises(ValueError, match="use"):
            names.topic_name("tb_core", prefix=bad)


def test_bad_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="partition -1"):
        names.topic_name("tb_core", partition=-1)
    with pytest.raises(ValueError, match="partition -1"):
        names.group_name("TB_CORE", "Main", partition=-1)
