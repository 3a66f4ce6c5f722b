"""Rows of several kernels and machines appear side by side, and are never pooled or compared in speed."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from synthetic_rows import HOSTS, PREPARED, Row, on_hosts, rows, save

from labkit.analysis import figures, load, verdicts
from labkit.analysis.compare_runs import compare
from labkit.analysis.load import PEER_RAN_ON
from labkit.commands import terminal_tables
from labkit.common.errors import BadInput
from labkit.notebook import Part, Run
from labkit.runner import unmeasured_point

pytestmark = pytest.mark.long

NAMES = [
    "Linux 6.1.0-37-amd64, emulated",
    "Linux 6.12.9-amd64, emulated",
    "Linux 6.18.5, machine m1, Some CPU",
    "Linux 6.18.5, machine m2, Another CPU",
]
WITH_IPVLAN = PREPARED | {"ipvlan_l2": 0.9}


def report(**given: Any) -> pd.DataFrame:
    """Return rows of all hosts with the columns that figures need beside throughput."""
    table = load.complete(pd.DataFrame(on_hosts(whole=1, **given)))
    received = table["throughput_bps"] * table["window_s"] / 8
    return table.assign(received_bytes=received, cpu_s=0.1, softirq_s=0.05)


def sweep(folder: Path, *names: str, **changes: Any) -> Path:
    """Write a sweep with a point for each host."""
    for name in names:
        parameters = {"protocol": "tcp", "mtu_bytes": 1500, "where": HOSTS[name].get("where", "here")}
        some = on_hosts(name, whole=1, ratios=WITH_IPVLAN, **changes)
        save(folder / name, some, parameters=parameters, why_stopped={"1": "all 5 rounds were measured"})
    (folder / "sweep.json").write_text(json.dumps({"points": list(names)}))
    return folder


# --- tables ---


TWO = {"nodes": "two", "peer": "ssh:b", "peer_kernel": "6.1.0", "peer_accelerator": "kvm"}


@pytest.mark.parametrize(
    ("some", "names"),
    [
        (on_hosts(), NAMES),
        (rows(), ["Linux 6.1.0"]),
        (
            rows() + rows(accelerator="tcg", where="vm:a") + rows(accelerator="tcg", where="vm:b"),
            ["Linux 6.1.0", "Linux 6.1.0, emulated, vm:a", "Linux 6.1.0, emulated, vm:b"],
        ),
        (  # older rows have no build
            rows(kernel_build=None) + rows(kernel_build="#2 SMP"),
            ["Linux 6.1.0, build #2 SMP", "Linux 6.1.0, unknown build"],
        ),
        (
            [
                row
                for kernel in ("6.9.1", None, "6.12.0-rc1", "6.12.0")
                for row in rows(rounds=1, kernel=kernel)
            ],
            ["unknown kernel", "Linux 6.9.1", "Linux 6.12.0", "Linux 6.12.0-rc1"],
        ),
        (
            rows(**TWO) + rows(**TWO | {"peer_kernel": "6.12.9"}) + rows(**TWO | {"peer_accelerator": "tcg"}),
            ["Linux 6.1.0, peer kernel 6.1.0", "Linux 6.1.0, emulated", "Linux 6.1.0, peer kernel 6.12.9"],
        ),
    ],
)
def test_host_names_and_order(some: list[Row], names: list[str]) -> None:
    assert [name for name, _ in load.hosts(load.complete(pd.DataFrame(some)))] == names


def test_hosts_are_judged_and_doubted_separately() -> None:
    """Each verdict uses only its host's rows, although all have the same `where`, as on a cluster, and speeds far
    apart."""
    another: dict[str, Any] = {"machine": "another"}
    left, right = rows(seed=1), rows(PREPARED | {"macvlan_bridge": 0.8}, seed=2, run="b", **another)
    judged = [verdicts.verdicts(pd.DataFrame(some)) for some in (left + right, left, right)]
    both, *alone = [result.fillna(dict.fromkeys(["peer", *PEER_RAN_ON], "none")) for result in judged]
    pd.testing.assert_frame_equal(
        both.sort_values("ratio", ignore_index=True),
        pd.concat(alone).sort_values("ratio", ignore_index=True),
        check_dtype=False,
    )
    lines = verdicts.doubts(pd.DataFrame(on_hosts("here", "vm:6.1", rounds=2)))
    assert any(line.startswith(f"tcp, 1 pair, MTU 1500, on {NAMES[0]}: fewer than 5") for line in lines)
    assert f"{NAMES[0]}: emulated CPU (TCG) in 72 of 72 rows: ratios on a real CPU may differ" in lines


def test_full_size_datagrams_are_the_default() -> None:
    for length, words in ((1472, []), (64, ["64 bytes each"])):
        table = load.complete(pd.DataFrame(rows(rounds=1, protocol="udp", length_bytes=length)))
        [(key, _)] = load.groups(table)
        assert load.non_defaults(dict(zip(load.GROUP, key, strict=True))) == words


def test_terminal_table_by_host(capsys: pytest.CaptureFixture[str]) -> None:
    terminal_tables.show_rows(report())
    judged, medians = capsys.readouterr().out.split("Medians", 1)
    parts, units = f"Medians{medians}".split("Medians: ")[1:], ("Mbit/s", "kbit/s", "Gbit/s", "Tbit/s")
    for part, name, unit in zip(parts, NAMES, units, strict=True):
        assert part.startswith(name)
        assert f"Verdicts: {name}" in judged
        assert {word for word in part.split() if word.endswith("bit/s")} == {unit}
    terminal_tables.show_rows(pd.DataFrame(rows(accelerator="tcg")))
    assert capsys.readouterr().out.count("Linux 6.1.0, emulated") == 2
    terminal_tables.show_rows(pd.DataFrame(rows()))
    assert "Linux" not in capsys.readouterr().out


# --- figures ---


def panels(figure: go.Figure) -> dict[str, tuple[str, list[float]]]:
    """Return the title and all drawn y values of each y axis."""
    result: dict[str, tuple[str, list[float]]] = {}
    for trace in figure.data:
        axis = figure.layout[f"yaxis{trace.yaxis.removeprefix('y')}"]
        assert axis.matches is None
        title, values = result.setdefault(trace.yaxis, (str(axis.title.text), []))
        values += [float(y) for y in trace.y if not math.isnan(float(y))]
        assert title == str(axis.title.text)
    return result


@pytest.mark.parametrize("name", ["throughput", "slices", "forest", "kernels"])
def test_axes_by_host(name: str) -> None:
    """Hosts differ by a factor of 1,000 and the arms of one host by less than 3. An axis that spans more would mix
    hosts."""
    table = report()
    draw = getattr(figures, name)
    figure = draw(verdicts.verdicts(table) if name in ("forest", "kernels") else table)
    for title, values in panels(figure).values():
        if name != "forest":  # its y axis counts lines
            assert max(values) < 3 * min(value for value in values if value > 0), title
    if name not in ("kernels", "forest", "slices"):
        assert len(panels(figure)) == len(HOSTS)
    texts = "\n".join(note.text for note in figure.layout.annotations)
    ticks = " ".join(str(axis.ticktext) for axis in figure.select_xaxes())
    assert (texts + ticks).count("emulated") >= 2
    assert "in part on an emulated CPU" in figure.layout.title.text


def test_panels_by_host() -> None:
    table = pd.concat([report(), report(protocol="udp")], ignore_index=True)
    figure = figures.throughput(table)
    titles = [note.text for note in figure.layout.annotations if note.text.startswith("<b>")]
    assert titles == [
        f"<b>{protocol} · MTU 1500</b><br>{name}" for name in NAMES for protocol in ("TCP", "UDP")
    ]
    tops = [axis.domain[1] for axis in figure.select_yaxes()]
    assert tops[::2] == tops[1::2] == sorted(tops[::2], reverse=True)
    assert len(set(tops)) == len(NAMES)


def test_kernels_in_order_of_version() -> None:
    table = report(ratios=WITH_IPVLAN)
    without = table["topology"].eq("ipvlan_l2") & table["where"].eq("here")
    table.loc[without, ["status", "reason"]] = ["unsupported", "this kernel has no ipvlan"]
    figure = figures.kernels(verdicts.verdicts(table))
    [axis] = figure.select_xaxes()
    kernels = [text.replace("<br>", " ").split(",")[0] for text in axis.ticktext]
    assert kernels == ["6.1.0-37-amd64", "6.12.9-amd64", "6.18.5", "6.18.5"]
    for trace, name, ratio, count in zip(
        figure.data, ("macvlan_bridge", "ipvlan_l2"), (1.2, 0.9), (4, 2), strict=True
    ):
        assert (trace.name, [round(x) for x in trace.x]) == (name, list(range(count)))
        assert list(trace.y) == pytest.approx([ratio] * count, rel=0.02)
        assert all((*trace.error_y.array, *trace.error_y.arrayminus))
    bands = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert [round((band.x0 + band.x1) / 2) for band in bands] == [0, 1, 2, 3]
    assert all(band.y0 < 1 < band.y1 for band in bands)
    first = report(ratios=WITH_IPVLAN)
    first.loc[first["topology"].eq("macvlan_bridge"), ["status", "reason"]] = ["unsupported", "no macvlan"]
    shapes = figures.kernels(verdicts.verdicts(first)).layout.shapes
    assert len([shape for shape in shapes if shape.type == "rect"]) == 4
    [note] = [note.text for note in figure.layout.annotations if note.name == "notes"]
    assert (
        note.replace("<br>", " ") == f"ipvlan_l2 (on {NAMES[2]} and on {NAMES[3]}): this kernel has no ipvlan"
    )
    given = [{"protocol": protocol, "pairs": pairs} for protocol in ("tcp", "udp") for pairs in (1, 8)]
    table = pd.concat([report(**one) for one in given], ignore_index=True)
    figure = figures.kernels(verdicts.verdicts(table))
    titles = [note.text for note in figure.layout.annotations if note.text.startswith("<b>")]
    assert [title[3:-4].replace(" · MTU 1500", "") for title in titles] == [
        "TCP · 1 pair", "TCP · 8 pairs", "UDP · 1 pair", "UDP · 8 pairs",
    ]  # fmt: skip
    assert len({axis.range for axis in figure.select_yaxes()}) == 1
    # Two machines of a cluster shared the work, so there is nothing to show side by side.
    assert Part("", report()).kernels() is not None
    for some in (rows(), rows() + rows(machine="m2", pairs=8)):
        assert Part("", pd.DataFrame(some)).kernels() is None


# --- two runs ---


def test_hosts_compared_by_ratios_only(tmp_path: Path) -> None:
    there = rows(PREPARED | {"macvlan_bridge": 1.1}, rounds=8, seed=4, kernel="another")
    for row in there:
        row |= {"sysctl_digest": "0ther", "kernel_config_digest": "0ther"}
        row["throughput_bps"] /= 50
    table, doubts = compare(save(tmp_path / "monday", rows(rounds=8)), save(tmp_path / "tuesday", there))
    [line] = table.to_dict("records")
    assert (line["topology"], line["baseline"], line["word"]) == ("macvlan_bridge", "veth_bridge", "slower")
    assert line["relative_ratio"] == pytest.approx(1.1 / 1.2, rel=0.02)
    assert all(math.isnan(line[one]) for one in ("ratio", "low", "high", "left_median", "right_median"))
    assert line["kernel"] is None
    assert line["left_host"] != line["right_host"]
    assert f"in tuesday ({line['right_host']}) is 8" in line["sentence"]
    said = "\n".join(doubts())
    assert "between different hosts only ratios to the baseline are compared, not speeds" in said
    assert not re.search("only:.*macvlan", said)


def test_hosts_need_a_common_baseline(tmp_path: Path) -> None:
    left = save(tmp_path / "monday", rows({"veth_bridge": 1.0}))
    right = save(tmp_path / "tuesday", rows({"veth_bridge": 1.0}, kernel="6.18.5"))
    with pytest.raises(BadInput, match="on different hosts, whose speeds are not compared"):
        compare(left, right)


def test_sweeps_compared_by_kernel(tmp_path: Path) -> None:
    left = sweep(tmp_path / "left", "here", "vm:6.1")
    table, _ = compare(left, sweep(tmp_path / "right", "here", "vm:6.1", seed=9))
    assert (table["left_host"] == table["right_host"]).all()
    assert table.groupby("left_host").size().tolist() == [3, 3]
    assert table["ratio"].notna().all()
    # The same after newer kernels on this machine and in the lab VM: `where` identifies each.
    table, _ = compare(left, sweep(tmp_path / "newer", "here", "vm:6.1", kernel="7.0"))
    assert {tuple(pair) for pair in table[["left_host", "right_host"]].to_numpy()} == {
        ("Linux 6.18.5", "Linux 7.0"),
        ("Linux 6.1.0-37-amd64, emulated", "Linux 7.0, emulated"),
    }
    assert table["ratio"].isna().all()


# --- the notebook's prose ---


def test_headline_names_every_host(tmp_path: Path) -> None:
    shown = Run(sweep(tmp_path / "s", "here", "vm:6.1"))
    lines = str(shown.headline().data)
    for words in (
        "Measured on 2 hosts. Only ratios are compared between hosts, never speeds:",
        "- Linux 6.18.5 on Some CPU, 2 CPUs (a virtual machine under kvm).",
        "- `vm:6.1`: Linux 6.1.0-37-amd64 on QEMU Virtual CPU, 2 CPUs (emulated by QEMU). **Emulated",
        "1 pair: all 5 rounds were measured (tcp at MTU 1500 in vm:6.1)",
    ):
        assert words in lines
    result = str(shown.findings(verdicts.verdicts(shown.rows)).data)
    here, emulated = (result.index(f"**{name}**") for name in ("Linux 6.18.5", NAMES[0]))
    assert emulated < result.index("| macvlan_bridge | veth_bridge | ") < here
    two = rows(nodes="two", peer="vm:6.1", peer_kernel="6.1.0-37-amd64", peer_accelerator="tcg")
    lines = str(Run(save(tmp_path / "two", two)).headline().data)
    assert "the other node `vm:6.1`: Linux 6.1.0-37-amd64 (emulated by QEMU). **Emulated CPU" in lines


def test_kernel_that_did_not_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a row of its own. The report and the tables name it, and everything else is unchanged."""
    folder = sweep(tmp_path / "s", "here", "vm:6.1")
    alone = verdicts.verdicts(load.load(folder))
    for name in ("vm:old", "vm:older"):
        given = {"topology": ["veth_bridge", "macvlan_bridge"], "where": name}
        unmeasured_point.write(folder / name, "datapaths", given, f"{name}: the lab VM did not boot")
    (folder / "sweep.json").write_text(json.dumps({"points": ["here", "vm:6.1", "vm:old", "vm:older"]}))
    shown = Run(folder)
    names = [name for name, _ in load.hosts(shown.rows)]
    assert names[:2] == ["unknown kernel (vm:old)", "unknown kernel (vm:older)"]
    lines = str(shown.headline().data)
    for name in ("vm:old", "vm:older"):
        assert f"- Not measured: {name}: the lab VM did not boot." in lines
    assert "nan" not in lines
    judged = verdicts.verdicts(shown.rows)
    assert len(judged) == len(alone)
    left_out = "unknown kernel (vm:old): veth_bridge: left out as failed: vm:old: the lab VM"
    assert left_out in str(shown.doubts().data)
    for drawn in (figures.throughput(shown.rows), figures.forest(judged)):
        assert drawn is None or "unknown kernel" not in str([axis.ticktext for axis in drawn.select_xaxes()])
    terminal_tables.show_rows(shown.rows)
    assert "vm:old: the lab VM did not boot" in " ".join(capsys.readouterr().out.split())


def test_local_and_switched_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (
        rows(rounds=2),
        rows(rounds=2, nodes="two", peer="vm:6.1", where="vm:6.1", run="b", link_rate_bps=1e9),
    )
    both = Run(save(tmp_path / "both", one + two)).parts()
    assert [part.heading for part in both] == ["Local: one node", "Switched: two nodes"]
    assert [len(part.rows) for part in both] == [len(one), len(two)]
    assert [len(part.verdicts) for part in both] == [1, 1]
    [local] = Run(save(tmp_path / "one", one)).parts()
    [switched] = Run(save(tmp_path / "two", two)).parts()
    assert (local.heading, switched.heading) == ("", "Switched: two nodes")
    shown: list[Any] = []
    monkeypatch.setattr("labkit.notebook.display", shown.append)
    figure = figures.throughput(switched.rows)
    switched.show(None, figure)
    heading, drawn, explained = (getattr(one, "data", None) for one in shown)
    assert (heading, drawn) == ("## Switched: two nodes", figure.data)
    assert explained.startswith("Each small mark is a round ")
    result = str(Run(tmp_path / "two").findings(switched.verdicts).data)
    about = "protocol tcp, two nodes, link 1 Gbit/s, pairs 1, MTU 1500"
    assert f"### Switched: two nodes\n\nRatios ({about}):\n\n| topology |" in result


def test_findings_are_a_table_with_the_control(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table alone says that an interval contains 1; a sentence says what it does not show."""
    arms = {"veth": 1.0, "veth (again)": 1.0, "slow": 0.8, "noisy": 1.0}
    run = Run(save(tmp_path / "run", rows(arms, noise=0.2)))
    lines = str(run.findings(run.verdicts).data).splitlines()
    assert lines[0] == "Ratios (protocol tcp, pairs 1, MTU 1500):"
    assert lines[2] == "| topology | against | ratio | 95 % interval | baseline with itself | verdict |"
    slow, noisy = (line.strip("| ").split(" | ") for line in lines[4:6])
    assert [slow[0], slow[-1], noisy[0], noisy[-1]] == ["slow", "slower", "noisy", "no evidence"]
    low, high = map(float, slow[4].split(" – "))
    assert low < 1 < high
    assert len(lines) == 6
    terminal_tables.show_verdicts(run.rows)
    assert "no evidence of a difference between noisy and veth" not in " ".join(
        capsys.readouterr().out.split()
    )
    alone = Run(save(tmp_path / "alone", [row for row in rows(arms) if row["role"] != "control"]))
    assert "veth was not measured twice" in str(alone.findings(alone.verdicts).data)


def test_finding_without_a_ratio(tmp_path: Path) -> None:
    """A topology with results is not called unmeasured; only the points without a ratio are named."""
    shown = Run(save(tmp_path / "run", rows(rounds=2)))

    def findings(*tables: list[Row]) -> list[str]:
        judged = verdicts.verdicts(pd.DataFrame([row for table in tables for row in table]))
        return str(shown.findings(judged).data).splitlines()

    measured, eight = rows(), rows(pairs=8)
    base = [row for row in eight if row["role"] != "variant"]
    absent = rows(pairs=8, status="failed", reason="the guest did not boot")
    absent = [row for row in absent if row["role"] == "variant"]
    # Without a baseline there is nothing to tell.
    assert not [line for line in findings(measured, absent) if line.startswith("-")]
    assert findings(absent) == ["No arm was measured beside a baseline, so nothing can be compared."]
    *_, cells, _, line = findings(measured, absent, base)
    assert cells == "| 8 | macvlan_bridge | veth_bridge | – | – | – | failed |"
    assert line == "- macvlan_bridge (tcp, 8 pairs, MTU 1500): the guest did not boot"
    assert findings(absent, base)[-1] == "- macvlan_bridge: the guest did not boot"
    starved = [row | ({"throughput_bps": 0.0} if row["role"] == "variant" else {}) for row in measured]
    line = findings(starved)[-1]
    assert line.startswith("- no evidence about macvlan_bridge")
    assert "not measured" not in line


@pytest.mark.parametrize(
    ("slices", "whole", "how"),
    [(0, 2, "whole runs"), (2, 0, "slices of 100 ms"), (2, 1, "slices of 100 ms and whole")],
)
def test_headline_says_how_its_run_measured(slices: int, whole: int, how: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", rows(rounds=2, slices=slices, whole=whole, protocol="ping"))
    assert f"Z, in {how}" in str(Run(folder).headline().data)


def test_headline_counts_topologies_without_their_ends(tmp_path: Path) -> None:
    some = rows({"veth_bridge": 1.0, "veth_bridge (again)": 1.0, "veth_bridge/guest": 0.2})
    for row in some:
        row["endpoint"] = "guest" if row["arm"].endswith("guest") else "namespace"
        row["topology"] = "veth_bridge"
    shown = Run(save(tmp_path / "run", some))
    assert "valid measurements of 1 topology with 2 endpoint kinds between" in str(shown.headline().data)


def test_unknown_server_host_is_a_doubt() -> None:
    one = "\n".join(verdicts.doubts(pd.DataFrame(rows(kernel_build=None))))
    assert "kernel_build is not recorded in 180 of 180 rows" in one
    assert "peer_" not in one
    two = "\n".join(verdicts.doubts(pd.DataFrame(rows(nodes="two", peer="ssh:b", peer_accelerator="tcg"))))
    assert re.search(r"peer_kernel.* are not recorded in 180 of 180 rows: they may have differed", two)
    assert "emulated CPU (TCG) in 180 of 180 rows" in two
