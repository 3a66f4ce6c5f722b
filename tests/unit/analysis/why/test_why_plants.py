"""The first sentence of `labkit why` about causes that nobody prepared for: observers, slow readers, other programs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_arms import BASELINE, READ, RECEIVE, USUAL, WRITE, MadeArm, concluded, effect, run

from labkit.analysis.why import code_paths, work
from labkit.measure.observers.perf import record

THREAD = "kernel;ret_from_fork_asm_[k];ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k]"
BELOW = "__netif_receive_skb_one_core_[k]"


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
        (f"{RECEIVE['udp']};trace_event_raw_event_net_dev_template_[k]", "Recording of trace events (tracefs) costs"),
    ],
)  # fmt: skip
def test_program_that_observes_is_named_though_it_takes_cpu_time(
    tmp_path: Path, stack: str, name: str
) -> None:
    """tcpdump and perf use the CPUs themselves, and what they add to the path is the cause all the same."""
    words = first(two_runs(tmp_path, MadeArm(), MadeArm({stack: 2e-6}, foreign=0.4)))
    assert words.startswith(name)


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
    ],
)
def test_kernel_threads_that_carry_packets_have_a_stage(stack: str, stage: str | None) -> None:
    result = work.stage_of(stack)
    assert (result and result[0]) == stage


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


def test_slow_reader_of_udp_loses_packets_at_its_socket(tmp_path: Path) -> None:
    words = first(two_runs(tmp_path, MadeArm(lost=0.1), MadeArm(lost=0.75, speed=0.3)))
    assert "of the packets are lost instead of 10 %, 100 % of these at server: UDP socket" in words


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
        ("comment_mt", "packet filter rules (iptables)"),
        ("log_tg", "packet filter rules (iptables)"),
        ("pipapo_refill", "packet filter rules (nftables)"),
        ("init_conntrack.constprop.0", "connection tracking"),
        ("tcp_collapse_one", "a full receive buffer of TCP"),
        ("tcp_rcv_established", "TCP's acknowledgements and segments"),
        ("perf_swevent_hrtimer", "sampling (perf)"),
    ],
)
def test_functions_have_the_path_of_their_subsystem(function: str, path: str) -> None:
    result = code_paths.path_of_function(function)
    assert result is not None
    assert result.name == path


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
