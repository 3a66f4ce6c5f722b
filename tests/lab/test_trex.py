"""Load tests with TRex's own client against a server on a sandbox's loopback that replays recorded answers."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sandbox import LABKIT, Done, Row, Sandbox, also, machine_fixture, one_sentence, until
from trex_server import Plan, argv

from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "trex client")

SHORT = ["profile=64b", "warmup_s=0.3", "ramp_s=1.2", "hold_s=0.4", "step_s=0.4", "target=30kpps"]
STATEFUL = ["mult=10", "test_s=2"]
ASTF = {"mode": "ASTF", "recorded": "astf_http_own", "api": (2, 3)}


@contextmanager
def served(made: Sandbox, name: str = "calls", **plan: Any) -> Iterator[tuple[str, Path]]:
    """Start a server in the sandbox; return its HOST:PORT and the file, of this name, with the calls that it
    answered."""
    log = made.folder / f"{name}.jsonl"
    log.write_text("")
    words = [*made.prefix, *argv(Plan(log=str(log), **plan))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        (made.folder / "server.pid").write_text(str(process.pid))
        try:
            yield f"127.0.0.1:{port}", log
        finally:
            process.kill()


def calls(log: Path) -> list[str]:
    """Return the called methods, without those of the client's own thread."""
    methods = [json.loads(line)[0] for line in log.read_text().splitlines()]
    return [method for method in methods if method != "get_async_events"]


def rates(log: Path) -> list[float]:
    """Return the rates that TRex was asked for, of each port."""
    calls_of_all = [json.loads(line) for line in log.read_text().splitlines()]
    return [given["mul"]["value"] for method, given in calls_of_all if method == "start_traffic"]


def released(log: Path) -> bool:
    """Return whether all acquired ports were released, and those with stateless traffic were stopped."""
    methods = calls(log)
    stopped = "remove_all_streams" in methods and methods.count("acquire") == 2
    return methods.count("acquire") == methods.count("release") and (
        stopped or "start_traffic" not in methods
    )


def go_on(made: Sandbox) -> None:
    """Continue the server, which a plan has stopped."""
    os.kill(int((made.folder / "server.pid").read_text()), signal.SIGCONT)


def against(
    made: Sandbox, name: str, experiment: str, usual: Sequence[str], *words: str, **plan: Any
) -> tuple[Done, list[Row], str, list[str]]:
    """Run an experiment against a server of this plan; `words` replace the usual ones of the same name.

    Return how it ended, its rows, the server's name, and the called methods. A server that lives on is left released.
    """
    folder = made.folder / name
    given = dict(word.split("=", 1) for word in (*usual, *words))
    with served(made, **plan) as (server, log):
        options = [f"server={server}", *(f"{key}={value}" for key, value in given.items())]
        done = made.labkit("run", experiment, *options, "--folder", str(folder), timeout=150)
        if plan.get("silent_at"):
            go_on(made)
        if not {"dies_at", "dies_after", "silent"} & plan.keys():
            assert until(lambda: released(log), 5), calls(log)
        return done, run_folder.read_rows(folder) if folder.exists() else [], server, calls(log)


def stateful(made: Sandbox, name: str, *words: str, **plan: Any) -> tuple[Done, list[Row], str]:
    """Run a stateful test; return how it ended, its rows, and the server's name."""
    return against(made, name, "trex_stateful", STATEFUL, *words, **ASTF | plan)[:3]


box = machine_fixture("module", user=False)


def words_of(server: str, *words: str) -> list[str]:
    """Return the parameters of a short load test; `words` replace those of the same name."""
    given = dict(word.split("=", 1) for word in (f"server={server}", *SHORT, *words))
    return [f"{name}={value}" for name, value in given.items()]


def load_test(made: Sandbox, name: str, *words: str, **plan: Any) -> tuple[list[Row], str]:
    """Return the rows of a load test and what labkit printed."""
    done, rows, _, _ = against(made, name, "load_test", SHORT, *words, **plan)
    assert done.returncode == 0, done.stderr
    return rows, done.stdout


def result_of(rows: list[Row]) -> Row:
    [row] = [row for row in rows if row["part"] == "cost"]
    return row


@pytest.mark.long
def test_ramp_ends_where_the_device_begins_to_lose(box: Sandbox) -> None:
    """Each port sends 10, 20 and 30 kpps with 997 probes a second to a device that forwards 22 kpps."""
    rows, out = load_test(box, "limited", capacity_pps=22_000, line_bps=1e9)
    result = result_of(rows)
    assert (result["status"], result["direction"], result["trex"]) == ("ok", "all", "v3.08")
    assert result["throughput_pps"] == pytest.approx(42_000, rel=0.05)
    assert "more than the limit of 0.01 %" in result["ended"]
    steps = [row for row in rows if row["part"] == "steps"]
    whole = [row for row in steps if row["direction"] == "all"]
    assert [row["phase"] for row in whole] == ["warm-up", "ramp", "ramp", "ramp"]  # no hold: it ended early
    assert [row["requested_pps"] for row in whole] == [3994, 21_994, 41_994, 61_994]
    assert whole[-1]["loss_ratio"] == pytest.approx(1 - 22 / 31, rel=0.02)
    # TRex's rate of a port includes its probes, and at their rate or below it refuses to start.
    assert rates(box.folder / "calls.jsonl")[::2] == [1997, 10_997, 20_997, 30_997]
    directions = [row for row in steps if row["direction"] != "all"]
    assert {row["direction"] for row in directions} == {"0→1", "1→0"}
    # The server's counters of probes go on over starts and stops, so each step has streams of its own.
    for row in directions:
        assert row["latency_buckets"] == {"10": 195, "300": 359, "1000": 232}
        assert row["probes_sent_count"] == pytest.approx(997 * row["duration_s"], abs=2)
    assert directions[0]["jitter_s"] == pytest.approx(476e-6)
    assert len({frozenset(row) for row in rows}) == 1
    assert result["throughput_bps"] == pytest.approx(512 * result["throughput_pps"])
    assert result["line"].endswith("1 Gbit/s / (84 · 8 bit) = 1488095 pps")
    assert "arrived within the loss limit" in out


@pytest.mark.long
def test_bits_are_those_that_arrived_also_with_ports_of_others(box: Sandbox) -> None:
    """The server's frames have 64 bytes, whatever the mean length of the load is."""
    rows, _ = load_test(box, "bits", "profile=imix", "force=true", owner="alice")
    result = result_of(rows)
    assert result["status"] == "ok"
    assert result["frame_bytes"] > 300
    assert result["throughput_bps"] == pytest.approx(512 * result["throughput_pps"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"max_pps": 15_000}, "generator-limited: TRex sent "),
        *also("exhaustive", ({"swallows": True}, "interfaces refused "),
              ({"loss_ratio": 1.0}, "arrived: check the cables of ports 0,1")),
    ],
)  # fmt: skip
def test_generator_fault_makes_the_row_invalid(box: Sandbox, plan: dict[str, Any], words: str) -> None:
    rows, _ = load_test(box, next(iter(plan)), **plan)
    result = result_of(rows)
    assert result["status"] == "invalid"
    assert words in result["reason"]


OWNED = "port 0 of the TRex server {} is owned by alice: wait until it is released, or take"
OTHER_API = "has another version of the API than lbr-trex-client"


Unusable = tuple[str, dict[str, Any], Sequence[str], str]
UNUSABLE: list[Unusable] = [
    ("load_test", {"owner": "alice"}, (), OWNED),
    ("load_test", {"silent": True}, (), "no TRex server answers at {}"),
    ("load_test", {"api": (4, 1)}, (), OTHER_API),
    ("load_test", {}, ("ports=0,7",), "has no port 7; it has 0, 1"),
    ("load_test", {"line_bps": 1e6}, (), "target=30kpps is more than the link carries"),
    ("trex_stateful", {"recorded": "stl_errors"}, STATEFUL, "runs in another mode: start it with --astf"),
]
UNUSABLE_TOO: list[Unusable] = [
    ("load_test", {"api": (6, 0)}, (), OTHER_API),
    ("load_test", ASTF | {"api": (5, 1)}, (), "runs in another mode: start it without --astf"),
    ("load_test", {}, ("line_rate_bps=1e9", "target=120%"), "target=120% is more than the link carries"),
    ("trex_stateful", ASTF | {"silent": True}, STATEFUL, "no TRex server answers at {}"),
]


@pytest.mark.long
@pytest.mark.parametrize("cases", [UNUSABLE, *also("exhaustive", UNUSABLE_TOO)], ids=["each", "others"])
def test_servers_that_cannot_be_used(cases: list[Unusable], box: Sandbox) -> None:
    before = {*box.data.glob("trex_stateful/*")}
    with ExitStack() as stack:
        servers, lines = [], []
        for number, (experiment, plan, words, _sentence) in enumerate(cases):
            servers.append(stack.enter_context(served(box, f"unusable{number}", **plan)))
            server = servers[-1][0]
            given = words_of(server, *words) if experiment == "load_test" else [f"server={server}", *words]
            lines.append(shlex.join(["run", experiment, *given]))
        ended = box.commands(*lines, timeout=400)
        for _server, log in servers:
            assert until(lambda log=log: calls(log).count("acquire") == calls(log).count("release"), 5), log  # type: ignore[misc]
    for (server, _log), (*_case, sentence), done in zip(servers, cases, ended.values(), strict=True):
        assert sentence.format(server) in one_sentence(done)
    assert {*box.data.glob("trex_stateful/*")} == before


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    [{"dies_at": "get_latency_stats"}, *also("exhaustive", {"silent_at": "start"})],
    ids=lambda plan: "-".join(map(str, *plan.items())),
)
def test_a_server_that_dies_or_falls_silent_while_connections_run(box: Sandbox, plan: dict[str, Any]) -> None:
    begun = time.monotonic()
    done, rows, server = stateful(box, "-".join(map(str, *plan.items())), "mult=10,20", **plan)
    assert time.monotonic() - begun < 90
    assert done.returncode == 2
    assert f"the TRex server {server} does not answer any more" in one_sentence(done)
    assert [row["status"] for row in rows] == ["failed"]


@pytest.mark.long
def test_connections_that_trex_did_not_begin(box: Sandbox) -> None:
    """mult=4000 asks for 11,104 connections per second, and TRex began about 6,000."""
    done, rows, _ = stateful(box, "overload", "mult=4000", "test_s=5", recorded="astf_overload")
    assert done.returncode == 0, done.stderr
    result = rows[0]
    assert (result["status"], result["connections_count"]) == ("invalid", 29_460)
    assert re.fullmatch(
        r"generator-limited: TRex began [56]\d\d\d of 11104 connections per second", result["reason"]
    )
    assert result["connection_errors_count"] == 3  # not the 421 packets that its receiver put off
    assert [row["probes_lost_count"] for row in rows[1:]] == [0, 0]
    done, _, _ = stateful(box, "short", "test_s=1")
    assert done.returncode == 2
    assert "test_s=1" in one_sentence(done)


@pytest.mark.long
def test_an_ended_labkit_leaves_a_stateful_server_stopped_and_released(box: Sandbox) -> None:
    with served(box, **ASTF) as (server, log):
        process = box.start(*LABKIT, "run", "trex_stateful", f"server={server}", "mult=10", "test_s=60")
        assert until(lambda: "get_latency_stats" in calls(log)[2:], 30), calls(log)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        assert until(lambda: calls(log).count("release") == 1, 15), calls(log)
        assert calls(log).count("acquire") == calls(log).count("start") == calls(log).count("stop") == 1


def unheard(server: str) -> str:
    """Return the doubt about a server whose events cannot be heard."""
    port = int(server.rpartition(":")[2])
    return f"nothing listens at port {port - 1} of 127.0.0.1, the publisher of the TRex server"


@pytest.mark.long
def test_a_publisher_that_does_not_listen_is_a_doubt(box: Sandbox) -> None:
    """TRex's client asks for events twice a second anyway, so tests are right without it."""
    done, rows, server = stateful(box, "mute", "test_s=6", publishes=False)
    assert done.returncode == 0, done.stderr
    assert [unheard(server) in str(row["doubts"]) for row in rows] == [True] * 3
    assert (rows[0]["status"], rows[0]["connections_count"]) == ("ok", 501)


SEARCH = ["rounds=1", "loss=0", "width=0.1", "sum_s=0.5", "passes=1", "limit_s=60"]


@pytest.mark.long
def test_search_with_a_server_elsewhere(box: Sandbox) -> None:
    """TRex sends 100 kpps at most, and the device forwards 22 kpps, loses 0.2 % of them, and has no topology."""
    done, rows, server, _ = against(
        box, "search", "throughput", SEARCH, "loss=0,0.005", "sum_s=1", max_pps=100_000, capacity_pps=22_000,
        loss_ratio=0.002,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ndr, pdr = [row for row in rows if row["method"] == "search"]
    assert (pdr["status"], pdr["topology"], pdr["trex_server"], pdr["trex"]) == (
        "ok", "outside", server, "v3.08",
    )  # fmt: skip
    assert 15_000 < pdr["throughput_pps"] < 22_500  # the replaying server keeps time badly on a busy machine
    assert ndr["status"] == "invalid"
    assert ndr["constant_loss_ratio"] == pytest.approx(0.002, rel=0.15)
    assert f" and {100 * ndr['constant_loss_ratio']:.2g} % on average up to " in ndr["reason"]
    trials = [row for row in rows if row["method"] == "trial"]
    assert len({frozenset(row) for row in rows}) == 1
    assert {row["latency_clock"] for row in trials if "latency" in str(row["phase"])} == {"trex"}
    assert {row["cpu_s"] for row in rows} == {None}  # this machine's work is not the device's
    assert pdr["line"].endswith("10 Gbit/s / (84 · 8 bit) = 14880952 pps")
    assert "outside, frames 64, 1000 flows: PDR 0.5 % " in done.stdout
    assert "was not found: no rate has loss of at most 0 %" in done.stdout


@pytest.mark.long
def test_a_server_that_is_stopped_in_a_step_has_a_deadline_and_releases_the_ports_later(box: Sandbox) -> None:
    begun = time.monotonic()
    done, rows, server, _ = against(box, "silent", "load_test", SHORT, silent_at="start_traffic")
    assert time.monotonic() - begun < 90
    words = one_sentence(done)
    assert f"the TRex server {server} does not answer any more" in words or "did not" in words
    assert [row["status"] for row in rows if row["part"] == "steps"] == ["failed"]


@pytest.mark.long
def test_a_server_that_dies_keeps_the_steps_before(box: Sandbox) -> None:
    done, rows, server, _ = against(box, "dies", "load_test", SHORT, dies_after=5)
    assert f"the TRex server {server} does not answer any more" in one_sentence(done)
    steps = [row for row in rows if row["part"] == "steps" and row["direction"] == "all"]
    assert [row["status"] for row in steps] == ["ok", "ok", "failed"]
    assert result_of(rows)["status"] == "invalid"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, *also("exhaustive", signal.SIGINT)])
def test_an_ended_labkit_leaves_the_server_stopped_and_released(box: Sandbox, number: signal.Signals) -> None:
    with served(box) as (server, log):
        process = box.start(*LABKIT, "run", "load_test", f"server={server}", "profile=64b", "warmup_s=30")
        assert until(lambda: "start_traffic" in calls(log), 30), calls(log)
        process.send_signal(number)
        process.communicate(timeout=20)
        assert until(lambda: released(log), 15), calls(log)
        methods = calls(log)
        assert methods.count("stop_traffic") == methods.count("start_traffic") == 2


PROFILE = """
from trex.stl.api import *
class Own:
    def get_streams(self, direction, **more):
        packet = Ether() / IP(src="198.18.0.1", dst="198.18.0.2") / UDP(dport=7) / (b"x" * 82)
        return [STLStream(packet=STLPktBuilder(pkt=packet), mode=STLTXCont(pps=1000))]
def register():
    return Own()
"""


@pytest.mark.long
def test_own_profile_runs_where_it_is_named(box: Sandbox) -> None:
    """A profile may name a capture beside it, as TRex's own do."""
    path = box.folder / "profiles" / "own.py"
    path.parent.mkdir()
    (box.folder / "captures").mkdir()
    (box.folder / "captures" / "size").write_text("82")
    beside = 'open(__file__.rpartition("/")[0] + "/../captures/size").read()'
    path.write_text(PROFILE.replace("* 82", f"* int({beside})"))
    rows, _ = load_test(box, "own", f"profile={path}")
    assert [one.name for one in path.parent.iterdir()] == ["own.py"]
    result = result_of(rows)
    assert (result["status"], result["frame_bytes"]) == ("ok", 128)


WRONG_PROFILES = {
    "is not valid Python": "def register(:\n",
    "RuntimeError: broken here": "raise RuntimeError('broken here')\n",
    "a stateless profile: it ends Python (sys.exit) instead of returning a": "import sys\nsys.exit(3)\n",
    "TRex cannot take it as a stateless profile": "x = 1\n",
    "IndexError": PROFILE.replace("direction, **more", "port_id, **more").replace(
        "packet =", "[0, 1][port_id + 1]; packet ="
    ),
}


@pytest.mark.long
def test_invalid_profile_is_refused(box: Sandbox) -> None:
    with served(box) as (server, _):
        lines = {}
        for number, (sentence, text) in enumerate(WRONG_PROFILES.items()):
            path = box.folder / f"wrong{number}.py"
            path.write_text(text)
            lines[" ".join(["run load_test", *words_of(server, f"profile={path}")])] = sentence
        for line, done in box.commands(*lines).items():
            assert lines[line] in one_sentence(done), line


@pytest.mark.long
def test_stateful_traffic_of_the_transcript(box: Sandbox) -> None:
    """The server replays the recorded counters: 8,140 packets one way and 16,902 the other."""
    done, rows, server = stateful(box, "stateful", "test_s=6")
    assert done.returncode == 0, done.stderr
    assert not any(unheard(server) in str(row["doubts"]) for row in rows)
    [result] = [row for row in rows if row["part"] == "cost"]
    there, back = [row for row in rows if row["part"] == "directions"]
    assert (result["status"], result["mult"], result["connections_count"]) == ("ok", 10, 501)
    assert result["connection_errors_count"] == 0  # err_no_tcp_udp counts only the latency probes
    assert (there["direction"], there["sent_count"], there["received_frames_count"]) == ("0→1", 8140, 8140)
    assert (back["direction"], back["sent_count"], back["received_frames_count"]) == ("1→0", 16_902, 16_902)
    # One was on its way when TRex stopped, and all frames arrived.
    assert (there["probes_sent_count"], there["probes_lost_count"]) == (5134, 0)
    assert (back["jitter_s"], back["probes_lost_count"]) == (pytest.approx(122e-6), 0)
    assert back["latency_max_s"] == pytest.approx(11_681e-6)
    assert back["throughput_bps"] > 20 * there["throughput_bps"] > 0  # requests one way, answers the other
