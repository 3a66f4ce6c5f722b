"""A gate for CI: exit codes and summaries; `python -m benchmarks gate` counts false alarms."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_rows import FINISHED, rows, save

from labkit import cli
from labkit.analysis import compare_runs, gate
from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.runner import run as running

SLOWER = gate.condition("slower>3%")
ARMS = {"veth": 1.0, "veth (again)": 1.0, "vxlan": 0.8}


def runs(folder: Path, slower: float, noise: float = 0.02, seed: int = 3, **given: str) -> tuple[Path, Path]:
    """Return two runs; in the second, vxlan has this share of its speed."""
    new = ARMS | {"vxlan": 0.8 * slower}
    return (
        save(folder / "old", rows(ARMS, noise=noise, seed=seed, rounds=10, slices=4, **given)),
        save(folder / "new", rows(new, noise=noise, seed=seed + 1000, rounds=10, slices=4, **given)),
    )


@pytest.mark.parametrize(
    ("slower", "noise", "word", "code"),
    [(0.9, 0.02, "worse", 3), (1.0, 0.02, "not worse", 0), (0.97, 0.4, "cannot tell", 4)],
)
def test_exit_code_is_the_answer(
    slower: float, noise: float, word: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = runs(tmp_path, slower, noise)
    files = ["--markdown", str(tmp_path / "a.md"), "--junit", str(tmp_path / "a.xml")]
    words = ["compare", str(old), str(new), "--fail-if", "slower>3%"]
    verb = {"worse": "is", "not worse": "is not", "cannot tell": "may be"}[word]
    last = f"{word}: of 1 point 1 {verb} worse by more than 3 %"
    assert cli.main([*words, "--json", *files]) == code
    point = json.loads(capsys.readouterr().out)["gate"]
    assert (point["word"], point["points"][0]["word"]) == (word, word)
    assert point["points"][0]["low"] < 1 / slower < point["points"][0]["high"]
    summary = (tmp_path / "a.md").read_text()
    assert summary.startswith(f"**{last}** (new against old)\n")
    assert "| vxlan (tcp, 1 pair, MTU 1500) |" in summary
    suite = ET.parse(tmp_path / "a.xml").getroot()
    assert suite.attrib["tests"] == "1"
    kinds = [child.tag for child in suite[0]]
    assert kinds == {"worse": ["failure"], "cannot tell": ["skipped"], "not worse": []}[word]
    if word == "worse":
        assert cli.main(words) == code
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_of_many_points_the_worst_must_stand_out() -> None:
    """One of 60 equal points is beyond the margin by chance; a point that is far beyond it is no chance."""
    point = gate.Judged("a", gate.WORSE, 1.2, 1.04, 1.38, "a was slower")
    far = replace(point, name="b", low=1.15, high=1.25)
    equal = replace(point, word=gate.NOT_WORSE, slower=1.0, low=0.99, high=1.01)
    words = [one.word for one in gate.holm_corrected([point, far, *[equal] * 58], 0.03)]
    assert words[:3] == [gate.UNCLEAR, gate.WORSE, gate.NOT_WORSE]
    assert gate.holm_corrected([point], 0.03) == [point]
    [one] = gate.holm_corrected([point], 0.03, 2)
    assert one.word == gate.UNCLEAR
    assert one.sentence.endswith("; of 2 comparisons, one may be as much worse by chance")
    assert {one.word for one in gate.holm_corrected([far] * 60, 0.03)} == {gate.WORSE}


def test_sizes_and_answers_are_plain_english() -> None:
    point = gate.Judged("a", gate.WORSE, 20.6, 0.9876, 41.234, "", condition=SLOWER.text)
    assert point.size == "+1,960 % [-1.24 %, +4,020 %]"
    words = (gate.NOT_WORSE, gate.UNCLEAR, gate.WORSE, gate.NOT_WORSE)
    assert gate.sentences([replace(point, word=word) for word in words], [SLOWER]) == [
        "worse: of 4 points 1 is, 1 may be and 2 are not worse by more than 3 %"
    ]
    texts = [gate.condition(given).text for given in ("slower>2.25%", "loss>0.03%", "cpu>12.5%")]
    assert [text.partition("more than ")[2] for text in texts] == ["2.25 %", "0.03 %", "12.5 %"]


def test_few_set_ups_are_more_often_far_beyond_the_margin() -> None:
    """Of 20 equal points with five set-ups, one is worse in about 1 of 40 sets (2 %), and not in one of eight."""
    noise = np.random.default_rng(1).normal(0, 0.02, (1000, 20, 5)) + np.log(1.03)
    middle, half = noise.mean(axis=2), 2.776 * noise.std(axis=2, ddof=1) / np.sqrt(5)
    point, failed = gate.Judged("a", gate.UNCLEAR, 1, 1, 1, "", degrees_of_freedom=4.0), 0
    for each in zip(*(np.exp(middle + place * half) for place in (0, -1, 1)), strict=True):
        points = [
            replace(point, word=gate.WORSE if low > 1.03 else gate.UNCLEAR, slower=ratio, low=low, high=high)
            for ratio, low, high in zip(*each, strict=True)
        ]
        failed += gate.overall(gate.holm_corrected(points, 0.03)) == gate.WORSE
    assert 10 <= failed <= 40


@pytest.mark.parametrize(
    ("slower", "noise", "whole", "word"),
    [
        (1.05, 0.02, 0, "worse"),
        (1.0, 0.02, 0, "not worse"),
        (1.0, 0.4, 0, "cannot tell"),
        (1.0, 0.02, 2, "cannot tell"),
    ],
)
def test_arms_that_took_turns_are_judged(
    slower: float, noise: float, whole: int, word: str, tmp_path: Path
) -> None:
    """A build that is 5 % slower is found, and whole runs that contradict the slices leave no answer."""
    arms = {"a": 1.0, "a (again)": 1.0, "a+new": 1 / slower, "b": 0.5, "b+new": 0.5 / slower}
    made = rows(arms, 8, 12, whole, noise, seed=1)
    for row in made:
        if row["arm"].endswith("+new"):
            row |= {"change": "new", "topology": row["arm"][0]}
            row["throughput_bps"] /= 2 if row["method"] == "whole" else 1
    judged = gate.judge_arms(save(tmp_path / "r", made), [gate.condition("slower>2%")])
    assert sorted((one.arm, one.word) for one in judged) == [("a+new", word), ("b+new", word)]


@pytest.mark.parametrize(
    ("text", "cost", "lost", "status", "words"),
    [
        ("cpu>5%", 1.2, 0, "ok", ("worse", "worse")),
        ("cpu>5%", 1.0, 0, "ok", ("not worse", "not worse")),
        ("loss>0.5%", 1.0, 100, "ok", ("worse", "worse")),
        ("loss>2%", 1.0, 100, "ok", ("not worse", "not worse")),
        ("loss>2%", 1.0, 100, "failed", ("not worse", "cannot tell")),
    ],
)
def test_cpu_time_and_loss_of_changed_arms_are_compared_with_their_own_unchanged_arms(
    text: str, cost: float, lost: int, status: str, words: tuple[str, str], tmp_path: Path
) -> None:
    """The change loses 1 % more, while the loss of all arms grows from round to round, and b loses 20 % more than a."""
    made = rows(
        {"a": 1.0, "a (again)": 1.0, "a+new": 1.0, "b": 1.0, "b+new": 1.0}, 8, 0, 8, seed=1, protocol="udp"
    )
    rng = np.random.default_rng(1)
    for row in made:
        is_new, is_b = row["arm"].endswith("+new"), row["arm"].startswith("b")
        count = 300 * row["round"] + 2000 * is_b + lost * is_new + int(rng.integers(0, 5))
        row |= {"sent_count": 10_000, "received_count": 5000, "lost_count": count}
        row["cpu_s"] = math.exp(rng.normal(0, 0.01)) * (cost if is_new else 1.0) * (3 if is_b else 1)
        if is_new:
            row |= {"change": "new", "topology": row["arm"][0]}
        if row["arm"] == "b+new" and status != "ok":
            row |= {"status": status, "reason": "it ended", "throughput_bps": None}
    judged = gate.judge_arms(save(tmp_path / "r", made), [gate.condition(text)])
    assert sorted((one.arm, one.word) for one in judged) == list(zip(("a+new", "b+new"), words, strict=True))
    if text == "loss>0.5%":
        assert [round(one.slower, 3) for one in judged] == [1.01, 1.01]
        assert judged[-1].sentence.endswith(("with a (8 rounds)", "with b (8 rounds)"))


@pytest.mark.long
@pytest.mark.parametrize(("of", "word"), [("a+gro", "not worse"), ("b+gro", "worse")])
def test_a_change_that_helps_one_topology_more_than_before_is_not_worse(
    of: str, word: str, tmp_path: Path
) -> None:
    """The new build is faster with the change on a, or slower with it on b: both make it help b less than a."""
    runs = []
    for name, factor in (("old", 1.0), ("new", 1.2 if of == "a+gro" else 1 / 1.2)):
        arms = {"a": 1.0, "a (again)": 1.0, "a+gro": 1.0, "b": 0.5, "b+gro": 0.5}
        made = rows(arms | {of: arms[of] * factor}, 10, 8, 2, seed=len(runs))
        for row in made:
            row |= {"topology": row["arm"][0], "change": "gro" if row["arm"].endswith("+gro") else None}
        runs.append(save(tmp_path / name, made))
    table, _ = compare_runs.compare(*runs)
    effect = table[table["change"].eq("gro")]
    assert list(effect["topology"]) == ["gro on b"]
    assert "the effect of gro on b to gro on a in new is " in effect["sentence"].iloc[0]
    judged = gate.judge_runs(*runs, table, [SLOWER])
    assert gate.overall(judged) == word
    assert {one.arm for one in judged} == {"a+gro", "b", "b+gro"}


def test_loss_beyond_the_percentile_is_judged(tmp_path: Path) -> None:
    """Half of the requests without a response leave no median, and such rows are the worst."""
    made = rows({"a": 1.0, "a (again)": 1.0, "b": 1.0}, 6, 0, 2, protocol="udp_rr")
    for row in made:
        row |= {"sent_count": 1000, "received_count": 999, "lost_count": 1}
        if row["topology"] == "b":
            row |= {"received_count": 400, "lost_count": 600, "latency_p50_s": None}
    [judged] = gate.judge_arms(save(tmp_path / "r", made), [gate.condition("loss>1%")])
    assert (judged.arm, judged.word) == ("b", "worse")


@pytest.mark.parametrize(
    ("lost", "taken", "word"),
    [
        (0, {}, "not worse"),
        (60, {}, "worse"),
        (60, {"host_foreign_share": 0.5}, "cannot tell"),
        (60, {"throttled_share": 0.3}, "cannot tell"),
        (None, {}, "cannot tell"),
    ],
)
def test_loss_of_two_runs_has_no_other_reason(
    lost: int | None, taken: dict[str, float], word: str, tmp_path: Path
) -> None:
    """Programs beside the new run lose packets, too, and a point at which nothing arrives has lost them all."""
    runs = []
    for name, more, columns in (("old", 0, {}), ("new", lost, taken)):
        made = rows({"a": 1.0, "a (again)": 1.0, "b": 1.0}, 6, 0, 6, seed=len(runs), protocol="udp")
        for at, row in enumerate(made):
            count = 1 + at % 3 + (more or 0) * (row["topology"] == "b")
            row |= {"sent_count": 1000, "received_count": 1000 - count, "lost_count": count}
            row |= {"host_foreign_share": 0.001 * (at % 3), "throttled_share": 0.0} | columns
            if more is None and row["topology"] == "b":
                row |= {"status": "failed", "reason": "nothing arrived", "throughput_bps": None}
        runs.append(save(tmp_path / name, made))
    judged = gate.judge_runs(*runs, pd.DataFrame(), [gate.condition("loss>1%")])
    assert [one.word for one in judged if one.arm == "b"] == [word]
    [why] = [one.sentence for one in judged if one.arm == "b"]
    assert ("in old and 50 % in new" in why) == ("host_foreign_share" in taken), why


def test_a_load_that_counts_packets_is_enough_for_loss() -> None:
    parameters = experiments.find("datapaths_of_today").parameters.of({"loads": "tcp,udp:64"})
    gate.check([gate.condition("loss>1%")], parameters)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "cost", "lost", "code"),
    [("cpu>5%", 1.2, 0, 3), ("cpu>5%", 1.0, 900, 0), ("loss>0.1%", 1.5, 30, 3), ("loss>1%", 1.5, 30, 0)],
)
def test_cpu_time_and_loss_are_conditions_too(
    text: str, cost: float, lost: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPU time for each packet is a ratio, and loss a difference of shares. git bisect has its own exit codes."""
    for name, seed, factor, count in (("old", 3, 1.0, 0), ("new", 1003, cost, lost)):
        made = rows(ARMS, seed=seed, rounds=10, slices=4, protocol="udp")
        rng = np.random.default_rng(seed)
        for row in made:
            lost_count = count + int(rng.integers(0, 3))
            row |= {"received_count": 1000, "sent_count": 10_000, "lost_count": lost_count}
            row["cpu_s"] = math.exp(rng.normal(0, 0.01)) * (factor if row["topology"] == "vxlan" else 1.0)
        save(tmp_path / name, made)
    words = ["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--fail-if", text]
    assert cli.main(words) == code
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("worse" if code else "not worse")
    assert gate.CONDITIONS[text.split(">")[0]] in said
    if text == "cpu>5%":
        assert cli.main([*words, "--fail-if", "slower>3%", "--git-bisect"]) == {3: 1, 0: 0}[code]
        assert cli.main([*words[:2], str(tmp_path / "none"), *words[3:], "--git-bisect"]) == 255


def test_without_a_common_baseline_speeds_are_judged(tmp_path: Path) -> None:
    table, _ = compare_runs.compare(*runs(tmp_path, 0.7))
    alone = table.assign(baseline=None, judged_low=table["low"], judged_high=table["high"])
    for judged, names in ((alone, {"veth", "vxlan"}), (table, {"vxlan"})):
        assert {one.name.split()[0] for one in gate.judge(judged, SLOWER)} == names
    assert gate.overall(gate.judge(pd.DataFrame(), SLOWER)) == "cannot tell"


def test_other_conditions_are_refused() -> None:
    for text in ("slower", "slower>3", "faster>3%", "slower>-3%", "slower>0%", "slower>100%"):
        with pytest.raises(BadInput, match="write 'slower>3%'"):
            gate.condition(text)


def test_a_gate_of_arms_measures_until_it_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten minutes at most, of slices if the load has them; what is given stays."""
    asked = list[dict[str, object]]()

    def measure(_experiment: str, given: dict[str, object], *_more: object) -> Path:
        asked.append(given)
        return save(tmp_path / f"{len(asked)}", rows(ARMS, 8, 12, noise=0.01))

    monkeypatch.setattr(running, "measure", measure)
    words = ["run", "datapaths", "topology=veth,vxlan", "--fail-if", "slower>2.5%"]
    loss = ["protocol=udp", "--fail-if", "loss>1%"]
    codes = [cli.main([*words, *more]) for more in ([], ["rounds=9"], ["protocol=ping"], loss)]
    assert codes == [3, 3, 3, 2], "made-up rows of no load that counts packets"
    plain, fewer, ping, udp = ({**one, "topology": None} for one in asked)
    assert plain == {"topology": None, "rounds": 120, "slices": 12, "whole_runs": 0, "half_width": 0.01}
    assert fewer == plain | {"rounds": "9"}
    assert ping == {"topology": None, "protocol": "ping", "rounds": 30, "half_width": 0.01}
    assert udp == {"topology": None, "protocol": "udp", "rounds": 30, "half_width": 0.0}, (
        "slices count no loss"
    )
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert [point["arm"] for point in printed["gate"]["points"]] == ["vxlan"]
    old = save(tmp_path / "old", rows(ARMS, 8, 12, noise=0.01, seed=7), **FINISHED)
    for more in ([], ["--fail-if", "slower>3%"]):
        assert cli.main([*words[:3], "--against", str(old), "--json", *more]) == 0
        against = json.loads(capsys.readouterr().out)
        assert against.keys() == printed.keys()
        assert (against["gate"] is None) == (not more)
    both = [gate.condition(text) for text in ("slower>3%", "cpu>3%")]
    assert gate.enough(both) == 0, "the width of throughput says nothing about CPU time"


def test_a_run_without_rows_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part `headers` of topologies without a tunnel has none."""
    empty = save(tmp_path / "empty", [], experiment="overlay")
    monkeypatch.setattr(running, "measure", lambda *_: empty)
    for more in ([], ["--json"]):
        assert cli.main(["run", "overlay", "part=headers", "topology=veth", *more]) == 2
        assert "nothing was measured: the run has no rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["virtual_tap", "ovs_test_plan", "monitor_cost", "overlay", "container_vs_vm"]
)
def test_studies_that_compare_on_one_topology_can_be_gated(name: str) -> None:
    assert not experiments.find(name).parameters().has_one_arm
