"""`penstock pub` and `penstock sub` against a real broker, and against each other."""

import json
import re
import signal
import subprocess
import uuid

import pytest

from penstock.__main__ import main
from tests.support.clients.strangers import stranger
from tests.support.servers.certificates import Authority
from tests.unit.cli.conftest import Penstock, running

VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]


@pytest.fixture
def topic():
    return f"test/{uuid.uuid4().hex}"


class Subscriber:
    """A `penstock sub` that is known to be subscribed."""

    def __init__(self, cli, *arguments):
        self.process = cli.start("sub", "-d", *arguments)
        self.noise = []
        while True:
            line = self.process.stderr.readline().decode()
            assert line, self.noise
            self.noise.append(line)
            if "received SUBACK" in line:
                return

    def output(self):
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, "".join(self.noise) + err.decode()


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_go_through(cli, any_broker, topic, version):
    common = ("-p", any_broker.open, "-V", version)
    subscriber = Subscriber(cli, *common, "-q", 2, "-t", f"{topic}/#", "-v", "-C", 3, "-W", 15)
    for qos in (0, 1, 2):
        assert cli.run("pub", *common, "-q", qos, "-t", f"{topic}/{qos}", "-m", "hi there")[:2] == (0, b"")
    expected = "".join(f"{topic}/{qos} hi there\n" for qos in (0, 1, 2))
    assert subscriber.output()[:2] == (0, expected.encode())


def test_works_with_the_real_clients(cli, broker, topic):
    assert cli.run("pub", "-p", broker.open, "-t", topic, "-m", "ours", "-q", 2, "-r")[0] == 0
    theirs = ["mosquitto_sub", "-p", str(broker.open), "-t", topic, "-C", "1", "-W", "15", "-q", "2"]
    assert subprocess.run(theirs, capture_output=True, check=True, timeout=60).stdout == b"ours\n"
    subscriber = Subscriber(cli, "-p", broker.open, "-t", topic, "-R", "-C", 1, "-W", 15)
    subprocess.run(["mosquitto_pub", "-p", str(broker.open), "-t", topic, "-m", "theirs"], check=True, timeout=60)
    assert subscriber.output()[:2] == (0, b"theirs\n")


def test_lines_files_and_standard_input(cli, broker, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"from\x00a file")
    subscriber = Subscriber(cli, "-p", broker.open, "-t", topic, "-q", 2, "-C", 205, "-W", 20, "-F", "%p|")
    target = ("-p", broker.open, "-t", topic, "-q", 2)
    lines = b"".join(b"line %d\n" % number for number in range(200))
    assert cli.run("pub", *target, "-l", input=lines)[0] == 0
    assert cli.run("pub", *target, "-s", input=b"all\nof\nit")[0] == 0
    assert cli.run("pub", *target, "-f", tmp_path / "file")[0] == 0
    assert cli.run("pub", *target, "-n")[0] == 0
    assert cli.run("pub", *target, "-m", "twice", "--repeat", 2, "--repeat-delay", 0.05)[0] == 0
    code, out, _ = subscriber.output()
    assert code == 0
    messages = out.split(b"|\n")[:-1]
    assert messages[:200] == [b"line %d" % number for number in range(200)]
    assert messages[200:] == [b"all\nof\nit", b"from\x00a file", b"", b"twice", b"twice"]


def test_retained_messages(cli, broker, topic):
    target = ("-p", broker.open, "-t", topic)
    assert cli.run("pub", *target, "-m", "kept", "-r")[0] == 0
    assert cli.run("sub", *target, "-C", 1, "-W", 10, "-F", "%r %p")[:2] == (0, b"1 kept\n")
    assert cli.run("sub", *target, "-R", "-C", 1, "-W", 1)[0] == 27
    assert cli.run("sub", *target, "--remove-retained", "-C", 1, "-W", 10)[:2] == (0, b"kept\n")
    assert cli.run("sub", *target, "-C", 1, "-W", 1)[:2] == (27, b"")


def test_filter_out_and_no_newline(cli, broker, topic):
    subscriber = Subscriber(
        cli, "-p", broker.open, "-t", f"{topic}/#", "-T", f"{topic}/+/noise", "-N", "-C", 2, "-W", 15
    )
    for name in ("x/noise", "a", "b"):
        cli.run("pub", "-p", broker.open, "-t", f"{topic}/{name}", "-m", name)
    assert subscriber.output()[:2] == (0, b"ab")


def test_properties(cli, broker, topic):
    subscriber = Subscriber(cli, "-p", broker.open, "-V", 5, "-t", topic, "-F", "%j", "-C", 1, "-W", 15)
    given = [
        ("user-property", "a", "1"),
        ("user-property", "b", "2"),
        ("content-type", "text/plain"),
        ("correlation-data", "xyz"),
        ("response-topic", "answer"),
        ("message-expiry-interval", "60"),
    ]
    properties = [word for entry in given for word in ("-D", "publish", *entry)]
    assert cli.run("pub", "-p", broker.open, "-t", topic, "-m", "m", *properties)[0] == 0
    code, out, _ = subscriber.output()
    message = json.loads(out)
    assert code == 0
    assert (message["topic"], message["payload"], message["qos"]) == (topic, "m", 0)
    assert message["properties"]["user_properties"] == [["a", "1"], ["b", "2"]]
    assert message["properties"]["content_type"] == "text/plain"
    assert message["properties"]["correlation_data"] == b"xyz".hex()
    assert message["properties"]["response_topic"] == "answer"
    assert 0 < message["properties"]["message_expiry"] <= 60


def test_topic_aliases_from_the_broker_are_understood(cli, broker, topic):
    subscriber = Subscriber(
        cli, "-p", broker.open, "-t", topic, "-v", "-C", 2, "-W", 15, "-D", "connect", "topic-alias-maximum", "5"
    )
    cli.run("pub", "-p", broker.open, "-t", topic, "-m", "x", "--repeat", 2)
    assert subscriber.output()[:2] == (0, f"{topic} x\n{topic} x\n".encode())


def test_a_will_is_sent_when_the_client_vanishes(cli, broker, topic):
    watcher = Subscriber(cli, "-p", broker.open, "-t", topic, "-q", 1, "-C", 1, "-W", 15, "-F", "%q %p")
    dying = Subscriber(
        cli, "-p", broker.open, "-t", "other", "--will-topic", topic, "--will-payload", "gone", "--will-qos", 1
    )
    dying.process.kill()
    assert watcher.output()[:2] == (0, b"1 gone\n")
    dying.output()


def test_a_session_is_kept(cli, broker, topic):
    client = ("-i", topic.replace("/", "-"), "-c", "-q", 1)
    assert cli.run("sub", "-p", broker.open, *client, "-t", topic, "-E")[0] == 0
    assert cli.run("pub", "-p", broker.open, "-t", topic, "-m", "while away", "-q", 1)[0] == 0
    code, out, _ = cli.run("sub", "-p", broker.open, *client, "-t", topic, "-C", 1, "-W", 10)
    assert (code, out) == (0, b"while away\n")
    # -U ends the subscription; the session then gets nothing
    cli.run("sub", "-p", broker.open, *client, "-U", topic, "-W", 0.5)
    cli.run("pub", "-p", broker.open, "-t", topic, "-m", "again", "-q", 1)
    assert cli.run("sub", "-p", broker.open, *client, "-U", "nothing", "-W", 1)[:2] == (27, b"")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_printed_stays_with_the_broker(cli, broker, topic, qos):
    """More messages wait than the command reads ahead: -E takes none of them, -C as many as it prints."""
    session = ("-p", broker.open, "-c", "-i", f"kept-{topic[-8:]}", "-q", qos, "-t", topic)
    assert cli.run("sub", *session, "-E")[0] == 0
    lines = "".join(f"{number}\n" for number in range(1_200)).encode()
    assert cli.run("pub", "-p", broker.open, "-t", topic, "-q", qos, "-l", input=lines)[0] == 0
    assert cli.run("sub", *session, "-E")[0] == 0
    assert cli.run("sub", *session, "-C", 2, "-W", 15)[:2] == (0, b"0\n1\n")
    expected = "".join(f"{number}\n" for number in range(2, 1_200)).encode()
    assert cli.run("sub", *session, "-C", 1_198, "-W", 15)[:2] == (0, expected)


def test_over_websocket(cli, broker, topic):
    big = b"x" * 70_000
    subscriber = Subscriber(cli, "--ws", "-p", broker.web, "-t", topic, "-q", 1, "-C", 3, "-W", 15, "-F", "%l")
    for payload in (b"", b"y" * 300, big):
        assert cli.run("pub", "--ws", "-p", broker.web, "-t", topic, "-s", "-q", 1, input=payload)[0] == 0
    assert subscriber.output()[:2] == (0, b"0\n300\n70000\n")


def test_a_plain_port_is_no_websocket(cli, broker):
    code, _, err = cli.run("pub", "--ws", "-p", broker.open, "-t", "x", "-m", "x")
    assert code == 1
    assert "WebSocket handshake" in err


def test_over_a_unix_socket(cli, broker, topic):
    assert cli.run("pub", "--unix", broker.unix, "-t", topic, "-m", "x", "-r", "-q", 1)[0] == 0
    assert cli.run("sub", "--unix", broker.unix, "-t", topic, "-C", 1, "-W", 10)[:2] == (0, b"x\n")


def test_over_tls(cli, broker, topic, tmp_path):
    mine = broker.authority.issue("cli")
    target = ("-p", broker.tls, "-t", topic, "-m", "x", "-q", 1)
    shown = ("--cert", mine.certificate, "--key", mine.key)
    assert cli.run("pub", *target, "--cafile", broker.authority.path, *shown)[0] == 0
    url = f"mqtts://127.0.0.1:{broker.tls}/{topic}"
    assert cli.run("pub", "-L", url, "-m", "x", "-q", 1, "--cafile", broker.authority.path, *shown)[0] == 0
    code, _, err = cli.run("pub", *target, "--cafile", Authority(tmp_path).path, *shown)
    assert code == 1
    assert "its certificate is not trusted" in err
    assert cli.run("pub", *target, "--cafile", broker.authority.path)[0] == 1
    code, _, err = cli.run("pub", "-p", broker.open, "-t", topic, "-m", "x", "--cafile", broker.authority.path)
    assert code == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(("version", "code"), [("mqttv311", 4), ("mqttv5", 134)])
def test_a_refused_connection_says_why_and_gives_the_code(cli, broker, version, code):
    for command in (("pub", "-t", "x", "-m", "x"), ("sub", "-t", "x")):
        got, out, err = cli.run(*command, "-p", broker.closed, "-V", version, "-u", "alice", "-P", "wrong")
        assert (got, out) == (code, b"")
        assert "refused the connection: bad user name or password" in err
        assert len(err.splitlines()) == 1


def test_user_name_and_password(cli, broker, tmp_path):
    (tmp_path / "pw").write_text("secret\n")
    target = ("-p", broker.closed, "-t", "ok/x", "-m", "x", "-q", 1)
    assert cli.run("pub", *target, "-u", "alice", "-P", "secret")[0] == 0
    assert cli.run("pub", *target, "-u", "alice", "--pw-file", tmp_path / "pw")[0] == 0
    assert cli.run("pub", "-L", f"mqtt://alice:secret@127.0.0.1:{broker.closed}/ok/x", "-m", "x", "-q", 1)[0] == 0


def test_a_refused_publish_is_a_failure(cli, broker):
    target = ("-p", broker.closed, "-V", 5, "-u", "alice", "-P", "secret", "-q", 1, "-m", "x")
    code, _, err = cli.run("pub", *target, "-t", "forbidden")
    assert code == 1
    assert "publishing to 'forbidden' failed: not authorized" in err


@pytest.mark.parametrize(("version", "why"), [("mqttv311", "refused"), ("mqttv5", "not authorized")])
def test_a_refused_subscription_says_what_is_known(cli, broker, version, why):
    target = ("-p", broker.closed, "-V", version, "-u", "alice", "-P", "secret", "-W", 10)
    code, _, err = cli.run("sub", *target, "-t", "forbidden")
    assert (code, err) == (1, f"penstock: subscribing to 'forbidden' failed: {why}\n")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("listener", ["tls", "web"])
def test_a_port_that_speaks_something_else_gets_a_hint(cli, broker, listener, version):
    code, _, err = cli.run("pub", "-p", getattr(broker, listener), "-t", "x", "-m", "x", "-V", version)
    assert code == 1
    assert len(err.splitlines()) == 2
    assert "if this is a TLS listener use --cafile FILE" in err
    assert "for WebSocket use --ws" in err


@pytest.mark.parametrize("command", [("pub", "-m", "x"), ("sub",)])
def test_a_server_that_says_nothing_is_not_waited_for_for_ever(command, monkeypatch, capsys):
    monkeypatch.setattr("penstock_client.mqtt.client.CONNACK_SECONDS", 0.2)
    with stranger("hangs") as port:
        assert main([command[0], "-h", "127.0.0.1", "-p", str(port), "-t", "x", *command[1:]]) == 1
    said, hint = capsys.readouterr().err.splitlines()
    assert said == f"penstock: 127.0.0.1:{port} does not answer: no CONNACK in 0.2 seconds"
    assert hint.startswith("does a broker listen for MQTT there?")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_message_was_sent_is_no_success(cli, number, code):
    with stranger("hangs") as port:
        publisher = cli.start("pub", "-p", port, "-t", "x", "-m", "x", "-d")
        assert b"sending CONNECT" in publisher.stderr.readline()
        publisher.send_signal(number)
        publisher.communicate(timeout=60)
    assert publisher.returncode == code


@pytest.mark.parametrize(
    "given",
    [("--cafile", "/nope.pem"), ("--cert", "/nope.pem", "--key", __file__), ("--key", "/nope", "--cert", __file__)],
)
def test_a_file_of_tls_that_is_not_there_is_named(given, capsys):
    assert main(["pub", "-t", "x", "-m", "x", *given]) == 2
    assert f"{given[0]} {given[1]}: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_broker_that_dies_leaves_a_count_and_no_traceback(cli, tmp_path_factory, qos):
    with running(Penstock, tmp_path_factory.mktemp("mortal")) as mortal:
        publisher = cli.start("pub", "-p", mortal.open, "-t", "k/n", "-l", "-q", qos, "-d")
        publisher.stdin.write(b"".join(b"%d\n" % number for number in range(100)))
        lines = 0
        while lines < 100:
            line = publisher.stderr.readline()
            assert line
            lines += (b"received PUBACK", b"received PUBCOMP")[qos == 2] in line if qos else b"sending PUBLISH" in line
        mortal.process.kill()
        mortal.process.wait()
        _, err = publisher.communicate(b"".join(b"%d\n" % number for number in range(50)), timeout=60)
    told = [line for line in err.decode().splitlines() if not line.startswith("Client ")]
    assert publisher.returncode == 1
    assert told[0] == "penstock: the broker closed the connection"
    assert len(told) == 2, told
    if qos:
        counts = re.fullmatch(r"100 messages acknowledged, (\d+) not; what followed on standard input .*", told[1])
        assert counts
        assert 1 <= int(counts[1]) <= 20
    else:
        assert "sent before; QoS 0 is not acknowledged" in told[1]


def test_nobody_listens(cli):
    code, _, err = cli.run("pub", "-h", "127.0.0.1", "-p", 1, "-t", "x", "-m", "x")
    assert code == 1
    assert "cannot connect to 127.0.0.1:1: connection refused" in err
    assert cli.run("pub", "-h", "127.0.0.1", "-p", 1, "-t", "x", "-m", "x", "--quiet") == (1, b"", "")


def test_timeout(cli, broker, topic):
    code, out, err = cli.run("sub", "-p", broker.open, "-t", topic, "-W", 0.5)
    assert (code, out) == (27, b"")
    assert "timed out" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(cli, broker, topic, number):
    subscriber = Subscriber(cli, "-p", broker.open, "-t", topic)
    subscriber.process.send_signal(number)
    code, out, err = subscriber.output()
    assert (code, out) == (0, b"")
    assert "sending DISCONNECT" in err
    assert "Traceback" not in err


def test_a_reader_that_leaves(cli, broker, topic):
    subscriber = Subscriber(cli, "-p", broker.open, "-t", topic, "-W", 15)
    subscriber.process.stdout.close()
    subscriber.process.stdout = None
    for _ in range(3):
        cli.run("pub", "-p", broker.open, "-t", topic, "-m", "x")
    code, _, err = subscriber.output()
    assert code == 1
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pub", "-t", "x"), "one of -m, -f, -l, -n and -s"),
        (("pub", "-t", "x", "-m", "a", "-n"), "one of -m, -f, -l, -n and -s"),
        (("pub", "-m", "x"), "-t is missing"),
        (("pub", "-t", "a/#", "-m", "x"), "has no + or #"),
        (("pub", "-t", "x", "-m", "x", "-V", "4"), "use mqttv31, mqttv311 or mqttv5"),
        (("pub", "-t", "x", "-m", "x", "-P", "pw"), "a password needs a user name"),
        (("pub", "-t", "x", "-m", "x", "--will-qos", "1"), "a will needs --will-topic"),
        (("pub", "-t", "x", "-m", "x", "-V", "311", "-D", "publish", "content-type", "a"), "-D needs -V mqttv5"),
        (("pub", "-t", "x", "-m", "x", "-D", "publish", "nonsense", "a"), "for publish there are"),
        (("pub", "-t", "x", "-m", "x", "-L", "http://x/"), "write mqtt://"),
        (("pub", "-t", "x", "-m", "x", "-q", "3"), "'-q'"),
        (("pub", "-t", "x", "-f", "/nowhere"), "-f /nowhere: No such file"),
        (("sub",), "-t is missing"),
        (("sub", "-t", "x", "-c"), "-c needs a client id"),
        (("sub", "-t", "x", "-x", "soon"), "-x 'soon'"),
        (("sub", "-t", "x", "-F", "%z"), "%z is unknown"),
        (("sub", "-t", "x", "-i", "a", "-I", "b"), "-i and -I"),
        (("sub", "-t", "x", "--cert", "/nowhere"), "--cert and --key go together"),
    ],
)
def test_bad_usage(cli, broker, arguments, message):
    code, out, err = cli.run(*arguments, *(() if "-L" in arguments else ("-p", broker.open)))
    assert (code, out) == (2, b"")
    assert message in err
    assert "Traceback" not in err
