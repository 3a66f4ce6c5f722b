"""State what it costs to watch an interface (experiment `monitor_cost`), by reader and load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis import load, stats, theme, verdicts
from labkit.analysis.displays import show
from labkit.analysis.load import GROUP
from labkit.analysis.run_figures import of_part
from labkit.common.units import counted, percent, si
from studies.linear_fit import Estimate, interval, mean, seconds, with_interval
from studies.monitor_cost.figure import monitor_cost

COST = "cpu_per_sent_s"  # compared by `verdicts` instead of the throughput
REFERENCE = "socket"
# Senanayake 2024, section 4.3.6: a filter of one of two equal streams, and 10 packets every 10 s of 30 s
THESIS_FILTERED = 0.5
THESIS_SAMPLED = (30, 143_739)


def cpu_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts (`verdicts.verdicts`) about the machine's CPU time per frame sent, instead of throughput."""
    return verdicts.verdicts(load.complete(rows).assign(metric=COST))


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each reader adds: one row per load and reader, and one without a reader.

    rows: `load.load` of a run. Columns: `load_pps` (NaN: as many as possible), `point` (`_loads`), `reader`,
    `offered_pps` (mean), `added` (an Estimate: CPU time of the machine per frame sent, in seconds, minus the mean of
    both measurements without a reader in the same round), `reader_cpu` (an Estimate: of the reader's own processes),
    `lost_share` (of what the reader should have taken), `late_s` and `start_s` (means), `delivered` (an Estimate:
    throughput of the watched traffic divided by that without a reader, minus 1), `observed_pps` (mean throughput of the
    flow that readers look for, counted where it arrives), `observed` (an Estimate of its change, like `delivered`),
    `rounds_count`. Estimates are None without a round. Where two measurements without a reader differ, the intervals of
    `added`, `delivered` and `observed` are widened by that.
    """
    ok = rows[rows["status"].eq("ok") & rows["offered_count"].gt(0)]
    result: list[dict[str, Any]] = []
    for load_pps, point, group in _loads(ok):
        nobody = group[group["role"].isin(["baseline", "control"])]
        compared = ["cpu_per_sent_s", "throughput_pps", "wanted_throughput_pps"]
        usual = nobody.groupby(["folder", "round"])[compared].mean()
        first, again = (
            nobody[nobody["role"].eq(role)].set_index(["folder", "round"])[compared]
            for role in ("baseline", "control")
        )
        control = (again / first - 1).assign(cpu_per_sent_s=again["cpu_per_sent_s"] - first["cpu_per_sent_s"])
        of = {"load_pps": load_pps, "point": point}
        result.append({**of, "reader": "nobody", **_means(nobody), "rounds_count": len(usual)})
        variants = group[group["role"].eq("variant")].groupby("topology", sort=False)
        for reader, own in sorted(variants, key=lambda each: _place(str(each[0]))):
            both = own.set_index(["folder", "round"]).join(usual.add_suffix("_usual"), how="inner")
            result.append({
                **of, "reader": reader, **_means(own), "rounds_count": len(both),
                "added": _mean(both["cpu_per_sent_s"] - both["cpu_per_sent_s_usual"], control["cpu_per_sent_s"]),
                "reader_cpu": _mean(both["reader_cpu_s"] / both["offered_count"]),
                "delivered": _change(both, "throughput_pps", control),
                "observed": _change(both, "wanted_throughput_pps", control),
            })  # fmt: skip
    columns = [
        "load_pps", "point", "reader", "offered_pps", "added", "reader_cpu", "lost_share", "late_s", "start_s",
        "delivered", "observed_pps", "observed", "rounds_count",
    ]  # fmt: skip
    return pd.DataFrame(result, columns=columns).sort_values("load_pps", kind="stable", ignore_index=True)


def _loads(ok: pd.DataFrame) -> list[tuple[float | None, str, pd.DataFrame]]:
    """Return each load: its rate, what tells it from another load of this rate in words ("" if there is none), and its
    rows."""
    at = GROUP.index("load_pps")
    found = [
        (key[at], load.group_text((*key[:at], None, *key[at + 1 :]), host), group)
        for host, rows in load.measured_hosts(ok)
        for key, group in load.groups(rows)
    ]
    several = len({words for _, words, _ in found}) > 1
    return [(load_pps, f" ({words})" * several, group) for load_pps, words, group in found]


def _place(reader: str) -> int:
    """The place of a reader in tables: rows are in the random order of the measurements."""
    return [*theme.READERS, reader].index(reader)


def _mean(values: pd.Series[float], control: pd.Series[float] | None = None) -> Estimate | None:
    """The mean over rounds. control: the difference of two measurements without a reader, in each round; where that is
    certain, it widens the interval as in verdicts (`stats.widened`)."""
    finite, differences = (
        some[some.abs().lt(math.inf)].to_numpy(float)
        for some in (values, values[:0] if control is None else control)
    )
    if not finite.size:
        return None
    one, own = mean(finite), mean(differences, stats.CONTROL_CONFIDENCE) if differences.size else None
    if own is None or not own.excludes_zero or one.low is None or one.high is None:
        return one
    more = stats.TIMES_CONTROL * abs(own.value)
    return replace(one, low=one.low - more, high=one.high + more)


def _change(both: pd.DataFrame, name: str, control: pd.DataFrame) -> Estimate | None:
    """The change of a throughput, relative to that without a reader in the same round."""
    return _mean(both[name] / both[f"{name}_usual"] - 1, control[name])


def _means(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "offered_pps": rows["offered_pps"].mean(),
        "lost_share": lost(rows).mean(),
        "late_s": rows["reader_late_s"].mean(),
        "start_s": rows["reader_start_s"].mean(),
        "observed_pps": rows["wanted_throughput_pps"].mean(),
    }


def lost(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the share of packets that each row's reader lost: of the wanted flow where it looks for one, else of
    all that it should have taken. NaN where it does not say."""
    missed_share = 1 - rows["wanted_found_count"] / rows["wanted_count"]
    known = rows["reader_dropped_count"] / (rows["reader_dropped_count"] + rows["reader_taken_count"])
    return missed_share.where(rows["wanted_found_count"].notna(), known).clip(lower=0)


def load_words(load_pps: float | None) -> str:
    """Return a load in words: `10 kpps`, or `the greatest rate`."""
    return "the greatest rate" if load_pps is None or math.isnan(load_pps) else si(load_pps, "pps")


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `costs` as text for people, with 95 % intervals over rounds."""
    lines = []
    for one in costs(rows).to_dict("records"):
        lines.append({
            "offered": f"{load_words(one['load_pps'])} ({si(one['offered_pps'], 'pps')}){one['point']}",
            "reader": one["reader"],
            "CPU of the machine, added per packet": _text(one["added"]),
            "CPU of the reader": _text(one["reader_cpu"]),
            "lost": "" if pd.isna(one["lost_share"]) else percent(one["lost_share"]),
            "late": "" if pd.isna(one["late_s"]) else seconds(one["late_s"]),
            "starts in": "" if pd.isna(one["start_s"]) else seconds(one["start_s"]),
            "watched traffic": _percent(one["delivered"]),
            "observed flow": _flow_throughput(one),
        })  # fmt: skip
    return pd.DataFrame(lines)


def _text(one: Any) -> str:
    return interval(one) if isinstance(one, Estimate) else ""


def _flow_throughput(one: Mapping[Any, Any]) -> str:
    """The throughput of the flow that readers look for, and its change."""
    if pd.isna(one["observed_pps"]):
        return ""
    change = _percent(one["observed"])
    return si(one["observed_pps"], "pps") + (f" ({change})" if change else "")


def _percent(one: Any) -> str:
    return with_interval(one, "+.2g", " %", 0.01) if isinstance(one, Estimate) else ""


def reductions(filtered: Any, sampled: Any) -> pd.DataFrame:
    """Return how much less a monitor hands on than it sees, by filter and by samples, beside the thesis' results.

    filtered, sampled: the `MonitorCounts` of two monitors at one interface.
    """
    some, all_packets = THESIS_SAMPLED
    counts_by_name = {
        "filter, here": (filtered.seen_count, filtered.selected_count),
        "filter, Senanayake 2024": None,  # the thesis has the share only
        "samples, here": (sampled.seen_count, sampled.sampled_count),
        "samples, Senanayake 2024": (all_packets, some),
    }
    lines = []
    for name, counts in counts_by_name.items():
        seen, left = counts or (1, 1 - THESIS_FILTERED)
        reduction = f"{100 * (1 - left / seen):.4g} %" if seen else ""  # two digits of 99.98 % would be 100 %
        lines.append((name, *(map(str, counts) if counts else ("", "")), reduction))
    return pd.DataFrame(lines, columns=["", "packets on the interface", "handed on", "reduction"])


def show_costs(rows: pd.DataFrame) -> None:
    """Show what each reader costs: a table, a figure, and sentences."""
    show(table(rows), monitor_cost(rows, costs(rows)), findings(rows))


def findings(rows: pd.DataFrame, _profiles: pd.DataFrame | None = None) -> list[str]:
    """Return a sentence for each reader and load, and how the readers compare with the reference."""
    known = costs(rows)
    return [*_sentences(known), *_ratios(known)]


def _sentences(known: pd.DataFrame) -> Iterator[str]:
    for (load_pps, point), group in load.groups(known[known["reader"].ne("nobody")], ["load_pps", "point"]):
        silent = []
        for one in group.to_dict("records"):
            if not isinstance(added := one["added"], Estimate):
                continue
            remarks = list(_remarks(one))
            if added.low is not None and not added.excludes_zero:
                if not remarks and one["lost_share"] == 0:
                    silent.append(one["reader"])
                    continue
                remarks.insert(0, "the interval includes 0, so no cost is shown")
            text = f"**{one['reader']}**, {load_words(load_pps)}{point}: {interval(added)} of CPU time per packet"
            yield "; ".join([f"{text} ({counted(one['rounds_count'], 'round')})", *remarks]) + "."
        if silent:
            yield (
                f"{load_words(load_pps)}{point}: no cost of {', '.join(silent)} is shown (each interval includes 0),"
                " and they lost nothing."
            )


def _remarks(one: Mapping[Any, Any]) -> Iterator[str]:
    """Yield what a reader lost, whether it was late, and how it changed the traffic."""
    if one["lost_share"] > 0:
        yield f"it lost {percent(one['lost_share'])} of the packets"
    if one["late_s"] > 1:
        yield f"it went on for more than {seconds(one['late_s'])} after the traffic"
    for name, what in (("delivered", "the watched traffic"), ("observed", "the observed flow")):
        if isinstance(one[name], Estimate) and one[name].excludes_zero:
            yield f"{what} changed by {_percent(one[name])}"


def _ratios(known: pd.DataFrame) -> Iterator[str]:
    """Compare the monitor with the reference and with tshark where both are known beyond noise."""
    for (load_pps, point), group in load.groups(known, ["load_pps", "point"]):
        of = {one["reader"]: one["added"] for one in group.to_dict("records")}
        for other, words in ((REFERENCE, "a bare packet socket"), ("tshark", "tshark on everything")):
            mine, theirs = of.get("monitor"), of.get(other)
            if not isinstance(mine, Estimate) or not isinstance(theirs, Estimate):
                continue
            if all(one.excludes_zero and one.value > 0 for one in (mine, theirs)):
                ratio = mine.value / theirs.value
                yield f"At {load_words(load_pps)}{point} the monitor adds {ratio:.2g} times what {words} adds."


FIGURES = {"monitor_cost": of_part("cost", lambda rows: monitor_cost(rows, costs(rows)))}
