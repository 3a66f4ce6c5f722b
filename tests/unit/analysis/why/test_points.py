"""`labkit why` for two points of a run: their names, invalid points, and the conclusions."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic_rows
from synthetic_why_run import ARMS, page, run, words

from labkit.analysis import load as loading
from labkit.analysis.why import selection, verdict
from labkit.cli import main
from labkit.common import run_folder
from labkit.common.errors import BadInput

ARM = "veth_bridge"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run in which the bridge has a planted cost at 800 bytes, and no other arm exists there.

    With each round the machine gets faster, for every size.
    """
    top, rows = tmp_path_factory.mktemp("data"), list[synthetic_rows.Row]()
    for size, arms in ((400, ARMS), (800, {ARM: "variant"})):
        there = run(top / str(size), arms, length_bytes=size)
        shutil.copytree(there / "artefacts", top / "sizes" / "artefacts" / str(size))
        for row in run_folder.read_rows(there):
            pps = row["throughput_bps"] / 64 * 2 ** row["round"] / size
            role = {ARM: "baseline", f"{ARM} (again)": "control"}.get(row["arm"], "variant")
            row |= {
                "throughput_pps": pps,
                "throughput_bps": pps * 8 * size,
                "role": role,
                "length_bytes": size,
            }
            if row.get("artefact"):
                row["artefact"] = row["artefact"].replace("artefacts", f"artefacts/{size}")
            rows.append(row)
    return synthetic_rows.save(top / "sizes", rows)


def test_points_of_two_runs_of_a_sweep_are_not_paired(folder: Path, tmp_path: Path) -> None:
    """Rounds of one number were measured at different times, so only their means are compared."""
    sweep = tmp_path / "sweep"
    for size in (400, 800):
        kept = [row for row in run_folder.read_rows(folder) if row["length_bytes"] == size]
        shutil.copytree(folder / "artefacts", sweep / str(size) / "artefacts")
        synthetic_rows.save(sweep / str(size), kept)
    (sweep / "sweep.json").write_text(json.dumps({"points": ["400", "800"]}))
    sides = selection.select_sides(f"{sweep}:{ARM},length_bytes=400", "length_bytes=800")
    [sentence] = verdict.sentences(sides)[0]
    assert "round by round" not in sentence
    assert "Welch's t over 5 and 5 set-ups, widened by 5 % for the drift between runs" in sentence


def test_ends_that_the_scheduler_placed_widen_a_ratio_of_points(folder: Path, tmp_path: Path) -> None:
    """Student's t over five rounds has 2 instead of 4 degrees of freedom."""
    slices = [row for row in run_folder.read_rows(folder) if row["method"] == "slice"]
    widths = list[float]()
    for placement in (None, "0,1"):
        own = synthetic_rows.save(
            tmp_path / ("placed" if placement else "free"), [row | {"placement": placement} for row in slices]
        )
        sides = selection.select_sides(f"{own}:{ARM},length_bytes=400", "length_bytes=800")
        [sentence] = verdict.sentences(sides)[0]
        low, high = map(float, re.findall(r"\[([\d.]+), ([\d.]+)\]", sentence)[0])
        widths.append(math.log(high / low))
    assert widths[0] / widths[1] == pytest.approx(4.303 / 2.776, rel=0.1)


def test_kernels_of_a_sweep_are_explained_one_by_one(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for name, kernel in (("old", "6.1.0"), ("new", "6.18.5")):
        run(sweep / name, kernel=kernel)
    (sweep / "sweep.json").write_text(json.dumps({"points": ["old", "new"]}))
    sides = selection.select_sides(f"{sweep}:{ARM}", "macvlan_bridge")
    points = list(selection.points(sides))
    assert [point.label for point in points] == [
        f"udp, 1 pair, MTU 1500, 64 bytes each, on Linux {kernel}" for kernel in ("6.1.0", "6.18.5")
    ]
    for point in points:
        for _, rows in point.named_sides():
            assert rows["kernel"].nunique() == rows["folder"].nunique() == 1
    other = run(tmp_path / "third", kernel="6.12.9")
    with pytest.raises(BadInput, match="was measured on several hosts"):
        list(selection.points(selection.select_sides(f"{sweep}:{ARM}", f"{other}:macvlan_bridge")))


def test_page_about_two_points(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "page.html"
    assert main(["why", f"{folder}:{ARM},length_bytes=400", "length_bytes=800", "--out", str(written)]) == 0
    lines = capsys.readouterr().out
    assert lines.startswith("- The cause is the change of length_bytes from 400 to 800: planted costs 30.")
    assert "of the difference. The code path is new: planted below function3. In all, " in lines
    assert re.search(r" and has 0\.5\d* times \[[\d., ]+\] the datagrams a second", lines)
    text = words(written)
    for part in (
        f"Why do they differ? {ARM},length_bytes=800 against {ARM},length_bytes=400",
        f"udp, 1 pair, MTU 1500: datagrams a second of {ARM},length_bytes=800 to that of {ARM},length_bytes=400",
        "two points have no A/A control", "datagrams, not bits", f"profiles, {ARM} (again),length_bytes=400, was",
        f"{ARM},length_bytes=400 against itself (A/A control): 0 of", "softirq, ns", "Loss per hop",
        f"p99, µs, {ARM},length_bytes=800",
    ):  # fmt: skip
        assert part in text, part
    for verdict_on_bits in ("no difference beyond", "faster", "slower"):
        assert verdict_on_bits not in text
    [result] = re.findall(
        r"ratio ([\d.]+) \[([\d.]+), ([\d.]+)\] \(Student's t over 5 rounds, round by round", text
    )
    ratio, low, high = map(float, result)
    assert 0.48 < low < ratio < high < 0.52, (
        "rounds are pairs: what the machine gains from one to the next is in both"
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (":veth_bridge,length_bytes=400", "veth_bridge,length_bytes=800"),
        (":veth_bridge,length_bytes=4e2,pairs=1", "{}:veth_bridge,length_bytes=800.0"),
        (":veth_bridge,protocol=UDP,length_bytes=400", "{}/../sizes:veth_bridge,length_bytes=800,family=4"),
    ],
)
def test_names_of_points(folder: Path, monkeypatch: pytest.MonkeyPatch, left: str, right: str) -> None:
    read: list[Path] = []
    load = loading.rows_and_profiles
    monkeypatch.setattr(loading, "rows_and_profiles", lambda path: read.append(path) or load(path))
    result = selection.select_sides(f"{folder}{left}", right.format(folder))
    assert read == [folder], "a run is read once"
    names = [side.name for side in result if side]
    assert names == [f"{ARM},length_bytes=400", f"{ARM},length_bytes=800", f"{ARM} (again),length_bytes=400"]
    [point] = selection.points(result)
    assert point.label == "udp, 1 pair, MTU 1500"
    for rows, size in zip(point.rows, (400, 800, 400), strict=True):
        assert set(rows["length_bytes"]) == {size}


SWITCHES = {
    "ovs_netdev+case=net_to_vm": "baseline",
    "ovs_netdev+case=net_to_vm+rules=l3": "variant",
    "ovs_netdev+mirrors=1+select=client0:in": "variant",
}


@pytest.mark.parametrize("name", list(SWITCHES)[1:])
def test_names_of_switches_with_options(name: str, tmp_path: Path) -> None:
    """Their options have equals signs and colons, as values of a point and folders have."""
    folder = run(tmp_path / "run", SWITCHES)
    first = next(iter(SWITCHES))
    for left, right in (
        (f"{folder}:{first}", name),
        (f"{folder}:{first},pairs=1", f"{name},pairs=1"),
        (f"{folder}:{first}", f"{folder}:{name},pairs=1"),
    ):
        sides = selection.select_sides(left, right)
        assert [side.name for side in sides if side] == [first, name]
    with pytest.raises(BadInput, match="is neither the folder of a run nor FOLDER:ARM"):
        selection.select_sides(f"{tmp_path}/none:{first}", name)


def test_names_of_changes_of_a_switch_with_options() -> None:
    """Where all arms have one topology, tables name a changed arm by its change alone."""
    own = {"topology": "ovs+mirrors=1", "protocol": "tcp", "status": "ok", "run": "r", "role": "variant"}
    arms = {"ovs+mirrors=1": None, "ovs+mirrors=1+gro-off": "gro-off"}
    table = loading.complete(pd.DataFrame([own | {"arm": arm, "change": one} for arm, one in arms.items()]))
    of = selection.Run(Path(), table, table[:0], ())
    assert of.arms() == ["ovs+mirrors=1", "gro-off"]
    asked = ("gro-off", "ovs+mirrors=1+gro-off", "veth+gro-off", "other:ovs+mirrors=1+gro-off")
    assert list(map(of.arm, asked)) == ["gro-off", "gro-off", None, None]


def test_parameters_named_once_hold_for_both(folder: Path) -> None:
    for left, right in (
        (f"{folder},length_bytes=400", None),
        (f"{folder}:{ARM},length_bytes=400", "macvlan_bridge"),
    ):
        result = selection.select_sides(left, right)
        assert [side.name for side in result if side] == [ARM, "macvlan_bridge", f"{ARM} (again)"]
        [point] = selection.points(result)
        assert point.label.endswith("400 bytes each")
        [sentence], notes = verdict.sentences(result)
        assert "macvlan_bridge and veth_bridge" in sentence
        assert not notes


@pytest.mark.parametrize(
    ("left", "right", "sentence"),
    [
        ("{one}:veth_bridge", "length_bytes=800", "are the same: name two points of an arm as"),
        ("{one}:veth_bridge,length_bytes=400", "veth_bridge,length_bytes=400.0", "are the same"),
        ("{one}:veth_bridge,length_bytes=400", "length_bytes=500", "no length_bytes=500; it has length_bytes=400 or"),
        ("{one}:veth_bridge,pairs=8", "length_bytes=800,pairs=1", "length_bytes=800 has no pairs=8; it has pairs=1"),
        ("{one}:veth_bridge,size=400", "size=800", r"'size' is not a parameter of a point.* length_bytes \(400, 800\)"),
        ("{one}:macvlan_bridge,length_bytes=400", "length_bytes=800", "no length_bytes=800; it has length_bytes=400"),
        ("{one}:veth_bridge,length_bytes=400,length_bytes=800", "veth_bridge", "names length_bytes twice"),
        ("{one}:veth_bridge,length_bytes=400", "{tcp}:veth_bridge,protocol=tcp", "has no protocol=tcp"),
        ("{one}:veth_bridge,protocol=udp", "{tcp}:veth_bridge,protocol=tcp", "loads without a common unit of work"),
        ("{one}:veth_bridge", "{other}", r"they differ in length_bytes \(400, 800 and 16\): name the points of both"),
    ],
)  # fmt: skip
def test_invalid_point_is_one_sentence(
    folder: Path, tmp_path: Path, left: str, right: str, sentence: str
) -> None:
    places = {"one": folder, "tcp": tmp_path / "tcp", "other": tmp_path / "other"}
    if "{tcp}" in right:
        run(places["tcp"], {ARM: "baseline"}, protocol="tcp", length_bytes=400)
    if "{other}" in right:
        run(places["other"], {ARM: "baseline"}, length_bytes=16)
    with pytest.raises(BadInput, match=sentence):
        page(left.format(**places), right.format(**places), tmp_path / "page.html")


def test_points_of_two_runs_are_refused(folder: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "sizes", {ARM: "baseline"}, length_bytes=16)
    written, [sentence, *_] = page(
        f"{folder}:{ARM},length_bytes=400", f"{other},length_bytes=16", tmp_path / "page.html"
    )
    assert sentence.startswith(
        "The setting length_bytes (400 → 16) differs, but no effect was seen: its cost is below"
    )
    assert "Speeds of different points are not compared between two runs" in words(written)
    assert "datagrams a second" not in words(written)


def test_different_pair_counts(tmp_path: Path) -> None:
    """Only one side has slices beside whole runs. A round that one side lacks is left out."""
    arms = {ARM: 1.0, "macvlan_bridge": 1.0}
    few = synthetic_rows.rows(arms, slices=0, rounds=6, whole=6)
    many = synthetic_rows.rows(dict.fromkeys(arms, 3.0), whole=5, seed=4, pairs=8)
    parameters = selection.select_sides(
        f"{synthetic_rows.save(tmp_path / 'pairs', few + many)}:{ARM},pairs=1", "pairs=8"
    )
    [sentence], notes = verdict.sentences(parameters)
    form = rf"tcp, MTU 1500: throughput of {ARM},pairs=8 to that of {ARM},pairs=1: ratio (\S+) .*over 5 rounds, round"
    [ratio] = re.findall(form, sentence)
    assert float(ratio) == pytest.approx(3, rel=0.05)
    assert notes == [verdict.NO_CONTROL], "bits are fair, and no profile has a control"
    with pytest.raises(
        BadInput, match=f"{ARM},pairs=1 and {ARM},pairs=8 cannot be explained: they were not profiled"
    ):
        list(selection.points(parameters))


def sides(*arms: tuple[str, tuple[int, ...], int]) -> list[selection.ProfiledPoint]:
    """Return the points of two arms, each with its numbers of pairs and the size of its datagrams."""
    made: list[Any] = []
    for arm, pairs, size in arms:
        rows = [synthetic_rows.ROW | {"arm": arm, "pairs": one, "length_bytes": size} for one in pairs]
        table = loading.complete(pd.DataFrame(rows))
        made.append(selection.ProfiledArm(arm, (Path(),), arm, {}, table, table))
    return list(selection.points((*made, None)))


@pytest.mark.parametrize("pairs", [(1,), (1, 8)])
def test_arms_whose_change_sets_a_parameter_share_their_other_points(pairs: tuple[int, ...]) -> None:
    result = sides(("usual", pairs, 512), ("small", pairs, 64))
    assert [[int(rows["pairs"].iloc[0]) for rows in one.rows[:2] if rows is not None] for one in result] == [
        [one, one] for one in pairs
    ]
    assert [one.rows[1]["length_bytes"].iloc[0] for one in result] == [64] * len(pairs)
    with pytest.raises(BadInput, match="no point in common"):
        sides(("usual", (1, 2), 512), ("other", (4, 8), 512))
