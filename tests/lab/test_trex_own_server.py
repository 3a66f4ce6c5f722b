"""labkit starts a TRex server itself, on the interfaces of its topologies. The program is a stand-in that checks how it
is started, sends real frames through the topology, and answers as a recorded server did."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox import LABKIT, Row, Sandbox, sandbox, until
from trex_server import release

from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "veth", "bridge", "nft", "trex client")

SHORT = "generator=trex profile=64b warmup_s=0.3 ramp_s=0.8 hold_s=0 step_s=0.4 target=20kpps latency=false"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox(tmp_path_factory.mktemp("trex"), user=False) as made:
        release(made.folder / "v3.08")
        yield made


def own(
    made: Sandbox, name: str, *words: str, code: int = 0, **plan: Any
) -> tuple[list[Row], list[Any], str]:
    """Run an experiment with the fake release; return its rows, what the server logged, and what labkit printed."""
    log, folder = made.folder / f"{name}.jsonl", made.folder / name
    log.write_text("")
    done = made.labkit(
        *("run", *words, "--folder", str(folder)),
        timeout=100,
        FAKE_TREX=json.dumps({"log": str(log), **plan}),
        LABKIT_TREX=str(made.folder / "v3.08"),
    )
    assert done.returncode == code, done.stderr
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    return run_folder.read_rows(folder) if folder.exists() else [], logged, done.stdout + done.stderr


def results(rows: list[Row]) -> dict[str, Row]:
    return {row["arm"]: row for row in rows if row["part"] == "cost"}


def no_server_left(made: Sandbox) -> bool:
    return not made.pids(lambda words: any("_t-rex-64" in word or "client_process" in word for word in words))


@pytest.mark.long
def test_load_test_of_two_topologies(box: Sandbox) -> None:
    """A bridge and a router: the stand-in's own frames arrive, so addresses and interfaces are right."""
    rows, logged, out = own(box, "two", "load_test", "topology=veth_bridge,veth_routed", *SHORT.split())
    by_name = results(rows)
    assert {name: row["status"] for name, row in by_name.items()} == {
        "veth_bridge": "ok",
        "veth_bridge (again)": "ok",
        "veth_routed": "ok",
    }, [row["reason"] for row in by_name.values()]
    assert by_name["veth_routed"]["throughput_pps"] == pytest.approx(40_000, rel=0.1)
    assert all(0 < row["trex_cpu_share"] < 2 for row in rows if row["part"] == "steps")
    assert by_name["veth_routed"]["trex_server"] == "labkit's own server"
    assert "64b through veth_routed, test 1" in out
    starts = [how for what, how in logged if what == "started"]
    assert len(starts) == 3
    start = starts[0]
    assert start["argv"][:4] == ["./_t-rex-64", "-i", "--hdrh", "--cfg"]
    assert start["argv"][5:] == ["--no-key", "--no-scapy-server", "--no-ofed-check", "--iom", "0"]
    assert (start["cwd"], start["libraries"]) == (str(box.folder / "v3.08"), "so/x86_64:so")
    ring = "blocksz=1048576,framesz=2048,framecnt=16384"
    assert start["config"]["interfaces"] == [
        f"--vdev=net_af_packet0,iface=trex0,{ring}",
        f"--vdev=net_af_packet1,iface=trex1,{ring}",
    ]
    assert no_server_left(box)
    assert not Path(start["argv"][4]).exists()
    assert not list(Path("/var/run/dpdk").glob("labkit-*"))


@pytest.mark.exhaustive  # test_trex.py has one elsewhere that dies, and below one does not start
def test_own_server_that_dies_is_named(box: Sandbox) -> None:
    rows, _, _ = own(box, "dies", "load_test", "topology=veth", *SHORT.split(), code=2, dies_after=5)
    reason = results(rows)["veth"]["reason"]
    assert "the TRex server that labkit started does not answer any more: Port 0 : [RPC] - Failed" in reason


@pytest.mark.long
def test_server_that_does_not_start(box: Sandbox) -> None:
    rows, _, _ = own(
        box, "broken", "load_test", *SHORT.split(), code=2, ends="ERROR: You don't have enough physical cores"
    )
    row = results(rows)["veth_bridge"]
    assert row["status"] == "failed"
    assert row["reason"] == (
        "the TRex server ended before it was ready: ERROR: You don't have enough physical cores"
    )
    words = "eth_dev_init: call to mmap failed on AF_PACKET socket for trex0"
    rows, _, _ = own(box, "locked", "load_test", *SHORT.split(), code=2, ends=words)
    assert results(rows)["veth_bridge"]["reason"].endswith("fit into locked memory: ulimit -l unlimited")
    assert no_server_left(box)


def test_killed_labkit_leaves_no_server(box: Sandbox) -> None:
    log = box.folder / "killed.jsonl"
    log.write_text("")
    process = box.start(
        *LABKIT, "run", "load_test", "generator=trex", "profile=64b", "warmup_s=60",
        FAKE_TREX=json.dumps({"log": str(log)}), LABKIT_TREX=str(box.folder / "v3.08"),
    )  # fmt: skip
    assert until(lambda: "start_traffic" in log.read_text(), 30), log.read_text()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert until(lambda: no_server_left(box), 10)
    assert until(box.only_namespace, 10)
    assert not list(Path("/var/run/dpdk").glob("labkit-*"))


@pytest.mark.long
def test_stateful_traffic(box: Sandbox) -> None:
    rows, logged, _ = own(box, "stateful", "trex_stateful", "topology=veth", "mult=10", "test_s=6")
    assert "--astf" in logged[0][1]["argv"]
    row = results(rows)["veth"]
    assert (row["status"], row["connections_count"]) == ("ok", 501), row["reason"]


SEARCH = "throughput generator=trex rounds=1 loss=0 width=0.1 sum_s=0.5 passes=1 limit_s=60"


@pytest.mark.exhaustive  # test_trex.py searches with a server elsewhere
def test_search_finds_what_the_device_carries(box: Sandbox) -> None:
    """The stand-in sends at most 100 kpps, and its device carries 22 kpps."""
    rows, _, _ = own(
        box, "search", *SEARCH.split(), "topology=veth_bridge", max_pps=100_000, capacity_pps=22_000
    )
    row = results(rows)["veth_bridge"]
    assert row["status"] == "ok", row["reason"]
    assert row["generator"] == "trex"
    assert "TRex on kernel interfaces sends in bursts" in row["doubts"]
    assert 15_000 < row["throughput_pps"] < 22_500  # the stand-in keeps time badly on a busy machine
    latency = [row for row in rows if row["method"] == "trial" and "latency" in str(row["phase"])]
    assert {row["latency_clock"] for row in latency} == {"trex"}
    assert latency[0]["probes_sent_count"] > 0
    assert no_server_left(box)
