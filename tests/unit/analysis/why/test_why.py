"""`labkit why` shows two arms of a made-up run on one page and rejects invalid questions."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import synthetic_rows
from synthetic_why_run import page, run, section, words

from labkit.analysis import flame, load, why
from labkit.analysis.flame import load_profiles
from labkit.analysis.why import explain_run, sections, selection, verdict, work
from labkit.cli import main
from labkit.common import run_folder
from labkit.common.errors import BadInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("data") / "one")


def test_page_content(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "stacks"
    assert main(["why", str(folder), "--export", str(there)]) == 0
    lines = capsys.readouterr().out
    assert f"{there} has veth_bridge, macvlan_bridge, veth_bridge_again: .folded" in lines
    assert len(list(there.iterdir())) == 3
    rows = load.profiles(folder)
    arm = load_profiles.arm(rows[rows["arm"].eq("macvlan_bridge")], "macvlan_bridge")
    assert flame.read(there / "macvlan_bridge.folded") == arm.stacks()
    assert lines.startswith("- planted costs 32.")
    assert "91 % of the difference. The code path is new: planted below function3" in lines
    written = folder / "why.html"
    assert str(written.name) in lines
    text = words(written)
    for part in (
        "Why do they differ? macvlan_bridge against veth_bridge", "Verdict", "no difference beyond",
        "planted", "everything else", "veth_bridge against itself (A/A control): 0 of",
        "other processes (elsewhere). They are left out", "context-switches",
        "Not counted: cycles, branches: this machine has no event cycles",
        "softirq, ns", " 3,000.", "softirq on CPU 1, ns", " 2,000.", "irq, ns", " 50.", "all that was busy, ns",
        "cycles per instruction (k)", "LLC-load-misses / LLC-loads", "0.020000", "ratio 2 [2, 2]",
        "client: eth0 tx_packets", "Loss per hop", "server: UDP socket", "in all", "the observers cost", "ratio 0.9",
        "Function times", "p99, µs, macvlan_bridge", "macvlan_handle_frame", "How long functions of the kernel take",
    ):  # fmt: skip
        assert part in text, part
    assert '<details class="code">' not in written.read_text(), (
        "a page without cells has no code to fold away"
    )
    assert written.read_text().count('class="labkit-flame"><script type="application/json">') == 1


def test_cycle_samples_scale_to_cpu_time(folder: Path) -> None:
    """The kernel adapts the number of cycles per sample, so frequency_hz does not determine it."""
    rows = load.profiles(folder)
    rows = rows[rows["arm"].eq("veth_bridge") & rows["observer"].eq("perf_record")]
    rows = rows.assign(observed=[{"event": "cycles", "frequency_hz": 1}] * len(rows))
    for each in load_profiles.arm(rows, "one").rounds:
        assert each.period_s * (sum(each.stacks.values()) + each.others_count) == pytest.approx(each.cpu_s)
    with pytest.raises(BadInput, match="has no cpu_s"):
        load_profiles.arm(rows.assign(cpu_s=None), "one")


def test_event_unit(folder: Path, tmp_path: Path) -> None:
    """A TCP segment has no fixed size, so the unit is gigabytes. 2.49 s are not 2 events, and an uncounted event is not
    0."""
    several = dict.fromkeys(("udp", "tcp"), pd.DataFrame())
    for protocol in several:
        place = folder if protocol == "udp" else run(tmp_path / "tcp", protocol="tcp", received_bytes=2e9)
        words, several[protocol] = section("Events that perf counted", place)
        assert words.startswith("Per 1,000 packets" if protocol == "udp" else "Per gigabyte that arrived")
        assert "branches" not in several[protocol].index
    clock = several["tcp"].loc["task-clock, s"]
    assert clock["veth_bridge"].startswith("1.246")
    assert clock["stands out"] == "no"
    # The generator counted 400,000 requests in its own time, and answered 200,000 in the 20 s of the window.
    requests = run(tmp_path / "rr", protocol="udp_rr", transaction_rate=1e4, received_count=400_000)
    words, table = section("Events that perf counted", requests)
    assert words.startswith("Per request that was answered")
    assert table.loc["context-switches"]["veth_bridge"].startswith("20.0")


@pytest.mark.parametrize(
    ("protocol", "words", "calls", "unit", "least"),
    [
        ("udp", "packet that arrived", 200_000 / 250_000, "ns per packet", 1e9 / 250_000),
        ("tcp", "gigabyte that arrived", 100_000, "ms per gigabyte", 1e3 / 2),
        ("ping", "second of busy CPU", 50_000, "ms per second of busy CPU", 1e3 / 4),
    ],
)
def test_function_time_unit(
    tmp_path: Path, protocol: str, words: str, calls: float, unit: str, least: float
) -> None:
    """Packets of TCP are counted at the interface, after GRO, so there is no time for one packet."""
    work = {"received_count": 250_000, "received_bytes": 2e9, "cpu_s": 4.0}
    place = run(tmp_path / "one", protocol=protocol, **work)
    lines, table = section("Function times", place)
    assert lines.startswith(f"Per {words}. Means of the rounds")
    intervals = {head for head in table.columns if table[head].str.contains("±").any()}
    assert intervals == {head for head in table.columns if unit in head}
    assert "the total of all calls has its 95 % interval" in lines
    short = words.removesuffix(" that arrived")
    assert [float(one.replace(",", "")) for one in table[f"calls per {short}, veth_bridge"]] == [calls, 0]
    heads = [f"{unit}, veth_bridge", f"{unit}, macvlan_bridge", f"difference, {unit}"]
    values = [float(table.loc["ip_rcv", head].split(" ±")[0].replace(",", "")) for head in heads]
    assert values == pytest.approx([0.202 * least, 0.402 * least, 0.2 * least], rel=0.01)
    assert protocol == "udp" or not any("packet" in head for head in table.columns)
    assert table.loc["ip_rcv", "stands out"] == "yes"


def test_calls_per_tracing_time() -> None:
    """Tracing begins before the row's window and ends after it. All pings are inside both."""
    one = {"count": 250, "total_s": 0.25, "mean_s": 1e-3, "p50_s": 1e-3, "p99_s": 1e-3}
    report = {"tracer": "function_graph", "window_s": 1.25, "functions": {"ip_rcv": one}}
    for protocol, calls in (("udp", "2"), ("ping", "2.5")):
        row = pd.Series({"protocol": protocol, "window_s": 1.0, "received_count": 100.0, "folder": "run"})
        [line] = sections.function_time_table(
            ["a", "b"], [[(report, row)] * 2, [(report, row)] * 2, []], flame.PER["packet"]
        ).to_dict("records")
        assert line["calls per packet, a"] == calls
    there = {name: (pd.DataFrame(), [(report | {"tracer": tracer}, row)]) for name, tracer in
             (("a", "function_graph"), ("b", "bpf"))}  # fmt: skip
    [lines] = sections._tracers(there)
    assert lines.endswith("so do not compare them: a by function_graph, b by bpf.")
    assert sections._tracers({"a": there["a"], "b": there["a"]}) == ["Timed by function_graph."]


def test_names_of_arms(folder: Path) -> None:
    for right in ("macvlan_bridge", ":macvlan_bridge", f"{folder}:macvlan_bridge"):
        _, other, _ = selection.select_sides(f"{folder}:veth_bridge", right)
        assert other.name == "macvlan_bridge"


def test_the_other_way_round(folder: Path, tmp_path: Path) -> None:
    back, [sentence, *_] = page(f"{folder}:macvlan_bridge", f"{folder}:veth_bridge", tmp_path / "back.html")
    assert sentence.startswith("planted saves")
    assert "The code path is no longer used: planted below function3" in sentence
    assert "A/A" not in words(back), "the control is that of the baseline"


@pytest.mark.long
def test_two_runs(folder: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "a_*b*_<i>", {"veth_bridge": "baseline"})
    written, [sentence, *_] = page(f"{folder}:veth_bridge", str(other), tmp_path / "page.html")
    assert sentence.startswith("No difference between veth_bridge (a_*b*_<i>) and veth_bridge (one) was seen")
    [title] = re.findall(r"<h1[^>]*>(.*?)</h1>", written.read_text(), re.DOTALL)
    assert "a_*b*_&lt;i&gt;" in title
    assert "<em>" not in title
    [one] = why.explain(str(other), f"{folder}:macvlan_bridge").sentences()[:1]
    assert one.startswith("planted costs")
    third = run(tmp_path / "three", {"veth_bridge": "baseline"})
    written, _ = page(f"{folder}:veth_bridge", f"{other}+{third}", tmp_path / "several.html")
    assert '<span class="where">three:</span> three' in written.read_text(), "each run has its provenance"


def test_runs_of_one_side_are_judged_together(folder: Path, tmp_path: Path) -> None:
    """The second run of the right side is twice as fast, and the left side's are as fast as its first one."""
    arm = {"veth_bridge": "baseline"}
    second, other = run(tmp_path / "second", arm), run(tmp_path / "other", arm)
    rows = [row | {"throughput_bps": 2 * row["throughput_bps"]} for row in run_folder.read_rows(other)]
    fast = synthetic_rows.save(tmp_path / "fast", rows)
    alone = selection.select_sides(f"{folder}:veth_bridge", str(other))
    both = selection.select_sides(f"{folder}+{second}:veth_bridge", f"{other}+{fast}")
    [sentence], _ = verdict.sentences(alone)
    assert "no evidence of a difference between veth_bridge in other and in one: ratio " in sentence
    assert "Welch's t over 5 and 5 set-ups" in sentence
    [sentence], _ = verdict.sentences(both)
    assert (
        "no evidence of a difference between veth_bridge in other+fast and in one+second: ratio 1.4"
        in sentence
    )
    assert "Welch's t over 2 and 2 runs" in sentence


def test_a_choice_of_processes_leaves_the_machine_as_busy(folder: Path) -> None:
    [point] = selection.points(selection.select_sides(str(folder), None))
    every, some = (work.rounds(point, 0, processes) for processes in (load_profiles.WITHIN, "process1"))
    assert [one.busy_share for one in some] == [one.busy_share for one in every]
    assert all(0 < one.cost_s < other.cost_s for one, other in zip(some, every, strict=True))
    assert {stack.partition(";")[0] for one in some for stack in one.stacks} == {"process1"}


def test_invalid_process_pattern_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "page.html"
    argv = ["why", f"{folder}:veth_bridge", "macvlan_bridge", "--processes", "(", "--out", str(written)]
    assert main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("labkit: '(' is not a valid regular expression")
    assert not written.exists()


@pytest.mark.parametrize(
    ("left", "right", "sentence"),
    [
        ("{one}", "ipvlan_l2", "is neither the folder of a run"),
        ("{one}:ipvlan_l2", "veth_bridge", "has no arm ipvlan_l2: choose"),
        ("{one}", "{one}:macvlan_bridge", "name one of them"),
        ("{one}:veth_bridge", None, "also name the arm to compare it with"),
        ("{one}:veth_bridge", "{bare}", "was not profiled: measure with observe=perf_record"),
        (
            "{refused}",
            None,
            r"nothing to compare with veth_bridge: geneve was not measured \(there is no geneve\)",
        ),
    ],
)
def test_invalid_question_is_one_sentence(
    folder: Path, tmp_path: Path, left: str, right: str | None, sentence: str
) -> None:
    places = {"one": folder, "bare": tmp_path / "bare", "refused": tmp_path / "refused"}
    synthetic_rows.save(
        places["bare"], synthetic_rows.rows({"veth_bridge": 1.0}, protocol="udp", length_bytes=64)
    )
    rows = synthetic_rows.rows({"veth_bridge": 1.0, "geneve": 1.0})
    for row in rows:
        if row["topology"] == "geneve":
            row |= {"status": "unsupported", "reason": "there is no geneve"}
    synthetic_rows.save(places["refused"], rows)
    with pytest.raises(BadInput, match=sentence):
        page(left.format(**places), right and right.format(**places), tmp_path / "page.html")


def test_profile_doubts_are_shown(tmp_path: Path) -> None:
    """They appear in the section of their observer, without those that the unobserved traffic also has."""
    one = run(tmp_path / "one")
    own = {"perf_record": "perf lost 9 samples, of 99", "perf_stat": "events shared counters", "counters": "a stall",
           "function_times": "the trace buffer overflowed"}  # fmt: skip
    for path in (one / "rows").glob("*-p*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if row["arm"] == "macvlan_bridge":
                row["doubts"] = "; ".join(["datagrams were lost", *filter(None, [own.get(row["observer"])])])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written, _ = page(str(one), None)
    text = words(written)
    assert "datagrams were lost" not in text
    heads = ("Where the time goes", "Events that perf counted", "The kernel's counters", "Function times")
    begins = [text.index(f" {heading} ") for heading in heads]
    at = [text.index(f"Of macvlan_bridge: {doubt} (in 5 of 5 rows).") for doubt in own.values()]
    assert sorted([*begins, *at]) == [place for both in zip(begins, at, strict=True) for place in both]


def test_published_run_says_once_that_it_has_no_profiles(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    shutil.rmtree(one / "artefacts")
    written, [sentence, *_] = page(str(one), None)
    told = "there are no profiles of veth_bridge (observe=perf_record makes them)"
    assert told in sentence
    assert words(written).count(told) == 1
    assert str(one) not in sentence
    assert "None is judged: no profiles of both sides say what the settings below cost." in words(written)
    lines = explain_run(one).sentences()
    assert [line for line in lines if "observe=perf_record" in line] == [
        "next: repeat the run to have profiles (observe=perf_record makes them)"
    ]


def test_lost_profile_is_reported(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    (one / "artefacts" / "1-p2" / "2.folded.gz").unlink()
    written, [sentence, *_] = page(str(one), None)
    assert "there is no file " in sentence
    assert "there is no file " in words(written)
    assert "context-switches" in words(written)
