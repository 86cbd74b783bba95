"""Do sessions that are taken over, kicked and ended at every moment leave the broker and everybody else unharmed?"""

import threading
import urllib.error
import urllib.request

from tests.support.brokers.file_broker import running_broker
from tests.support.clients.take_over_storm import Storm
from tests.support.worlds.application import until

TOKEN = "storm-of-take-overs"
SECONDS = 5


def test_a_storm_of_take_overs(start_broker, connect):
    """A few client ids are connected all the time, by several connections at once, with acknowledgements in flight."""
    broker = start_broker()
    storm = Storm([broker.address], "a")
    storm.run(SECONDS)
    assert storm.connected > 50
    connect(broker=broker).ping()
    broker.assert_healthy()


def test_an_operator_ends_sessions_meanwhile(tmp_path, connect):
    """The admin API ends sessions, connected or not, while their clients come back."""
    done = threading.Event()
    ended, failures = [], []

    def end_sessions(address):
        number = 0
        while not done.is_set():
            name = f"{'client' if number % 2 else 'app'}b{number % 6}"
            request = urllib.request.Request(
                f"http://{address}/api/v1/sessions/{name}",
                method="DELETE",
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    ended.append(answer.status)
            except urllib.error.HTTPError as error:
                failures.append(error.code)
            number += 1

    with running_broker(tmp_path, {"admin": {"address": "127.0.0.1:0", "token": TOKEN}}) as broker:
        found = tmp_path / "data" / "admin.address"
        until(found.exists, 60, "the admin address")
        address = found.read_text().strip()
        operator = threading.Thread(target=end_sessions, args=(address,))
        operator.start()
        Storm([broker.address], "b").run(SECONDS)
        done.set()
        operator.join(60)
        assert len(ended) > 10
        assert set(failures) <= {404}
        connect(broker=broker).ping()
        broker.assert_healthy()
