"""The first sentence of `labkit why` about causes that nobody prepared for: observers, slow readers, other programs."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_rows
from sandbox import also
from synthetic_arms import (
    BASELINE,
    PACKETS,
    READ,
    RECEIVE,
    USUAL,
    WINDOW_S,
    WRITE,
    MadeArm,
    concluded,
    effect,
    run,
    two_runs,
    within,
)

from labkit.analysis import why
from labkit.analysis.protocols import PER
from labkit.analysis.why import counter_tables, environment, selection, work
from labkit.analysis.why.environment import Setting
from labkit.measure.observers.perf import record

THREAD = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k]"


def first(sides: tuple[str, str]) -> str:
    """Return the first sentence about two sides."""
    return concluded(*sides).sentence.partition(". ")[0]


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (f"{RECEIVE['udp']};perf_trace_net_dev_template_[k];perf_tp_event_[k]", "Recording of tracepoints (perf)"),
        (f"{RECEIVE['udp']};tpacket_rcv_[k]", "A packet capture costs"),
        (f"{RECEIVE['udp']};exc_int3_[k];kprobe_int3_handler_[k]", "A probe on a function (kprobe or fentry) costs"),
        (f"{RECEIVE['udp']};net_timestamp_check_[k];__net_timestamp_[k]", "Timestamps of packets cost"),
    ],
)  # fmt: skip
def test_program_that_observes_is_named_though_it_takes_cpu_time(
    tmp_path: Path, stack: str, name: str
) -> None:
    """tcpdump and perf use the CPUs themselves, and what they add to the path is the cause all the same."""
    words = concluded(*two_runs(tmp_path, MadeArm(), MadeArm({stack: 2e-6}, foreign=0.4))).sentence
    assert words.startswith(name)
    assert "Any program on the machine can switch this code on" in words


SYSCALL = "iperf3;write;do_syscall_64_[k]"
FILTER = f"{SYSCALL};syscall_trace_enter_[k];__seccomp_filter_[k];seccomp_run_filters_[k]"


@pytest.mark.parametrize(
    ("stack", "named"),
    [
        (FILTER, True),
        (f"{WRITE};udp_sendmsg_[k];ip_output_[k];nf_hook_slow_[k];nft_do_chain_[k]", True),
        (f"{RECEIVE['udp']};ip_rcv_[k];nf_hook_slow_[k];nft_do_chain_[k]", False),
        (f"{WRITE};udp_sendmsg_[k];__alloc_pages_slowpath_[k];shrink_node_[k]", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("left", [0.0, *also("long", 0.4)])
def test_code_that_somebody_set_up_is_named_on_a_busy_machine(
    tmp_path: Path, stack: str, named: bool, left: float
) -> None:
    """Other programs bring packets, and take memory and CPUs, but no filter to the experiment's own system calls."""
    result = concluded(*two_runs(tmp_path, MadeArm(foreign=left), MadeArm({stack: 2e-6}, foreign=0.4)))
    assert result.claims == named
    if stack == FILTER:
        assert result.sentence.startswith("An audit, security or system call filter costs ")


@pytest.mark.parametrize("mark", ["", "_[k]"])
@pytest.mark.parametrize("kind", ["tracing", "lsm"])
def test_bpf_code_is_of_the_kernel_and_has_one_name(tmp_path: Path, mark: str, kind: str) -> None:
    """perf gives BPF code no object of the kernel, and a trampoline another number in every round."""
    probe = {
        f"{RECEIVE['udp']};ip_rcv_[k];bpf_trampoline_64425345{at}{mark};bpf_prog_6deef7357e7b4530_ip_rcv{mark}": 2.4e-7
        for at in range(10)
    }
    loaded = {f"BPF program {kind} ip_rcv": "tag 6deef7357e7b4530, on tracing"}
    words = concluded(*two_runs(tmp_path, MadeArm(), MadeArm(probe, foreign=0.4), **loaded)).sentence
    assert words.startswith("A probe on a function (kprobe or fentry) costs 2.")
    assert "bpf_trampoline below ip_rcv" in words
    assert f"It is explained by BPF program {kind} ip_rcv" in words


def test_bpf_program_of_one_more_service_is_no_difference(tmp_path: Path) -> None:
    name = "BPF program cgroup_skb sd_fw_ingress"
    left, right = (
        str(
            run(
                tmp_path / str(seed),
                {BASELINE: MadeArm()},
                seed,
                settings={name: f"{count}tag 6deef, on cgroup"},
            )
        )
        for seed, count in ((1, ""), (2, "7 times "))
    )
    assert concluded(left, right).sentence.startswith("No difference ")


NIC = "iperf3;main;asm_common_interrupt_[k];handle_softirqs_[k];net_rx_action_[k];__napi_poll_[k]"


@pytest.mark.parametrize("poll", ["virtnet_poll", "igb_poll"])
def test_packets_of_a_nic_are_of_the_experiment_if_it_uses_one(tmp_path: Path, poll: str) -> None:
    received = {f"{NIC};{poll}_[k];napi_gro_receive_[k]": 6e-7}
    assert not concluded(*two_runs(tmp_path, MadeArm(), MadeArm(received))).claims
    sides = [
        str(run(tmp_path / name, {BASELINE: arm}, seed, parent="eth1"))
        for name, arm, seed in (("without", MadeArm(), 1), ("with", MadeArm(received), 2))
    ]
    assert "Merging received segments (GRO) costs" in first((sides[0], sides[1]))


@pytest.mark.parametrize(("share", "count"), [(0.4, 2), (0.45, 1)])
def test_other_programs_in_a_part_of_the_run(tmp_path: Path, share: float, count: int) -> None:
    result = concluded(*two_runs(tmp_path, MadeArm(), MadeArm(foreign=share, foreign_rounds=count)))
    assert not result.claims
    assert result.cause == "foreign load"
    assert (
        f" of the CPUs in {count} of 5 rounds of veth_bridge (right) and at most 0 % in " in result.sentence
    )


def with_spaces(folder: Path, arm: MadeArm, value: str, machine: str, seed: int) -> str:
    """Write a run whose namespaces have a value of tcp_sack, and whose machine has another one."""
    name = "sysctl net.ipv4.tcp_sack"
    path = "artefacts/settings-1.json.gz"
    made = run(folder, {BASELINE: replace(arm, columns={"settings": path})}, seed, settings={name: machine})
    spaces = {"client0": {name: value}, "server0": {name: value}}
    (made / path).write_bytes(gzip.compress(json.dumps(spaces).encode()))
    return str(made)


def test_sysctl_of_the_machine_that_namespaces_do_not_have_is_no_cause(tmp_path: Path) -> None:
    left = with_spaces(tmp_path / "left", MadeArm(), "1", "1", 1)
    same = concluded(left, with_spaces(tmp_path / "same", MadeArm(), "1", "0", 2))
    assert not same.claims
    assert "tcp_sack (1 → 0) differs in the machine's own network namespace only" in same.sentence
    slower = MadeArm({stack: 1.2 * seconds for stack, seconds in USUAL["udp"].items()}, speed=0.4)
    other = concluded(left, with_spaces(tmp_path / "slower", slower, "1", "0", 3))
    assert "tcp_sack" not in other.sentence
    inherited = concluded(left, with_spaces(tmp_path / "inherited", slower, "0", "0", 4))
    assert "tcp_sack (1 → 0)" in inherited.sentence.partition(". ")[0]


SMALL = {"sysctl net.ipv4.tcp_rmem": "4096 8192 16384"}
WAITING = {f"{WRITE};tcp_sendmsg_[k];sk_stream_write_space_[k]": 0.06}  # what a full window brings along


def stolen(share: float) -> dict[str, float]:
    """Return the columns of a row during which the hypervisor took this share of two CPUs."""
    return {"steal_s": share * 2 * WINDOW_S}


def test_steal_explains_a_slower_side_only(tmp_path: Path) -> None:
    slower = concluded(*two_runs(tmp_path / "a", MadeArm(), MadeArm(speed=0.6, columns=stolen(0.2)), "tcp"))
    assert slower.sentence.startswith("The hypervisor took 20 % of the CPU time in veth_bridge (right)")
    faster = concluded(
        *two_runs(tmp_path / "b", MadeArm(), MadeArm(speed=1.6, columns=stolen(0.2)), "tcp", **SMALL)
    )
    assert "tcp_rmem" in faster.sentence.partition(". ")[0]


@pytest.mark.parametrize(
    ("share", "speed", "is_cause", "is_said"),
    [
        (0.09, 0.74, True, True),
        (0.05, 0.95, False, True),  # there is no effect to explain
        (0.05, 0.4, False, True),  # it costs a multiple of its share, but not any multiple
        (0.015, 0.74, False, False),
    ],
)
def test_small_steady_load_beside_one_side(
    tmp_path: Path, share: float, speed: float, is_cause: bool, is_said: bool
) -> None:
    result = concluded(*two_runs(tmp_path, MadeArm(), MadeArm(foreign=share, speed=speed), "tcp", **SMALL))
    said = f"Other processes had {100 * share:g} % of the CPUs in "
    assert (result.cause == "foreign load") == is_cause, result.sentence
    assert result.sentence.startswith(said) == is_cause
    assert (said in result.sentence) == is_said


@pytest.mark.parametrize(("name", "is_cause"), [("stress", False), ("backup", True)])
def test_program_that_takes_what_a_slow_load_leaves_is_no_cause(
    tmp_path: Path, name: str, is_cause: bool
) -> None:
    """A program that always wants more CPU time gets it from a load that waits. Another program is a cause."""
    sides = two_runs(tmp_path, MadeArm(foreign=0.55), MadeArm(foreign=0.8, speed=0.4), "tcp", **SMALL)
    for side, program in zip(sides, ("stress", name), strict=True):
        path = Path(side, "run.json")
        others = {"others": [{"name": program, "cpu_share": 0.5}]}
        path.write_text(json.dumps(json.loads(path.read_text()) | others))
    words = first(sides)
    assert words.startswith("Other processes (backup)" if is_cause else "The only known difference"), words


def test_slow_reader_of_tcp_fills_its_buffer(tmp_path: Path) -> None:
    result = concluded(*two_runs(tmp_path, MadeArm(), MadeArm(speed=0.3, closed=900), "tcp"))
    assert not result.claims
    words = result.sentence.partition(". ")[0]
    assert (
        "in veth_bridge (right) the receiver's buffer was full 900 times per gigabyte instead of 0 times"
        in words
    )
    assert "it reads too slowly, or the buffer is small" in words
    assert "the CPUs were busy for" in words


@pytest.mark.parametrize(("place", "named"), [("IP", True), ("UDP socket", False)])
def test_rules_that_drop_packets_are_named_with_the_loss(tmp_path: Path, place: str, named: bool) -> None:
    """A rule drops before the socket. Where the socket loses packets, other rules explain nothing."""
    sides = two_runs(tmp_path, MadeArm(), MadeArm(lost=0.6, lost_at=place), **{"nftables ip t c": "1 rule"})
    words = first(sides)
    assert ("nftables ip t c (absent → 1 rule): " in words) == named, words
    assert f"100 % of the lost ones at server: {place}, which costs 1" in words


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_other_programs_on_the_faster_side_explain_nothing(tmp_path: Path, protocol: str) -> None:
    """The receiver of the right side waits, so that its programs leave CPU time and others had less of it."""
    busy, slow = MadeArm(foreign=0.8, lost=0.3), MadeArm(foreign=0.5, lost=0.9, speed=0.3)
    words = first(two_runs(tmp_path / "one", busy, slow, protocol))
    assert words.startswith("No cause is named: ")
    assert ("of the packets are lost instead of " in words) == (protocol == "udp")
    other_way = two_runs(
        tmp_path / "other", replace(slow, foreign=0.2), replace(slow, foreign=0.6, speed=0.1), protocol
    )
    assert first(other_way).startswith("Other processes had 60 % of the CPUs in ")


def test_stacks_that_are_cut_off_are_not_compared(tmp_path: Path) -> None:
    name = "sysctl kernel.perf_event_max_stack"
    left = str(run(tmp_path / "left", {BASELINE: MadeArm()}, 1, settings={name: "127"}))
    shorter = MadeArm({f"{READ};strange_[k]": 4e-6})
    cut, deep = (
        str(run(tmp_path / limit, {BASELINE: shorter}, 2, settings={name: limit})) for limit in ("6", "100")
    )
    result = concluded(left, cut)
    assert not result.claims
    assert f"{name} (127 → 6) differs and cuts off the stacks" in result.sentence.partition(". ")[0]
    assert "strange" in concluded(left, deep).sentence


def add_measuring_rounds(folder: Path, speed: float = 1.0, **ratios: float) -> None:
    """Add rounds without profiles, in which each arm has this throughput relative to the baseline's."""
    rows = synthetic_rows.rows(
        {BASELINE: speed, f"{BASELINE} (again)": speed, **ratios}, protocol="udp", length_bytes=512
    )
    for row in rows:
        row["throughput_pps"] = row["throughput_bps"] / 8 / 512
    (folder / "rows" / "measured.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(("ratio", "named"), [(0.89, False), (1.12, True)])
def test_code_that_acts_against_the_verdict_is_no_cause(tmp_path: Path, ratio: float, named: bool) -> None:
    """Code that is gone saves time. That explains no slower side, and the sentence says which side is slower."""
    saving = MadeArm(
        {f"{RECEIVE['udp']};br_handle_frame_[k]": -1e-6}, columns={"topology": "veth", "arm": "veth"}
    )
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": saving}, 2, noise=0.06)
    add_measuring_rounds(folder, veth=ratio)
    explained = why.explain(f"{folder}:{BASELINE}", "veth")
    [verdict], [one] = explained.verdicts, explained.conclusions
    assert not one.has_effect, "only the bridge's code is certain"
    assert verdict in one.sentence
    assert (one.cause is not None) == named, one.sentence
    assert ("the code that stands out does not explain it (" in one.sentence) == (not named)


@pytest.mark.parametrize(("ratio", "named"), [(0.6, False), (1.6, True)])
def test_verdict_against_what_profiled_rounds_show(tmp_path: Path, ratio: float, named: bool) -> None:
    """Profiles slow arms down in different ways. Then their rounds are no evidence of what makes an arm slower."""
    columns = {"topology": "veth", "arm": "veth"}
    faster = MadeArm({f"{RECEIVE['udp']};br_handle_frame_[k]": -1e-6}, speed=1.6, columns=columns)
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": faster}, 2, noise=0.01)
    add_measuring_rounds(folder, veth=ratio)
    result = concluded(f"{folder}:{BASELINE}", "veth")
    assert (result.cause is not None) == result.claims == named, result.sentence
    assert ("but the measuring rounds say otherwise: veth is 4" in result.sentence) == (not named)


@pytest.mark.parametrize(("ratio", "named"), [(1.2, False), (0.8, True)])
def test_other_programs_do_not_explain_a_faster_side(tmp_path: Path, ratio: float, named: bool) -> None:
    sides = two_runs(tmp_path, MadeArm(), MadeArm(foreign=0.15))
    for side, speed in zip(sides, (1.0, ratio), strict=True):
        add_measuring_rounds(Path(side), speed)
    explained = why.explain(*sides)
    [verdict], [one] = explained.verdicts, explained.conclusions
    assert (one.cause == "foreign load") == named, one.sentence
    assert verdict in one.sentence


@pytest.mark.parametrize(("seed", "uncertain"), [(2, True), (8, False)])
def test_interval_beside_no_effect_includes_0(tmp_path: Path, seed: int, uncertain: bool) -> None:
    """Several tests need more than an interval that excludes 0. Then the effect is not certain, and not absent."""
    rule = MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];nf_hook_slow_[k];nft_do_chain_[k]": 6e-7})
    setting = {"nftables inet t c": "1 rule"}
    left = run(tmp_path / "left", {BASELINE: MadeArm()}, 1, rounds=3, noise=0.3)
    right = run(tmp_path / "right", {BASELINE: rule}, seed, rounds=3, noise=0.3, settings=setting)
    result = concluded(left, right)
    size = result.candidates[0].size
    assert (abs(size.difference) > size.half) == uncertain
    assert (
        "but its effect is not certain: its cost (packet filter rules (nftables)) is +1.1" in result.sentence
    ) == uncertain
    assert ("but no effect was seen" in result.sentence) == (not uncertain)


def test_code_that_the_control_has_as_well_is_no_cause(tmp_path: Path) -> None:
    strange = {f"{RECEIVE['udp']};ip_rcv_[k];strange_[k]": 4e-6}
    other = MadeArm(strange, columns={"topology": "veth", "arm": "veth"})
    for name, control, named in (("alone", MadeArm(), True), ("both", MadeArm(strange), False)):
        folder = run(tmp_path / name, {BASELINE: MadeArm(), f"{BASELINE} (again)": control, "x": other}, 2)
        result = concluded(f"{folder}:{BASELINE}", "veth")
        assert result.claims == named, result.sentence
        assert result.has_effect == named, result.sentence


def test_conclusion_knows_a_verdict_that_profiles_do_not_show(tmp_path: Path) -> None:
    step = effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")
    named = {"topology": f"{BASELINE}+x", "built_topology": BASELINE}
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": MadeArm(effects=[step], columns=named)}, 3)
    add_measuring_rounds(folder, x=0.89)
    explained = why.explain(f"{folder}:{BASELINE}", "x")
    [verdict] = explained.verdicts
    assert "slower" in verdict
    [one] = explained.conclusions
    assert verdict in one.sentence
    assert "no effect was seen" not in one.sentence
    assert "profiled rounds do not show it" in one.sentence


def test_verdict_of_a_changed_arm_is_against_its_own_unchanged_one(tmp_path: Path) -> None:
    """Neither is the run's baseline, and the verdict on both is that of the run's table. Each point has its own."""
    columns = {"topology": "veth", "arm": "veth", "built_topology": "veth"}
    step = effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")
    changed = MadeArm(effects=[step], columns=columns | {"arm": "veth+x", "change": "x"})
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "u": MadeArm(columns=columns), "x": changed}, 3)
    lines = []
    for pairs, ratio in ((1, 0.8), (8, 1.0)):
        ratios = {BASELINE: 1.0, f"{BASELINE} (again)": 1.0, "veth": 0.5, "veth+x": 0.5 * ratio}
        for row in synthetic_rows.rows(ratios, protocol="udp", length_bytes=512, pairs=pairs):
            is_changed = row["arm"] == "veth+x"
            row |= {"change": "x" if is_changed else None, "topology": row["topology"].removesuffix("+x")}
            lines.append(json.dumps(row) + "\n")
    (folder / "rows" / "measured.jsonl").write_text("".join(lines))
    explained = why.explain(f"{folder}:veth", "veth+x")
    slower, equal = explained.verdicts
    assert re.match(
        r"udp, 1 pair, MTU 1500, 512 bytes each: veth\+x is 2\d(\.\d)? % slower than veth \[", slower
    )
    assert equal.startswith(
        "udp, 8 pairs, MTU 1500, 512 bytes each: no difference beyond 5 % between veth+x and veth"
    )
    assert "but the profiled rounds do not show it" in explained.conclusions[0].sentence


def test_speed_of_larger_datagrams_is_that_of_the_verdict(tmp_path: Path) -> None:
    """Datagrams of 1,472 bytes are fewer, and carry more: that is no contradiction. Points have no verdict."""
    size = effect("parameter", "length_bytes", "512", "1472", "load")
    large = MadeArm({f"{WRITE};udp_sendmsg_[k];_copy_from_iter_[k]": 2e-6}, [size], speed=0.8)
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), f"{BASELINE} (again)": MadeArm(), "x": large}, 3)
    add_measuring_rounds(folder)
    for path in (folder / "rows").iterdir():
        made = [json.loads(line) for line in path.read_text().splitlines()]
        for row in made:
            if row.get("change") == "x":
                row |= {"length_bytes": 1472, "throughput_bps": 8 * 1472 * row["throughput_pps"]}
        for row in [one for one in made if one["arm"] == BASELINE and one["method"] == "slice"]:
            arm = {
                "arm": f"{BASELINE}+x",
                "role": "variant",
                "change": "x",
                "changed": [size],
                "length_bytes": 1472,
            }
            made.append(row | arm | {"throughput_bps": 2.3 * row["throughput_bps"]})
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    explained = why.explain(f"{folder}:{BASELINE}", "x")
    [one], [verdict] = explained.conclusions, explained.verdicts
    assert "faster" in verdict
    assert one.sentence.startswith("The cause is the change of parameter length_bytes"), one.sentence
    assert " and has 2." in one.sentence
    assert "the throughput" in one.sentence


def test_verdict_on_another_pair_is_not_this_pairs(tmp_path: Path) -> None:
    """Both arms may be slower than the run's baseline, and that says nothing about the one against the other."""
    step = effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")
    arms = {BASELINE: MadeArm()}
    for name in ("x", "y"):
        named = {"topology": f"{BASELINE}+{name}", "built_topology": BASELINE}
        arms[name] = MadeArm(effects=[step], columns=named)
    folder = run(tmp_path / "run", arms, 3)
    add_measuring_rounds(folder, x=0.89, y=0.89)
    [one] = why.explain(f"{folder}:x", "y").conclusions
    assert "slower" not in one.sentence, one.sentence


def test_settings_that_follow_from_the_change_are_no_settings_of_their_own() -> None:
    """`tx off` turns TSO off, too: that belongs to the setting that was changed, as does what was recorded of it."""
    for requested, name, follows in (
        ("offload tx-checksumming", "client eth0 offload tcp-segmentation-offload", True),
        ("offload tx-checksumming", "eth0 offload tx-tcp-ecn-segmentation", True),
        ("offload tx-checksumming", "eth0 offload generic-receive-offload", False),
        ("offload generic-receive-offload", "eth0 offload tcp-segmentation-offload", False),
        ("offload scatter-gather", "eth0 offload tx-gso-partial", True),
        ("sysctl net.ipv4.ip_forward", "eth0 offload tcp-segmentation-offload", False),
        ("sysctl net.ipv4.conf.eth0.rp_filter", "sysctl net.ipv4.conf.*.rp_filter", True),
        ("sysctl net.ipv4.tcp_sack", "sysctl net.ipv4.tcp_dsack", False),
        ("qdisc", "eth0 qdisc", True),
        ("mtu_bytes", "eth0 mtu", True),
        ("mtu_bytes", "sysctl net.ipv6.conf.*.mtu", False),
        ("txqueuelen", "eth0 txqlen", True),
        ("big_tcp gso_max_size", "eth0 gso_max_size", True),
        ("big_tcp gso_max_size", "eth0 gso_ipv4_max_size", False),
        ("tc_filter filters ingress", "eth0 filter ingress", True),
        ("tc_filter filters ingress", "eth0 filter egress", False),
        ("function sysctl net.ipv4.tcp_sack", "sysctl net.ipv4.tcp_sack", True),
        ("function eth0 offload rx-gro-list", "eth0 offload rx-gro-list", True),
    ):
        cause = Setting(requested, "on", "off", ("client",), requested=True)
        assert environment._follows(Setting(name, "on", "off", ("client",)), cause) == follows
        assert not environment._follows(Setting(name, "on", "off", ("server",)), cause)
    changed = Setting("sysctl net.ipv4.tcp_rmem", "4096 8192 16384", "4096\t8192\t32768", ("client",), True)
    for right, follows in (("4096 8192 32768", True), ("4096 8192 65536", False), ("absent", True)):
        one = Setting("sysctl net.ipv4.tcp_rmem", "4096 8192 16384", right, ("client",))
        assert environment._follows(one, changed) == follows


def test_change_at_both_ends_is_one_setting(tmp_path: Path) -> None:
    steps = [effect("sysctl", "net.ipv4.tcp_sack", "1", "0", at) for at in ("client", "server")]
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": MadeArm(effects=steps)}, 3)
    [point] = selection.points(selection.select_sides(f"{folder}:{BASELINE}", "x"))
    [one] = environment.differences(point)
    assert one.places == ("client", "server")


@pytest.mark.parametrize(("recorded", "names"), [("0", []), ("2", ["sysctl net.ipv4.tcp_sack"])])
def test_recorded_value_that_a_change_did_not_set_is_a_setting_of_its_own(
    tmp_path: Path, recorded: str, names: list[str]
) -> None:
    path = "artefacts/settings-%s.json.gz"
    steps = [effect("function", "sysctl net.ipv4.tcp_sack", "1", "0", at) for at in ("server", "client")]
    arms = {
        BASELINE: MadeArm(columns={"settings": path % 1}),
        "x": MadeArm(effects=steps, columns={"settings": path % 2}),
    }
    folder = run(tmp_path / "run", arms, 3)
    for number, value in ((1, "1"), (2, recorded)):
        spaces = {end: {"sysctl net.ipv4.tcp_sack": value} for end in ("client0", "server0")}
        (folder / (path % number)).write_bytes(gzip.compress(json.dumps(spaces).encode()))
    [point] = selection.points(selection.select_sides(f"{folder}:{BASELINE}", "x"))
    [one, *others] = environment.differences(point)
    assert (one.name, one.places) == ("function sysctl net.ipv4.tcp_sack", ("client", "server"))
    assert [other.name for other in others] == names


@pytest.mark.parametrize(("noise", "said"), [(0.5, True), (0.001, False)])
def test_measuring_rounds_that_tell_nothing_are_named_beside_profiles_that_do(
    tmp_path: Path, noise: float, said: bool
) -> None:
    slow = MadeArm(speed=0.8, effects=[effect("sysctl", "net.ipv4.ip_forward", "0", "1")])
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": slow}, 4)
    names = {BASELINE: 1.0, f"{BASELINE} (again)": 1.0, f"{BASELINE}+x": 0.8}
    for number, row in enumerate(synthetic_rows.rows(names, noise=noise, protocol="udp", length_bytes=512)):
        variant = (
            {"topology": BASELINE, "change": "x"} if row["role"] == "variant" else {"topology": BASELINE}
        )
        line = json.dumps(row | variant | {"throughput_pps": row["throughput_bps"] / 4096})
        (folder / "rows" / f"measured{number}.jsonl").write_text(line + "\n")
    assert ("In the measuring rounds: no evidence" in concluded(f"{folder}:{BASELINE}", "x").sentence) == said


@pytest.mark.parametrize(
    ("more_s", "delay_s", "starts", "says"),
    [
        (
            0.0,
            5e-3,
            "The cause is the change of qdisc",
            r"CPU time is -?[\d.]+ \S+ \(-?0(\.1)? %\), waiting for a CPU 0 s",
        ),
        (2e-5, 0.0, "The cause is the change of qdisc", r"CPU time is (19|2\d)(\.\d)? µs \((9|10|11)\d* %\)"),
    ],
)
def test_time_of_a_round_trip_is_cpu_time_or_not(
    tmp_path: Path, more_s: float, delay_s: float, starts: str, says: str
) -> None:
    """A planted delay leaves the CPU time of a request as it is; planted code takes its place on the path."""
    stack = f"{RECEIVE['udp']};strange_[k]"
    slow = MadeArm(
        {stack: more_s}, [effect("qdisc", "root", "noqueue", "netem delay 5ms")], 0.0,
        speed=1 / (1 + PACKETS / WINDOW_S * (more_s + delay_s)),
    )  # fmt: skip
    arms = {BASELINE: MadeArm(lost=0.0), f"{BASELINE} (again)": MadeArm(lost=0.0), "x": slow}
    result = concluded(f"{run(tmp_path / 'run', arms, 5, 'tcp_rr', noise=0.01)}:{BASELINE}", "x")
    assert result.sentence.startswith(starts)
    assert ("strange" in result.sentence) == (more_s > 0), result.sentence
    assert re.search(says, result.sentence), result.sentence
    parts = result.round_trips
    assert parts.is_rest == (delay_s > 0)
    assert parts.rest.difference == pytest.approx(delay_s, abs=2e-6, rel=0.03)


def test_arms_of_one_run_are_measured_again_together(tmp_path: Path) -> None:
    noisy = MadeArm(foreign=0.4)
    step = effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")
    folder = run(tmp_path / "run", {BASELINE: noisy, "x": replace(noisy, effects=[step])}, 3)
    steps = concluded(f"{folder}:{BASELINE}", "x").next
    assert not [one for one in steps if "both runs" in one]
    [again] = [one for one in steps if "while nothing else uses the CPUs" in one]
    assert again.startswith("Measure more rounds of this run")
    assert again.endswith("profile_rounds=20")
    runs = two_runs(tmp_path, noisy, noisy)
    assert any(
        one.startswith("Repeat both runs while nothing else uses the CPUs") for one in concluded(*runs).next
    )


def test_sample_rate_stays_within_kernel_limit(tmp_path: Path) -> None:
    limit = tmp_path / "limit"
    limit.write_text("100\n")
    assert record.allowed_hz(997, str(limit)) == 100
    limit.write_text("100000\n")
    assert record.allowed_hz(997, str(limit)) == 997
    assert record.allowed_hz(4000, str(tmp_path / "absent")) == 4000


@pytest.mark.parametrize(("share", "named"), [(0.013, ""), (0.3, " (python3)")])
def test_only_a_program_that_used_the_cpus_is_named(tmp_path: Path, share: float, named: str) -> None:
    """The programs that had the CPUs ended before labkit saw them; another one ran beside them."""
    left, right = two_runs(tmp_path, MadeArm(), MadeArm(foreign=0.4))
    report = json.loads((Path(right) / "run.json").read_text())
    report["others"] = [{"name": "python3", "cpu_share": share}]
    (Path(right) / "run.json").write_text(json.dumps(report))
    assert first((left, right)).startswith(f"Other processes{named} had ")


def test_recorded_settings_can_be_causes() -> None:
    for name, values, path in (
        ("process Seccomp_filters", ("0", "1"), "an audit, security or system call filter"),
        ("iperf3 nice", ("0", "19"), "waking programs and switching between them"),
        ("scheduler feature HRTICK", ("off", "on"), "waking programs and switching between them"),
        ("cpu0 cpuidle state2", ("absent", "disabled"), "interrupts and idle CPUs"),
        ("module parameter haltpoll.guest_halt_poll_ns", ("200000", "0"), "interrupts and idle CPUs"),
        ("eth0 VLANs", ("1 PVID", "absent"), "the bridge"),
        ("cgroup memory level 1 memory.kmem.tcp.limit_in_bytes", ("absent", "4096"), "memory accounting of sockets"),
        ("iperf3 executable", ("/usr/bin/iperf3", "/usr/bin/dash"), None),
    ):  # fmt: skip
        setting = Setting(name, *values, ("machine",))
        assert setting.can_affect_result
        assert path is None or path in [one.name for one in setting.paths]


SCAN = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];kdamond_fn_[k];damon_va_check_accesses_[k]"
IPI = "swapper;sysvec_call_function_single_[k];__flush_smp_call_function_queue_[k]"
WAKE = f"{RECEIVE['udp']};ip_rcv_[k];udp_rcv_[k];sock_def_readable_[k];try_to_wake_up_[k]"
PAGES = f"{WRITE};udp_sendmsg_[k];ip_make_skb_[k];sock_alloc_send_pskb_[k];alloc_skb_with_frags_[k]"
ACCOUNTING = {f"{READ};tcp_recvmsg_[k];__sk_mem_reduce_allocated_[k]": 0.02}
ALLOCATING = {f"{WRITE};strange_[k];alloc_skb_with_frags_[k]": 3e-6, f"{WRITE};strange_[k]": 2e-6}
# Older runs have a file of cgroups that exists at another level for another shell; no limit is no difference.
PLACE = {
    "cgroup level 2 cpuset.cpus.effective": "0-1",
    "cgroup memory level 3 memory.limit_in_bytes": "9223372036854771712",
    "cgroup memory level 3 memory.kmem.tcp.limit_in_bytes": "9223372036854771712",
}
NOT_RECORDED = {
    "process Seccomp": "0",
    "scheduler feature HRTICK": "off",
    "module parameter tcp_cubic.beta": "717",
}
QUOTA = {"cgroup level 1 cpu.max": "50000 100000", "cgroup level 1 memory.max": "max"}
RMEM = r"The only known difference between the sides is sysctl net\.ipv4\.tcp_rmem \("


def slower(times: float, **more: float) -> MadeArm:
    """Return an arm all of whose code takes this many times as long."""
    return MadeArm({stack: (times - 1) * seconds for stack, seconds in USUAL["udp"].items()}, **more)


# The protocol, the arms of the left and of the right run, the settings of the right machine, and how it begins
FIRST_SENTENCES: dict[str, tuple[str, MadeArm, MadeArm, dict[str, str], str]] = {
    "recording of the scheduler": (
        "udp", MadeArm(), MadeArm({f"{WRITE};udp_sendmsg_[k];schedule_[k];perf_trace_sched_switch_[k]": 2e-6}), {},
        r"Recording of tracepoints \(perf\) costs ",
    ),
    "a capture": (
        "udp", MadeArm(), MadeArm({f"{RECEIVE['udp']};packet_rcv_[k];skb_clone_[k]": 1.5e-6}), {},
        "A packet capture costs",
    ),
    "a new path that allocates": ("udp", MadeArm(), MadeArm(ALLOCATING), {}, "(?i)(?!.*page allocation)strange costs "),
    # The scheduler may place the ends on one CPU in one run, and on two in the other.
    "an interrupt between CPUs": ("udp", MadeArm(), MadeArm({IPI: 1.5e-6}), {}, "No "),
    "a wake-up": ("udp", MadeArm(), MadeArm({WAKE: 1.5e-6}), {}, "No "),
    "storage work of the kernel": (
        "udp", MadeArm(), MadeArm({f"{THREAD};wb_workfn_[k];ext4_writepages_[k]": 6e-6}), {}, "Other processes had ",
    ),
    "a thread without packets": ("udp", MadeArm(), MadeArm({SCAN: 6e-7}), {}, "No "),
    "a thread with packets": (
        "udp", MadeArm(), MadeArm({f"{THREAD};wg_packet_encrypt_worker_[k]": 6e-6}), {},
        "A tunnel costs .*wg_packet_encrypt_worker below process_one_work",
    ),
    # The code of the setting takes as much time as before, and TCP has half of the throughput.
    "a setting that makes packets wait": (
        "tcp", MadeArm(ACCOUNTING), MadeArm(ACCOUNTING, speed=0.4), SMALL, f"{RMEM}.*times",
    ),
    "code that comes along": ("tcp", MadeArm(), MadeArm(WAITING, speed=0.4), SMALL, RMEM),
    # A fifth of the CPU time makes a load slower, but not five times.
    "other programs that took less": ("tcp", MadeArm(), MadeArm(foreign=0.22, speed=0.2), SMALL, RMEM),
    "steal that took less": ("tcp", MadeArm(), MadeArm(speed=0.4, columns=stolen(0.04)), SMALL, RMEM),
    "two settings, of which one is known to slow down": (
        "tcp", MadeArm(), MadeArm(speed=0.4), {"sysctl net.core.netdev_budget": "20", **SMALL},
        r"The first suspect is sysctl net\.ipv4\.tcp_rmem \(",
    ),
    "a setting of unknown effect, and new code": (
        "tcp", MadeArm(), MadeArm({f"{WRITE};tcp_sendmsg_[k];strange_[k]": 0.4}),
        {"sysctl net.core.max_skb_frags": "1"},
        r"The only known difference between the sides is sysctl net\.core\.max_skb_frags \(.* → 1\): strange costs ",
    ),
    "a setting without effect, beside other programs": (
        "udp", MadeArm(), MadeArm(foreign=0.45, foreign_rounds=1), {"sysctl net.core.dev_weight": "300"},
        r"The setting sysctl net\.core\.dev_weight \(absent → 300\) differs, but no effect was seen",
    ),
    "what older runs did not record": ("tcp", MadeArm(), MadeArm(speed=0.4), NOT_RECORDED, "No cause is named: "),
    "the place among cgroups": ("tcp", MadeArm(), MadeArm(speed=0.4), PLACE, "(?!.*cgroup)"),
    "a limit there": (
        "tcp", MadeArm(), MadeArm(speed=0.4), PLACE | {"cgroup level 3 cpu.max": "50000 100000"},
        r"The only known difference between the sides is cgroup level 3 cpu\.max \(",
    ),
    "a limit, and unexplained code": (
        "udp", MadeArm(), slower(1.2, speed=0.4), QUOTA,
        r"The only known difference between the sides is cgroup level 1 cpu\.max \(absent → 50000",
    ),
    "a module that touches no packets": ("udp", MadeArm(), slower(2), {"module loop": "loaded"}, "(?!.*module)"),
    "a slow reader": (
        "udp", MadeArm(lost=0.1), MadeArm(lost=0.75, speed=0.3), {},
        r".*?lost\), 100 % of the lost ones at server: UDP socket",
    ),
    "a sysctl, beside one that is no cause": (
        "udp", MadeArm(), MadeArm({f"{PAGES};get_page_from_freelist_[k]": 4e-6}),
        {"sysctl net.core.high_order_alloc_disable": "1", "sysctl kernel.printk": "7"},
        r"(?!.*printk)The only known difference between the sides is sysctl net\.core\.high_order_alloc_disable "
        r"\(0 → 1\): page allocation costs.*\. The code path is new: get_page_from_freelist below alloc_skb_with_frags",
    ),
    # Even if functions have become slower, because foreign load may be the cause.
    "foreign load": (
        "udp", MadeArm(), slower(1.6, foreign=0.5), {},
        r"Other processes had 50 % of the CPUs in veth_bridge \(right\) and 0 % in.*so no other cause is named\Z",
    ),
}  # fmt: skip


UNCLAIMED = {
    "an interrupt between CPUs", "a wake-up", "storage work of the kernel", "a thread without packets",
    "a setting without effect, beside other programs", "what older runs did not record", "the place among cgroups",
    "foreign load",
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_SENTENCES)
def test_first_sentence_about_two_runs(name: str, tmp_path: Path) -> None:
    protocol, left, right, settings, words = FIRST_SENTENCES[name]
    result = concluded(*two_runs(tmp_path, left, right, protocol, **settings))
    assert re.match(words, result.sentence, re.DOTALL), result.sentence
    assert result.claims == (name not in UNCLAIMED)


def test_two_runs_of_each_side_name_what_single_runs_name(tmp_path: Path) -> None:
    """The page recommends more runs, so these must not show less than one."""
    capture = MadeArm({f"{RECEIVE['udp']};tpacket_rcv_[k]": 3e-6})
    result = concluded(
        *(
            "+".join(str(run(tmp_path / f"{at}{seed}", {BASELINE: arm}, 2 * seed + at)) for seed in (1, 2))
            for at, arm in enumerate((MadeArm(), capture))
        )
    )
    assert result.sentence.startswith("A packet capture costs")
    assert "Each side has several runs" in result.notes[0]


NFT = "nf_hook_slow_[k];nft_do_chain_[k]"
PASSED = (
    "br_handle_frame_[k];br_nf_pre_routing_[k];nf_hook_slow_[k];br_handle_frame_finish_[k];br_forward_[k]"
)
GUEST = {"endpoint": "guest", "arm": "veth_bridge@guest"}
ROUTED = {"arm": "macvlan_bridge", "topology": "macvlan_bridge"}


@pytest.mark.parametrize(
    ("arm", "base", "cause", "words"),
    [
        (
            MadeArm(
                {f"{RECEIVE['udp']};schedule_[k];finish_task_switch_[k]": -5e-7},
                [
                    effect("function", "programs", "none", "helper"),
                    effect("function", "cgroup /lab cpu.max", "max 100000", "20000 100000"),
                ],
                lost=0.7,
            ),
            {},
            "function cgroup /lab cpu.max",
            "(?!.*saves)The cause is the change of function cgroup /lab cpu.max .*more packets are lost, which costs",
        ),
        # The page lists the loss as the largest part of the difference, so the sentence begins with it.
        (
            MadeArm({f"{RECEIVE['udp']};strange_[k]": 1.5e-6}, lost=0.6, columns={"topology": "veth", "arm": "veth"}),
            {},
            "more packets are lost",
            "",
        ),
        (
            MadeArm({f"{RECEIVE['udp']};tun_net_xmit_[k];tun_get_user_[k]": 5e-6}, columns=GUEST),
            {"columns": {"endpoint": "container"}},
            "a TAP device",
            "A TAP device costs",
        ),
        # A bridge passes its packets through netfilter, where the kernel has that built in: it is still the bridge.
        (
            MadeArm({f"{RECEIVE['udp']};br_handle_frame_[k]": -1e-6}, columns=ROUTED),
            {"more": {f"{RECEIVE['udp']};{PASSED}": 2e-6}},
            "the bridge",
            "The bridge saves",
        ),
        (
            MadeArm(
                {f"{RECEIVE['udp']};ip_rcv_[k];{NFT}": 4e-6},
                [effect("nftables", "nftables ruleset", "none", "9 rules, sha256:44d0894e7f71")],
            ),
            {},
            "nftables ruleset",
            r"The cause is the change of nftables ruleset at the server from none to 9 rules: packet filter rules"
            r" \(nftables\) cost [45]\..* % of the difference\. The code path is new: nf_hook_slow below"
            r" ip_rcv\. In all, x takes ",
        ),
    ],
    ids=["a quota that loses packets", "loss before smaller code", "a guest", "a bridge that is gone", "rules"],
)  # fmt: skip
def test_cause_in_one_run(arm: MadeArm, base: dict[str, Any], cause: str, words: str, tmp_path: Path) -> None:
    result = within(tmp_path, arm, base=MadeArm(**base))
    assert result.claims
    assert result.cause == cause
    assert re.match(words, result.sentence, re.DOTALL), result.sentence
    assert cause != "more packets are lost" or result.candidates[0].name == cause


def test_program_that_a_function_started_is_named_before_settings(tmp_path: Path) -> None:
    effects = [
        effect("function", "sysctl net.ipv6.conf.eth0.mtu", "1500", "1400"),
        effect("function", "eth0 mtu", "1500", "1400"),
        effect("function", "packet sockets", "none", "on eth0 of protocol 0x0003"),
        effect("function", "programs", "none", "tcpdump"),
    ]
    result = within(tmp_path, MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];strange_[k]": 2e-6}, effects))
    assert result.sentence.startswith("The cause is the change of function programs ")
    assert [one.name for one in result.settings] == [
        "function programs", "function packet sockets", "function eth0 mtu",
    ]  # fmt: skip


def test_load_in_the_rounds_of_one_arm(tmp_path: Path) -> None:
    """Both arms leave CPUs idle, so no arm left other programs more time than the other."""
    step = [effect("sysctl", "net.core.unknown", "0", "1")]
    result = within(tmp_path, MadeArm(foreign=0.05, speed=0.9, effects=step), noise=0.01)
    assert "Other processes had 5 % of the CPUs in " in result.sentence, result.sentence
    assert any(one.name == "foreign load" for one in result.candidates)


@pytest.mark.parametrize("foreign", [0.0, 0.2])
def test_setting_without_effect_is_no_cause_in_json(foreign: float, tmp_path: Path) -> None:
    """This also holds if other programs left its arm less CPU time, because rounds are interleaved."""
    step = [effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1", "both")]
    arms = {BASELINE: MadeArm(), "x": MadeArm(effects=step, frames=20_000, foreign=foreign)}
    folder = run(tmp_path / "run", arms, 3, "tcp", noise=0.01)
    [point] = why.explain(f"{folder}:{BASELINE}", "x").as_json()["points"]
    assert "rp_filter (both: 0 → 1) differs, but no effect was seen: its cost" in point["sentence"]
    assert point["cause"] is None
    assert foreign or {one["evidence"] for one in point["candidates"]} == {"none"}, point["candidates"]


def test_names_and_order_of_the_interfaces_are_no_difference(tmp_path: Path) -> None:
    """lo and a port differ in disable_policy, and one side lists the port first, with another name."""
    setting = "sysctl net.ipv4.conf.{}.disable_policy"
    sides = [
        run(tmp_path / port, {BASELINE: MadeArm(speed=speed)}, 5,
            settings={setting.format(name): value for name, value in order([("lo", "1"), (port, "0")])})
        for port, speed, order in (("port0", 1.0, list), ("eth1", 0.4, reversed))
    ]  # fmt: skip
    assert not [one for one in concluded(*sides).settings if "disable_policy" in one.name]


def test_stacks_have_one_stage() -> None:
    for stack, stage in (
        (f"{THREAD};wb_workfn_[k];ext4_writepages_[k]", None),
        (f"{THREAD};wg_packet_encrypt_worker_[k];chacha20poly1305_encrypt_[k]", work.REST),
        ("iperf3;main;asm_common_interrupt_[k];vring_interrupt_[k];virtblk_done_[k]", None),
        ("perf;write;do_syscall_64_[k];ksys_write_[k];ext4_file_write_iter_[k]", work.REST),
        ("kernel;kthread_[k];run_ksoftirqd_[k];handle_softirqs_[k];net_rx_action_[k]", work.RECEIVE),
        ("kernel;kthread_[k];smpboot_thread_fn_[k];run_ksoftirqd_[k];handle_softirqs_[k];rcu_core_[k]", work.REST),
        ("kernel;kthread_[k];napi_threaded_poll_[k];__napi_poll_[k];veth_poll_[k]", work.RECEIVE),
        ("kernel;kthread_[k];kdamond_fn_[k];damon_pa_check_accesses_[k]", None),
        (f"{THREAD};loop_process_work_[k];lo_read_simple_[k]", None),
        (RECEIVE["udp"], work.RECEIVE),
        (f"{WRITE};udp_sendmsg_[k]", work.SEND),
        (f"{READ};udp_recvmsg_[k]", work.READ),
        ("elsewhere;write;do_syscall_64_[k];ksys_write_[k];asm_sysvec_apic_timer_interrupt_[k];irq_exit_rcu_[k];"
         "handle_softirqs_[k];net_rx_action_[k];process_backlog_[k]", work.RECEIVE),
        ("elsewhere;write;do_syscall_64_[k];ksys_write_[k];tcp_sendmsg_[k];__local_bh_enable_ip_[k];do_softirq_[k];"
         "net_rx_action_[k];process_backlog_[k];tcp_v4_rcv_[k]", None),
        ("elsewhere;main", None),
        ("iperf3;do_syscall_64_[k];__x64_sys_pselect6_[k];do_select_[k]", work.REST),
    ):  # fmt: skip
        result = work.stage_of(stack)
        assert (result and result[0]) == stage
        if result and stage == work.RECEIVE and "net_rx_action" in stack:
            assert result[1].startswith("net_rx_action")


TRACED = (
    f"{RECEIVE['udp']};perf_trace_net_dev_template_[k];trace_call_bpf_[k];bpf_prog_f09f_netif_receive_s_[k]"
)
PROGRAM = "BPF program tracepoint netif_receive_s"


def test_bpf_program_on_a_tracepoint(tmp_path: Path) -> None:
    place = "tag f09f, on tracepoint netif_receive_skb (of bpftrace)"
    left, right = two_runs(tmp_path, MadeArm(), MadeArm({TRACED: 2e-6}), **{PROGRAM: place})
    result = concluded(left, right)
    assert (result.cause, result.candidates[0].strength) == ("a BPF program on a tracepoint", 3)
    first, second, third = result.sentence.split(". ")
    assert first.startswith("A BPF program on a tracepoint costs 2.")
    assert first.endswith("] per packet that arrived")
    assert second == "The code path is new: perf_trace_net_dev_template below __netif_receive_skb_one_core"
    assert third == f"It is explained by {PROGRAM} (absent → {place})"
    assert concluded(right, left).sentence.startswith("A BPF program on a tracepoint saves")
    busy = two_runs(
        tmp_path / "busy", MadeArm(), MadeArm({TRACED: 2e-6}, foreign=0.4), **{PROGRAM: "tag f09f"}
    )
    result = concluded(*busy)
    assert result.cause == "a BPF program on a tracepoint"
    doubt = result.sentence.split(". ")[-1]
    assert doubt.startswith("Other processes had 40 % of the CPUs")
    assert doubt.endswith("so the size is less certain")


def test_more_loss_is_not_more_cpu(tmp_path: Path) -> None:
    """With 18 and 41 % lost and the same code, lost packets explain the higher cost."""
    sides = [run(tmp_path / str(lost), {BASELINE: MadeArm(lost=lost)}, 7, noise=0.0) for lost in (0.18, 0.41)]
    [point] = selection.points(selection.select_sides(*map(str, sides)))
    split = work.split(work.rounds(point, 0), work.rounds(point, 1), PER["packet"], None)
    assert split.total.certain
    assert split.loss.difference == pytest.approx(split.total.difference, rel=0.1)
    assert not any(one.certain and abs(one.difference) > 2e-7 for one in split.stages.values())
    parts = split.loss.difference + sum(one.difference for one in split.stages.values())
    assert parts == pytest.approx(split.total.difference, rel=0.05)


def test_equal_counters_are_merged() -> None:
    values = np.array([[100.0, 102, 150], [5400, 5508, 8100], [100, 150, 102], [7, 7, 10.6]])
    assert counter_tables._alike(values, [0, 1, 2, 3]) == {0: [1, 3], 2: []}
    assert counter_tables._with_repeats(["a", "b", "c"], 0, [1, 2]) == "a (equal: b, c)"
