"""Text from rows, other machines and errors is printed without any terminal control character."""

import io
import itertools
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pandas as pd
import pytest
import synthetic_report
from synthetic_rows import rows

from labkit import cli
from labkit.analysis import compare_runs, verdicts, why
from labkit.analysis.claims import JudgedClaim, Verdict
from labkit.commands import console, doctor_text, terminal_tables
from labkit.commands.messages import json_text
from labkit.common.printable import printable, printable_json
from labkit.measure.capabilities import Capability
from labkit.runner.progress import Bar

# Colours, the window title, the clipboard, an 8-bit CSI, a bell, backspaces, a reversed text direction.
ATTACK = "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x9b31m\x08\x08\r\u202egnp.exe\x7f"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_control_characters_of_others_are_escaped_everywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        printable("a\tb\nµ – ✓ 日本\x1b[31m\x9b\u202e\ud800")
        == "a\tb\nµ – ✓ 日本\\x1b[31m\\x9b\\u202e\\ud800"
    )
    path = os.fsdecode(b"a\xff")
    assert (printable(path), printable(repr(path))) == ("a\\xff", "'a\\xff'")  # as its user typed it
    text = json.dumps({"a": ATTACK + "é\u202e"}, ensure_ascii=False)
    assert json.loads(printable_json(text)) == json.loads(text)
    assert not OBEYED.search(printable_json(text))
    rows = synthetic_report.rows(pairs=(1,)).assign(window_s=0.1)
    for name in ("arm", "reason"):
        rows[name] = rows[name].astype("object").fillna("") + ATTACK
    terminal_tables.show_rows(rows)
    assert "title" in _printed(capsys)
    terminal_tables.show_comparison(
        pd.DataFrame({"sentence": [ATTACK, "[bold]plain[/bold] :smile:"]}), [ATTACK]
    )
    assert "[bold]plain[/bold] :smile:" in _printed(capsys)
    explained = SimpleNamespace(write=lambda _out: Path("page.html"), sentences=lambda: [ATTACK])
    monkeypatch.setattr(why, "explain", lambda *_: explained)
    assert cli.main(["why", "a", "b"]) == 0
    assert "title" in _printed(capsys)

    def refuses(*_: object) -> None:
        raise cli.BadInput(ATTACK)

    monkeypatch.setattr(compare_runs, "compare", refuses)
    assert cli.main(["compare", "a", "b"]) == 2
    assert "title" in _printed(capsys)
    one = Capability(ATTACK, ATTACK, False, ATTACK, ATTACK, ATTACK)
    machine = {"kernel": ATTACK, "cpu": ATTACK, "cpus_count": 1, "accelerator": ATTACK}
    answer = {"machine": machine, "details": {}, "capabilities": [msgspec.to_builtins(one)]}
    texts = [doctor_text.as_text(answer, io.StringIO(), every=every) for every in (False, True)]
    for text in (*texts, json_text(answer)):
        assert "title" in text
        assert not OBEYED.search(text)
    bar = Bar()
    bar.see({"event": "log", "text": ATTACK})
    bar.see({"event": "progress", "what": ATTACK, "done_s": 1.0, "total_s": 2.0})
    assert "title" in _printed(capsys)


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    result = capsys.readouterr()
    text = result.out + result.err
    assert not OBEYED.search(text), OBEYED.findall(text)
    return text


@pytest.mark.parametrize(("cpu_s", "shown"), [(1.0, "0.50 of 2"), (None, "–")])
def test_unknown_cpu_time_is_no_zero(
    cpu_s: float | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device outside has no CPU time that labkit knows."""
    terminal_tables.show_rows(pd.DataFrame(rows(cpu_s=cpu_s, window_s=2.0, cpus_count=2)))
    out = capsys.readouterr().out
    assert shown in out
    assert "0.00 of 2" not in out


def test_names_break_between_their_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "WIDTH", 80)
    parts = ("existing:", "netns:", "client", "+netns:", "the_", "server")
    whole = {"".join(parts[first:last]) for first, last in itertools.combinations(range(len(parts) + 1), 2)}
    monkeypatch.setitem(synthetic_report.LEVEL_BPS, "".join(parts), 1e9)
    terminal_tables.show_rows(synthetic_report.rows(("".join(parts),)))
    lines = _printed(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    pieces = {word for line in lines for word in line.split() if len(word) > 3 and word in "".join(parts)}
    assert len(pieces) > 1
    assert pieces <= whole


def test_claims_of_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    side = Verdict("confirmed", "ratio 1: 9 agree")
    terminal_tables.show_claims(
        [JudgedClaim("overlay-headers", "A claim.", side, side)], Path("a"), Path("b")
    )
    text = " ".join(_printed(capsys).split())
    assert "overlay-headers confirmed: ratio 1: 9 agree confirmed: ratio 1: 9 agree" in text
    assert "- the same verdict by both runs: 1 of 1 claim" in text


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_time_left_runs_down(factor: float) -> None:
    """The estimate of a sweep of eight points that takes `factor` times the plan does not restart at each new point."""
    now, planned_s, points = 0.0, 40.0, 8
    bar = Bar(clock=lambda: now)
    shown: list[tuple[float, float]] = []  # time, and the seconds left at that time
    for number in range(points):
        bar.before_s, bar.after_s = number * planned_s, (points - 1 - number) * planned_s
        for done_s in range(0, 40, 4):
            shown.append((now, bar.left_s(float(done_s), planned_s, done_s * factor)))
            now += 4 * factor
    later = [(at, left_s) for at, left_s in shown if at > 0.2 * now]
    for (_, before_s), (_, left_s) in itertools.pairwise(later):
        assert left_s <= before_s + 0.01
    for at, left_s in shown[len(shown) // 2 :]:
        assert left_s == pytest.approx(now - at, rel=0.3, abs=10)


def test_step_between_measurements_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.see({"event": "progress", "what": "a", "done_s": 1.0, "total_s": 2.0})
    bar.doing("executing the notebook")
    assert "labkit: executing the notebook" in capsys.readouterr().err


def test_lesser_doubts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    many = [f"{word} is strange" for word in ("glass", "rain", "soup", "wind", "sand", "salt")]
    table = pd.DataFrame(rows(doubts="; ".join(many)))
    terminal_tables.show_verdicts(table)
    shown = [line for line in capsys.readouterr().out.splitlines() if "is strange" in line]
    assert len(shown) <= 3
    terminal_tables.show_verdicts(table)
    count = len(verdicts.doubts(table)) - 3
    assert f"- and {count} lesser doubts: `labkit report RUN` lists them" in capsys.readouterr().out


def test_every_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """An arm may lack two points for two reasons."""
    table = pd.DataFrame([*rows(), *rows(pairs=8)])
    lost = table["role"].eq("variant")
    table.loc[lost, "status"] = "unsupported"
    table.loc[lost, "reason"] = table["pairs"].map({1: "no such link", 8: "too many links"})
    terminal_tables.show_verdicts(table)
    shown = _printed(capsys)
    assert "no such link" in shown
    assert "too many links" in shown
