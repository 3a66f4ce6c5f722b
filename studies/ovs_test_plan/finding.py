"""State what the searches of the OVS test plan found: rates by use case and size, what each VM received, and which
factors matter most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, stats
from labkit.analysis.displays import markdown, show
from labkit.analysis.findings import loss_rates, registry
from labkit.analysis.run_figures import load_loss, of_one_host, of_part
from labkit.common.units import counted, percent, si
from studies import reference_tables
from studies.ovs_test_plan.figure import CASES, ranked_factors, use_cases

SWITCH = ["datapath", "use_case", "rules", "rules_count", "tunnel"]
# The factors that may matter, and their names. For numbers, the least level is compared with the greatest. For text,
# the first level is compared with each other one.
FACTORS = {
    "datapath": "datapath", "use_case": "use case", "rules": "rules match", "rules_count": "number of rules",
    "tunnel": "tunnel or VLAN", "flows_count": "flows of a sender", "frame_bytes": "frame size (bytes)", "pairs": "VMs",
    "endpoint": "crossing into",
}  # fmt: skip
CONTROL = "the same switch again (A/A)"


class OvsTestPlanFindings:
    """The findings of a run or sweep: `rows` of the searches, and `trials`. Each method shows one section, with a part
    for each host."""

    def __init__(self, rows: pd.DataFrame, trials: pd.DataFrame) -> None:
        self.rows, self.trials = rows, trials

    def _hosts(self) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Yield the rows and trials of each host, and show its name if there are several."""
        hosts, trials = load.measured_hosts(self.rows), dict(load.groups(self.trials, load.HOST))
        if len(hosts) < 2:
            yield self.rows, self.trials
            return
        for name, rows in hosts:
            show(markdown(f"**{name}**"))
            [(key, _)] = load.groups(rows[load.HOST], load.HOST)
            yield rows, trials.get(key, self.trials.iloc[:0])

    def factors(self) -> None:
        """Show which factors change the rate most."""
        for rows, _ in self._hosts():
            show(report(rows), ranked_factors(rows, factors(rows)))

    def throughput(self) -> None:
        """Show the rates by use case and frame size, and the loss at every rate that was tried."""
        for rows, trials in self._hosts():
            searched = figures.load_loss(trials, loss_rates.rates(rows))
            show(_use_cases(rows), loss_rates.report(rows, trials), searched)

    def by_vm(self) -> None:
        """Show what each VM received at the rate found, and what that cost."""
        for rows, _ in self._hosts():
            show(by_vm(rows))


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rates found (`loss_rates.rates`) with the additional columns SWITCH, `frame_bytes`, `endpoint` and
    `goal`."""
    result = loss_rates.rates(rows)
    if not len(result):
        return result
    arms = rows[rows["use_case"].isin(list(CASES))]
    about = arms[["arm", "role", "frame", "frame_bytes", "endpoint", *SWITCH]].drop_duplicates(
        ["arm", "frame"]
    )
    goals = result["loss_goal_ratio"].map(loss_rates.goal_name)
    return result.assign(goal=goals).merge(about, "inner", ["arm", "frame"])


def by_vm(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each receiver got at the rate found.

    Columns: packets and bits per second (medians of the searches), their spread over receivers (greatest divided by
    least, minus 1), upcalls, megaflows, masks, and CPU time per packet in ns.
    """
    lines: list[dict[str, Any]] = []
    has_rate = rows["status"].eq("ok") & rows["loss_goal_ratio"].notna() & ~load.unsupported_rates(rows)
    some = rows[has_rate & rows["use_case"].isin(list(CASES))]
    names = ["arm", "loss_goal_ratio", *loss_rates.BY]
    for key, own in some.groupby(names, sort=False, dropna=False):
        known = own[own["received_by"].map(lambda one: isinstance(one, dict) and bool(one))]
        if not len(known):
            continue
        by = pd.DataFrame(list(known["received_by"])).div(known["window_s"].to_numpy(float), axis=0)
        pps = by.median()
        bps = pps * float(known["frame_bytes"].iloc[0]) * 8
        total = by.sum(axis=1).to_numpy(float) * known["window_s"].to_numpy(float)
        of: dict[str, Any] = dict(zip(names, key, strict=True))
        all_received = pps.min() > 0
        line = {"switch": of["arm"], "frame": of["frame"], "flows": f"{of['flows_count']:g}"}
        line |= {"VMs": f"{of['pairs']:g}", "goal": loss_rates.goal_name(of["loss_goal_ratio"])}
        line["each receiver, packets/s"] = _range(pps, "pps")
        line["each receiver, bit/s"] = _range(bps, "bit/s")
        line["spread"] = percent(pps.max() / pps.min() - 1) if all_received else "a receiver got no packets"
        counts = {name: known[f"{name}_count"].median() for name in ("upcalls", "megaflows", "masks")}
        of_switch = np.median(known["datapath_cpu_s"].to_numpy(float) / total)
        for name, value in (("machine", known["cpu_per_packet_s"].median()), ("switch", of_switch)):
            counts[f"CPU ns per packet, {name}"] = float(value) * 1e9
        lines.append(line | counts)
    return pd.DataFrame(lines)


def _range(values: pd.Series[float], unit: str) -> str:
    if len(values) == 1:
        return si(float(values.iloc[0]), unit)
    return f"{si(float(values.min()), unit)} to {si(float(values.max()), unit)}"


def factors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the factors that change the rate, the greatest effect first: one row per factor and pair of its levels.

    Two searches of one round that differ only in the factor give a ratio. The ratios of a round are averaged, and the
    interval (95 %, Student's t on logarithms) is over rounds. Columns: factor, level, other, ratio (other to level),
    low, high (NaN below two rounds), rounds_count, ratios_count. The last row is the A/A control.

    The compared rates are those of the greatest loss goal that was searched for.
    """
    some = rows[rows["loss_goal_ratio"].notna() & rows["use_case"].isin(list(CASES))]
    columns = ["factor", "level", "other", "ratio", "low", "high", "rounds_count", "ratios_count"]
    if not len(some):
        return pd.DataFrame(columns=columns)
    some, goal = some[~load.unsupported_rates(some)], some["loss_goal_ratio"].max()
    ok = some[some["loss_goal_ratio"].eq(goal) & some["status"].eq("ok") & some["throughput_pps"].gt(0)]
    ok = ok.assign(
        log=np.log(ok["throughput_pps"].to_numpy(float)),
        setup=ok["folder"].astype(str) + " " + ok["round"].astype(str),
    )
    variants = ok[ok["role"].ne("control")]
    lines = list[dict[str, Any]]()
    for factor, words in FACTORS.items():
        equal_columns = [name for name in (*FACTORS, "setup") if name != factor]
        for level, other in _levels(variants[factor]):
            one, two = (
                variants[variants[factor].eq(value)].groupby(equal_columns, dropna=False)["log"].mean()
                for value in (level, other)
            )
            lines += _line(words, level, other, (two - one).dropna())
    first, again = (
        ok[ok["role"].eq(role)].groupby([*FACTORS, "setup"], dropna=False)["log"].mean()
        for role in ("baseline", "control")
    )
    lines.sort(key=lambda line: -abs(math.log(line["ratio"])))
    return pd.DataFrame([*lines, *_line(CONTROL, "", "", (again - first).dropna())], columns=columns)


def _levels(values: pd.Series[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of levels to compare."""
    there = list(dict.fromkeys(values.dropna()))
    if len(there) < 2:
        return []
    if pd.api.types.is_numeric_dtype(values):
        return [(min(there), max(there))]
    return [(there[0], other) for other in there[1:]]


def _line(factor: str, level: Any, other: Any, logs: pd.Series[float]) -> Iterator[dict[str, Any]]:
    """Yield the line of a factor, if there is a ratio."""
    if len(logs):
        by_round = logs.groupby(level="setup").mean()
        effect = stats.effect(by_round.tolist(), list(by_round.index))
        yield {
            "factor": factor,
            "level": _level(level),
            "other": _level(other),
            "ratio": effect.ratio,
            "low": math.nan if effect.low is None else effect.low,
            "high": math.nan if effect.high is None else effect.high,
            "rounds_count": len(by_round),
            "ratios_count": len(logs),
        }


def _level(value: Any) -> str:
    if isinstance(value, str):
        return CASES.get(value, value)
    return f"{value:g}"


def report(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each factor, the greatest effect first."""
    return [_sentence(line) for _, line in factors(rows).iterrows()]


def _sentence(line: pd.Series[Any]) -> str:
    levels = f" {line['level']} → {line['other']}" if line["level"] else ""
    text = f"**{line['factor']}**{levels}: the rate is {line['ratio']:.3g} times as high"
    if math.isnan(line["low"]):
        return f"{text} ({counted(int(line['rounds_count']), 'round')}: no interval)"
    text += f" [{line['low']:.3g}, {line['high']:.3g}] over {counted(int(line['rounds_count']), 'round')}"
    if line["low"] <= 1 <= line["high"]:
        text += "; the interval includes 1, so no effect is shown"
    return text


def findings(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    """Return the rates found and the factors, with a part for each host."""
    return registry.by_host(
        rows, lambda own: [*registry.searched(own), *report(own[~own["part"].eq("trials")])]
    )


def _use_cases(rows: pd.DataFrame) -> go.Figure:
    return use_cases(rows, rates(rows), reference_tables.ovs_test_plan())


FIGURES = {
    "ranked_factors": of_one_host(of_part("cost", lambda rows: ranked_factors(rows, factors(rows)))),
    "use_cases": of_one_host(of_part("cost", _use_cases)),
    "load_loss": of_one_host(load_loss),
}
