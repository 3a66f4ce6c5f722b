"""A gate for CI: exit codes and summaries; `python -m benchmarks gate` counts false alarms."""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_rows import rows, save

from labkit import cli
from labkit.analysis import compare_runs, gate
from labkit.common.errors import BadInput
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
    words = ["--fail-if", "slower>3%", *files]
    assert cli.main(["compare", str(old), str(new), *words]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{word}: of 1 point 1 {word} by more than 3 %"
    summary = (tmp_path / "a.md").read_text()
    assert summary.startswith(f"**{last}** (new against old)\n")
    assert "| vxlan (tcp, 1 pair, MTU 1500) |" in summary
    suite = ET.parse(tmp_path / "a.xml").getroot()
    assert suite.attrib["tests"] == "1"
    kinds = [child.tag for child in suite[0]]
    assert kinds == {"worse": ["failure"], "cannot tell": ["skipped"], "not worse": []}[word]
    assert cli.main(["compare", str(old), str(new), "--fail-if", "slower>3%", "--json"]) == code
    point = json.loads(capsys.readouterr().out)["gate"]
    assert (point["word"], point["points"][0]["word"]) == (word, word)
    assert point["points"][0]["low"] < 1 / slower < point["points"][0]["high"]


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
            row |= {
                "received_count": 1000,
                "sent_count": 10_000,
                "lost_count": count + int(rng.integers(0, 3)),
            }
            row["cpu_s"] = math.exp(rng.normal(0, 0.01)) * (factor if row["topology"] == "vxlan" else 1.0)
        save(tmp_path / name, made)
    words = ["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--fail-if", text]
    assert cli.main(words) == code
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("worse" if code else "not worse")
    assert gate.CONDITIONS[text.split(">")[0]] in said
    assert cli.main([*words, "--fail-if", "slower>3%", "--git-bisect"]) == {3: 1, 0: 0}[code]
    assert cli.main([*words[:2], str(tmp_path / "none"), *words[3:], "--git-bisect"]) == 255


def test_without_a_common_baseline_speeds_are_judged(tmp_path: Path) -> None:
    table, _ = compare_runs.compare(*runs(tmp_path, 0.7))
    alone = table.assign(baseline=None, judged_low=table["low"], judged_high=table["high"])
    names = [one.name.split()[0] for one in gate.judge(alone, SLOWER)]
    assert set(names) == {"veth", "vxlan"}
    assert [one.name.split()[0] for one in gate.judge(table, SLOWER)] == ["vxlan"]
    assert gate.overall(gate.judge(pd.DataFrame(), SLOWER)) == "cannot tell"


@pytest.mark.parametrize(
    "text", ["slower", "slower>3", "faster>3%", "slower>-3%", "slower>0%", "slower>100%"]
)
def test_other_conditions_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="write 'slower>3%'"):
        gate.condition(text)
    old, new = runs(tmp_path, 1.0)
    assert cli.main(["compare", str(old), str(new), "--fail-if", text]) == 2
    assert cli.main(["compare", str(old), str(new), "--junit", str(tmp_path / "a.xml")]) == 2
    assert "without --fail-if" in capsys.readouterr().err


def test_a_gate_of_arms_measures_until_it_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes at most, of slices if the load has them; what is given stays."""
    asked = list[dict[str, object]]()

    def measure(_experiment: str, given: dict[str, object], *_more: object) -> Path:
        asked.append(given)
        return save(tmp_path / f"{len(asked)}", rows(ARMS, 8, 12, noise=0.01))

    monkeypatch.setattr(running, "measure", measure)
    words = ["run", "datapaths", "topology=veth,vxlan", "--fail-if", "slower>2.5%"]
    assert [cli.main([*words, *more]) for more in ([], ["rounds=9"], ["protocol=ping"])] == [3, 3, 3]
    plain, fewer, ping = ({**one, "topology": None} for one in asked)
    assert plain == {"topology": None, "rounds": 120, "slices": 12, "whole_runs": 0, "half_width": 0.01}
    assert fewer == plain | {"rounds": "9"}
    assert ping == {"topology": None, "protocol": "ping", "rounds": 30, "half_width": 0.01}


def test_a_finished_run_is_judged_against_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`labkit run … --against RUN` refuses before it measures what it could not judge."""
    old, _ = runs(tmp_path, 1.0)
    words = ["run", "datapaths", "topology=veth"]
    for more, says in (
        (["--fail-if", "loss>3%"], "add --against RUN"),
        (["--junit", "a.xml"], "--junit does nothing without --fail-if"),
        (["--against", str(old), "--json"], "--json does nothing with --against"),
        (["--against", str(old), "--fail-if", "slow>3%"], "write 'slower>3%'"),
        (["--against", str(tmp_path / "none")], "there is no file"),
    ):
        assert cli.main([*words, *more]) == 2
        assert says in capsys.readouterr().err
