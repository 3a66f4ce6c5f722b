"""Make up a run folder with five rounds of every observer's report, and read the text of its page."""

import gzip
import re
from pathlib import Path
from typing import Any

import pandas as pd
import synthetic_profiles as made
import synthetic_rows

from labkit.analysis import flame, why
from labkit.analysis.why import sections, selection

ARMS = {"veth_bridge": "baseline", "veth_bridge (again)": "control", "macvlan_bridge": "variant"}
PLANTED = {"process1;function3_[k];planted_[k]": 3e-5}
HOPS = {"client0:eth0 sends": 0, "server0: UDP socket": 900}


def observed(observer: str | None, number: int, arm: str) -> Any:
    """Return what each of labkit's observers reports."""
    if observer == "perf_record":
        return {"event": "cpu-clock", "frequency_hz": 1000, "samples_count": 1}
    if observer == "perf_stat":
        count = 4_000_000 + 1000 * number + 4_000_000 * (arm == "macvlan_bridge")
        refused = {"count": None, "running_ratio": None, "reason": "this machine has no event cycles"}
        known = {"context-switches": count, "instructions:k": 2 * count, "cycles:k": 3 * count + 1000 * number,
                 "LLC-loads": 1000, "LLC-load-misses": 10 + 10 * (arm == "macvlan_bridge")}  # fmt: skip
        events = {
            name: {"count": value, "running_ratio": 1.0, "reason": None} for name, value in known.items()
        }
        if arm != "macvlan_bridge":
            events["branches"] = {"count": 10_000_000, "running_ratio": 1.0, "reason": None}
        clock = {"count": 2.49 + number * 1e-3, "running_ratio": 1.0, "reason": None, "unit": "s"}
        return {"events": {**events, "task-clock": clock, "branches": refused, **events, "cycles": refused}}
    if observer == "function_times":
        slower = 2 if arm == "macvlan_bridge" else 1
        one = {"count": 200_000, "total_s": 0.2 * slower + number * 1e-3, "mean_s": 1e-6 * slower,
               "p50_s": 9e-7 * slower, "p99_s": 3e-6 * slower,
               "histogram": [[8e-7 * slower, 9e-7 * slower, 200_000]]}  # fmt: skip
        absent = {"count": 0, "total_s": 0.0, "mean_s": None, "p50_s": None, "p99_s": None, "histogram": []}
        only = {**one, "count": 100_000} if arm == "macvlan_bridge" else absent
        return {"tracer": "function_graph", "functions": {"ip_rcv": one, "macvlan_handle_frame": only}}
    if observer == "counters":
        hops = [{"at": at, "lost_count": lost + number, "why": {}} for at, lost in HOPS.items()]
        lost = sum(hop["lost_count"] for hop in hops)
        pair = {"unit": "datagrams", "sent_count": 201_000, "received_count": 200_000, "lost_count": lost,
                "hops": hops, "unexplained_count": 0}  # fmt: skip
        packets = 200_000 + 10 * number + 200_000 * (arm == "macvlan_bridge")
        return {
            "namespaces": {"client0": {"interfaces": {"eth0": {"tx_packets": packets}}}},
            "cpus": {"0": {"softirq_s": 0.2, "irq_s": 0.01}, "1": {"softirq_s": 0.4}},
            "loss": [pair],
        }
    return None


def run(folder: Path, arms: dict[str, str] = ARMS, **changes: Any) -> Path:
    """Write a run folder with five rounds of profiles."""
    rows = synthetic_rows.rows(dict.fromkeys(arms, 1.0), protocol="udp", length_bytes=64)
    for seed, (arm, role) in enumerate(arms.items()):
        profiled = made.arm(arm, seed, planted=PLANTED if role == "variant" else None, frames=350)
        for number, each in enumerate(profiled.rounds):
            for observer in (None, "perf_record", "perf_stat", "counters", "function_times"):
                path = f"artefacts/1-p{number}/{seed}.folded.gz"
                row = synthetic_rows.ROW | {
                    "arm": arm, "topology": arm.split()[0], "role": role, "round": number, "point": f"1-p{number}",
                    "method": "profile", "protocol": "udp", "length_bytes": 64, "observer": observer,
                    "observed": observed(observer, number, arm), "throughput_bps": 1e9,
                    "overhead_ratio": observer and 0.9,
                    "artefact": path if observer == "perf_record" else None, "received_count": each.received_count,
                    "received_bytes": each.received_bytes, "cpu_s": each.cpu_s, "window_s": 20.0,
                }  # fmt: skip
                rows.append(row | changes)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(
                gzip.compress((flame.text(each.stacks) + "elsewhere;x 99\n").encode())
            )
    synthetic_rows.save(folder, rows)
    return folder


def words(page: Path) -> str:
    """Return the text that a reader sees on the page, and the data of its figures."""
    text = page.read_text()
    return re.sub(r"<[^>]+>|\s+", " ", text[text.index("<header>") : text.index("<footer>")])


def tables(left: Path | str, right: Path | str | None = None, last: str = "") -> dict[str, tuple[str, Any]]:
    """Return the words and the table of each part of the page about the only point, by its title, up to the `last`."""
    [point] = selection.points(selection.select_sides(str(left), right and str(right)))
    result = {}
    for title, pieces in sections.parts(point):
        text = " ".join(one for one in pieces if isinstance(one, str))
        result[title] = text, next((one for one in pieces if isinstance(one, pd.DataFrame)), None)
        if title == last:
            break
    return result


def section(title: str, left: Path | str, right: Path | str | None = None) -> tuple[str, Any]:
    """Return the words and the table of one part of the page."""
    return tables(left, right, title)[title]


def page(left: str, right: str | None, out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page of `why.explain`, and return its path and the findings as sentences."""
    explained = why.explain(left, right)
    return explained.write(out), explained.sentences()
