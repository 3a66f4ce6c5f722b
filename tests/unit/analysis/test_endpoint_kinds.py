"""Kinds of endpoints: fair pairs, the effect of the boundary on a difference, and the report's published numbers."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT
from synthetic_rows import rows, save

from labkit.analysis import figures, load, verdicts
from labkit.common import call_trees
from labkit.common.errors import BadInput
from labkit.system.qemu import command
from labkit.system.qemu.vm_spec import Shape
from studies import reference_tables
from studies.container_vs_vm import endpoint_kinds
from studies.container_vs_vm import figure as figures_of_ends
from studies.container_vs_vm import finding as container_vs_vm

TRACE = ROOT / "tests/samples/function_graph-6.1-bridge.txt"
GUEST = {"guest_kernel": "6.12.9", "guest_accelerator": "tcg", "guest": "debian"}
OF = {
    "veth_bridge": ("namespace", {}),
    "veth_bridge/container": ("container", {}),
    "veth_bridge/guest": ("guest", {**GUEST, "guest_cpus_count": 1}),
    "veth_bridge/shared_guest": ("shared_guest", {**GUEST, "guest_cpus_count": 2}),
}
RATIOS = {
    "veth_bridge": 1.0, "veth_bridge (again)": 1.0, "veth_bridge/container": 1.0, "veth_bridge/guest": 0.02,
    "veth_bridge/shared_guest": 0.1, "veth_bridge/shared_guest (again)": 0.1,
}  # fmt: skip


def table(tmp_path: Path, ratios: dict[str, float] = RATIOS, **of_guest: Any) -> pd.DataFrame:
    """Return rows of all kinds of endpoints. `of_guest` changes those of guests with one endpoint each."""
    made = rows(
        ratios,
        slices=0,
        whole=5,
        protocol="udp",
        length_bytes=800,
        received_bytes=8000,
        cpu_s=1e-3,
        softirq_s=1e-4,
    )
    for row in made:
        name = row["arm"].removesuffix(" (again)")
        endpoint, report = OF[name]
        more = of_guest if endpoint == "guest" else {}
        again = {"role": "variant"} if row["arm"] == "veth_bridge/shared_guest (again)" else {}
        row |= {"topology": "veth_bridge", "endpoint": endpoint, "guest": "debian", **report, **more, **again}
        row |= {"guest_cpu_s": 5e-4, "guest_softirq_s": 1e-5} if report else {}
    return load.load(save(tmp_path / "run", made))


def test_fair_pair_uses_its_own_baseline(tmp_path: Path) -> None:
    result = table(tmp_path)
    fair = endpoint_kinds.fair(result)
    assert dict(fair.groupby("role")["endpoint"].first()) == {
        "baseline": "shared_guest",
        "control": "shared_guest",
        "variant": "guest",
    }
    [verdict] = verdicts.verdicts(fair).to_dict("records")
    assert (verdict["topology"], verdict["baseline"]) == ("veth_bridge/guest", "veth_bridge/shared_guest")
    assert (verdict["word"], verdict["guest_accelerator"]) == ("slower", "tcg")
    assert verdict["low"] < 0.2 < verdict["high"]
    usual = verdicts.verdicts(endpoint_kinds.usual(result))
    assert set(usual["topology"]) == {"veth_bridge/container", "veth_bridge/guest"}
    assert set(result.loc[fair.index, "role"]) == {"variant"}  # the table itself is unchanged


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"guest_kernel": "6.1.0"}, "The kernel also differs"),
        ({"guest_accelerator": "kvm"}, "The emulation also differs"),
        ({"guest_cpus_count": 2, "guest_kernel": "6.1.0"}, "The kernel and the number of CPUs also differ"),
    ],
)
def test_unfair_pair_names_the_difference(tmp_path: Path, differs: dict[str, Any], words: str) -> None:
    result = table(tmp_path, **differs)
    assert not len(endpoint_kinds.fair(result))
    [lines] = endpoint_kinds.fair_pair_sentences(result, "shared_guest", "guest")
    assert lines == f"Not a fair pair: a guest each against namespaces of one guest. {words}"


def test_emulation_thread_count_makes_a_pair_unfair(tmp_path: Path) -> None:
    result = table(tmp_path, guest_threads_count=1)
    assert len(endpoint_kinds.fair(result))  # older rows lack the number
    result.loc[result["endpoint"].eq("shared_guest"), "guest_threads_count"] = 1
    assert not len(endpoint_kinds.fair(result))
    [lines] = endpoint_kinds.fair_pair_sentences(result, "shared_guest", "guest")
    assert lines.endswith("The number of threads that emulate the CPUs also differs")
    assert "Linux 6.12.9, 2 emulated CPUs in 1 thread" in endpoint_kinds.machines(result)[-1]
    assert command.threads_count(Shape("debian", 2, profile="tracing"), kvm=False) == 1
    assert command.threads_count(Shape("debian", 2, profile="tracing"), kvm=True) == 2


def test_pair_counts_and_guests_are_separate(tmp_path: Path) -> None:
    one = table(tmp_path / "one")
    two = one.assign(pairs=2.0)
    two.loc[two["endpoint"].eq("shared_guest"), "guest_cpus_count"] = 4
    other = table(tmp_path / "other", guest_kernel="6.1.0").assign(guest="6.1.0")
    several = pd.concat([one, two, other], ignore_index=True)
    result = endpoint_kinds.fair(several)
    assert set(zip(result["pairs"], result["guest"], strict=True)) == {(1, "debian"), (2, "debian")}
    lines = endpoint_kinds.fair_pair_sentences(several, "shared_guest", "guest")
    assert lines[0].startswith("Not a fair pair")
    assert lines[0].endswith("The kernel also differs (1 pair, guests of 6.1.0)")
    assert lines[1].startswith("A fair pair")
    assert lines[1].endswith("(1 pair, guests of debian)")
    assert "4 emulated CPUs; what differs" in lines[2]
    assert len(container_vs_vm.shares(several)) == 2


def test_sentences(tmp_path: Path) -> None:
    result = table(tmp_path)
    lines = container_vs_vm.pairs(result)
    assert lines[0].startswith("A fair pair: containers against namespaces.")
    assert (
        lines[1]
        == "Not a fair pair: a guest each against namespaces. The kernel and the emulation also differ."
    )
    assert (
        "Both have Linux 6.12.9, 2 emulated CPUs; what differs is the boundary between machines, NICs"
        in lines[2]
    )
    [share] = container_vs_vm.shares(result)
    for words in (
        "800 bytes",
        "of guests against namespaces is 1/",
        "], slower; where both ends share one guest (the kernel, the emulation) it is 1/",
        "alone is 1/4.93 [0.194, 0.212], slower.",
    ):
        assert words in share
    nobody = result[result["endpoint"].ne("shared_guest")]
    assert len(container_vs_vm.pairs(nobody)) == 2
    assert container_vs_vm.shares(nobody) == []


def test_published_comparison() -> None:
    result = reference_tables.container_vs_vm()
    container, guest = result[result["default"]].sort_values("endpoint").to_dict("records")
    assert (container["length_bytes"], guest["length_bytes"]) == (8195, 1447)  # from bits and packets
    assert container["received_bps"] == pytest.approx(4.66e9 * (1 - 131428 / 710760))
    assert guest["received_pps"] == pytest.approx(861, abs=1)
    lines = list(container_vs_vm.report_contradictions(reference_tables.container_vs_vm()))
    assert "about 8200 bytes, the VMs in datagrams of 1450" in lines[1]
    assert "is 5.2 CPUs" in lines[2]
    assert "containers, 400 bytes: 55.84; containers, 800 bytes: 28.9" in lines[0]
    with pytest.raises(BadInput, match=r"container_vs_vm.csv cannot be read"):
        list(container_vs_vm.report_contradictions(result[result["endpoint"].eq("container")]))


def test_figures_name_their_machines(tmp_path: Path) -> None:
    result = table(tmp_path)
    for figure in (
        figures_of_ends.ends(result, reference_tables.container_vs_vm()),
        figures_of_ends.sides(result),
    ):
        words = figure.layout.title.text + figure.layout.title.subtitle.text
        assert "emulated CPU" in words
        assert "namespaces, containers: Linux 6.1.0, 2 CPUs" in words
        assert "a guest each, namespaces of one guest: Linux 6.12.9, 2 emulated CPUs" in words
    published = reference_tables.container_vs_vm()
    drawn = (figures_of_ends.ends(result, published), figures_of_ends.jitter_and_loss(result, published))
    stars = [trace.x for figure in drawn for trace in figure.data if "star" in str(trace.marker.symbol)]
    # 800 bytes, containers: rates, jitter in the unit of the axis, and loss
    assert [len(x) for x in stars] == [1, 1, 1, 1]
    assert stars[3][0] == pytest.approx(100 * 99103 / 807510)
    figure = figures.forest(verdicts.verdicts(endpoint_kinds.fair(result)), "Alone", "A fair pair")
    assert figure.layout.title.text == "Alone (emulated CPU)"
    assert figure.layout.title.subtitle.text.startswith("A fair pair<br>")
    assert len(figures_of_ends.ends(result.iloc[:0], reference_tables.container_vs_vm()).data) == 0


def test_changed_arms_are_not_mixed_with_unchanged_ones(tmp_path: Path) -> None:
    result, published = table(tmp_path), reference_tables.container_vs_vm()
    changed = result.assign(change="slow", topology=result["topology"] + "+slow", role="variant")
    changed["throughput_bps"] /= 10
    both = pd.concat([result, changed], ignore_index=True)
    alone, beside = (figures_of_ends.ends(rows, published) for rows in (result, both))
    assert [list(trace.x) for trace in beside.data] == [list(trace.x) for trace in alone.data]
    assert len(endpoint_kinds.fair(both)) == len(endpoint_kinds.fair(result)) > 0


def test_logarithmic_axis_with_zero(tmp_path: Path) -> None:
    every = table(tmp_path)
    result, some = every.copy(), every.copy()
    result.loc[result["endpoint"].eq("guest"), "guest_softirq_s"] = 0.0
    zeros = [trace for trace in figures_of_ends.sides(result).data if trace.mode == "text"]
    assert [(list(trace.text), trace.hovertext[0]) for trace in zeros] == [
        (["0"], "0 in 5 of 5 runs: veth_bridge/guest")
    ]
    some.loc[some["endpoint"].eq("guest") & some["round"].eq(0), "guest_softirq_s"] = 0.0
    of_all, of_some = (
        [len(trace.x) for trace in figures_of_ends.sides(rows).data if trace.mode == "markers"]
        for rows in (every, some)
    )
    assert of_some.count(1) == of_all.count(1) - 1, "a mean of the other rounds alone is too large"
    result.loc[result["endpoint"].eq("guest"), "throughput_bps"] *= 1e-20
    assert figures_of_ends.ends(result, reference_tables.container_vs_vm()).layout.xaxis.dtick == 6


def test_function_times_by_kernel(tmp_path: Path) -> None:
    one = {"count": 1600, "p50_s": 1e-6, "p90_s": 2e-6, "p99_s": 3e-6, "max_s": 9e-6}
    seen = {"tracer": "function_graph", "functions": {"ip_rcv": one}}
    made = rows({"veth_bridge": 1.0}, rounds=1, slices=0, whole=1, protocol="udp")
    [row] = made
    row |= {"method": "profile", "observer": "function_times", "endpoint": "namespace", "received_count": 800}
    row |= {"observed": seen, "overhead_ratio": 0.9, "artefact": None}
    profiles = load.profiles(save(tmp_path / "run", made))
    [line] = container_vs_vm.calls(profiles).to_dict("records")
    assert (line["function"], line["ends"], line["kernel"]) == ("ip_rcv", "namespaces", "6.1.0")
    assert (line["calls a packet"], line["p50, µs"], line["speed left"]) == (2, 1, 0.9)
    assert line["tracer"] == "function_graph"
    [line] = container_vs_vm.calls(profiles.assign(protocol="tcp")).to_dict("records")
    assert line["calls a packet"] is None, "a packet of TCP is what offloads make it"
    assert container_vs_vm.calls(profiles.iloc[:0]).empty
    row |= GUEST | {"endpoint": "guest", "observed": {**seen, "guest": seen}}
    both = container_vs_vm.calls(load.profiles(save(tmp_path / "guest", made)))
    assert list(both["kernel"]) == ["6.1.0", "6.12.9, emulated"]
    row |= {"window_s": 0.133, "observed": {**seen, "guest": {**seen, "window_s": 0.2}}}
    longer = container_vs_vm.calls(load.profiles(save(tmp_path / "longer", made)))
    assert list(longer["calls a packet"]) == pytest.approx([2, 1.33]), "guests' tracers were on for longer"


ROOTS = ("net_rx_action", "udp_sendmsg")


def traced(folder: Path, **of_container: Any) -> Path:
    """Write a run whose endpoints are namespaces and containers, with the calls of one packet in each."""
    with open(TRACE) as lines:
        trees = list(call_trees.Reader(ROOTS).read(lines))
    report = {"trees": [{"root": root, "part": 0.5} for root in ROOTS], "shortest_s": 1e-6,
            "roots": {root: {"chosen_of": "7 whole calls"} for root in ROOTS}}  # fmt: skip
    [row] = rows({"veth_bridge": 1.0}, rounds=1, slices=0, whole=1, protocol="udp", length_bytes=800)
    row |= {"method": "profile", "observer": "function_graph", "observed": report, "overhead_ratio": 0.9}
    row |= {"endpoint": "namespace", "artefact": "graph.txt"}
    container = {"endpoint": "container"} | of_container
    arms = [row | container | {"arm": f"veth_bridge/container{again}"} for again in ("", " (again)")]
    at_another_size = {"observer": "function_times", "length_bytes": 400, "observed": {"functions": {}}}
    save(folder, [row, *arms, row | at_another_size])
    (folder / "graph.txt").write_text("\n".join(line for tree in trees for line in tree.lines))
    return folder


def test_packet_calls_by_endpoint_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def packets(folder: Path) -> list[Any]:
        shown: list[Any] = []
        monkeypatch.setattr(container_vs_vm, "display", shown.append)
        container_vs_vm.ContainerVsVmFindings(folder, load.load(folder)).packets()
        return [getattr(one, "data", type(one)) for one in shown]

    heading, scale, *pieces = packets(traced(tmp_path / "all"))
    assert heading == "**The calls of one packet: udp, 1 pair, MTU 1500, 800 bytes each**"
    assert scale == "One scale of time for both sides."
    titles = [piece["title"] for piece in pieces if isinstance(piece, dict)]
    arms = ("veth_bridge", "veth_bridge/container")
    assert titles == [f"{arm}: {root}" for root in ROOTS for arm in arms]
    half = traced(tmp_path / "half", status="failed", reason="it ended early")
    _, missing, *pieces = packets(half)
    assert (
        missing
        == "*veth_bridge/container was traced, but none of its calls can be used: failed (it ended early).*"
    )
    assert len(pieces) == 2
    none = save(tmp_path / "none", rows({"veth_bridge": 1.0}, rounds=1, slices=0, whole=1, protocol="udp"))
    assert packets(none) == ["*Not measured: set `observe=function_graph`.*"]


def test_control_profiles_are_not_compared() -> None:
    """An arm's own profile may have failed while that of its control has not."""
    arms = [("guest", "veth_bridge/guest", False), ("shared_guest", "veth_bridge/shared_guest (again)", True)]
    point = pd.DataFrame(arms, columns=["endpoint", "arm", "again"])
    assert container_vs_vm._compared_pairs(point) == []
    point.loc[2] = ["shared_guest", "veth_bridge/shared_guest", False]
    assert container_vs_vm._compared_pairs(point) == [("veth_bridge/shared_guest", "veth_bridge/guest")]
