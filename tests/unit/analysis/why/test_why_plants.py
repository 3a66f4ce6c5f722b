"""The first sentence of `labkit why` about causes that nobody prepared for: observers, slow readers, other programs."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_rows
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
)

from labkit.analysis import why
from labkit.analysis.why import code_paths, environment, work
from labkit.analysis.why.environment import Setting
from labkit.measure.observers.perf import record

THREAD = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k]"


def two_runs(
    folder: Path, left: MadeArm, right: MadeArm, protocol: str = "udp", **settings: str
) -> tuple[str, str]:
    """Write two runs of one arm each; `settings` are those of the right one's machine."""
    return (
        str(run(folder / "left", {BASELINE: left}, 1, protocol)),
        str(run(folder / "right", {BASELINE: right}, 2, protocol, settings=settings)),
    )


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
@pytest.mark.parametrize("left", [0.0, 0.4])
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


def test_recording_of_the_scheduler_is_named_without_a_setting(tmp_path: Path) -> None:
    recording = {f"{WRITE};udp_sendmsg_[k];schedule_[k];perf_trace_sched_switch_[k]": 2e-6}
    words = first(two_runs(tmp_path, MadeArm(), MadeArm(recording)))
    assert words.startswith("Recording of tracepoints (perf) costs ")


def test_storage_work_of_the_kernel_is_foreign_load(tmp_path: Path) -> None:
    writing = f"{THREAD};wb_workfn_[k];ext4_writepages_[k]"
    result = concluded(*two_runs(tmp_path, MadeArm(), MadeArm({writing: 6e-6})))
    assert not result.claims
    assert result.sentence.startswith("Other processes had ")


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (f"{THREAD};wb_workfn_[k];ext4_writepages_[k]", None),
        (f"{THREAD};wg_packet_encrypt_worker_[k];chacha20poly1305_encrypt_[k]", work.REST),
        ("iperf3;main;asm_common_interrupt_[k];vring_interrupt_[k];virtblk_done_[k]", None),
        ("perf;write;do_syscall_64_[k];ksys_write_[k];ext4_file_write_iter_[k]", work.REST),
        ("kernel;kthread_[k];run_ksoftirqd_[k];handle_softirqs_[k];net_rx_action_[k]", work.RECEIVE),
        ("kernel;kthread_[k];smpboot_thread_fn_[k];run_ksoftirqd_[k];handle_softirqs_[k];rcu_core_[k]", work.REST),
        ("kernel;kthread_[k];napi_threaded_poll_[k];__napi_poll_[k];veth_poll_[k]", work.RECEIVE),
        ("kernel;kthread_[k];kdamond_fn_[k];damon_pa_check_accesses_[k]", None),
        (f"{THREAD};loop_process_work_[k];lo_read_simple_[k]", None),
    ],
)  # fmt: skip
def test_kernel_threads_that_carry_packets_have_a_stage(stack: str, stage: str | None) -> None:
    result = work.stage_of(stack)
    assert (result and result[0]) == stage


def test_thread_of_the_kernel_that_carries_no_packets_is_no_cause(tmp_path: Path) -> None:
    """Where a thread of packets works longer, its own function is named, not what starts every thread."""
    scan = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];kdamond_fn_[k];damon_va_check_accesses_[k]"
    result = concluded(*two_runs(tmp_path / "scan", MadeArm(), MadeArm({scan: 6e-7})))
    assert result.cause is None
    encrypting = MadeArm({f"{THREAD};wg_packet_encrypt_worker_[k]": 6e-6})
    words = concluded(*two_runs(tmp_path / "tunnel", MadeArm(), encrypting)).sentence
    assert words.startswith("A tunnel costs ")
    assert "wg_packet_encrypt_worker below process_one_work" in words


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


def test_other_programs_at_times_do_not_hide_that_a_setting_has_no_effect(tmp_path: Path) -> None:
    changed = {"sysctl net.core.dev_weight": "300"}
    busy = MadeArm(foreign=0.45, foreign_rounds=1)
    words = first(two_runs(tmp_path, MadeArm(), busy, **changed))
    assert words.startswith(
        "The setting sysctl net.core.dev_weight (absent → 300) differs, but no effect was seen"
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


def test_setting_that_makes_packets_wait_needs_no_cpu_time(tmp_path: Path) -> None:
    """The code of the setting takes as much time as before, and TCP has half of the throughput."""
    accounting = {f"{READ};tcp_recvmsg_[k];__sk_mem_reduce_allocated_[k]": 0.02}
    small = {"sysctl net.ipv4.tcp_rmem": "4096 8192 16384"}
    words = first(two_runs(tmp_path, MadeArm(accounting), MadeArm(accounting, speed=0.4), "tcp", **small))
    assert words.startswith("The only known difference between the sides is sysctl net.ipv4.tcp_rmem (")
    assert "times" in words


SMALL = {"sysctl net.ipv4.tcp_rmem": "4096 8192 16384"}
WAITING = {f"{WRITE};tcp_sendmsg_[k];sk_stream_write_space_[k]": 0.06}  # what a full window brings along


def stolen(share: float) -> dict[str, float]:
    """Return the columns of a row during which the hypervisor took this share of two CPUs."""
    return {"steal_s": share * 2 * WINDOW_S}


def test_setting_that_makes_packets_wait_is_named_before_code_that_comes_along(tmp_path: Path) -> None:
    sides = two_runs(tmp_path, MadeArm(), MadeArm(WAITING, speed=0.4), "tcp", **SMALL)
    assert first(sides).startswith(
        "The only known difference between the sides is sysctl net.ipv4.tcp_rmem ("
    )


@pytest.mark.parametrize(
    "disturbed", [MadeArm(foreign=0.22, speed=0.2), MadeArm(speed=0.4, columns=stolen(0.04))]
)
def test_other_programs_do_not_explain_more_than_they_took(tmp_path: Path, disturbed: MadeArm) -> None:
    """A fifth of the CPU time makes a load slower, but not five times."""
    words = first(two_runs(tmp_path, MadeArm(), disturbed, "tcp", **SMALL))
    assert words.startswith("The only known difference between the sides is sysctl net.ipv4.tcp_rmem (")


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


def test_load_in_the_rounds_of_one_arm(tmp_path: Path) -> None:
    """Both arms leave CPUs idle, so no arm left other programs more time than the other."""
    step = [effect("sysctl", "net.core.unknown", "0", "1")]
    arms = {BASELINE: MadeArm(), "x": MadeArm(foreign=0.05, speed=0.9, effects=step)}
    result = concluded(f"{run(tmp_path / 'run', arms, 3, noise=0.01)}:{BASELINE}", "x")
    assert "Other processes had 5 % of the CPUs in " in result.sentence, result.sentence
    assert any(one.name == "foreign load" for one in result.candidates)


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


def test_setting_that_slows_down_is_named_before_others(tmp_path: Path) -> None:
    """Two settings differ, and only one is known to make a load wait."""
    settings = {"sysctl net.core.netdev_budget": "20", **SMALL}
    words = first(two_runs(tmp_path, MadeArm(), MadeArm(speed=0.4), "tcp", **settings))
    assert words.startswith("The first suspect is sysctl net.ipv4.tcp_rmem (")


def test_two_runs_of_each_side_name_what_single_runs_name(tmp_path: Path) -> None:
    """The page recommends more runs, so these must not show less than one."""
    capture = MadeArm({f"{RECEIVE['udp']};tpacket_rcv_[k]": 3e-6})
    left, right = (
        "+".join(str(run(tmp_path / f"{name}{seed}", {BASELINE: arm}, 2 * seed + at)) for seed in (1, 2))
        for at, (name, arm) in enumerate({"left": MadeArm(), "right": capture}.items())
    )
    assert concluded(left, right).sentence.startswith("A packet capture costs")


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


def test_slow_reader_of_udp_loses_packets_at_its_socket(tmp_path: Path) -> None:
    words = first(two_runs(tmp_path, MadeArm(lost=0.1), MadeArm(lost=0.75, speed=0.3)))
    assert "lost), 100 % of the lost ones at server: UDP socket" in words


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


def test_only_setting_of_unknown_effect_is_named_with_new_code(tmp_path: Path) -> None:
    new = {f"{WRITE};tcp_sendmsg_[k];strange_[k]": 0.4}
    left, right = (
        str(
            run(
                tmp_path / value,
                {BASELINE: arm},
                int(value),
                "tcp",
                settings={"sysctl net.core.max_skb_frags": value},
            )
        )
        for value, arm in (("17", MadeArm()), ("1", MadeArm(new)))
    )
    assert first((left, right)).startswith(
        "The only known difference between the sides is sysctl net.core.max_skb_frags (17 → 1): strange costs "
    )


@pytest.mark.parametrize(
    ("function", "path"),
    [
        ("udp_mt", "packet filter rules (iptables)"),
        ("hashlimit_mt", "packet filter rules (iptables)"),
        ("pipapo_refill", "packet filter rules (nftables)"),
        ("init_conntrack.constprop.0", "connection tracking"),
        ("tcp_collapse_one", "a full receive buffer of TCP"),
        ("tcp_rcv_established", "TCP's acknowledgements and segments"),
    ],
)
def test_functions_have_the_path_of_their_subsystem(function: str, path: str) -> None:
    result = code_paths.path_of_function(function)
    assert result is not None
    assert result.name == path


def test_program_that_a_function_started_is_named_before_settings(tmp_path: Path) -> None:
    effects = [
        effect("function", "sysctl net.ipv6.conf.eth0.mtu", "1500", "1400"),
        effect("function", "eth0 mtu", "1500", "1400"),
        effect("function", "packet sockets", "none", "on eth0 of protocol 0x0003"),
        effect("function", "programs", "none", "tcpdump"),
    ]
    unknown = MadeArm({f"{RECEIVE['udp']};ip_rcv_[k];strange_[k]": 2e-6}, effects)
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": unknown}, 3)
    result = concluded(f"{folder}:{BASELINE}", "x")
    assert result.sentence.startswith("The cause is the change of function programs ")
    assert [one.name for one in result.settings] == [
        "function programs", "function packet sockets", "function eth0 mtu",
    ]  # fmt: skip


def test_quota_that_loses_packets_is_named_with_its_loss(tmp_path: Path) -> None:
    effects = [
        effect("function", "programs", "none", "helper"),
        effect("function", "cgroup /lab cpu.max", "max 100000", "20000 100000"),
    ]
    limited = MadeArm({f"{RECEIVE['udp']};schedule_[k];finish_task_switch_[k]": -5e-7}, effects, lost=0.7)
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": limited}, 3)
    sentence = concluded(f"{folder}:{BASELINE}", "x").sentence
    assert sentence.startswith("The cause is the change of function cgroup /lab cpu.max "), sentence
    assert "more packets are lost, which costs" in sentence
    assert "saves" not in sentence


def test_loss_that_is_the_largest_part_is_named_before_smaller_code(tmp_path: Path) -> None:
    """The page lists the loss as the largest part of the difference, so the sentence begins with it."""
    costly = MadeArm(
        {f"{RECEIVE['udp']};strange_[k]": 1.5e-6}, lost=0.6, columns={"topology": "veth", "arm": "veth"}
    )
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": costly}, 3)
    result = concluded(f"{folder}:{BASELINE}", "veth")
    assert result.cause == result.candidates[0].name == "more packets are lost", result.sentence


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
    assert size is not None
    assert (abs(size.difference) > size.half) == uncertain
    assert (
        "but its effect is not certain: its cost (packet filter rules (nftables)) is +1.1" in result.sentence
    ) == uncertain
    assert ("but no effect was seen" in result.sentence) == (not uncertain)


def test_setting_without_effect_is_no_cause_in_json(tmp_path: Path) -> None:
    tested = MadeArm(effects=[effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1")], frames=20_000)
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": tested}, 3, "tcp", noise=0.01)
    [point] = why.explain(f"{folder}:{BASELINE}", "x").as_json()["points"]
    assert "but no effect was seen" in point["sentence"]
    assert point["cause"] is None
    assert {one["evidence"] for one in point["candidates"]} == {"none"}, point["candidates"]


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


@pytest.mark.parametrize(
    ("requested", "name", "follows"),
    [
        ("offload tx-checksumming", "client eth0 offload tcp-segmentation-offload", True),
        ("offload tx-checksumming", "eth0 offload tx-tcp-ecn-segmentation", True),
        ("offload tx-checksumming", "eth0 offload generic-receive-offload", False),
        ("offload generic-receive-offload", "eth0 offload tcp-segmentation-offload", False),
        ("offload scatter-gather", "eth0 offload tx-gso-partial", True),
        ("sysctl net.ipv4.ip_forward", "eth0 offload tcp-segmentation-offload", False),
    ],
)
def test_offloads_that_follow_from_the_change_are_no_settings_of_their_own(
    requested: str, name: str, follows: bool
) -> None:
    """`tx off` turns TSO off, too: that belongs to the setting that was changed."""
    cause = Setting(requested, "on", "off", ("client",), requested=True)
    assert environment._follows(Setting(name, "on", "off", ("client",)), cause) == follows
    assert not environment._follows(Setting(name, "on", "off", ("server",)), cause)


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
    assert parts is not None
    assert parts.is_rest == (delay_s > 0)
    assert parts.rest.difference == pytest.approx(delay_s, abs=2e-6, rel=0.03)


def test_order_of_the_interfaces_is_no_difference(tmp_path: Path) -> None:
    """lo and a port differ in disable_policy, and one side lists the port first."""
    values = {"lo": "1", "port0": "0"}
    sides = [
        str(
            run(tmp_path / side, {BASELINE: MadeArm(speed=speed)}, 5, settings=_disable_policy(values, names))
        )
        for side, speed, names in (("left", 1.0, ["lo", "port0"]), ("right", 0.4, ["port0", "lo"]))
    ]
    assert not [one for one in concluded(*sides).settings if "disable_policy" in one.name]


def _disable_policy(values: dict[str, str], names: list[str]) -> dict[str, str]:
    return {f"sysctl net.ipv4.conf.{name}.disable_policy": values[name] for name in names}


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


def test_place_of_labkit_among_cgroups_is_no_cause(tmp_path: Path) -> None:
    """Older runs have a file of cgroups that exists at another level for another shell; no limit is no difference."""
    place = {
        "cgroup level 2 cpuset.cpus.effective": "0-1",
        "cgroup memory level 3 memory.limit_in_bytes": "9223372036854771712",
        "cgroup memory level 3 memory.kmem.tcp.limit_in_bytes": "9223372036854771712",
    }
    sides = two_runs(tmp_path, MadeArm(), MadeArm(speed=0.4), "tcp", **place)
    assert "cgroup" not in concluded(*sides).sentence
    limit = place | {"cgroup level 3 cpu.max": "50000 100000"}
    words = first(two_runs(tmp_path / "limited", MadeArm(), MadeArm(speed=0.4), "tcp", **limit))
    assert words.startswith("The only known difference between the sides is cgroup level 3 cpu.max (")


def test_what_older_runs_did_not_record_is_no_difference(tmp_path: Path) -> None:
    recorded = {
        "process Seccomp": "0",
        "scheduler feature HRTICK": "off",
        "module parameter tcp_cubic.beta": "717",
    }
    sides = two_runs(tmp_path, MadeArm(), MadeArm(speed=0.4), "tcp", **recorded)
    assert concluded(*sides).sentence.startswith("No cause is named: ")


@pytest.mark.parametrize(
    ("name", "values", "path"),
    [
        ("process Seccomp_filters", ("0", "1"), "an audit, security or system call filter"),
        ("iperf3 nice", ("0", "19"), "waking programs and switching between them"),
        ("scheduler feature HRTICK", ("off", "on"), "waking programs and switching between them"),
        ("cpu0 cpuidle state2", ("absent", "disabled"), "interrupts and idle CPUs"),
        ("module parameter haltpoll.guest_halt_poll_ns", ("200000", "0"), "interrupts and idle CPUs"),
        ("eth0 VLANs", ("1 PVID", "absent"), "the bridge"),
        ("cgroup memory level 1 memory.kmem.tcp.limit_in_bytes", ("absent", "4096"), "memory accounting of sockets"),
        ("iperf3 executable", ("/usr/bin/iperf3", "/usr/bin/dash"), None),
    ],
)  # fmt: skip
def test_recorded_settings_can_be_causes(name: str, values: tuple[str, str], path: str | None) -> None:
    setting = Setting(name, *values, ("machine",))
    assert setting.can_affect_result
    assert path is None or path in [one.name for one in setting.paths]
