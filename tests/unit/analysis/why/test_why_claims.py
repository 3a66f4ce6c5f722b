"""The first sentence of `labkit why` for TCP, loss, frames, kernels and endpoints, and its rate of false claims."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic_arms import (
    BASELINE,
    RECEIVE,
    USUAL,
    MadeArm,
    concluded,
    effect,
    run,
    two_runs,
    within,
)

from labkit.analysis.flame.significance import Estimate
from labkit.analysis.why import arms, conclusion, environment, evidence, phrases
from labkit.cli import main
from labkit.common import schema
from labkit.measure.experiments import changes
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.throughput_search.parameters import Throughput


def test_share_of_the_difference() -> None:
    for size, total, words in (
        (Estimate(0, 2, 2, 1, 0.01), Estimate(0, 4, 4, 1, 0.01), "50 %"),
        (Estimate(0, 5, 5, 1, 0.01), Estimate(0, 4, 4, 1, 0.01), "100 %"),
        (Estimate(0, 8, 8, 1, 0.01), Estimate(0, 4, 4, 1, 0.01), "more than the whole difference, .* takes less"),
        (Estimate(8, 0, -8, 1, 0.01), Estimate(4, 0, -4, 1, 0.01), "more than the whole difference, .* takes more"),
    ):  # fmt: skip
        evidence: Any = SimpleNamespace(split=SimpleNamespace(total=total), cost_differs=True)
        assert re.match(f", {words}", phrases.share(size, evidence))


FILTER = (effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1"),)


def test_claims_of_many_arms_are_corrected(tmp_path: Path) -> None:
    names = [f"x{at}" for at in range(30)]
    plain = within(tmp_path, MadeArm(effects=FILTER), 1)
    made = [
        arms.ArmConclusion(name, "", replace(plain, claims=name == "x0", p=0.04 if name == "x0" else 0.5))
        for name in names
    ]
    alone, many = arms.judge_together(made[:1]), arms.judge_together(made)
    assert [each.conclusion.claims for each in (*alone, many[0]) if each.conclusion] == [True, False]
    assert many[0].sentence.startswith("No cause is claimed, because chance alone")


@pytest.mark.parametrize(("lost", "named"), [(0.6, True), (0.201, False), (0.0, False)])
def test_loss_is_named_only_if_it_explains_the_difference(tmp_path: Path, lost: float, named: bool) -> None:
    """Costly code and more loss cost time. Much less loss saves time, so it cannot be the cause."""
    columns = {"topology": "veth_routed", "arm": "veth_routed"}
    costly = MadeArm({f"{RECEIVE['udp']};unknown_function_[k]": 8e-6}, lost=lost, columns=columns)
    result = within(tmp_path, costly, 4, again=MadeArm(), rounds=8, noise=0.01)
    assert result.claims
    losses = [each for each in result.candidates if each.name.endswith("packets are lost")]
    assert any(each.strength > 0 for each in losses) == named
    assert result.cause != "fewer packets are lost"


def test_smaller_frames_between_two_runs(tmp_path: Path) -> None:
    sides = MadeArm(frames=30_000), MadeArm(frames=90_000)
    result = concluded(*two_runs(tmp_path, *sides, "tcp", **{"veth mtu": "1500 → 1400"}))
    assert result.cause == "smaller frames"
    assert "veth mtu" in result.sentence.partition(". ")[0]


@pytest.mark.parametrize(("again", "named"), [(30_000, True), (60_000, False)])
def test_frames_of_another_size_in_the_control_too_are_no_cause(
    again: float, named: bool, tmp_path: Path
) -> None:
    other = MadeArm(frames=90_000, columns={"arm": "veth", "topology": "veth"})
    result = within(tmp_path, other, protocol="tcp", again=MadeArm(frames=again))
    assert ("smaller frames" in [one.name for one in result.candidates]) == named


@pytest.mark.parametrize(
    ("counted", "of_its_own", "mtu_bytes", "cause"),
    [
        (True, False, 1500, "smaller frames"),
        (False, False, 1500, "smaller frames"),
        (False, True, 1500, "unknown_function"),
        (False, False, 65520, "the bridge"),
    ],
)
def test_segments_before_the_path_are_smaller_frames(
    counted: bool,
    of_its_own: bool,
    mtu_bytes: int,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same code runs more often, as the counters or the offloads of the rows say. Other code has its own name.

    With an MTU of 65,520 bytes, a frame has all of a packet before segmentation.
    """
    if not counted:
        monkeypatch.setattr(evidence, "_frames", lambda *_: None)
    own = {f"{RECEIVE['tcp']};unknown_function_[k]": 3.0}
    same = {stack: 2 * seconds for stack, seconds in USUAL["tcp"].items()}
    more = {"mtu_bytes": mtu_bytes}
    base = MadeArm(columns={"offloads": "scatter-gather tcp-segmentation-offload", **more})
    columns = {**VETH, "offloads": "scatter-gather", **more}
    other = MadeArm(own if of_its_own else same, frames=900_000, columns=columns)
    result = within(tmp_path, other, protocol="tcp", base=base)
    assert result.cause == cause
    words = "offload tcp-segmentation-offload (client: on → off), which makes smaller frames"
    assert (words in result.sentence) == (cause == "smaller frames")
    assert ("of the code that both sides run" in result.sentence) == (cause == "smaller frames")


@pytest.mark.parametrize("effective", [True, False])
def test_two_kernels(tmp_path: Path, effective: bool) -> None:
    """Another kernel has other defaults and other code, so no sysctl of it is the first suspect."""
    more = {stack: 1.5 * seconds for stack, seconds in USUAL["udp"].items()} if effective else {}
    sysctls = ("sysctl net.core.busy_poll", "sysctl net.core.high_order_alloc_disable")
    sides = MadeArm(columns={"kernel": "6.1.0"}), MadeArm(more, columns={"kernel": "6.12.0"})
    result = concluded(*two_runs(tmp_path, *sides, **dict.fromkeys(sysctls, "0 → 1")))
    assert result.claims == effective
    first = result.sentence.partition("; ")[0].partition(": ")[0]
    assert "kernel" in first
    assert "sysctl" not in first


LOADS = [
    ("udp", {"pairs": 8, "length_bytes": 64, "rate_bps": 1e6, "family": 6, "mtu_bytes": 1400, "endpoint": "container"}),
    ("tcp", {"streams": 4, "mss_bytes": 536, "congestion": "reno", "zerocopy": True, "affinity": "0,1"}),
    ("tcp", {}),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "load"), LOADS)
def test_recommended_commands_measure_the_same_point(
    tmp_path: Path, protocol: str, load: dict[str, object]
) -> None:
    changed = {"sysctl net.core.rmem_default": "1", "sysctl net.ipv4.tcp_sack": "0"}
    arm = MadeArm(columns=load)
    steps = concluded(*two_runs(tmp_path, arm, arm, protocol, **changed)).next
    assert steps
    for step in steps:
        words = shlex.split(step.partition(": labkit run datapaths ")[2])
        given = dict(word.split("=", 1) for word in words)
        if given:
            parameters = DatapathParameters.of(given)
            parameters.check()
            for name, value in load.items():
                there = getattr(parameters, name)
                assert there == ((value,) if name in ("pairs", "endpoint") else value), step
            usual = DatapathParameters.of({"protocol": protocol})
            assert {name for name in conclusion.PARAMETERS if name not in load and getattr(parameters, name) != getattr(
                usual, name)} == set()  # fmt: skip


def test_usual_values_are_the_defaults() -> None:
    usual = DatapathParameters()
    for name in conclusion.PARAMETERS:
        if texts := schema.BY_NAME[name].usual:
            value = usual.guest_word if name == "guest" else getattr(usual, name)
            assert texts[0] == str(value[0] if isinstance(value, tuple) else value)


def test_machine_sysctl_is_recommended_as_a_change(tmp_path: Path) -> None:
    sides = two_runs(tmp_path, MadeArm(), MadeArm(), **{"sysctl net.core.high_order_alloc_disable": "1"})
    [step] = [each for each in concluded(*sides).next if "change=" in each]
    [given] = [word.removeprefix("change=") for word in shlex.split(step) if word.startswith("change=")]
    assert changes.parse(given)[0].machine_sysctls == {"net.core.high_order_alloc_disable": "1"}
    assert "LABKIT_ALLOW=machine_sysctl" in step


@pytest.mark.parametrize(
    ("group", "change"), [("conf", "sysctl net.ipv4.conf.all.x=2 at client"), ("neigh", "")]
)
def test_only_sysctls_of_all_interfaces_are_recommended_as_changes(group: str, change: str) -> None:
    """There is no net.ipv4.neigh.all."""
    one = environment.Setting(f"sysctl net.ipv4.{group}.*.x", "1", "2", ("client",))
    assert conclusion._as_change(one) == change


def test_why_of_a_run_with_several_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = f"{RECEIVE['udp']};ip_rcv_[k];nf_hook_slow_[k];nft_do_chain_[k]"
    made = {
        BASELINE: MadeArm(),
        f"{BASELINE} (again)": MadeArm(),
        "rules": MadeArm({rules: 1.2e-6}, [effect("nftables", "nftables ruleset", "none", "9 rules")]),
        "filter": MadeArm(effects=FILTER),
    }
    folder = run(tmp_path / "run", made, 1)
    assert main(["why", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("- rules: ")
    assert "packet filter rules (nftables) cost 1." in lines[0]
    assert lines[1].startswith("- filter: ")
    assert f"labkit why {folder}:{BASELINE} rules" in lines[-1]
    assert main(["why", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["points"][0]["arm"], report["points"][0]["cause"]) == ("rules", "nftables ruleset")
    assert main(["why", str(folder), "--out", str(tmp_path / "page.html")]) == 2


def test_code_that_moved_is_no_new_cost(tmp_path: Path) -> None:
    """With GRO veth receives in a queue of its own: the same receiving has other callers, and only the rest is new."""
    usual = {stack: seconds for stack, seconds in USUAL["udp"].items() if stack.startswith(RECEIVE["udp"])}
    queue = RECEIVE["udp"].replace("process_backlog_[k];__netif_receive_skb_one_core_[k]", "veth_poll_[k]")
    elsewhere = {stack.replace(RECEIVE["udp"], f"{queue};__netif_receive_skb_one_core_[k]"): seconds
                 for stack, seconds in usual.items()}  # fmt: skip
    gone = {stack: -seconds for stack, seconds in usual.items()}
    added = {f"{queue};veth_xdp_rcv_[k];napi_gro_receive_[k];dev_gro_receive_[k]": 1e-6}
    step = effect("offload", "generic-receive-offload", "off", "on")
    result = within(tmp_path, MadeArm(elsewhere | gone | added, [step]))
    code = [each.cause for each in result.candidates if each.cause is not None]
    assert code[0].name == "merging received segments (GRO)"
    assert code[0].difference_s == pytest.approx(1.25e-6, rel=0.2)
    assert not [each.name for each in code if each.change == "gone"]


def version_6(more: float) -> dict[str, float]:
    """Return what IPv6's functions take instead of IPv4's; `more` seconds for each of their stacks."""
    result = {}
    for stack, seconds in USUAL["udp"].items():
        if "ip_rcv" in stack:
            result |= {
                stack: -seconds,
                stack.replace("ip_rcv", "ipv6_rcv").replace(";udp_", ";udpv6_"): seconds + more,
            }
    return result


@pytest.mark.parametrize("more", [0.0, 3e-6])
def test_code_that_replaces_similar_code_counts_net(tmp_path: Path, more: float) -> None:
    """IPv6's functions take the place of IPv4's: only the difference between them is a cost."""
    result = concluded(*two_runs(tmp_path, MadeArm(), MadeArm(version_6(more), columns={"family": 6})))
    first = result.sentence.partition(". ")[0]
    assert "family (4 → 6)" in first
    assert result.claims == bool(more)
    net = [each.cause for each in result.candidates if each.cause is not None]
    assert bool(net) == bool(more)
    for cause in net:
        assert cause.change == "changed"
        assert cause.difference_s == pytest.approx(6e-6 / 0.8, rel=0.3), (
            "2 stacks, and 20 % of the packets are lost"
        )


@pytest.mark.parametrize("streams", [1, 8])
def test_code_of_a_topology_is_no_cause_where_one_connection_waits(tmp_path: Path, streams: int) -> None:
    """Of several connections, nobody knows what waits."""
    slower = {f"{RECEIVE['udp']};unknown_function_[k]": 8e-6}
    routed = MadeArm(slower, lost=0.0, speed=0.01, columns=dict.fromkeys(VETH, "veth_routed"))
    made = {BASELINE: MadeArm(lost=0.0), "x": routed}
    folder = run(tmp_path / "run", made, 4, "tcp_rr", rounds=8, noise=0.01, streams=streams)
    result = concluded(f"{folder}:{BASELINE}", "veth_routed")
    assert (" costs " in result.sentence) == (streams == 8), result.sentence
    assert (result.round_trips is None) == (streams == 8)


@pytest.mark.parametrize(
    ("setting", "before"), [("streams", "1"), ("outstanding", "None"), ("length_bytes", "None")]
)
def test_an_arm_with_several_requests_at_once_has_no_time_of_one(
    tmp_path: Path, setting: str, before: str
) -> None:
    """The row of an arm that sets how many has the value of its point."""
    deep = MadeArm(lost=0.0, effects=[effect("parameter", setting, before, "8")])
    made = {BASELINE: MadeArm(lost=0.0), "x": deep}
    folder = run(tmp_path / "run", made, 4, "tcp_rr", rounds=4)
    result = concluded(f"{folder}:{BASELINE}", f"{folder}:x")
    assert (result.round_trips is None) == (setting != "length_bytes")


QUOTA = "cgroup level 1 cpu.max"
VETH = dict.fromkeys(("topology", "arm", "built_topology"), "veth")


def test_a_limit_is_evidence_though_the_topologies_differ(tmp_path: Path) -> None:
    """Between two topologies a setting counts only if both sides have it. A cgroup without a quota has `unlimited`."""
    sides = MadeArm(columns=VETH), MadeArm()
    result = concluded(*two_runs(tmp_path, *sides, **{QUOTA: "max 100000 → 50000 100000"}))
    shown = [(each.name, each.left, each.right) for each in result.settings]
    assert (QUOTA, "unlimited", "50000 100000") in shown


def test_a_value_that_is_alike_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    """Each run set the same value, over another default."""
    sides = (MadeArm(effects=[effect("sysctl", "net.core.x", before, "1")]) for before in ("0", "2"))
    assert "net.core.x" not in [each.name for each in concluded(*two_runs(tmp_path, *sides)).settings]


def test_another_kernel_without_effect_has_the_bound_of_the_whole_cost(tmp_path: Path) -> None:
    """New code that takes next to nothing says nothing about the cost of another kernel."""
    tiny = {f"{RECEIVE['udp']};strange_[k]": 4e-8}
    sides = MadeArm(columns={"kernel": "6.1.0"}), MadeArm(tiny, columns={"kernel": "6.12.0"})
    result = concluded(*two_runs(tmp_path, *sides))
    assert not result.claims
    assert "no effect was seen: its cost is below " in result.sentence
    total = result.split.total
    bound = float(re.search(r"below ([\d.]+) µs", result.sentence)[1]) * 1e-6  # type: ignore[index]
    assert bound == pytest.approx(max(abs(total.low), abs(total.high)), rel=0.02)


def test_values_in_sentences_are_short(tmp_path: Path) -> None:
    filters = " | ".join(f"filter protocol ip pref {at} u32 chain 0" for at in range(30))
    steps = [
        effect("tc_filter", "filters ingress", *each)
        for each in (("none", filters), (filters, f"{filters} | last"))
    ]
    changed = MadeArm({f"{RECEIVE['udp']};tcf_classify_[k];u32_classify_[k]": 5e-6}, steps)
    first = within(tmp_path, changed).sentence.partition(". ")[0]
    assert "a filter of traffic control (tc) costs" in first
    assert " from none to filter protocol ip pref 0 " in first
    assert len(first) < 300


def test_long_values_that_begin_alike_are_shown_where_they_differ() -> None:
    one = environment.Setting("filters", "x" * 200 + "left", "x" * 200 + "right", ("server",))
    assert phrases.setting(one) == "filters (server: … left → … right)"
    one = environment.Setting("mem", "1 " * 100 + "212995", "1 " * 100 + "212996", ("server",))
    assert phrases.setting(one) == "mem (server: … 212995 → … 212996)"


def test_command_for_a_search_is_that_of_a_search(tmp_path: Path) -> None:
    """datapaths takes neither frame sizes nor numbers of flows."""
    steps = within(tmp_path, MadeArm(columns=VETH), 1, frame="64", flows_count=8).next
    commands = [step.partition("labkit run ")[2] for step in steps if "labkit run " in step]
    assert commands
    for words in commands:
        experiment, *given = words.split()
        assert experiment == "throughput"
        assert {"frame_bytes=64", "flows=8"} <= set(given)
        Throughput.of(dict(one.split("=", 1) for one in given))


def test_more_loss_in_an_arm_is_named_with_its_share(tmp_path: Path) -> None:
    result = within(
        tmp_path, MadeArm(effects=[effect("sysctl", "net.ipv4.udp_rmem_min", "4096", "1")], lost=0.6)
    )
    assert result.claims
    assert "net.ipv4.udp_rmem_min" in result.sentence.partition(". ")[0]
    loss = next(each for each in result.candidates if each.name == "more packets are lost")
    numbers = re.findall(r"[\d.]+", dict(loss.evidence)["loss"])
    assert [float(each) for each in numbers] == pytest.approx([1.25, 2.5, 20, 60], rel=0.1)
