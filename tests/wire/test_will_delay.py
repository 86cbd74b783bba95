"""Is a will with a delay published after the delay or at the session's end, and cancelled by a new connection?"""

import time

from tests.support.clients.packets import V5, Reason, Will


def delayed(topic, payload, seconds):
    return Will(topic, payload, properties={"will_delay_interval": seconds})


def test_delay_end_of_session_and_cancel(connect, topic, new_name):
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]: several waits side by side, each told by its topic."""
    watcher = connect(V5)
    watcher.subscribe(f"{topic}/#")
    minute = {"session_expiry_interval": 60}
    cancelled, cleaned = new_name("client"), new_name("client")
    # The client comes back in time: never published, while others that came later are.
    connect(V5, cancelled, properties=minute, will=delayed(f"{topic}/cancelled", b"", 2)).close()
    connect(V5, cancelled, clean_start=False, properties=minute)
    start = time.monotonic()
    connect(V5, properties=minute, will=delayed(f"{topic}/delay", b"", 2)).close()
    # The session ends after 1 s, before the delay of 60 s: published then.
    connect(V5, properties={"session_expiry_interval": 1}, will=delayed(f"{topic}/session", b"", 60)).close()
    # No session after the connection: published at once, whatever the delay.
    connect(V5, will=delayed(f"{topic}/now", b"", 60)).close()
    # A clean start ends the old session: published at once.
    connect(V5, cleaned, properties=minute, will=delayed(f"{topic}/cleaned", b"", 60)).close()
    time.sleep(0.1)
    connect(V5, cleaned, clean_start=True)
    # DISCONNECT 0x04 leaves the delay in force, and may end the session.
    connect(V5, properties=minute, will=delayed(f"{topic}/four", b"", 60)).disconnect(
        Reason.DISCONNECT_WITH_WILL, {"session_expiry_interval": 0}
    )
    arrived = {}
    for _ in range(5):
        name = watcher.expect_publish().topic.rpartition("/")[2]
        arrived[name] = time.monotonic() - start
    assert set(arrived) == {"now", "cleaned", "four", "session", "delay"}
    # On a busy machine all of it is late, but far from the 60 s of those that would wait.
    assert max(arrived[name] for name in ("now", "cleaned", "four")) < 10
    assert 0.9 <= arrived["session"] <= 20
    assert 1.9 <= arrived["delay"] <= 20
    watcher.expect_nothing(0.5)


def test_take_over_and_delay(connect, client_id, topic):
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]: a take-over that resumes the session within the delay cancels the will."""
    watcher = connect(V5)
    watcher.subscribe(topic)
    minute = {"session_expiry_interval": 60}
    connect(V5, client_id, properties=minute, will=delayed(topic, b"", 1))
    connect(V5, client_id, clean_start=False, properties=minute)
    watcher.expect_nothing(1.5)


def test_normal_disconnect_deletes_a_delayed_will(connect, topic):
    """[MQTT-3.14.4-3]"""
    watcher = connect(V5)
    watcher.subscribe(topic)
    client = connect(V5, properties={"session_expiry_interval": 60}, will=delayed(topic, b"", 1))
    client.disconnect()
    watcher.expect_nothing(1.5)
