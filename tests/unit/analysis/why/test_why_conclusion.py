"""`labkit why` names the known cause of made-up runs, and claims no cause where there is none."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_rows

from labkit.analysis import flame
from labkit.analysis.flame import significance
from labkit.analysis.protocols import PER
from labkit.analysis.why import causes, conclusion, counter_tables, environment, selection, work

PERIOD_S, WINDOW_S, ARRIVED = 1 / 997, 1.0, 60_000
SYSCALL = (
    "iperf3;write;entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];ksys_write_[k];sock_write_iter_[k]"
)
SENDING = f"{SYSCALL};udp_sendmsg_[k]"
SOFTIRQ = (
    f"{SENDING};ip_output_[k];do_softirq.part.0_[k];handle_softirqs_[k];net_rx_action_[k];process_backlog_[k]"
)
RECEIVING = f"{SOFTIRQ};__netif_receive_skb_one_core_[k]"
READING = "iperf3;read;do_syscall_64_[k];ksys_read_[k];sock_read_iter_[k];udp_recvmsg_[k]"
# Seconds for each delivered packet, by stack.
USUAL = {
    SENDING: 3e-6,
    f"{SENDING};ip_make_skb_[k];sock_alloc_send_pskb_[k];alloc_skb_with_frags_[k]": 1e-6,
    f"{RECEIVING};ip_rcv_[k];udp_rcv_[k]": 3e-6,
    f"{RECEIVING};ip_rcv_[k];fib_validate_source_[k]": 4e-7,
    f"{READING};_copy_to_iter_[k]": 2e-6,
    "iperf3;main": 1e-6,
}
TRACED = f"{RECEIVING};perf_trace_net_dev_template_[k];trace_call_bpf_[k];bpf_prog_f09f_netif_receive_s_[k]"
PAGES = (
    f"{SENDING};ip_make_skb_[k];sock_alloc_send_pskb_[k];alloc_skb_with_frags_[k];get_page_from_freelist_[k]"
)


def run(
    folder: Path, seed: int, more: Mapping[str, float] | None = None, settings: Mapping[str, str] | None = None,
    lost: float = 0.2, foreign: float = 0.0, noise: float = 0.04, rounds: int = 5, **changes: Any,
) -> Path:  # fmt: skip
    """Write a run of one arm.

    more: additional seconds per packet for stacks. lost: share of packets that the socket loses. foreign: share of two
    CPUs that other programs use.
    """
    chance = np.random.default_rng(seed)
    common = float(np.exp(chance.normal(0, 0.04)))  # the difference between two runs of the same arm
    rows = []
    for number in range(rounds):
        sent = int(ARRIVED / (1 - lost * float(np.exp(chance.normal(0, 0.05)))))
        stacks = {"elsewhere;[unknown]": int(foreign * 2 * WINDOW_S / PERIOD_S)} if foreign else {}
        for stack, seconds in {**USUAL, **(more or {})}.items():
            count = sent if READING not in stack else ARRIVED
            mean = seconds * common * count * float(np.exp(chance.normal(0, noise))) / PERIOD_S
            stacks[stack] = int(chance.poisson(mean))
        path = f"artefacts/1-p{number}/arm.folded.gz"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(gzip.compress(flame.text(stacks).encode()))
        speed = ARRIVED / WINDOW_S * float(np.exp(chance.normal(0, 0.03))) / common
        for observer in (None, "perf_record"):
            rows.append(synthetic_rows.ROW | {
                "arm": "veth_bridge", "topology": "veth_bridge", "role": "baseline", "round": number,
                "point": f"1-p{number}", "method": "profile", "protocol": "udp", "length_bytes": 512,
                "observer": observer, "artefact": path if observer else None, "window_s": WINDOW_S,
                "observed": {"event": "cpu-clock", "frequency_hz": 997} if observer else None,
                "received_count": ARRIVED, "received_bytes": 512 * ARRIVED, "cpu_s": 1.0, "sent_count": sent,
                "lost_count": sent - ARRIVED, "throughput_pps": speed, "throughput_bps": 8 * 512 * speed,
            } | changes)  # fmt: skip
    synthetic_rows.save(folder, rows)
    report = {"settings": {"sysctl net.core.high_order_alloc_disable": "0"} | dict(settings or {})}
    (folder / "environment.json").write_text(json.dumps(report))
    return folder


def concluded(left: Path | str, right: Path | str) -> conclusion.Conclusion:
    [point] = selection.points(selection.select_sides(str(left), str(right)))
    return conclusion.conclude(point)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("left") / "usual", 1)


def test_bpf_program_on_a_tracepoint(usual: Path, tmp_path: Path) -> None:
    name = "BPF program tracepoint netif_receive_s"
    place = "tag f09f, on tracepoint netif_receive_skb (of bpftrace)"
    result = concluded(usual, run(tmp_path / "traced", 2, {TRACED: 2e-6}, {name: place}))
    assert result.cause == "a BPF program on a tracepoint"
    assert result.sentence.startswith("A BPF program on a tracepoint costs 2.")
    first, second, third = result.sentence.split(". ")
    assert first.endswith("] per packet that arrived")
    assert second == "The code path is new: perf_trace_net_dev_template below __netif_receive_skb_one_core"
    assert third == f"It is explained by {name} (absent → {place})"
    assert result.candidates[0].strength == 3
    back = concluded(tmp_path / "traced", usual)
    assert back.sentence.startswith("A BPF program on a tracepoint saves")


def test_sysctl_is_matched_with_its_code(usual: Path, tmp_path: Path) -> None:
    changed = {"sysctl net.core.high_order_alloc_disable": "1", "sysctl kernel.printk": "7"}
    result = concluded(usual, run(tmp_path / "pages", 3, {PAGES: 4e-6}, changed))
    assert result.cause == "page allocation"
    sysctl = "sysctl net.core.high_order_alloc_disable (0 → 1)"
    cause = f"The only known difference between the sides is {sysctl}: page allocation costs"
    assert result.sentence.startswith(cause)
    assert ". The code path is new: get_page_from_freelist below alloc_skb_with_frags" in result.sentence
    assert "printk" not in result.sentence
    assert next(one.name for one in result.settings) == "sysctl net.core.high_order_alloc_disable"


def test_foreign_load_is_the_only_cause(usual: Path, tmp_path: Path) -> None:
    """This holds even if functions have become slower, because foreign load may be the cause."""
    right = run(tmp_path / "busy", 4, {stack: 1.6 * seconds for stack, seconds in USUAL.items()}, foreign=0.5)
    description = json.loads((right / "run.json").read_text())
    (right / "run.json").write_text(json.dumps(description | {"others": [{"name": "sh", "cpu_share": 0.5}]}))
    result = concluded(usual, right)
    assert result.cause == "foreign load"
    assert not result.claims
    assert result.sentence.startswith(
        "Other processes (sh) had 50 % of the CPUs in veth_bridge (busy) and 0 % in"
    )
    assert result.sentence.endswith("so no other cause is named")


def test_new_path_on_a_disturbed_machine(usual: Path, tmp_path: Path) -> None:
    settings = {"BPF program tracepoint netif_receive_s": "tag f09f"}
    result = concluded(usual, run(tmp_path / "both", 5, {TRACED: 2e-6}, settings, foreign=0.4))
    assert result.cause == "a BPF program on a tracepoint"
    doubt = result.sentence.split(". ")[-1]
    assert doubt.startswith("Other processes had 40 % of the CPUs")
    assert doubt.endswith("so the size is less certain")


def test_ineffective_setting_has_a_bound(usual: Path, tmp_path: Path) -> None:
    result = concluded(usual, run(tmp_path / "rp", 6, None, {"sysctl net.ipv4.conf.default.rp_filter": "1"}))
    assert not result.claims
    assert (
        "rp_filter (absent → 1) differs, but no effect was seen: its cost (the reverse path check) is below"
        in (result.sentence)
    )


def test_more_loss_is_not_more_cpu(tmp_path: Path) -> None:
    """With 18 and 41 % lost and the same code, lost packets explain the higher cost."""
    few, many = (
        run(tmp_path / name, 7, lost=lost, noise=0.0) for lost, name in ((0.18, "few"), (0.41, "many"))
    )
    [point] = selection.points(selection.select_sides(str(few), str(many)))
    rows = work.rounds(point, 0), work.rounds(point, 1)
    split = work.split(rows[0], rows[1], PER["packet"], None)
    assert split.total.certain
    assert split.loss.estimate.difference == pytest.approx(split.total.difference, rel=0.1)
    assert not any(part.estimate.certain and abs(part.estimate.difference) > 2e-7 for part in split.stages)
    parts = split.loss.estimate.difference + sum(one.estimate.difference for one in split.stages)
    assert parts == pytest.approx(split.total.difference, rel=0.05)


def test_several_runs_per_side(tmp_path: Path) -> None:
    names = ["+".join(str(run(tmp_path / f"{side}{one}", seed + one)) for one in range(3))
             for side, seed in (("a", 300), ("b", 400))]  # fmt: skip
    result = concluded(*names)
    assert not result.claims
    assert "Each side has several runs" in result.notes[0]
    [point] = selection.points(selection.select_sides(*names))
    both = work.rounds(point, 0), work.rounds(point, 1)
    variation = significance.run_variation(*([one.run for one in side] for side in both))
    assert variation is not None
    assert variation.is_measured
    one_run = significance.run_variation(*[[one.run for one in both[0][:5]]] * 2)
    assert one_run is None, "rounds of one run are interleaved"


def test_functions_that_only_call_are_not_named(usual: Path, tmp_path: Path) -> None:
    deep = f"{RECEIVING};ip_rcv_[k];ip_local_deliver_[k];nf_hook_slow_[k];nft_do_chain_[k]"
    [point] = selection.points(
        selection.select_sides(str(usual), str(run(tmp_path / "rules", 9, {deep: 2e-6})))
    )
    both = work.rounds(point, 0), work.rounds(point, 1)
    named = causes.ranked_causes(
        causes.judge_rounds(*both, significance.run_variation(*([one.run for one in side] for side in both)))
    )
    assert [(one.function, one.change) for one in named] == [("ip_local_deliver", "new")]
    assert named[0].name == "packet filter rules (nftables)"
    assert named[0].callers == ("ip_rcv",)


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (RECEIVING, work.RECEIVE),
        (SENDING, work.SEND),
        (READING, work.READ),
        (
            "elsewhere;write;do_syscall_64_[k];ksys_write_[k];asm_sysvec_apic_timer_interrupt_[k];irq_exit_rcu_[k];"
            "handle_softirqs_[k];net_rx_action_[k];process_backlog_[k]",
            work.RECEIVE,
        ),
        (
            "elsewhere;write;do_syscall_64_[k];ksys_write_[k];tcp_sendmsg_[k];__local_bh_enable_ip_[k];do_softirq_[k];"
            "net_rx_action_[k];process_backlog_[k];tcp_v4_rcv_[k]",
            None,
        ),
        ("elsewhere;main", None),
        ("iperf3;do_syscall_64_[k];__x64_sys_pselect6_[k];do_select_[k]", work.REST),
    ],
)
def test_stacks_have_one_stage(stack: str, stage: str | None) -> None:
    result = work.stage_of(stack)
    assert (result and result[0]) == stage
    if stage == work.RECEIVE:
        assert result is not None
        assert result[1].startswith("net_rx_action")


def test_pair_and_interface_names_are_normalised() -> None:
    assert environment.generic("client3") == "client"
    assert environment.generic("sysctl net.ipv4.conf.eth0.rp_filter") == "sysctl net.ipv4.conf.*.rp_filter"
    assert environment.generic("sysctl net.ipv4.conf.all.rp_filter") == "sysctl net.ipv4.conf.all.rp_filter"


def one_run(folder: Path, more: Mapping[str, float], effects: list[dict[str, Any]], **changes: Any) -> Path:
    """Write a run of two arms, the second of which has a change with these effects."""
    run(folder, 20)
    description = json.loads((folder / "run.json").read_text()) | {
        "parameters": {"topology": ["veth_bridge"]}
    }
    (folder / "run.json").write_text(json.dumps(description))
    other = run(folder.with_name(f"{folder.name}-other"), 21, more, **changes)
    for path in sorted((other / "rows").glob("*.jsonl")):
        lines = []
        for line in path.read_text().splitlines():
            row = json.loads(line) | {
                "arm": "veth_bridge+x",
                "role": "variant",
                "change": "x",
                "changed": effects,
            }
            if row["artefact"]:
                there = row["artefact"].replace("arm.", "other.")
                (folder / there).write_bytes((other / row["artefact"]).read_bytes())
                row["artefact"] = there
            lines.append(json.dumps(row) + "\n")
        with open(folder / "rows" / path.name, "a") as rows:
            rows.writelines(lines)
    return folder


def test_change_is_the_cause(tmp_path: Path) -> None:
    rules = f"{RECEIVING};ip_rcv_[k];nf_hook_slow_[k];nft_do_chain_[k]"
    effect = {
        "at": "server",
        "kind": "nftables",
        "setting": "nftables ruleset",
        "before": "none",
        "after": "9 rules, sha256:44d0894e7f71",
    }
    folder = one_run(tmp_path / "arms", {rules: 4e-6}, [effect])
    result = concluded(f"{folder}:veth_bridge", "x")
    assert result.claims
    first, second, third = result.sentence.split(". ")
    cause = "The cause is the change of nftables ruleset at the server from none to 9 rules: "
    assert first.startswith(f"{cause}packet filter rules (nftables) cost 5.")
    assert first.endswith(" % of the difference")
    assert second == "The code path is new: nf_hook_slow below ip_rcv"
    assert third.startswith("In all, x takes ")
    assert "Two runs" not in " ".join(result.notes)


def test_ineffective_change_is_no_cause(tmp_path: Path) -> None:
    """This also holds if other programs left its arm less CPU time, because rounds are interleaved."""
    effects = [
        {
            "at": "both",
            "kind": "sysctl",
            "setting": "net.ipv4.conf.all.rp_filter",
            "before": "0",
            "after": "1",
        }
    ]
    folder = one_run(tmp_path / "arms", {}, effects, foreign=0.2)
    result = concluded(f"{folder}:veth_bridge", "x")
    assert not result.claims
    assert "rp_filter (both: 0 → 1) differs, but no effect was seen: its cost" in result.sentence
    assert result.cause != "foreign load"


def test_equal_counters_are_merged() -> None:
    values = np.array([[100.0, 102, 150], [5400, 5508, 8100], [100, 150, 102], [7, 7, 10.6]])
    assert counter_tables._alike(values, [0, 1, 2, 3]) == {0: [1, 3], 2: []}
    assert counter_tables._with_repeats(["a", "b", "c"], 0, [1, 2]) == "a (equal: b, c)"
