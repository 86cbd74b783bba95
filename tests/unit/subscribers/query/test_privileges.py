"""Who may create, subscribe to and drop query topics."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access.acl_file import AclFile
from penstock.core.errors import AccessFileError
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.privileges import covers
from penstock_client import wire
from penstock_client.errors import DataError, NotAllowed, NotFound
from tests.support.worlds.datasub_world import ALICE, BOB, OPERATOR, DataWorld, in_world

EVERYTHING = {"effect": "allow", "topics": ["#"]}
CREATES = {"effect": "allow", "actions": ["create"], "users": ["alice"]}
TOPIC = 'CREATE TOPIC hot AS SELECT ts FROM "sensors/#"'


def test_without_an_acl_file_everything_is_allowed() -> None:
    async def work(world: DataWorld) -> None:
        nobody = Identity()
        await world.service.execute(TOPIC, nobody)
        await world.join("hot", who=BOB)
        await world.service.execute("DROP TOPIC FORCE hot", BOB)

    in_world(work)


def test_with_one_nothing_is_that_nobody_has_allowed() -> None:
    async def work(world: DataWorld) -> None:
        with pytest.raises(NotAllowed, match="user alice may not create topic hot"):
            await world.service.execute(TOPIC, ALICE)
        with pytest.raises(NotAllowed, match="an anonymous client may not create"):
            await world.service.execute(TOPIC, Identity())
        await world.service.execute(TOPIC, OPERATOR)
        with pytest.raises(NotAllowed, match="there is no topic hot, or user alice may not subscribe to it"):
            await world.join("hot")
        for statement in ("DROP TOPIC hot", 'RELOAD TOPIC hot AS SELECT ts FROM "x"', "DROP CONSUMER GROUP g ON hot"):
            with pytest.raises(NotAllowed):
                await world.service.execute(statement, ALICE)
        with pytest.raises(NotAllowed):
            await world.service.execute("GRANT SUBSCRIBE ON hot TO bob", ALICE)
        with pytest.raises(NotAllowed):
            await world.service.handle(ALICE, "watermarks", wire.Positions("g", [("hot", 0)]))

    in_world(work, {"rules": [EVERYTHING]})


def test_who_may_nothing_is_told_nothing() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TOPIC, ALICE)
        await world.service.execute("CREATE TABLE secret FROM 'sensors/#' (n BIGINT)", ALICE)
        await world.service.execute("GRANT SUBSCRIBE ON hot TO carol", ALICE)
        await world.ready((await world.join("hot")).consumer)
        for what in ("TOPICS", "TABLES", "CONSUMERS", "SUBSCRIPTIONS", "GRANTS"):
            shown = [len((await world.service.execute(f"SHOW {what}", who)).rows) for who in (ALICE, OPERATOR, BOB)]
            assert shown[0] == shown[1] > shown[2] == 0, what
        for name in ("hot", "secret"):
            assert (await world.service.execute(f"DESCRIBE {name}", ALICE)).rows
            with pytest.raises(NotFound, match="there is no topic and no table"):
                await world.service.execute(f"DESCRIBE {name}", BOB)
        await world.service.execute("GRANT SUBSCRIBE ON hot TO bob", ALICE)
        assert [row[0] for row in (await world.service.execute("SHOW TOPICS", BOB)).rows] == ["hot"]

    in_world(work, {"rules": [EVERYTHING], "data": [CREATES]})


def test_the_right_to_create_is_no_right_on_tables_of_others() -> None:
    """A table of another user is shown to those who may read its messages, or drop it."""

    async def work(world: DataWorld) -> None:
        await world.service.execute("CREATE TABLE secret FROM 'plans/#' (n BIGINT)", ALICE)
        await world.service.execute("CREATE TABLE open FROM 'public/#' (n BIGINT)", ALICE)
        await world.service.execute("CREATE TABLE mine FROM 'bobs/#' (n BIGINT)", BOB)
        shown = (await world.service.execute("SHOW TABLES", BOB)).rows
        assert [row[0] for row in shown] == ["mine", "open"]
        assert "plans" not in str(shown)
        with pytest.raises(NotFound, match="there is no topic and no table secret"):
            await world.service.execute("DESCRIBE secret", BOB)
        said = []
        for name in ("secret", "missing"):
            with pytest.raises(NotAllowed) as refused:
                await world.service.execute(f"DROP TABLE {name}", BOB)
            said.append(str(refused.value).replace(name, ""))
        assert said[0] == said[1], "the same words whether it is there or not"
        with pytest.raises(NotAllowed, match="user bob may not drop table open"):
            await world.service.execute("DROP TABLE open", BOB)
        for name in ("secret", "missing"):
            with pytest.raises(DataError, match=f"there is no table '{name}'"):
                await world.service.execute(f"CREATE TOPIC t AS SELECT n FROM {name}", BOB)
        assert [row[0] for row in (await world.service.execute("SHOW TABLES", OPERATOR)).rows] == [
            "mine",
            "open",
            "secret",
        ]

    rules = [
        {"effect": "allow", "topics": ["#"], "users": ["alice"]},
        {"effect": "allow", "topics": ["public/#"]},
    ]
    in_world(work, {"rules": rules, "data": [{"effect": "allow", "actions": ["create"]}]})


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TOPIC {name}",
        "DROP TOPIC IF EXISTS {name}",
        "DROP TOPIC FORCE {name}",
        'RELOAD TOPIC {name} AS SELECT ts FROM "x"',
        'RELOAD TOPIC IF EXISTS {name} AS SELECT ts FROM "x"',
        "DROP CONSUMER GROUP g ON {name}",
        "DROP CONSUMER GROUP IF EXISTS g ON {name}",
        "GRANT SUBSCRIBE ON {name} TO bob",
        "REVOKE SUBSCRIBE ON {name} FROM carol",
        "DROP TABLE {name}",
        "DROP TABLE IF EXISTS {name}",
        "DESCRIBE {name}",
        "CREATE TOPIC bobs AS SELECT nothing FROM {name}",
        "CREATE TOPIC bobs AS STABLE {name}",
        "subscribe",
        "replay",
        "committed",
        "watermarks",
        "fetch",
        "commit",
    ],
)
def test_a_name_tells_nothing_to_who_has_no_right_on_it(statement: str) -> None:
    """The same code and the same words, whether it is there or not."""

    async def ask(world: DataWorld, name: str, bobs: wire.Assignment) -> str:
        me = (bobs.consumer, "g", bobs.epoch)
        requests = {
            "subscribe": ("subscribe", wire.Subscribe("other", [name])),
            "replay": ("subscribe", wire.Subscribe("other", [name], replay=True)),
            "committed": ("committed", wire.Positions("g", [(name, 0)])),
            "watermarks": ("watermarks", wire.Positions("g", [(name, 0)])),
            "fetch": ("fetch", wire.Fetch(*me, name, 0, 0)),
            "commit": ("commit", wire.Commit(*me, [(name, 0, 0)])),
        }
        try:
            if statement in requests:
                await world.service.handle(BOB, *requests[statement])
                return "done"
            return f"done: {(await world.service.execute(statement.format(name=name), BOB)).text}"
        except DataError as error:
            return f"{error.code}: {error}"

    async def work(world: DataWorld) -> None:
        for name in ("hot", "hat"):
            await world.service.execute(f"CREATE TOPIC {name} AS DATABASE 'sensors/#'", ALICE)
            await world.service.execute(f"CREATE TABLE {name} FROM 'sensors/#' (n BIGINT)", ALICE)
        await world.service.execute('CREATE TOPIC bobs_own AS SELECT ts FROM "public/#"', BOB)
        bobs = await world.ready((await world.join("bobs_own", who=BOB)).consumer, who=BOB)
        there, missing = await ask(world, "hot", bobs), await ask(world, "hut", bobs)
        assert there.replace("hot", "hut") == missing
        assert len((await world.service.execute("SHOW TOPICS", ALICE)).rows) == 2

    creates = [
        {"effect": "allow", "actions": ["create"], "users": ["alice"]},
        {"effect": "allow", "actions": ["create"], "users": ["bob"], "topics": ["bobs*"]},
    ]
    readable = [
        {"effect": "allow", "users": ["alice"], "topics": ["#"]},
        {"effect": "allow", "users": ["bob"], "topics": ["public/#"]},
    ]
    in_world(work, {"rules": readable, "data": creates})


def test_who_may_something_hears_what_it_may_not() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TOPIC, ALICE)
        await world.service.execute("GRANT SUBSCRIBE ON hot TO bob", ALICE)
        for statement in ("DROP TOPIC hot", "DROP TOPIC IF EXISTS hot"):
            with pytest.raises(NotAllowed, match="user bob may not drop topic hot"):
                await world.service.execute(statement, BOB)

    in_world(work, {"rules": [EVERYTHING], "data": [CREATES]})


def test_the_owner_gives_and_takes() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TOPIC, ALICE)
        await world.join("hot")
        with pytest.raises(NotAllowed):
            await world.join("hot", who=BOB)
        await world.service.execute("GRANT SUBSCRIBE ON hot TO bob", ALICE)
        await world.restart()
        bobs = await world.ready((await world.join("hot", who=BOB)).consumer, who=BOB)
        assert await world.table("SHOW GRANTS") == [
            {"user_name": "bob", "topic_name": "hot", "privilege": "subscribe", "is_granted": True}
        ]
        with pytest.raises(NotAllowed):
            await world.service.execute("DROP TOPIC hot", BOB)
        await world.service.execute("REVOKE SUBSCRIBE ON hot FROM bob", ALICE)
        told = await world.ask(bobs.consumer, bobs.epoch, who=BOB)
        assert told is not None
        assert (told.partitions, told.refused) == ([], {"hot": "user bob may not subscribe to topic hot"})
        await world.service.execute("DROP TOPIC FORCE hot", ALICE)
        assert await world.table("SHOW GRANTS") == []

    in_world(work, {"rules": [EVERYTHING], "data": [CREATES]})


def test_what_is_revoked_is_refused_without_an_acl_file_too() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TOPIC, ALICE)
        await world.service.execute("REVOKE SUBSCRIBE ON hot FROM bob", ALICE)
        with pytest.raises(NotAllowed):
            await world.join("hot", who=BOB)
        await world.service.execute("GRANT SUBSCRIBE ON hot TO bob", ALICE)
        await world.join("hot", who=BOB)

    in_world(work)


def test_a_reloaded_acl_file_is_heard() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TOPIC, ALICE)
        first = await world.ready((await world.join("hot", who=BOB)).consumer, who=BOB)
        world.access.file = AclFile.parse({"rules": [EVERYTHING]}, "acl.toml")
        world.service.access_changed()
        told = await world.ask(first.consumer, first.epoch, who=BOB)
        assert told is not None
        assert set(told.refused) == {"hot"}

    in_world(work)


@pytest.mark.parametrize(
    ("rules", "topic_filter", "is_covered"),
    [
        ([("allow", "#")], "sensors/#", True),
        ([("allow", "sensors/#")], "sensors/+/t", True),
        ([("allow", "sensors/a")], "sensors/#", False),  # as an MQTT subscription it is accepted, and filtered
        ([("deny", "sensors/secret"), ("allow", "sensors/#")], "sensors/#", False),
        ([("deny", "other/#"), ("allow", "sensors/#")], "sensors/#", True),
        ([("allow", "sensors/#"), ("deny", "sensors/secret")], "sensors/#", True),
        ([("allow", "sensors/%u/#")], "sensors/alice/#", True),
        ([("allow", "sensors/%u/#")], "sensors/+/#", False),
        ([("allow", "sensors/%c/#")], "sensors/+/#", False),  # the client id is + itself: it matches nothing
        ([], "sensors/#", False),
    ],
)
def test_all_of_the_source_must_be_readable(rules: list[tuple[str, str]], topic_filter: str, is_covered: bool) -> None:
    document = {"rules": [{"effect": effect, "topics": [topic]} for effect, topic in rules]}
    program = AclFile.parse(document, "acl.toml").compile_for("+", "alice")
    assert covers(program, topic_filter) is is_covered


def test_who_may_only_publish_may_not_read() -> None:
    async def work(world: DataWorld) -> None:
        with pytest.raises(NotAllowed, match="may not read everything that sensors/# brings"):
            await world.service.execute(TOPIC, ALICE)
        assert world.service.topic("hot") is None

    rule: dict[str, Any] = {**EVERYTHING, "actions": ["publish"]}
    in_world(work, {"rules": [rule], "data": [CREATES]})


@pytest.mark.parametrize(
    ("client_id", "username", "action", "topic", "expected"),
    [
        ("c", "alice", "drop", "hot", False),  # the first entry decides
        ("c", "alice", "drop", "alarms-1", True),
        ("c", "alice", "create", "alarms-1", True),
        ("c", "bob", "create", "alarms-1", None),
        ("report-1", "bob", "subscribe", "anything", True),
        ("c", None, "subscribe", "public", True),
        ("c", "bob", "subscribe", "public", None),
    ],
)
def test_the_entries_of_the_file(
    client_id: str, username: str | None, action: str, topic: str, expected: bool | None
) -> None:
    document = {
        "data": [
            {"effect": "deny", "actions": ["drop"], "topics": ["hot"]},
            {"effect": "allow", "users": ["alice"], "topics": ["alarms-*", "hot"]},
            {"effect": "allow", "actions": ["subscribe"], "clients": ["report-*"]},
            {"effect": "allow", "actions": ["subscribe"], "anonymous": True, "topics": ["public"]},
        ]
    }
    assert AclFile.parse(document, "acl.toml").data_access(client_id, username, action, topic) is expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r'data 1: effect = None is not allowed: use "allow" or "deny"'),
        ({"effect": "allow", "actions": ["publish"]}, "data 1: action 'publish' is not allowed: use create"),
        ({"effect": "allow", "actions": []}, "data 1: actions is empty"),
        ({"effect": "allow", "topic": ["a"]}, r"data 1: topic is unknown: did you mean topics\?"),
        ({"effect": "allow", "topics": "a"}, "data 1: topics = 'a' is not allowed: use a list"),
        ({"effect": "allow", "users": ["a"], "anonymous": True}, "none of users"),
    ],
)
def test_a_bad_entry(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(AccessFileError, match=message):
        AclFile.parse({"data": [entry]}, "acl.toml")
