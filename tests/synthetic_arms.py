"""Make up profiled runs with known causes: any number of arms in one run, for the tests of conclusions.

The stacks are those of veth and a bridge. Costs are seconds for a delivered packet (UDP), answered request (tcp_rr) or
gigabyte (TCP).
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import synthetic_rows

from labkit.analysis import flame
from labkit.analysis.why import conclusion, selection

PERIOD_S, WINDOW_S = 1 / 997, 1.0
PACKETS, GIGABYTES = 60_000, 0.5  # what arrives in the window
BASELINE = "veth_bridge"
WRITE = "iperf3;write;entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];ksys_write_[k];sock_write_iter_[k]"
READ = "iperf3;read;do_syscall_64_[k];ksys_read_[k];sock_read_iter_[k]"
SOFTIRQ = "do_softirq.part.0_[k];handle_softirqs_[k];net_rx_action_[k];process_backlog_[k]"
RECEIVE = {
    "udp": f"{WRITE};udp_sendmsg_[k];ip_output_[k];{SOFTIRQ};__netif_receive_skb_one_core_[k]",
    "tcp": f"{WRITE};tcp_sendmsg_[k];ip_output_[k];{SOFTIRQ};__netif_receive_skb_one_core_[k]",
}
USUAL = {
    "udp": {
        f"{WRITE};udp_sendmsg_[k]": 3e-6,
        f"{WRITE};udp_sendmsg_[k];ip_make_skb_[k];sock_alloc_send_pskb_[k];alloc_skb_with_frags_[k]": 1e-6,
        f"{RECEIVE['udp']};ip_rcv_[k];udp_rcv_[k]": 3e-6,
        f"{RECEIVE['udp']};br_handle_frame_[k]": 1e-6,
        f"{RECEIVE['udp']};ip_rcv_[k];fib_validate_source_[k]": 4e-7,
        f"{READ};udp_recvmsg_[k];_copy_to_iter_[k]": 2e-6,
        "iperf3;main": 1e-6,
    },
    "tcp": {
        f"{WRITE};tcp_sendmsg_[k];tcp_sendmsg_locked_[k];_copy_from_iter_[k]": 0.3,
        f"{WRITE};tcp_sendmsg_[k];tcp_write_xmit_[k]": 0.3,
        f"{RECEIVE['tcp']};ip_rcv_[k];tcp_v4_rcv_[k]": 0.4,
        f"{RECEIVE['tcp']};br_handle_frame_[k]": 0.1,
        f"{READ};tcp_recvmsg_[k];_copy_to_iter_[k]": 0.4,
        f"{READ};tcp_recvmsg_[k];skb_release_data_[k]": 0.1,
        "iperf3;main": 0.05,
    },
}  # fmt: skip
USUAL["tcp_rr"] = USUAL["udp"]


@dataclass(frozen=True)
class MadeArm:
    """What an arm has beyond the usual.

    more: additional seconds by stack. effects: of its change, as rows have them. lost: share of datagrams that the
    server loses, at lost_at. foreign: share of two CPUs that other programs use, in the first foreign_rounds rounds.
    frames: per gigabyte (TCP). closed: how often the receiver closes its window (TCP). columns: others of its rows.
    """

    more: Mapping[str, float] = field(default_factory=dict)
    effects: Sequence[Mapping[str, str]] = ()
    lost: float = 0.2
    lost_at: str = "UDP socket"
    foreign: float = 0.0
    foreign_rounds: int = 1000
    frames: float = 30_000
    closed: int = 0
    speed: float = 1.0
    columns: Mapping[str, Any] = field(default_factory=dict)


def effect(kind: str, setting: str, before: str, after: str, at: str = "server") -> dict[str, str]:
    """Return an effect of a change."""
    return {"at": at, "kind": kind, "setting": setting, "before": before, "after": after}


def run(
    folder: Path, arms: Mapping[str, MadeArm], seed: int, protocol: str = "udp", rounds: int = 5, noise: float = 0.04,
    settings: Mapping[str, str] | None = None, **columns: Any,
) -> Path:  # fmt: skip
    """Write a run. The first of the arms is the baseline, `… (again)` its control, every other one a change of it.

    noise: the standard deviation of the logarithm, of each stack, of the speed, and of what all stacks of an arm in a
    round share.
    """
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(rounds):
        for at, (name, arm) in enumerate(arms.items()):
            role = "baseline" if not at else "control" if name.endswith("(again)") else "variant"
            own = {
                "arm": name if role != "variant" else f"{BASELINE}+{name}", "topology": BASELINE, "role": role,
                "round": number, "point": f"1-p{number}", "method": "profile", "protocol": protocol,
                "cpu_s": 1.0, "window_s": WINDOW_S, **columns, **arm.columns,
            }  # fmt: skip
            if arm.effects:
                own |= {"change": name, "changed": list(arm.effects)}
            path = f"artefacts/1-p{number}/{at}.folded.gz"
            now = arm if number < arm.foreign_rounds else replace(arm, foreign=0.0)
            work = _load(protocol, arm, chance, noise, own)
            stacks = _stacks(protocol, now, chance, noise, work)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(gzip.compress(flame.text(stacks).encode()))
            perf = {
                "observer": "perf_record",
                "artefact": path,
                "observed": {"event": "cpu-clock", "frequency_hz": 997},
            }
            for observed in ({}, perf, _counters(protocol, arm, chance, noise)):
                rows.append(
                    synthetic_rows.ROW
                    | {"observer": None, "artefact": None, "observed": None}
                    | own
                    | observed
                )
    synthetic_rows.save(folder, rows, parameters={"topology": [BASELINE]})
    report = {"settings": {"sysctl net.core.high_order_alloc_disable": "0"} | dict(settings or {})}
    (folder / "environment.json").write_text(json.dumps(report))
    return folder


def _load(
    protocol: str, arm: MadeArm, chance: np.random.Generator, noise: float, own: dict[str, Any]
) -> dict[str, float]:
    """Add what the load reports to a row; return the units of work that passed, by the start of a stack."""
    speed = arm.speed * float(np.exp(chance.normal(0, noise)))
    shared = float(np.exp(chance.normal(0, noise)))
    if protocol == "tcp":
        size = GIGABYTES * speed
        own |= {"received_bytes": size * 1e9, "throughput_bps": 8e9 * size / WINDOW_S}
        return {WRITE: size * shared, READ: size * shared, "": size * shared}
    arrived = int(PACKETS * speed)
    sent = int(arrived / (1 - arm.lost * float(np.exp(chance.normal(0, 0.05)))))
    pps = arrived / WINDOW_S
    own |= {
        "length_bytes": own.get("length_bytes", 512), "received_count": arrived, "received_bytes": 512 * arrived,
        "sent_count": sent, "lost_count": sent - arrived, "throughput_pps": pps, "throughput_bps": 8 * 512 * pps,
    }  # fmt: skip
    if protocol == "tcp_rr":
        own |= {"loop": "closed", "transaction_rate": pps, "latency_p50_s": 1 / pps, "cpu_wait_s": 0.0}
        return {"": arrived * shared}
    return {READ: arrived * shared, "": sent * shared}


def _stacks(
    protocol: str, arm: MadeArm, chance: np.random.Generator, noise: float, work: Mapping[str, float]
) -> dict[str, int]:
    stacks = {"elsewhere;[unknown]": int(arm.foreign * 2 * WINDOW_S / PERIOD_S)} if arm.foreign else {}
    usual = USUAL[protocol]
    for stack in {**usual, **arm.more}:
        seconds = usual.get(stack, 0.0) + arm.more.get(stack, 0.0)
        count = next(value for start, value in work.items() if stack.startswith(start))
        mean = seconds * count * float(np.exp(chance.normal(0, noise))) / PERIOD_S
        stacks[stack] = int(chance.poisson(max(mean, 0.0)))
    return stacks


def _counters(protocol: str, arm: MadeArm, chance: np.random.Generator, noise: float) -> dict[str, Any]:
    """Return what the observer `counters` reports of the loss (UDP) or of the frames (TCP)."""
    if protocol == "tcp":
        frames = arm.frames * float(np.exp(chance.normal(0, noise)))
        pair: dict[str, Any] = {"unit": "frames", "received_count": frames, "received_bytes": 1e9}
    else:
        hops = [{"at": f"server0: {arm.lost_at}", "lost_count": int(1000 * arm.lost)}]
        pair = {"unit": "datagrams", "sent_count": 1000, "lost_count": int(1000 * arm.lost), "hops": hops}
    counts = {"server0": {"mibs": {"TcpExt": {"TCPToZeroWindowAdv": arm.closed}}}}
    return {"observer": "counters", "observed": {"loss": [pair], "namespaces": counts}}


def concluded(left: Path | str, right: Path | str) -> conclusion.Conclusion:
    """Return the conclusion about the only point of two sides."""
    [point] = selection.points(selection.select_sides(str(left), str(right)))
    return conclusion.conclude(point)


def within(
    folder: Path, arm: MadeArm, seed: int = 3, protocol: str = "udp", base: MadeArm = MadeArm(),
    again: MadeArm | None = None, **more: Any,
) -> conclusion.Conclusion:  # fmt: skip
    """Return the conclusion about an arm beside the baseline, measured in one run; `again` is the control."""
    control = {f"{BASELINE} (again)": again} if again else {}
    made = run(folder / "run", {BASELINE: base, **control, "x": arm}, seed, protocol, **more)
    return concluded(f"{made}:{BASELINE}", arm.columns.get("arm", "x"))


def two_runs(
    folder: Path, left: MadeArm, right: MadeArm, protocol: str = "udp", **settings: str
) -> tuple[str, str]:
    """Write two runs of one arm each; `settings` are those of the right one's machine, or of both: `1 → 2`."""
    both = {name: value.split(" → ") for name, value in settings.items()}
    lefts = {name: values[0] for name, values in both.items() if len(values) == 2}
    rights = {name: values[-1] for name, values in both.items()}
    return (
        str(run(folder / "left", {BASELINE: left}, 1, protocol, settings=lefts)),
        str(run(folder / "right", {BASELINE: right}, 2, protocol, settings=rights)),
    )
