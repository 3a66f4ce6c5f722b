"""Rates at which loss begins, from rows of searches: intervals, limits, sentences, and the figure."""

from typing import Any

import pandas as pd
import pytest

from labkit.analysis import figures, load, verdicts
from labkit.analysis.findings import loss_rates, registry

SENT = {
    "experiment": "throughput",
    "frame": "64",
    "flows_count": 1000,
    "pairs": 1,
    "mtu_bytes": 1500,
    "family": 4,
}


def search(pps: float | None, goal: float = 0.0, arm: str = "ovs", **more: Any) -> dict[str, Any]:
    return {
        **SENT, "arm": arm, "role": "baseline", "topology": arm, "status": "ok" if pps else "invalid",
        "method": "search", "throughput_pps": pps, "loss_goal_ratio": goal, "repeated_count": 5,
        "trials_count": 50, "exceed_ratio": 0.5, **more,
    }  # fmt: skip


def trial(offered: float, loss: float, **more: Any) -> dict[str, Any]:
    return {
        **SENT, "arm": "ovs", "role": "baseline", "topology": "ovs", "status": "ok", "method": "trial",
        "part": "trials", "phase": "search", "offered_pps": offered, "loss_ratio": loss, **more,
    }  # fmt: skip


P = ("p50", "p90", "p99", "p999", "max")
LIMIT = "generator-limited: loss of at most 0 % up to 300 kpps, the most that the generator offers here"
ROWS = load.complete(
    pd.DataFrame(
        [
            *(search(pps) for pps in (190e3, 200e3, 210e3)),
            *(search(pps, 0.005) for pps in (210e3, 220e3)),
            search(None, 0.0, "veth", reason=LIMIT, lower_bound_pps=300e3),
        ]
    )
)
TRIALS = load.complete(
    pd.DataFrame(
        [
            trial(300e3, 0.2),
            trial(100e3, 0.0),
            trial(200e3, 0.05, status="invalid", reason="disturbed: a thread of the datapath waited 9 ms for a CPU"),
            trial(
                100e3, 0.0, phase="latency at 50 %", latency_p50_s=6e-5, latency_p90_s=8e-5, latency_p99_s=1.5e-4,
                latency_p999_s=3e-4, latency_max_s=1e-3,
            ),
        ]
    )
)  # fmt: skip


def test_rate_intervals_over_searches() -> None:
    result = loss_rates.rates(ROWS).set_index(["arm", "loss_goal_ratio"])
    ndr = result.loc[("ovs", 0.0)]
    # Student's t of three values on logarithms: 199,833 times exp(± 4.303 · 0.0500 / √3)
    assert ndr["mean_pps"] == pytest.approx(199_833, rel=1e-5)
    assert [ndr["low_pps"], ndr["high_pps"]] == pytest.approx([176.4e3, 226.4e3], rel=0.01)
    assert ndr["spread_ratio"] == pytest.approx(210 / 190 - 1)
    assert ndr["repeated_ratio"] == pytest.approx(0.1)
    pdr = result.loc[("ovs", 0.005)]
    assert pdr["searches_count"] == 2
    assert pd.isna(pdr["low_pps"])
    assert result.loc[("veth", 0.0), "limited_count"] == 1


def test_the_rate_is_within_its_interval() -> None:
    """Seven searches of twelve found 100 kpps, their median, and the others twice as much."""
    searches = load.complete(pd.DataFrame([search(pps) for pps in [100e3] * 7 + [200e3] * 5]))
    [sentence, *_] = loss_rates.report(searches, TRIALS.iloc[:0])
    assert "NDR 133 kpps [106 kpps, 167 kpps] over 12 searches" in sentence


@pytest.mark.parametrize("name", ["pairs", "burst_frames", "vlan"])
def test_parameters_are_not_pooled(name: str) -> None:
    searches = [search(pps * count, **{name: count}) for count in (1, 8) for pps in (190e3, 200e3, 210e3)]
    trials = [
        trial(1e5 * count, 0.0, phase=phase, **{name: count} | {f"latency_{of}_s": 1e-5 * count for of in P})
        for count in (1, 8)
        for phase in ("search", "latency at 50 %")
    ]
    rows, tried = (load.complete(pd.DataFrame(each)) for each in (searches, trials))
    lines, words = loss_rates.report(rows, tried), name.replace("_", " ")
    for start in (
        "1: NDR 200 kpps ", "8: NDR 1.6 Mpps ",
        "1: one-way latency at 50 % of the rate found: p50 10 µs,",
        "8: one-way latency at 50 % of the rate found: p50 80 µs,",
    ):  # fmt: skip
        start = f"ovs, frames 64, 1000 flows, {words} {start}"
        assert sum(line.startswith(start) for line in lines) == 1, start
    layout = figures.load_loss(tried, loss_rates.rates(rows)).layout
    titles = [note.text for note in layout.annotations if note.text.startswith("<b>")]
    assert titles == [f"<b>frames 64, 1000 flows, {words} {count}</b>" for count in (1, 8)]
    assert [round(line.x0, -4) for line in layout.shapes] == [200e3, 1600e3], "a panel has its own rate alone"


def test_hosts_are_not_pooled() -> None:
    here, there = (
        [search(pps * factor, kernel=kernel, accelerator=accelerator) for pps in (190e3, 200e3, 210e3)]
        for kernel, accelerator, factor in (("6.18.5", "kvm", 1.0), ("6.1.0", "tcg", 0.1))
    )
    lines = registry.sentences(load.complete(pd.DataFrame([*here, *there])), pd.DataFrame)
    heads = [line for line in lines if line.startswith("- ")]
    assert heads == ["- **Linux 6.1.0, emulated**", "- **Linux 6.18.5**"]
    rates = [line for line in lines if "NDR" in line]
    assert [line.startswith("    - ovs, frames 64, 1000 flows: NDR ") for line in rates] == [True, True]
    assert "NDR 20 kpps" in rates[0]
    assert "NDR 200 kpps" in rates[1]


def test_sentences() -> None:
    lines = "\n".join(loss_rates.report(ROWS, TRIALS))
    for words in (
        "ovs, frames 64, 1000 flows: NDR 200 kpps [176 kpps, 226 kpps] over 3 searches, which spread by 11 %;"
        " exceed ratio 50 %; 10 % of the attempts",
        "PDR 0.5 % 215 kpps (2 searches: no interval); exceed ratio 50 %",
        "veth, frames 64, 1000 flows: NDR is not known: the generator was the limit, without such loss up to 300 kpps",
        "latency at 50 % of the rate found: p50 60 µs, p90 80 µs, p99 150 µs, p999 300 µs, max 1 ms",
    ):
        assert words in lines
    assert lines.count("The exceed ratio is the share of the trial time") == 1
    searched = TRIALS[~TRIALS["phase"].astype("str").str.contains("latency")]
    assert len(searched)
    assert "latency" not in "\n".join(loss_rates.report(ROWS, searched))
    limited = load.complete(pd.DataFrame([search(None, reason=LIMIT, lower_bound_pps=300e3)] * 7))
    rows = pd.concat([ROWS, limited], ignore_index=True)
    [line] = [line for line in loss_rates.report(rows, TRIALS) if "ovs" in line and "NDR" in line]
    assert "NDR 200 kpps [176 kpps, 226 kpps] over 3 searches" in line
    assert (
        ", and 7 of 10 searches found no loss up to the generator's limit (300 kpps), so it may be higher"
        in line
    )
    rows = load.complete(pd.DataFrame([search(None, reason="the search did not end within 60 s; …")]))
    [line, *_] = loss_rates.report(rows, TRIALS)
    assert line.endswith("NDR was not found: the search did not end within 60 s; …")
    # An earlier labkit did not write it.
    older = ROWS.assign(exceed_ratio=float("nan"))
    assert "exceed ratio" not in "\n".join(loss_rates.report(older, TRIALS))
    assert "exceed" not in figures.load_loss(TRIALS, loss_rates.rates(older)).layout.title.subtitle.text
    both = pd.concat([ROWS, TRIALS.assign(part="trials")])
    lines = registry.BY_EXPERIMENT["throughput"](both, TRIALS)
    assert lines == [f"- {line}" for line in loss_rates.report(ROWS, TRIALS)]


LOST = (
    "no rate has loss of at most 0 %: the path loses 0.19 % of the frames even at loads up to 1 kpps, and 0.2 % on"
    " average up to 340 kpps"
)


def test_loss_at_every_load_is_said_and_drawn() -> None:
    """Two of three searches found the same loss at every load, and one a rate that its short trials seem to allow."""
    lossy = {"arm": "veth", "reason": LOST, "upper_bound_pps": 1e3}
    both = [search(None, constant_loss_ratio=ratio, **lossy) for ratio in (0.0019, 0.0021)]
    rows = load.complete(pd.DataFrame([*both, search(220e3, 0.005, "veth")]))
    result = loss_rates.rates(rows)
    assert list(result["constant_loss_ratio"].dropna()) == [pytest.approx(0.002)]
    ndr, pdr, *_ = loss_rates.report(rows, TRIALS)
    assert ndr == f"veth, frames 64, 1000 flows: NDR was not found: {LOST}"
    assert "PDR 0.5 % 220 kpps" in pdr
    assert LOST not in pdr
    figure = figures.load_loss(TRIALS.assign(arm="veth"), result)
    assert [line.y0 for line in figure.layout.shapes if line.line.dash == "dot"] == [pytest.approx(0.002)]
    assert "dotted: lost at every load" in figure.layout.title.subtitle.text.replace("<br>", " ")
    mixed = load.complete(pd.DataFrame([both[0], search(1700, arm="veth")]))
    [line, *_] = loss_rates.report(mixed, TRIALS)
    assert f"NDR was not found: {LOST} (in 1 of 2 searches)" in line
    mostly = load.complete(pd.DataFrame([both[0], search(1700, arm="veth"), search(1800, arm="veth")]))
    [line, *_] = loss_rates.report(mostly, TRIALS)
    assert f"(2 searches: no interval), but 1 of 3 searches found no rate: {LOST}" in line


def compared_searches(variant: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the table of a variant's searches, one in each round, beside a baseline and its control near 200 kpps."""
    common = {"generator": "packets", "protocol": "udp", "folder": "run", "where": "here"}
    rows = []
    for at, one in enumerate(variant):
        rows += [
            {**search(pps + 1e3 * at), **common, "role": role, "round": at}
            for role, pps in (("baseline", 200e3), ("control", 201e3))
        ]
        rows.append({**one, **common, "role": "variant", "round": at})
    table = pd.DataFrame(rows)
    return load.complete(table.assign(throughput_bps=table["throughput_pps"] * 512))


@pytest.mark.parametrize(("lossy_count", "compared"), [(1, True), (2, False)])
def test_rates_of_a_path_without_one_enter_no_verdict(lossy_count: int, compared: bool) -> None:
    """Three searches of one arm: as many as found loss at every load decide whether the others' rates count."""
    lost = {"reason": LOST, "constant_loss_ratio": 0.002}
    table = compared_searches(
        [search(None, arm="veth", **lost) if at < lossy_count else search(2e3, arm="veth") for at in range(3)]
    )
    [line] = verdicts.verdicts(table).to_dict("records")
    assert pd.notna(line["ratio"]) == compared
    doubts = "\n".join(verdicts.doubts(table))
    words = "1 rate left out: at least as many searches of the arm saw frames lost at every load"
    assert (words in doubts) != compared
    assert "the compared metric is null" not in doubts
    if not compared:
        assert line["word"] == "no evidence"
        assert line["sentence"] == f"no evidence about veth: veth has no rate ({LOST})"


@pytest.mark.parametrize(("limited_count", "compared"), [(1, True), (2, False)])
def test_an_arm_that_the_generator_limits_is_not_slower(limited_count: int, compared: bool) -> None:
    """The searches that found a rate are those that were disturbed."""
    found = [(None, LIMIT) if at < limited_count else (150e3, None) for at in range(4)]
    table = compared_searches(
        [search(pps, arm="veth", reason=reason, lower_bound_pps=300e3) for pps, reason in found]
    )
    [line] = verdicts.verdicts(table).to_dict("records")
    assert (line["word"] == "slower") == compared
    if not compared:
        assert line["sentence"] == f"no evidence about veth: veth has no rate ({LIMIT})"


def test_figure_marks_excluded_trials() -> None:
    figure = figures.load_loss(TRIALS, loss_rates.rates(ROWS))
    counted, others = figure.data
    assert sorted(counted.x) == [100e3, 300e3]
    assert list(others.x) == [200e3]
    assert min(counted.y) == pytest.approx(1e-6)
    rates = sorted({line.x0 for line in figure.layout.shapes})
    assert rates == pytest.approx([199_833, 214_942], rel=1e-5)
    assert "dashed: rates found (exceed ratio 50 %)" in figure.layout.title.subtitle.text
