"""Function times by size, and whether they support, contradict, or do not decide a claim."""

import pandas as pd
import pytest
import synthetic_packet_sizes
import synthetic_rows

from labkit.analysis import figures
from labkit.measure.observers.ftrace.histogram import Distribution
from studies import function_time_claim
from studies.packet_size import finding as packet_size

HALF, SAME = {400: 20e-6, 800: 10e-6}, {400: 10e-6, 800: 10e-6}


def test_claim_sentence() -> None:
    for took_s, more, word, why in (
        (HALF, {}, "supported", ""),
        (SAME, {}, "contradicted", ""),
        (
            {400: 20e-6, 800: 13e-6},
            {"noise": 0.1},
            "undecided",
            "the interval lies partly inside 0.4 to 0.62",
        ),
        (HALF, {"rounds": 1}, "undecided", "one round has no interval"),
        # The interval is widened, because the baseline differs from itself.
        (SAME, {"again": 1.5}, "undecided", "the interval lies partly inside"),
    ):
        profiles = synthetic_packet_sizes.profiles(took_s, **more)  # type: ignore[arg-type]
        [result] = function_time_claim.judge_claim(function_time_claim.times(profiles))
        assert (result.arm, result.word) == ("veth", word)
        assert result.why.startswith(why)
        # The ratio that is shown has the interval that was judged.
        assert ("differs from itself" in result.effect.how) == ("again" in more)
        [claim, lines] = packet_size.functions(profiles)
        assert claim.startswith("Claimed (ECE 792 report")
        assert claim.endswith("moves the ratio towards 1.")
        assert lines.startswith(f"    - **{word}** at veth: ")
        assert "tracing left 93 % of the speed" in lines


def test_hosts_are_judged_separately() -> None:
    there = synthetic_rows.HOSTS["vm:6.1"]
    both = pd.concat([synthetic_packet_sizes.profiles(HALF), synthetic_packet_sizes.profiles(SAME, **there)])
    judged = function_time_claim.judge_claim(function_time_claim.times(both))
    assert sorted(one.word for one in judged) == ["contradicted", "supported"]
    lines = packet_size.functions(both)
    assert len(lines) == 3
    assert "6.1.0-37-amd64" in " ".join(lines)


def test_untimed_functions_are_explained() -> None:
    refused = synthetic_packet_sizes.profiles(
        HALF, status="unsupported", reason="this kernel traces no functions", observed=None
    )
    [lines] = packet_size.functions(refused)
    assert lines.endswith("cannot be determined here: this kernel traces no functions.")
    none = refused.iloc[:0]
    for some in (none, none.drop(columns="observed"), synthetic_packet_sizes.profiles({400: 1e-6})):
        [lines] = packet_size.functions(some)
        assert "was not set to observe both sizes" in lines
    assert not len(function_time_claim.times(refused))
    coarse = synthetic_packet_sizes.profiles({400: 0.0, 800: 10e-6})  # by jiffies, most calls take 0 ns
    assert function_time_claim.judge_claim(function_time_claim.times(coarse)) == []
    [lines] = packet_size.functions(coarse)
    assert lines.endswith("cannot be determined here: a median was 0 s, so the kernel's clock is too coarse.")


def test_zero_times_in_the_figure() -> None:
    shown = Distribution()
    for value_ns, count in ((0, 60), (500, 40)):
        shown.add(value_ns, count)
    report = {"functions": {"ip_rcv": shown.report()}}
    figure = figures.function_times({"veth": (synthetic_packet_sizes.profiles(HALF), [report])})
    [line] = [trace for trace in figure.data if trace.name == "veth"]
    assert (line.x[0], line.x[1]) == pytest.approx((5e-4, 1e-3))
    assert "µs" in figure.layout.xaxis.title.text
    assert line.y[0] == pytest.approx(0.6 / 8)


def test_dotted_line_is_the_mean_of_the_medians() -> None:
    """A round counts as much as another one, however many calls it had."""
    rounds = [Distribution(), Distribution()]
    for one, (value_ns, count) in zip(rounds, ((1000, 900), (3000, 100)), strict=True):
        one.add(value_ns, count)
    reports = [{"functions": {"ip_rcv": one.report()}} for one in rounds]
    figure = figures.function_times({"veth": (synthetic_packet_sizes.profiles(HALF), reports)})
    [line] = figure.layout.shapes
    assert line.x0 == pytest.approx(2, rel=0.1)
    assert "dotted: mean of the rounds' medians" in figure.layout.title.subtitle.text.replace("<br>", " ")


def test_times_and_their_figure() -> None:
    result = function_time_claim.times(synthetic_packet_sizes.profiles(HALF))
    assert len(result) == 20
    assert set(result["per_packet"]) == {2.0}
    assert set(result["function"]) == {"ip_rcv"}, "what was never called has no times"
    figure = figures.function_durations(result)
    assert "function_graph's cost included" in figure.layout.title.subtitle.text.replace("<br>", " ")
    by_bpf = {"tracer": "bpf", "window_s": 5.0, "functions": {"ip_rcv": {**result.iloc[0], "count": 500}}}
    other = function_time_claim.times(synthetic_packet_sizes.profiles(HALF, observed=by_bpf, window_s=4.0))
    assert "bpf's cost included" in figures.function_durations(other).layout.title.subtitle.text
    assert set(other["per_packet"]) == {1.6}, "of 312.5 packets that arrived while it was traced"
    [line] = [trace for trace in figure.data if trace.name == "veth" and trace.mode == "lines+markers"]
    assert list(line.y) == pytest.approx([20, 10], rel=0.05)
    [raw] = [trace for trace in figure.data if trace.name == "veth" and trace.mode == "markers"]
    assert raw.hovertext[0].split("<br>")[1].startswith("round 0 (whole run): "), "a profile has no slices"
