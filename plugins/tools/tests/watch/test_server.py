"""The live page's server: who may ask, and what is answered."""

import http.client
import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import quote

import pytest

from plugins.tools.tests.watch.conftest import row, sample
from slime.__main__ import main
from slime_tools.watch import server as server_module
from slime_tools.watch.runs import find
from slime_tools.watch.server import MAX_OPEN, PageServer
from slime_tools.watch.view import RunView


@pytest.fixture
def serve():
    servers = []

    def start(*folders):
        server = PageServer([RunView(folder) for folder in folders])
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, path, key=None):
    headers = {} if key == "" else {"Authorization": f"Bearer {key or server.key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    ) as found:
        return found.headers, found.read()


def data(server, **have):
    return json.loads(ask(server, f"/data?have={quote(json.dumps(have))}")[1])


def test_the_page_is_everybodys_and_a_run_is_who_has_the_key_s(make_run, serve):
    server = serve(make_run(3, [sample("a", 1.0, "secret answer")]))
    headers, page = ask(server, "/", key="")
    assert b"secret answer" not in page
    assert server.key.encode() not in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    for path in ("/data?have={}", "/samples?run=0&name=step-000002", "/texts?run=0", "/nothing"):
        for key in ("", "wrong", "\xe9"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(server, path, key)
            assert refused.value.code == 401
            assert refused.value.read().startswith(b"The key is not that of this 'slime watch'.")
    assert server.url.endswith(f"/#{server.key}")
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_is_told_what_it_lacks(make_run, serve):
    folder = make_run(3, [sample("a", 1.0, "x")])
    server = serve(folder)
    (first,) = data(server)["runs"]
    assert first["curves"]["rl"]["steps"] == [1, 2, 3]
    have = {stage: curves["cursor"] for stage, curves in first["curves"].items()}
    have["samples"] = first["samples"]["cursor"]
    (nothing,) = data(server, runs={"0": have})["runs"]
    assert nothing["curves"] == {}
    assert "samples" not in nothing
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(4)) + "\n")
    (folder / "samples/step-000004.jsonl").write_text(json.dumps(sample("b", 0.5, "newer")) + "\n")
    (more,) = data(server, runs={"0": have})["runs"]
    assert (more["curves"]["rl"]["from"], more["curves"]["rl"]["steps"]) == (2, [3, 4])
    assert more["samples"]["names"] == ["step-000002", "step-000004"]
    assert b"newer" in ask(server, "/samples?run=0&name=step-000004")[1]
    assert b"rl       4 steps" in ask(server, "/texts?run=0")[1]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/samples?run=0&name=../config", "/samples?run=7&name=step-000002", "/samples", "/data"],
)
def test_there_is_nothing_else(make_run, serve, path):
    server = serve(make_run(3))
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, path)
    assert refused.value.code == 404


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"/data?have={have}"
            for have in ("x", "1", "[]", '{"runs":{"0":{"rl":1}}}', '{"runs":{"1":{}}}', "[" * 10_000, '{"runs":[]}')
        ),
        *(f"/data?have={have}" for have in ('{"since":"x"}', '{"most":0}', '{"names":[1]}', '{"other":1}')),
        "/samples?run=-1&name=step-000002",
        "/samples?run=x&name=step-000002",
    ],
)
def test_what_no_page_asks_is_refused_in_one_line(make_run, serve, capfd, path):
    server = serve(make_run(3, [sample("a", 1.0, "x")]))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Authorization": f"Bearer {server.key}"}
    connection.request("GET", path, headers=headers)
    refused = connection.getresponse()
    assert refused.status == 400
    assert refused.read().count(b"\n") == 0
    for allowed in (
        "/data?have={}",
        '/data?have={"runs":{"0":{}}}',
        '/data?have={"since":3,"runs":{"0":{"rl":"x"}}}',
        "/samples?run=0&name=step-000002",
    ):
        connection.request("GET", allowed, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    assert capfd.readouterr().err == ""


def test_what_is_no_address_is_refused_without_a_key(make_run, serve, capfd):
    server = serve(make_run(3))
    for address, status in (("http://[/data", b" 400 "), ("/", b" 200 ")):
        connection = silent(server, f"GET {address} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert status in connection.makefile("rb").readline()
        connection.close()
    assert capfd.readouterr().err == ""


def silent(server, begun=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall(begun)
    return connection


def num_threads(server):
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_connections_are_few(make_run, serve, capfd):
    """The oldest are closed, those with the key last."""
    server = serve(make_run(3))
    before = num_threads(server)
    page = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    held = []
    for number in range(300):
        held.append(silent(server, b"GET / HT" * (number % 2)))
        if number % 20 == 0:
            page.request("GET", "/data?have={}", headers={"Authorization": f"Bearer {server.key}"})
            assert page.getresponse().read()
            sock = page.sock
    assert page.sock is sock, "a page that asks from time to time keeps its connection"
    for connection in held[:200]:
        assert connection.recv(1) == b""
    held[-1].settimeout(0.2)
    with pytest.raises(TimeoutError):
        held[-1].recv(1)
    assert num_threads(server) - before <= MAX_OPEN + 10, "some are still ending"
    assert data(server)["runs"]
    for connection in held:
        connection.close()
    assert capfd.readouterr().err == ""


def test_a_connection_that_shows_no_key_is_closed_in_time(make_run, serve, monkeypatch):
    """Also one that sends a byte now and then."""
    monkeypatch.setattr(server_module, "STRANGER_S", 1.0)
    server = serve(make_run(3))
    dripping, honest = silent(server), http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    began, num_sent, kept = time.monotonic(), 0, None
    with suppress(ConnectionError):
        while time.monotonic() - began < 20:
            dripping.sendall(b"G")
            num_sent += 1
            time.sleep(0.2)
            honest.request("GET", "/data?have={}", headers={"Authorization": f"Bearer {server.key}"})
            assert honest.getresponse().read()
            kept = kept or honest.sock
    assert 1.0 < time.monotonic() - began < 20
    assert num_sent >= 2, "it had its time"
    assert honest.sock is kept


def answering(others):
    """Whether a thread of a server answers that is none of `others`: clients of other tests keep their connections."""
    return any("process_request_thread" in thread.name for thread in {*threading.enumerate()} - others)


def test_a_browser_that_goes_away_is_no_error(make_run, serve, capfd):
    server, others = serve(make_run(3)), {*threading.enumerate()}
    leaving = socket.create_connection(("127.0.0.1", server.port))
    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
    leaving.send(b"GET / HT")
    while not answering(others):  # until the server reads what comes next
        time.sleep(0.01)
    leaving.close()
    while answering(others):
        time.sleep(0.01)
    assert data(server)["runs"]
    assert capfd.readouterr().err == ""


def test_damage_is_said_as_everywhere(make_run, serve):
    folder = make_run(3)
    server = serve(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(urllib.error.HTTPError) as refused:
        data(server)
    assert b"metrics.jsonl:5: this line is not a row of metrics. Repair or delete the line." in refused.value.read()


def test_what_cannot_be_watched_is_one_line(make_run, serve, tmp_path, monkeypatch, capsys):
    folder = make_run(3)
    server = serve(folder)
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "none: there is no run here. 'slime runs' lists those of a folder." in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) == 2
    assert "runs: there is no run here. Name a run directory" in capsys.readouterr().err
    assert main(["watch", str(folder), "--port", str(server.port)]) == 2
    assert f"port {server.port} cannot be had (Address already in use). Name another" in capsys.readouterr().err


def test_a_folder_of_runs_lists_all_and_draws_the_newest(make_run, serve, tmp_path):
    for number in range(15):
        folder = make_run(3, name=f"run-{number:02d}")
        (folder / "status.json").write_text(json.dumps({"state": "finished", "started": 100.0 + number}))
    server = serve(*find(tmp_path))
    first = data(server)
    assert (first["count"], len(first["listed"]), len(first["runs"])) == (15, 15, 6)
    assert [run["name"] for run in first["runs"]] == [f"run-{number:02d}" for number in range(14, 8, -1)]
    assert first["listed"]["14"]["head"]["step"] == 3
    have = {"since": first["version"], "differences": first["cursor"], "runs": {"14": {}}}
    second = data(server, **have, most=2, names=["rollout/reward_mean"])
    assert second["listed"] == {}
    curves = second["runs"][0]["curves"]["rl"]
    assert (curves["steps"], curves["columns"]) == ([2, 3], {"rollout/reward_mean": [0.015, 0.03]})
    with (tmp_path / "run-07/metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(4)) + "\n")
    third = data(server, since=second["version"], differences=first["cursor"], runs={"14": {}})
    assert third["listed"].keys() == {"7"}
    assert "differences" not in third


def test_one_damaged_run_of_several_hides_no_other(make_run, serve):
    server = serve(make_run(3, name="sound"), damaged := make_run(3, name="damaged"))
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    sound, told = data(server)["runs"]
    assert sound["curves"]["rl"]["steps"] == [1, 2, 3]
    assert "metrics.jsonl:5: this line is not a row" in told["head"]["said"]


def test_samples_are_searched_and_a_prompt_is_found_in_another_step(make_run, serve):
    folder = make_run(3, [sample("0/a", 1.0, "right"), sample("0/b", 0.0, "wrong", asked="else")])
    (folder / "samples/step-000004.jsonl").write_text(json.dumps(sample("1/a", 0.5, "half right")) + "\n")
    server = serve(folder)

    def texts(query):
        told = json.loads(ask(server, f"/samples?run=0&{query}")[1])
        return [answer["turns"][0]["text"] for card in told["cards"] for answer in card["answers"]]

    assert texts("text=RIGHT") == ["half right", "right"]
    assert texts("name=step-000002&most=0.5") == ["wrong"]
    assert texts("of=step-000002&prompt=0/a&name=step-000004") == ["half right"]
    assert texts("of=step-000002&prompt=0/b&name=step-000004") == []
    for query in ("name=step-000002&least=x", "of=../config&prompt=0/a&name=step-000004", "name=demonstrations"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            texts(query)
        assert refused.value.code == 404
