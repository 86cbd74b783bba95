"""Statements from their text: the heads by hand. The query inside of a topic is only found here; query.py reads it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.subscribers.query.sql import statements as s
from penstock.subscribers.query.sql.cursor import Cursor
from penstock.subscribers.query.sql.declarations import read_table
from penstock.subscribers.query.sql.names import (
    check_filter,
    check_group,
    check_table,
    check_topic,
    check_user,
)
from penstock.subscribers.query.sql.tables import Meta

_EXPECTED = "CREATE, RELOAD, DROP, SHOW, DESCRIBE, GRANT, REVOKE or INFER"


def read_statement(text: str) -> s.Statement:
    cursor = Cursor(text)
    if cursor.is_at_end:
        cursor.fail(f"the statement is empty: it begins with {_EXPECTED}")
    first = cursor.word()
    if first in ("SELECT", "WITH", "FROM"):
        cursor.fail("a query is not run by itself: name it with CREATE TOPIC <name> AS SELECT …, then subscribe to it")
    reader = _READERS.get(first)
    if reader is None:
        cursor.fail(f"a statement begins with {_EXPECTED}, not with {cursor.shown()}")
    cursor.index += 1
    statement = reader(cursor)
    cursor.expect_end()
    return statement


def _if_not_exists(cursor: Cursor) -> bool:
    return cursor.accept("IF", "NOT", "EXISTS")


def _create(cursor: Cursor) -> s.Statement:
    if cursor.accept("TABLE") or cursor.accept("STABLE"):
        if_not_exists = _if_not_exists(cursor)
        return s.CreateTable(read_table(cursor), if_not_exists, cursor.text)
    if cursor.accept("TOPIC"):
        return _create_topic(cursor)
    if cursor.accept("CONSUMER", "GROUP"):
        cursor.fail("a consumer group is not created: it exists from its first subscription", 0)
    cursor.fail(f"CREATE is followed by TOPIC or TABLE, not by {cursor.shown()}")


def _create_topic(cursor: Cursor) -> s.CreateTopic:
    if_not_exists = _if_not_exists(cursor)
    name = cursor.name("topic", check_topic)
    meta: Meta = "none"
    on_error = ""
    meta_at = cursor.offset
    while not cursor.accept("AS"):
        start = cursor.offset
        if meta == "none" and cursor.accept("WITH", "META"):
            meta, meta_at = "with", start
        elif meta == "none" and cursor.accept("ONLY", "META"):
            meta, meta_at = "only", start
        elif not on_error and cursor.accept("WITH", "("):
            on_error = _options(cursor)
        else:
            cursor.fail(f"AS, WITH META, ONLY META or WITH (on_error = …) is expected here, not {cursor.shown()}")
    mode, query_at = _query(cursor)
    if mode == "query" and meta != "none":
        cursor.fail("META is of STABLE and DATABASE topics: a query has only its rows. Remove it", meta_at)
    return s.CreateTopic(name, if_not_exists, mode, meta, on_error or s.ON_ERROR[0], cursor.text, query_at)


def _options(cursor: Cursor) -> str:
    """`on_error = '…')`; the opening bracket has been read."""
    cursor.expect("ON_ERROR")
    cursor.expect("=")
    start = cursor.offset
    policy = cursor.string("the error policy").lower()
    if policy not in s.ON_ERROR:
        cursor.fail(f"on_error is one of {', '.join(map(repr, s.ON_ERROR))}, not {policy!r}", start)
    cursor.expect(")")
    return policy


def _query(cursor: Cursor) -> tuple[str, int]:
    """What stands behind AS: its kind and where it begins. All words to the end belong to it."""
    if cursor.accept("STABLE") or cursor.accept("TABLE"):
        mode, query_at = "stable", cursor.offset
        cursor.name("table", check_table)
        if not cursor.is_at_end and cursor.word() != "WHERE":
            cursor.fail(f"WHERE with a condition on tags, or the end, is expected here, not {cursor.shown()}")
    elif cursor.accept("DATABASE"):
        mode, query_at = "database", cursor.offset
        cursor.name("database (an MQTT filter in quotes)", check_filter)
        if not cursor.is_at_end:
            cursor.fail("a DATABASE topic has every message of its filter: for a condition write AS SELECT * … WHERE …")
    elif cursor.word() in ("SELECT", "FROM", "WITH", "("):
        mode, query_at = "query", cursor.offset
    else:
        cursor.fail(f"SELECT, STABLE or DATABASE is expected here, not {cursor.shown()}")
    cursor.index = len(cursor.tokens)
    return mode, query_at


def _reload(cursor: Cursor) -> s.Statement:
    cursor.expect("TOPIC")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("topic", check_topic)
    on_error = _options(cursor) if cursor.accept("WITH", "(") else ""
    cursor.expect("AS")
    start = cursor.offset
    mode, query_at = _query(cursor)
    if mode != "query":
        cursor.fail("RELOAD TOPIC takes a SELECT: drop the topic and create it again to make it something else", start)
    return s.ReloadTopic(name, if_exists, on_error, cursor.text, query_at)


def _drop(cursor: Cursor) -> s.Statement:
    if cursor.accept("TABLE") or cursor.accept("STABLE"):
        if_exists = cursor.accept("IF", "EXISTS")
        return s.DropTable(cursor.name("table", check_table).lower(), if_exists)
    if cursor.accept("TOPIC"):
        if_exists = cursor.accept("IF", "EXISTS")
        force = cursor.accept("FORCE")
        return s.DropTopic(cursor.name("topic", check_topic), if_exists, force)
    if cursor.accept("CONSUMER", "GROUP"):
        if_exists = cursor.accept("IF", "EXISTS")
        force = cursor.accept("FORCE")
        group = cursor.name("consumer group", check_group)
        cursor.expect("ON")
        return s.DropGroup(group, cursor.name("topic", check_topic), if_exists, force)
    cursor.fail(f"DROP is followed by TOPIC, TABLE or CONSUMER GROUP, not by {cursor.shown()}")


_SHOWN: dict[str, s.Statement] = {
    "TOPICS": s.ShowTopics(),
    "TABLES": s.ShowTables(),
    "STABLES": s.ShowTables(),
    "CONSUMERS": s.ShowConsumers(),
    "SUBSCRIPTIONS": s.ShowSubscriptions(),
    "GRANTS": s.ShowGrants(),
}


def _show(cursor: Cursor) -> s.Statement:
    view = _SHOWN.get(cursor.word())
    if view is None:
        cursor.fail(f"SHOW is followed by TOPICS, TABLES, CONSUMERS, SUBSCRIPTIONS or GRANTS, not by {cursor.shown()}")
    cursor.index += 1
    return view


def _describe(cursor: Cursor) -> s.Statement:
    if not cursor.accept("TOPIC"):
        cursor.accept("TABLE")
    return s.Describe(cursor.name("topic or table", check_topic))


def _privileges(cursor: Cursor, before_user: str) -> tuple[tuple[str, ...], str, str]:
    wanted: set[str] = set()
    while True:
        word = cursor.word().lower()
        if word == "all":
            wanted.update(s.PRIVILEGES)
        elif word in s.PRIVILEGES:
            wanted.add(word)
        else:
            cursor.fail(f"SUBSCRIBE, CREATE, DROP or ALL is expected here, not {cursor.shown()}")
        cursor.index += 1
        if not cursor.accept(","):
            break
    cursor.expect("ON")
    topic = "*" if cursor.accept("*") else cursor.name("topic", check_topic)
    if not cursor.accept(before_user):
        cursor.fail(f"{before_user} and the user's name are expected here, not {cursor.shown()}")
    user = cursor.name("user", check_user)
    return tuple(privilege for privilege in s.PRIVILEGES if privilege in wanted), topic, user


def _grant(cursor: Cursor) -> s.Statement:
    return s.Grant(*_privileges(cursor, "TO"))


def _revoke(cursor: Cursor) -> s.Statement:
    return s.Revoke(*_privileges(cursor, "FROM"))


def _infer(cursor: Cursor) -> s.Statement:
    cursor.expect("TABLE")
    name = cursor.name("table", check_table).lower()
    cursor.expect("FROM")
    topic_filter = cursor.name("source (an MQTT filter in quotes)", check_filter)
    sample = s.DEFAULT_SAMPLE
    if cursor.accept("SAMPLE"):
        sample = cursor.whole_number("the number of messages", 1, s.MAX_SAMPLE)
    return s.InferTable(name, topic_filter, sample)


_READERS: dict[str, Callable[[Cursor], s.Statement]] = {
    "CREATE": _create,
    "RELOAD": _reload,
    "DROP": _drop,
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "GRANT": _grant,
    "REVOKE": _revoke,
    "INFER": _infer,
}
