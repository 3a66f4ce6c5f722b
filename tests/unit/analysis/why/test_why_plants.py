"""The first sentence of `labkit why` about causes that nobody prepared for: observers, slow readers, other programs."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic_rows
from synthetic_arms import (
    BASELINE,
    PACKETS,
    READ,
    RECEIVE,
    SOFTIRQ,
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

pytestmark = pytest.mark.long

THREAD = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k]"


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


@pytest.mark.parametrize(
    ("left", "right", "name", "share", "words"),
    [
        # A program that always wants more CPU time gets it from a load that waits. Another program is a cause.
        (MadeArm(foreign=0.55), MadeArm(foreign=0.8, speed=0.4), "stress", 0.5, "The only known difference"),
        (MadeArm(foreign=0.55), MadeArm(foreign=0.8, speed=0.4), "backup", 0.5, "Other processes (backup)"),
        # The programs that had the CPUs ended before labkit saw them; another one ran beside them.
        (MadeArm(), MadeArm(foreign=0.4), "python3", 0.013, "Other processes had "),
    ],
)
def test_program_is_named_if_it_used_the_cpus_of_one_side(
    left: MadeArm, right: MadeArm, name: str, share: float, words: str, tmp_path: Path
) -> None:
    sides = two_runs(tmp_path, left, right, "tcp", **SMALL)
    for side, program in zip(sides, ("stress", name), strict=True):
        path = Path(side, "run.json")
        others = {"others": [{"name": program, "cpu_share": share}]}
        path.write_text(json.dumps(json.loads(path.read_text()) | others))
    assert concluded(*sides).sentence.startswith(words)


def add_measuring_rounds(folder: Path, speed: float = 1.0, noise: float = 0.02, **ratios: float) -> None:
    """Add rounds without profiles, in which each arm has this throughput relative to the baseline's."""
    arms = {BASELINE: speed, f"{BASELINE} (again)": speed, **ratios}
    rows = synthetic_rows.rows(arms, noise=noise, protocol="udp", length_bytes=512)
    for row in rows:
        row["throughput_pps"] = row["throughput_bps"] / 8 / 512
    (folder / "rows" / "measured.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


GONE = {f"{RECEIVE['udp']};br_handle_frame_[k]": -1e-6}
STEP = effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")
OTHER = {"topology": "veth", "arm": "veth"}
CHANGED = MadeArm(effects=[STEP], columns={"topology": f"{BASELINE}+x", "built_topology": BASELINE})


@pytest.mark.parametrize(
    ("arm", "noise", "ratio", "named", "words"),
    [
        # Code that is gone saves time. That explains no slower side, and the sentence says which side is slower.
        (MadeArm(GONE, columns=OTHER), 0.06, 0.89, False,
         r"^(?=.*veth is 1.* % slower).*the code that stands out does not explain it \("),
        (MadeArm(GONE, columns=OTHER), 0.06, 1.12, True, "The bridge saves "),
        # Profiles slow arms down in different ways. Then their rounds are no evidence of what makes an arm slower.
        (MadeArm(GONE, speed=1.6, columns=OTHER), 0.01, 0.6, False, "measuring rounds say otherwise: veth is 4"),
        (MadeArm(GONE, speed=1.6, columns=OTHER), 0.01, 1.6, True, "The bridge saves "),
        (CHANGED, 0.04, 0.89, False, "^(?!.*no effect was seen)(?=.* slower ).*profiled rounds do not show it"),
    ],
)  # fmt: skip
def test_code_that_acts_against_the_verdict_is_no_cause(
    arm: MadeArm, noise: float, ratio: float, named: bool, words: str, tmp_path: Path
) -> None:
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": arm}, 2, noise=noise)
    name = arm.columns.get("arm", "x")
    add_measuring_rounds(folder, **{name: ratio})
    result = concluded(f"{folder}:{BASELINE}", name)
    assert (result.cause is not None) == named, result.sentence
    assert re.search(words, result.sentence), result.sentence


@pytest.mark.parametrize(("ratio", "named"), [(1.2, False), (0.8, True)])
def test_other_programs_do_not_explain_a_faster_side(tmp_path: Path, ratio: float, named: bool) -> None:
    sides = two_runs(tmp_path, MadeArm(), MadeArm(foreign=0.15))
    for side, speed in zip(sides, (1.0, ratio), strict=True):
        add_measuring_rounds(Path(side), speed)
    explained = why.explain(*sides)
    [verdict], [one] = explained.verdicts, explained.conclusions
    assert (one.cause == "foreign load") == named, one.sentence
    assert verdict in one.sentence


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (2, r"but its effect is not certain: its cost \(packet filter rules \(nftables\)\) is \+1\.1"),
        (8, "but no effect was seen"),
    ],
)
def test_interval_beside_no_effect_includes_0(tmp_path: Path, seed: int, words: str) -> None:
    """Several tests need more than an interval that excludes 0. Then the effect is not certain, and not absent."""
    rule = MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];{NFT}": 6e-7})
    setting = {"nftables inet t c": "1 rule"}
    left = run(tmp_path / "left", {BASELINE: MadeArm()}, 1, rounds=3, noise=0.3)
    right = run(tmp_path / "right", {BASELINE: rule}, seed, rounds=3, noise=0.3, settings=setting)
    result = concluded(left, right)
    size = result.candidates[0].size
    assert (abs(size.difference) > size.half) == (seed == 2)
    assert re.search(words, result.sentence)


def test_code_that_the_control_has_as_well_is_no_cause(tmp_path: Path) -> None:
    strange = {f"{RECEIVE['udp']};ip_rcv_[k];strange_[k]": 4e-6}
    for name, control, named in (("alone", MadeArm(), True), ("both", MadeArm(strange), False)):
        result = within(tmp_path / name, MadeArm(strange, columns=OTHER), 2, again=control)
        assert result.claims == result.has_effect == named, result.sentence


def test_verdict_of_a_changed_arm_is_against_its_own_unchanged_one(tmp_path: Path) -> None:
    """Neither is the run's baseline, and the verdict on both is that of the run's table. Each point has its own."""
    columns = {"topology": "veth", "arm": "veth", "built_topology": "veth"}
    changed = MadeArm(effects=[STEP], columns=columns | {"arm": "veth+x", "change": "x"})
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "u": MadeArm(columns=columns), "x": changed}, 3)
    lines = []
    for pairs, ratio in ((1, 0.8), (8, 1.0)):
        ratios = {BASELINE: 1.0, f"{BASELINE} (again)": 1.0, "veth": 0.5, "veth+x": 0.5 * ratio}
        for row in synthetic_rows.rows(ratios, protocol="udp", length_bytes=512, pairs=pairs):
            change = "x" if row["arm"] == "veth+x" else None
            lines.append(
                json.dumps(row | {"change": change, "topology": row["topology"].removesuffix("+x")}) + "\n"
            )
    (folder / "rows" / "measured.jsonl").write_text("".join(lines))
    explained = why.explain(f"{folder}:veth", "veth+x")
    slower, equal = explained.verdicts
    assert re.match(r"udp, 1 pair, .*: veth\+x is 2\d(\.\d)? % slower than veth \[", slower)
    assert re.match(r"udp, 8 pairs, .*: no difference beyond 5 % between veth\+x and veth", equal)
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
            arm = {"arm": f"{BASELINE}+x", "role": "variant", "change": "x", "changed": [size]}
            made.append(row | arm | {"length_bytes": 1472, "throughput_bps": 2.3 * row["throughput_bps"]})
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    explained = why.explain(f"{folder}:{BASELINE}", "x")
    [one], [verdict] = explained.conclusions, explained.verdicts
    assert "faster" in verdict
    assert one.sentence.startswith("The cause is the change of parameter length_bytes"), one.sentence
    assert " and has 2." in one.sentence
    assert "the throughput" in one.sentence


def test_verdict_on_another_pair_is_not_this_pairs(tmp_path: Path) -> None:
    """Both arms may be slower than the run's baseline, and that says nothing about the one against the other."""
    named = {"topology": f"{BASELINE}+y", "built_topology": BASELINE}
    arms = {BASELINE: MadeArm(), "x": CHANGED, "y": replace(CHANGED, columns=named)}
    folder = run(tmp_path / "run", arms, 3)
    add_measuring_rounds(folder, x=0.89, y=0.89)
    [one] = why.explain(f"{folder}:x", "y").conclusions
    assert "slower" not in one.sentence, one.sentence


def test_settings_that_follow_from_the_change_are_no_settings_of_their_own() -> None:
    """`tx off` turns TSO off, too: that belongs to the setting that was changed, as does what was recorded of it."""
    for requested, name, follows in (
        ("offload tx-checksumming", "client eth0 offload tcp-segmentation-offload", True),
        ("offload tx-checksumming", "eth0 offload generic-receive-offload", False),
        ("offload scatter-gather", "eth0 offload tx-gso-partial", True),
        ("sysctl net.ipv4.ip_forward", "eth0 offload tcp-segmentation-offload", False),
        ("sysctl net.ipv4.conf.eth0.rp_filter", "sysctl net.ipv4.conf.*.rp_filter", True),
        ("sysctl net.ipv4.tcp_sack", "sysctl net.ipv4.tcp_dsack", False),
        ("mtu_bytes", "eth0 mtu", True),
        ("mtu_bytes", "sysctl net.ipv6.conf.*.mtu", False),
        ("txqueuelen", "eth0 txqlen", True),
        ("big_tcp gso_max_size", "eth0 gso_max_size", True),
        ("big_tcp gso_max_size", "eth0 gso_ipv4_max_size", False),
        ("tc_filter filters ingress", "eth0 filter egress", False),
        ("function eth0 offload rx-gro-list", "eth0 offload rx-gro-list", True),
        ("tcp-segmentation-offload", "eth0 offload tx-tcp6-segmentation", True),
        ("nftables ruleset", "nftables inet f c", True),
        ("nftables ruleset", "nftables inet f set s", True),
        ("conntrack nftables ruleset", "nftables inet labkit_conntrack in", True),
        ("nftables ruleset", "iptables filter", False),
    ):
        cause = Setting(requested, "on", "off", ("client",), requested=True)
        assert environment._follows(Setting(name, "on", "off", ("client",)), cause) == follows
        assert not environment._follows(Setting(name, "on", "off", ("server",)), cause)
    changed = Setting("sysctl net.ipv4.tcp_rmem", "4096 8192 16384", "4096\t8192\t32768", ("client",), True)
    for right, follows in (("4096 8192 32768", True), ("4096 8192 65536", False), ("absent", True)):
        one = Setting("sysctl net.ipv4.tcp_rmem", "4096 8192 16384", right, ("client",))
        assert environment._follows(one, changed) == follows


def test_offloads_that_the_kernel_switches_with_the_changed_one_are_no_changes_of_their_own(
    tmp_path: Path,
) -> None:
    features = ("tcp-segmentation-offload", "tx-tcp-segmentation", "tx-tcp6-segmentation", "rx-checksumming")
    steps = [effect("offload", name, "on", "off", at) for name in features for at in ("client", "server")]
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": MadeArm(effects=steps)}, 3)
    [point] = selection.points(selection.select_sides(f"{folder}:{BASELINE}", "x"))
    both = environment.differences(point)
    assert [one.name for one in both] == ["tcp-segmentation-offload", "offload rx-checksumming"]
    assert "segmentation in software" in [path.name for path in both[0].paths]


@pytest.mark.parametrize("at", ["server", "client"])
def test_loss_where_the_changed_setting_acts_is_named_though_the_whole_is_alike(
    at: str, tmp_path: Path
) -> None:
    ruleset = effect("nftables", "nftables ruleset", "none", "1 line of rules, sha256:c6d962827cf3", at)
    one = within(tmp_path, MadeArm(lost_at="IP", effects=[ruleset]))
    named = (
        "x loses 20 % of the datagrams at server: IP instead of 0 %; nftables ruleset (server: none → 1 line of rules)"
        " differs. CPU per packet that arrived differs by less than "
    )
    assert one.sentence.startswith(named) == (at == "server")
    first = "more packets are lost" if at == "server" else "nftables ruleset"
    assert one.cause == (first if at == "server" else None)
    assert [each.name for each in one.candidates] == [first]


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
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": replace(CHANGED, speed=0.8)}, 4)
    add_measuring_rounds(folder, noise=noise, x=0.8)
    assert ("In the measuring rounds: no evidence" in concluded(f"{folder}:{BASELINE}", "x").sentence) == said


@pytest.mark.parametrize(
    ("more_s", "delay_s", "says"),
    [
        (0.0, 5e-3, r"CPU time is -?[\d.]+ \S+ \(-?0(\.1)? %\), waiting for a CPU 0 s"),
        (2e-5, 0.0, r"CPU time is (19|2\d)(\.\d)? µs \((9|10|11)\d* %\)"),
    ],
)
def test_time_of_a_round_trip_is_cpu_time_or_not(
    tmp_path: Path, more_s: float, delay_s: float, says: str
) -> None:
    """A planted delay leaves the CPU time of a request as it is; planted code takes its place on the path."""
    stack = f"{RECEIVE['udp']};strange_[k]"
    slow = MadeArm(
        {stack: more_s}, [effect("qdisc", "root", "noqueue", "netem delay 5ms")], 0.0,
        speed=1 / (1 + PACKETS / WINDOW_S * (more_s + delay_s)),
    )  # fmt: skip
    result = within(tmp_path, slow, 5, "tcp_rr", MadeArm(lost=0.0), MadeArm(lost=0.0), noise=0.01)
    assert result.sentence.startswith("The cause is the change of qdisc")
    assert ("strange" in result.sentence) == (more_s > 0), result.sentence
    assert re.search(says, result.sentence), result.sentence
    parts = result.round_trips
    assert parts.is_rest == (delay_s > 0)
    assert parts.rest.difference == pytest.approx(delay_s, abs=2e-6, rel=0.03)


def test_arms_of_one_run_are_measured_again_together(tmp_path: Path) -> None:
    noisy = MadeArm(foreign=0.4)
    folder = run(tmp_path / "run", {BASELINE: noisy, "x": replace(noisy, effects=[STEP])}, 3)
    alone, both = (
        [one for one in concluded(*sides).next if "while nothing else uses the CPUs" in one]
        for sides in ((f"{folder}:{BASELINE}", "x"), two_runs(tmp_path, noisy, noisy))
    )
    assert re.fullmatch("Measure more rounds of this run .*profile_rounds=20", *alone)
    assert both[0].startswith("Repeat both runs ")


def test_sample_rate_stays_within_kernel_limit(tmp_path: Path) -> None:
    limit = tmp_path / "limit"
    for text, asked, allowed in (("100\n", 997, 100), ("100000\n", 997, 997), (None, 4000, 4000)):
        limit.write_text(text) if text else limit.unlink()
        assert record.allowed_hz(asked, str(limit)) == allowed


def test_recorded_settings_can_be_causes() -> None:
    for name, values, path in (
        ("process Seccomp_filters", ("0", "1"), "an audit, security or system call filter"),
        ("scheduler feature HRTICK", ("off", "on"), "waking programs and switching between them"),
        ("module parameter haltpoll.guest_halt_poll_ns", ("200000", "0"), "interrupts and idle CPUs"),
        ("eth0 VLANs", ("1 PVID", "absent"), "the bridge"),
        ("cgroup memory level 1 memory.kmem.tcp.limit_in_bytes", ("absent", "4096"), "memory accounting of sockets"),
        ("iperf3 executable", ("/usr/bin/iperf3", "/usr/bin/dash"), None),
    ):  # fmt: skip
        setting = Setting(name, *values, ("machine",))
        assert setting.can_affect_result
        assert path is None or path in [one.name for one in setting.paths]


NFT = "nf_hook_slow_[k];nft_do_chain_[k]"
SYSCALL = "iperf3;write;do_syscall_64_[k]"

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


def probed(mark: str) -> MadeArm:
    """Return an arm with a program of BPF. perf gives its code no object, and a trampoline a number in every round."""
    stack = (
        f"{RECEIVE['udp']};ip_rcv_[k];bpf_trampoline_64425345%d{mark};bpf_prog_6deef7357e7b4530_ip_rcv{mark}"
    )
    return MadeArm({stack % at: 2.4e-7 for at in range(10)}, foreign=0.4)


def polled(**columns: str) -> MadeArm:
    """Return an arm whose NIC receives packets."""
    nic = "iperf3;main;asm_common_interrupt_[k];handle_softirqs_[k];net_rx_action_[k];__napi_poll_[k]"
    return MadeArm({f"{nic};virtnet_poll_[k];napi_gro_receive_[k]": 6e-7}, columns=columns)


VETH = dict.fromkeys(("topology", "arm", "built_topology"), "veth")
FOREIGN = f"ksoftirqd/0;kthread_[k];{SOFTIRQ};__netif_receive_skb_one_core_[k];ip_rcv_[k];tcp_v4_rcv_[k]"
HOOK = f"{RECEIVE['udp']};br_handle_frame_[k];br_nf_pre_routing_[k]"
DEPTH = "sysctl kernel.perf_event_max_stack"
BUFFERS = ("sysctl net.core.rmem_default", "sysctl net.core.xfrm_acq_expires")
STRANGE = MadeArm({f"{READ};strange_[k]": 4e-6})
BUFFER = r"The first suspect is sysctl net\.core\.rmem_default \(%s\): .*lost.*, which %s "


# The protocol, the arms of the left and of the right run, the settings of the right machine, and how it begins
FIRST_SENTENCES: dict[str, tuple[str, MadeArm, MadeArm, dict[str, str], str]] = {
    # tcpdump and perf use the CPUs themselves, and what they add to the path is the cause all the same.
    "recording of the scheduler": (
        "udp", MadeArm(),
        MadeArm({f"{WRITE};udp_sendmsg_[k];schedule_[k];perf_trace_sched_switch_[k]": 2e-6}, foreign=0.4), {},
        r"Recording of tracepoints \(perf\) costs .*Any program on the machine can switch this code on",
    ),
    "a capture": (
        "udp", MadeArm(), MadeArm({f"{RECEIVE['udp']};packet_rcv_[k];skb_clone_[k]": 1.5e-6}, foreign=0.4), {},
        "A packet capture costs .*Any program on the machine can switch this code on",
    ),
    "BPF that traces": (
        "udp", MadeArm(), probed(""), {"BPF program tracing ip_rcv": "tag 6deef7357e7b4530, on tracing"},
        r"A probe on a function \(kprobe or fentry\) costs 2\..*bpf_trampoline below ip_rcv.*It is explained by BPF "
        "program tracing ip_rcv",
    ),
    "BPF that decides": (
        "udp", MadeArm(), probed("_[k]"), {"BPF program lsm ip_rcv": "tag 6deef7357e7b4530, on tracing"},
        r"A probe on a function \(kprobe or fentry\) costs 2\..*It is explained by BPF program lsm ip_rcv",
    ),
    # Other programs bring packets, and take memory and CPUs, but no filter to the experiment's own system calls.
    "a filter of system calls on a busy machine": (
        "udp", MadeArm(), MadeArm({f"{SYSCALL};syscall_trace_enter_[k];__seccomp_filter_[k]": 2e-6}, foreign=0.4), {},
        "An audit, security or system call filter costs ",
    ),
    "rules for sent packets on a busy machine": (
        "udp", MadeArm(foreign=0.4),
        MadeArm({f"{WRITE};udp_sendmsg_[k];ip_output_[k];{NFT}": 2e-6}, foreign=0.4), {}, "",
    ),
    "rules for received packets on a busy machine": (
        "udp", MadeArm(), MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];{NFT}": 2e-6}, foreign=0.4), {}, "",
    ),
    "memory on a busy machine": (
        "udp", MadeArm(),
        MadeArm({f"{WRITE};udp_sendmsg_[k];__alloc_pages_slowpath_[k];shrink_node_[k]": 2e-6}, foreign=0.4), {}, "",
    ),
    "other programs in two rounds": (
        "udp", MadeArm(), MadeArm(foreign=0.4, foreign_rounds=2), {},
        r"Other processes had .* of the CPUs in 2 of 5 rounds of veth_bridge \(right\) and at most 0 % in ",
    ),
    "steal": (
        "tcp", MadeArm(), MadeArm(speed=0.6, columns=stolen(0.2)), {},
        r"The hypervisor took 20 % of the CPU time in veth_bridge \(right\)",
    ),
    "steal beside the faster side": (
        "tcp", MadeArm(), MadeArm(speed=1.6, columns=stolen(0.2)), SMALL, RMEM,
    ),
    "a small steady load": (
        "tcp", MadeArm(), MadeArm(foreign=0.09, speed=0.74), SMALL, "Other processes had 9 % of the CPUs in ",
    ),
    "a small load without an effect": (
        "tcp", MadeArm(), MadeArm(foreign=0.05, speed=0.95), SMALL, "(?!Other).*Other processes had 5 % of the CPUs",
    ),
    "a load that is no load": (
        "tcp", MadeArm(), MadeArm(foreign=0.015, speed=0.74), SMALL, "(?!.*Other processes had 1.5 % of the CPUs in)",
    ),
    "a slow reader of TCP": (
        "tcp", MadeArm(), MadeArm(speed=0.3, closed=900), {},
        "(?=.*the receiver's buffer was full 900 times per gigabyte instead of 0 times).*it reads too slowly, or the "
        "buffer is small",
    ),
    # A rule drops before the socket. Where the socket loses packets, other rules explain nothing.
    "rules that drop": (
        "udp", MadeArm(), MadeArm(lost=0.6, lost_at="IP"), {"nftables ip t c": "1 rule"},
        r".*nftables ip t c \(absent → 1 rule\): .*100 % of the lost ones at server: IP, which costs 1",
    ),
    "rules elsewhere than the loss": (
        "udp", MadeArm(), MadeArm(lost=0.6), {"nftables ip t c": "1 rule"},
        r"(?!.*nftables ip t c \(absent → 1 rule\): ).*100 % of the lost ones at server: UDP socket, which costs 1",
    ),
    # The receiver of the right side waits, so that its programs leave CPU time and others had less of it.
    "other programs beside the faster side": (
        "udp", MadeArm(foreign=0.8, lost=0.3), MadeArm(foreign=0.5, lost=0.9, speed=0.3), {},
        "No cause is named: .*of the packets are lost instead of ",
    ),
    "other programs beside the faster side of TCP": (
        "tcp", MadeArm(foreign=0.8), MadeArm(foreign=0.5, speed=0.3), {}, "No cause is named: ",
    ),
    "other programs beside the slower side": (
        "udp", MadeArm(foreign=0.2, lost=0.9, speed=0.3), MadeArm(foreign=0.6, lost=0.9, speed=0.1), {},
        "Other processes had 60 % of the CPUs in ",
    ),
    "a new path that allocates": ("udp", MadeArm(), MadeArm(ALLOCATING), {}, "(?i)(?!.*page allocation)strange costs "),
    # The scheduler may place the ends on one CPU in one run, and on two in the other.
    "an interrupt between CPUs": ("udp", MadeArm(), MadeArm({IPI: 1.5e-6}), {}, "No "),
    "a wake-up": ("udp", MadeArm(), MadeArm({WAKE: 1.5e-6}), {}, "No "),
    "storage work of the kernel": (
        "udp", MadeArm(), MadeArm({f"{THREAD};wb_workfn_[k];ext4_writepages_[k]": 6e-6}), {}, "Other processes had ",
    ),

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
    "other programs that took less": (
        "tcp", MadeArm(), MadeArm(foreign=0.22, speed=0.2), SMALL, f"{RMEM}.*Other processes had 22 % of the CPUs in ",
    ),
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
    "a program of one more service": (
        "udp", MadeArm(), MadeArm(), {"BPF program cgroup_skb sd": "tag 6d, on cgroup → 7 times tag 6d, on cgroup"},
        "No difference ",
    ),
    "packets of the machine's NIC": ("udp", MadeArm(), polled(), {}, ""),
    "packets of the experiment's NIC": (
        "udp", MadeArm(columns={"parent": "eth1"}), polled(parent="eth1"), {},
        r"((?!\. ).)*Merging received segments \(GRO\) costs",
    ),
    "stacks that are cut off": (
        "udp", MadeArm(), STRANGE, {DEPTH: "127 → 6"}, rf".*{DEPTH} \(127 → 6\) differs and cuts off the stacks",
    ),
    "stacks that are deep enough": ("udp", MadeArm(), STRANGE, {DEPTH: "127 → 100"}, ".*strange"),
    # Packets of other programs add code that the experiment lacks, in interrupts and in the kernel's threads.
    "traffic of other programs": (
        "udp", MadeArm(), MadeArm({FOREIGN: 2e-6}, foreign=0.3), {}, "(?!.*TCP)",
    ),
    "traffic of other programs on both sides": (
        "udp", MadeArm(foreign=0.3), MadeArm({FOREIGN: 2e-6}, foreign=0.3), {}, "(?!.*TCP)",
    ),
    # An interface may have the name `bridge`.
    "names of interfaces in routes": (
        "udp", MadeArm({HOOK: 3e-6}, foreign=0.4), MadeArm(foreign=0.4), {"routes 1": "dev lo → dev bridge"}, "",
    ),
    "other programs on all CPUs": (
        "udp", MadeArm(), MadeArm(foreign=1.3), {}, r"[^%]*had (5[1-9]|[6-9]\d|100) % of the CPUs",
    ),
    "a parameter, before new code": (
        "tcp", MadeArm(), MadeArm({f"{WRITE};tcp_sendmsg_[k];strange_[k]": 1.2}, columns={"streams": 8}), {},
        r"The only known difference between the sides is streams \(1 → 8\): ",
    ),
    "a small buffer": (
        "udp", MadeArm(lost=0.1), MadeArm(lost=0.7), dict.fromkeys(BUFFERS, "212992 → 4096"),
        BUFFER % ("212992 → 4096", "costs"),
    ),
    "a large buffer": (
        "udp", MadeArm(lost=0.7), MadeArm(lost=0.1), dict.fromkeys(BUFFERS, "4096 → 212992"),
        BUFFER % ("4096 → 212992", "saves"),
    ),
    "a topology's code": (
        "udp", MadeArm(columns=VETH), MadeArm({f"{RECEIVE['udp']};br_handle_frame_[k]": 4e-6}), {}, "The bridge costs ",
    ),
    "known code of a topology that takes longer": (
        "udp", MadeArm(columns=VETH),
        MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];udp_rcv_[k]": 8e-6}, columns=dict.fromkeys(VETH, "macvlan")), {},
        "UDP costs ",
    ),
    "foreign load that loses packets": (
        "udp", MadeArm(), slower(1.6, foreign=0.5, lost=0.5), {},
        r"Other processes had 50 % .*so no other cause is named\. veth_bridge \(right\) loses 50 % of the datagrams",
    ),
    # Even if functions have become slower, because foreign load may be the cause.
    "foreign load": (
        "udp", MadeArm(), slower(1.6, foreign=0.5), {},
        r"Other processes had 50 % of the CPUs in veth_bridge \(right\) and 0 % in.*so no other cause is named\Z",
    ),
}  # fmt: skip


UNCLAIMED = {
    "an interrupt between CPUs", "a wake-up", "storage work of the kernel",
    "a setting without effect, beside other programs", "what older runs did not record", "the place among cgroups",
    "foreign load", "foreign load that loses packets", "rules for received packets on a busy machine",
    "memory on a busy machine", "other programs in two rounds", "steal", "a small steady load",
    "a small load without an effect", "a slow reader of TCP", "other programs beside the faster side",
    "other programs beside the faster side of TCP", "other programs beside the slower side",
    "a program of one more service", "packets of the machine's NIC",
    "stacks that are cut off", "traffic of other programs", "traffic of other programs on both sides",
    "names of interfaces in routes", "other programs on all CPUs",
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


PASSED = (
    "br_handle_frame_[k];br_nf_pre_routing_[k];nf_hook_slow_[k];br_handle_frame_finish_[k];br_forward_[k]"
)
GUEST = {"endpoint": "guest", "arm": "veth_bridge@guest"}
COPY = f"{READ};tcp_recvmsg_[k];_copy_to_iter_[k]"
SEGMENT = (
    f"{WRITE};tcp_sendmsg_[k];tcp_write_xmit_[k];validate_xmit_skb_[k];__skb_gso_segment_[k];skb_segment_[k]"
)


IN_ONE_RUN: dict[str, tuple[str, MadeArm, MadeArm, str, str]] = {
    "a quota that loses packets": (
        "udp", MadeArm(),
        MadeArm(
            {f"{RECEIVE['udp']};schedule_[k];finish_task_switch_[k]": -5e-7},
            [
                effect("function", "programs", "none", "helper"),
                effect("function", "cgroup /lab cpu.max", "max 100000", "20000 100000"),
            ],
            lost=0.7,
        ),
        "function cgroup /lab cpu.max",
        "(?!.*saves)The cause is the change of function cgroup /lab cpu.max .*more packets are lost, which costs",
    ),
    # The page lists the loss as the largest part of the difference, so the sentence begins with it.
    "loss before smaller code": (
        "udp", MadeArm(), MadeArm({f"{RECEIVE['udp']};strange_[k]": 1.5e-6}, lost=0.6, columns=OTHER),
        "more packets are lost", "",
    ),
    "a guest": (
        "udp", MadeArm(columns={"endpoint": "container"}),
        MadeArm({f"{RECEIVE['udp']};tun_net_xmit_[k];tun_get_user_[k]": 5e-6}, columns=GUEST),
        "a TAP device", "A TAP device costs",
    ),
    # A bridge passes its packets through netfilter, where the kernel has that built in: it is still the bridge.
    "a bridge that is gone": (
        "udp", MadeArm({f"{RECEIVE['udp']};{PASSED}": 2e-6}), MadeArm(GONE, columns=OTHER), "the bridge",
        "The bridge saves",
    ),
    "rules": (
        "udp", MadeArm(),
        MadeArm(
            {f"{RECEIVE['udp']};ip_rcv_[k];{NFT}": 4e-6},
            [effect("nftables", "nftables ruleset", "none", "9 rules, sha256:44d0894e7f71")],
        ),
        "nftables ruleset",
        r"The cause is the change of nftables ruleset at the server from none to 9 rules: packet filter rules"
        r" \(nftables\) cost [45]\..* % of the difference\. The code path is new: nf_hook_slow below"
        r" ip_rcv\. In all, x takes ",
    ),
    "segments": (
        "tcp", MadeArm(),
        MadeArm({SEGMENT: 0.6}, [effect("offload", "tcp-segmentation-offload", "on", "off", "client")]),
        "tcp-segmentation-offload", ".*tcp-segmentation-offload .*segmentation in software .*per gigabyte",
    ),
    "short writes": (
        "tcp", MadeArm(),
        MadeArm({COPY: 0.3}, [effect("parameter", "length_bytes", "None", "600", "load")], frames=90_000),
        "parameter length_bytes",
        "The cause is the change of parameter length_bytes of the load from default to 600: copying data",
    ),
    "a small window": (
        "tcp", MadeArm(),
        MadeArm({}, [effect("sysctl", "net.ipv4.tcp_rmem", "4096 131072 6291456", "4096 8192 8192")], speed=0.5),
        "sysctl net.ipv4.tcp_rmem", r".*net\.ipv4\.tcp_rmem .*0\.\d+ times .*throughput",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_ONE_RUN)
def test_cause_in_one_run(name: str, tmp_path: Path) -> None:
    protocol, base, arm, cause, words = IN_ONE_RUN[name]
    result = within(tmp_path, arm, protocol=protocol, base=base)
    assert (result.claims, result.cause) == (True, cause)
    assert re.match(words, result.sentence, re.DOTALL), result.sentence
    assert cause != "more packets are lost" or result.candidates[0].name == cause
    if protocol == "tcp":
        frame = re.search(
            r"Each frame that arrived took (\d+)[.\d]* µs of CPU time in", "\n".join(result.notes)
        )
        assert 40 <= int(frame[1]) <= 80, "1.65 s for a gigabyte of 30,000 frames"


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
    assert second == "The code path is new: perf_trace_net_dev_template below __netif_receive_skb_one_core"
    assert third == f"It is explained by {PROGRAM} (absent → {place})"
    assert concluded(right, left).sentence.startswith("A BPF program on a tracepoint saves")
    other = MadeArm({TRACED: 2e-6}, foreign=0.4)
    result = concluded(*two_runs(tmp_path / "busy", MadeArm(), other, **{PROGRAM: "tag f09f"}))
    assert result.cause == "a BPF program on a tracepoint"
    assert not any("Other processes" in note or "other processes" in note for note in result.notes)
    assert re.match(
        r"Other processes had 40 % .* so the size is less certain", result.sentence.split(". ")[-1]
    )


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
