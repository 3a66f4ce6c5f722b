"""Make up rows with known ratios, and run folders of them, for the tests of the analysis."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
MACHINE = {
    "kernel": "6.1.0", "kernel_build": "#1 SMP", "kernel_config_digest": "c0ffee", "cpu": "Some CPU",
    "microcode": "0x1", "cpus_count": 2, "accelerator": "none", "machine": "m1", "qdisc": "noqueue",
    "offloads": "tso", "sysctl_digest": "5ca1ab1e", "iperf3": "3.12", "labkit": "0.1.0",
    "git_revision": "abc", "seed": 42, "load1": 0.5,
    "time": "2026-11-21T09:00:00Z",
}  # fmt: skip
ROW = {
    "experiment": "datapaths", "run": "a", "point": None, "round": None, "slice": None, "method": None,
    "arm": None, "role": "variant", "where": "here", "topology": None, "protocol": "tcp", "pairs": 1,
    "mtu_bytes": 1500, "length_bytes": None, "rate_bps": None, "streams": 1, "duration_s": 5, "omit_s": 1,
    "family": 4, "parent": None, "throughput_bps": None, "latency_p50_s": None, "window_s": 0.07, "steal_s": 0.0,
    "status": "ok", "reason": None, "doubts": None, **MACHINE,
}  # fmt: skip
# What run.json of a finished run also has, for those that read all of it
FINISHED: dict[str, Any] = {
    "experiment": "datapaths", "parameters": {}, "seed": 1, "created": "2026-01-02T03:04:05Z", "why_stopped": {},
}  # fmt: skip
PREPARED = {"veth_bridge": 1.0, "veth_bridge (again)": 1.0, "macvlan_bridge": 1.2}


def rows(
    ratios: dict[str, float] = PREPARED, rounds: int = 5, slices: int = 12, whole: int = 0, noise: float = 0.02,
    seed: int = 3, **changes: Any,
) -> list[Row]:  # fmt: skip
    """Return rows of an experiment whose arms are `ratios` times 10 Gbit/s (or 1 ms), with log-normal noise."""
    rng = np.random.default_rng(seed)
    result = []
    for number in range(rounds):
        kinds = [("slice", place) for place in range(slices)] + [("whole", None)] * (number < whole)
        for method, place in kinds:
            for arm, ratio in ratios.items():
                value = ratio * math.exp(rng.normal(0, noise))
                role = "control" if "again" in arm else "baseline" if arm == next(iter(ratios)) else "variant"
                result.append(
                    ROW
                    | {"arm": arm, "topology": arm.split()[0], "role": role, "round": number, "slice": place}
                    | {"method": method, "throughput_bps": 1e10 * value, "latency_p50_s": 1e-3 * value}
                    | changes
                )
    for row in result:
        row["point"] = f"{row['pairs']}-r{row['round']}"
    return result


def save(folder: Path, some: list[Row], **run: Any) -> Path:
    """Write a run folder."""
    (folder / "rows").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": folder.name, "finished": "now"} | run))
    for point in {row["point"] for row in some}:
        lines = [json.dumps(row) + "\n" for row in some if row["point"] == point]
        (folder / "rows" / f"{point}.jsonl").write_text("".join(lines))
    return folder


# A host of each kind: this machine, two kernels in emulated lab VMs (one of them a tenth as fast), and a second machine
# that a cluster also calls "here".
HOSTS: dict[str, dict[str, Any]] = {
    "here": {"kernel": "6.18.5", "accelerator": "kvm"},
    "vm:6.1": {
        "where": "vm:6.1",
        "kernel": "6.1.0-37-amd64",
        "accelerator": "tcg",
        "cpu": "QEMU Virtual CPU",
    },
    "vm:6.12": {
        "where": "vm:6.12",
        "kernel": "6.12.9-amd64",
        "accelerator": "tcg",
        "cpu": "QEMU Virtual CPU",
    },
    "cluster": {"kernel": "6.18.5", "accelerator": "kvm", "machine": "m2", "cpu": "Another CPU"},
}
SPEED = {"here": 1.0, "vm:6.1": 1e-3, "vm:6.12": 1e-6, "cluster": 1e3}  # far apart, so that mixing them shows


def on_hosts(*names: str, ratios: dict[str, float] = PREPARED, **changes: Any) -> list[Row]:
    """Return the same measurement on several hosts, whose speeds differ by the factors in SPEED."""
    result: list[Row] = []
    for seed, name in enumerate(names or HOSTS):
        speeds = {arm: ratio * SPEED[name] for arm, ratio in ratios.items()}
        result += rows(speeds, **{"seed": seed, "run": name} | HOSTS[name] | changes)
    return result
