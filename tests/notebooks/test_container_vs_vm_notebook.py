"""The notebook that compares containers with virtual machines: one small sweep, and its report. test_endpoint_kinds.py
has the fair pair, with guests that both ends share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, clean_sandbox

from labkit.analysis import load
from studies.container_vs_vm import finding as container_vs_vm

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.needs("root", "qemu", "lab kernel", "bridge", "tap", "iperf3", "ethtool", "ping", "runc"),
]

SMALL = """
notebook: 02_container_vs_vm
parameters:
  {{endpoint: [namespace, container, guest], rounds: 1, duration_s: 1, omit_s: 0,
   loads: [ping, "udp:800"], observe: [guest_function_times], profile_rounds: 1}}
grid:
  - guest: ["{kernel}"]
"""


@pytest.fixture(scope="module")
def machine(lab_kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with clean_sandbox(tmp_path_factory.mktemp("machine")) as made:
        made.project(container_vs_vm=SMALL.format(kernel=lab_kernel))
        yield made


@pytest.fixture(scope="module")
def folder(machine: Sandbox) -> Path:
    machine.sweep("container_vs_vm", 900)
    return machine.swept("container_vs_vm", "container_vs_vm")


def test_endpoint_kinds_in_one_round(folder: Path, lab_kernel: str) -> None:
    table = load.load(folder)
    known = table[table["status"].isin(["ok", "invalid"])]  # on a loaded machine, flows may not overlap
    assert set(known["protocol"]) == {"udp", "ping"}
    assert set(known["endpoint"]) == {"namespace", "container", "guest"}
    guests = known[known["endpoint"].eq("guest")]
    assert set(guests["guest_kernel"]) == {lab_kernel}
    assert guests["guest_accelerator"].nunique() == 1
    assert set(guests["guest_cpus_count"]) == {1}
    # Kernels count it in steps of 10 ms. A window that a loaded machine has cut short may contain none.
    assert (guests["guest_cpu_s"] >= 0).all()
    assert guests["guest_cpu_s"].sum() > 0
    pings = known[known["protocol"].eq("ping")]
    assert set(pings["arm"]) >= {"veth_bridge", "veth_bridge (again)"}
    assert (pings["latency_p50_s"] > 0).all()


def test_guest_function_times(folder: Path) -> None:
    profiles = load.profiles(folder)
    seen = profiles[profiles["observer"].eq("guest_function_times")]
    bare = seen[seen["endpoint"].eq("namespace")]
    assert bare["reason"].str.contains("no endpoint is a guest").all()
    calls = container_vs_vm.calls(profiles)
    assert set(calls["function"]) == {"ip_rcv", "ip_list_rcv"}
    assert set(calls["ends"]) == {"a guest each"}
    assert calls["calls"].sum() > 0  # pings arrive by one of the two
    timed = calls[calls["calls"] > 0]
    assert (timed["p50, µs"] > 0).all()
    assert (timed["p50, µs"] <= timed["longest, µs"]).all()


def test_report_names_the_pairs(folder: Path) -> None:
    lines = container_vs_vm.pairs(load.load(folder))
    assert any(one.startswith("Not a fair pair: a guest each against namespaces.") for one in lines)
    page = (folder / "report.html").read_text()
    for words in (
        *lines, "Throughput and CPU time", "There is no fair pair here", "Not measured: set", "is 5.2 CPUs",
    ):  # fmt: skip
        assert words in page, words
    assert "Traceback" not in page
