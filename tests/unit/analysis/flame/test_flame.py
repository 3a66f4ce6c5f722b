"""Folded stacks, their tree, the table that adds up, and the conclusions about profiles."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import synthetic_profiles as made
from synthetic_report import EVIL

from labkit.analysis import figures, flame
from labkit.analysis.flame import folded_stacks, frame_tree, load_profiles
from labkit.common.errors import BadInput

IDLE = "swapper;do_idle_[k];pv_native_safe_halt_[k]"


def arm(name: str, *rounds: dict[str, int], event: str = "cpu-clock", **work: Any) -> flame.Arm:
    """Return an arm with these stacks. Each round received 1,000 packets and took a second of CPU time."""
    known = {"received_count": 1000.0, "received_bytes": 64e3, "cpu_s": 1.0} | work
    return flame.Arm(name, [flame.Round(each, 0.001, **known) for each in rounds], event)


def test_folded_file_round_trip(tmp_path: Path) -> None:
    text = "iperf3;main 3\n# a comment\n\nKVM/0 (x86);a b;c_[k] 4\niperf3;main 2\n"
    for path, content in (("a.folded", text.encode()), ("a.folded.gz", gzip.compress(text.encode()))):
        (tmp_path / path).write_bytes(content)
        result = flame.read(tmp_path / path)
        assert result == {"iperf3;main": 5, "KVM/0 (x86);a b;c_[k]": 4}
        assert folded_stacks.parse(flame.text(result).splitlines()) == result
    # Its importer (src/profile-logic/import/flame-graph.ts) takes text whose lines match this, and no JSON.
    text = flame.text({"iperf3;main": 5, "KVM/0 (x86);a b;c_[k]": 4})
    assert not text.startswith("{")
    matches = [re.fullmatch(r"([^;]*(?:;[^;]*)*) ([0-9]+)", line) for line in text.splitlines()]
    assert [one.groups() for one in matches if one] == [("KVM/0 (x86);a b;c_[k]", "4"), ("iperf3;main", "5")]


def test_invalid_folded_stacks(tmp_path: Path) -> None:
    for name, content, why in (
        ("no.folded", None, "there is no file "),
        ("x.folded", b"a;b 4\na;b\n", "line 2, is not a folded stack"),
        ("x.folded", b"42\n", "line 1"),
        ("x.folded", b"\xff\xfe\x00", "bytes that are not text"),
        ("x.folded.gz", b"a;b 4\n", "cannot be read: "),
        ("x.folded.gz", gzip.compress(b"a;b 4\n" * 999, mtime=0)[:-20], "cannot be read: "),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=why) as error:
            flame.read(tmp_path / name)
        assert name in str(error.value)


def test_tree_sums_by_round_and_recursion() -> None:
    grown = frame_tree.build_tree([{"p;a;b": 1, "p;a": 2, IDLE: 9}, {"p;a;b": 4, "q;b": 8}])
    where = {}
    for frame in range(len(grown)):
        above = where.get(int(grown.parent[frame]), "")
        where[frame] = f"{above};{grown.names[grown.name[frame]]}".lstrip(";")
    assert {where[at]: total.tolist() for at, total in enumerate(grown.total)} == {
        "all": [3, 12], "all;p": [3, 4], "all;p;a": [3, 4], "all;p;a;b": [1, 4], "all;q": [0, 8], "all;q;b": [0, 8],
    }  # fmt: skip
    assert grown.idle.tolist() == [9, 0]
    by_name = dict(zip(grown.names, grown.by_name(grown.own).tolist(), strict=True))
    assert by_name == {"all": [0, 0], "p": [0, 0], "a": [2, 0], "b": [1, 12], "q": [0, 0]}
    assert frame_tree.build_tree([{IDLE: 9}], idle=True).total[0] == 9


def test_idle_cpus_of_other_kernels_and_machines() -> None:
    idle = (
        "acpi_processor_ffh_cstate_enter", "acpi_safe_halt", "amd_e400_idle", "cpu_do_idle", "cpu_idle_poll.isra.0",
        "default_enter_idle", "intel_idle_hlt_irq_on", "intel_idle_xstate", "mwait_idle", "poll_idle",
        "psci_cpu_suspend_enter", "tdx_safe_halt",
    )  # fmt: skip
    work = ("process_backlog", "idle_cpu", "acpi_ev_gpe_detect", "psci_system_off", "do_idle")
    rounds = [{f"swapper;cpuidle_enter_state_[k];{name}_[k]": 1 for name in (*idle, *work)}]
    assert frame_tree.build_tree(rounds).idle.tolist() == [len(idle)]
    assert not frame_tree.is_idle("poll_idle"), "a program's own function"


def test_recursion_counts_once() -> None:
    grown = frame_tree.build_tree([{"p;all;x;all": 3, "p;x;x;x": 4}])
    assert list(grown.names) == ["all", "p", "all", "x"]
    assert grown.by_name(grown.total, grown.outermost())[:, 0].tolist() == [7, 7, 7 - 4, 3 + 4]
    one = flame.difference(arm("l", {"p;all": 3}), arm("r", {"p;all": 9}))
    assert one.functions()["function"].tolist()[:1] == ["all"]


@pytest.fixture(scope="module")
def planted() -> flame.Difference:
    return flame.difference(made.arm("a", 1), made.arm("b", 2, planted={"process1;planted_[k]": 2e-5}))


def test_function_table_adds_up_as_printed(planted: flame.Difference) -> None:
    one = planted
    for rows in (1, 12, 5000):
        table = one.functions(rows)
        *_, rest, whole = table.index
        assert table["function"][rest].startswith("everything else")
        for column in ("left_s", "right_s", "difference_s", "share_ratio", "samples_count"):
            assert table[column][:-1].sum() == pytest.approx(table[column][whole], rel=1e-12)
        assert (table["right_s"] - table["left_s"]).tolist() == pytest.approx(table["difference_s"].tolist())
    measured = np.mean(
        [sum(each.stacks.values()) * each.period_s / (each.received_count or 0) for each in one.right.rounds]
    )
    assert table["right_s"][whole] == pytest.approx(measured, rel=1e-12)
    shown = flame.functions_as_text(one)
    numbers = shown.iloc[:, :3].map(lambda text: float(text.split(" ")[0].replace(",", "")))
    assert (numbers.iloc[:-1].sum() == numbers.iloc[-1]).all()
    assert (numbers.iloc[:, 1] - numbers.iloc[:, 0] == numbers.iloc[:, 2]).all()
    assert shown.index[0] == "planted"
    assert shown.columns.tolist() == ["a, ns", "b, ns", "difference, ns", "share", "stands out"]
    inclusive = flame.functions_as_text(one, inclusive=True)
    assert inclusive.index[-1] == "total"
    assert not any("everything else" in name for name in inclusive.index)
    assert "process1 (process)" in inclusive.index


def test_sample_counts_of_both_sides() -> None:
    """The control's samples do not count. If the total difference is zero, no function has a share."""
    counts = {"l": 7, "r": 7, "l (again)": 50}
    alike = flame.difference(*(arm(name, *[{"p;a": one, "p;b": 100}] * 3) for name, one in counts.items()))
    table = alike.functions()
    assert dict(zip(table["function"], table["samples_count"], strict=True))["a"] == 2 * 3 * 7
    [hover] = [
        point.hovertext[0] for point in figures.functions(table).data if "a user" in point.hovertext[0]
    ]
    assert hover.endswith("42 samples")
    assert "nan" not in hover


def test_summary_sentence() -> None:
    left = made.arm("no rules", 1)
    dear = flame.difference(left, made.arm("rules", 2, planted={"process1;nft_do_chain_[k]": 3e-5}))
    assert flame.sentence(dear).startswith("rules takes ")
    assert "more CPU per packet that arrived than no rules" in flame.sentence(dear)
    assert "nft_do_chain explains" in flame.sentence(dear)
    less = arm("less", *[{"p;a": 100, "p;b": 10}] * 4)
    more = arm("more", *[{"p;a": 150, "p;c": 1}, {"p;a": 151, "p;c": 1}] * 2)
    saved = flame.difference(less, more)
    assert flame.sentence(saved).endswith("; a explains all of it"), "it takes more than the difference"
    back = flame.difference(dear.right, left)
    assert " less CPU " in flame.sentence(back)
    assert "no evidence" in flame.sentence(flame.difference(left, made.arm("no rules (again)", 3)))


@pytest.mark.parametrize("per", flame.PER)
def test_costs_per_unit_of_work(per: str) -> None:
    known = flame.PER[per]
    one = flame.difference(
        arm("l", {"p;a": 100}, {"p;a": 110}), arm("r", {"p;a": 200}, {"p;a": 210}), per=per
    )
    work = {"gigabyte": 64e3 / 1e9, "cpu_second": 1}.get(per, 1000)
    assert one.functions()["left_s"].iloc[-1] == pytest.approx(0.105 / work)
    assert known.description in flame.sentence(one)


@pytest.mark.parametrize("count", [None, 0, float("nan")])
def test_unknown_work_gives_no_sentence(count: float | None) -> None:
    with pytest.raises(
        BadInput, match=r"round 1 of r has no cost per packet that arrived, because its received_count is"
    ):
        flame.difference(arm("l", {"p;a": 1}), arm("r", {"p;a": 1}, received_count=count))
    with pytest.raises(BadInput, match="no cost per mile: choose"):
        flame.difference(arm("l", {"p;a": 1}), arm("r", {"p;a": 1}), per="mile")
    with pytest.raises(BadInput, match="has no profile"):
        flame.graph(flame.Arm("l", []))
    with pytest.raises(BadInput, match="no sample of a busy CPU"):
        flame.graph(arm("l", {IDLE: 7}))


def test_process_selection() -> None:
    one = arm("l", {"iperf3;a": 60, "python;b": 30, "qemu;c": 10}).only("iperf3|swapper.*")
    assert one.rounds[0].stacks == {"iperf3;a": 60}
    assert one.left_out.startswith("40 % of the samples of l are in other processes (python, qemu")
    assert one.left_out in flame.graph(one).data["notes"]
    assert one.only("iperf3") == one
    idle = arm("l", {"iperf3;a": 60, "python;b": 40, IDLE: 900}, cpu_s=0.1).only("iperf3")
    assert idle.left_out.startswith("40 % of the samples of l are in other processes (python)")
    assert "CPU time that the kernel counted" not in " ".join(flame.graph(idle).data["notes"])
    for wrong, why in (("nginx", "the profile has iperf3"), ("(", "not a valid regular expression")):
        with pytest.raises(BadInput, match=why):
            one.only(wrong)


def test_switch_is_the_threads_of_ovs_vswitchd() -> None:
    matches = flame.process_pattern("switch").fullmatch
    assert all(map(matches, ("ovs-vswitchd", "pmd-c01/id:8", "handler12", "revalidator3", "urcu4")))
    assert not any(map(matches, ("iperf3", "ovsdb-server", "switch", "swapper")))
    assert flame.process_pattern("iperf3").fullmatch("iperf3")


def test_distortions_are_shown_in_the_figure() -> None:
    stacks = {"p;x_[k];_raw_spin_unlock_irqrestore_[k]": 24, "p;x_[k]": 74, "p;[unknown]": 9, IDLE: 5}
    clock = flame.graph(arm("l", stacks, cpu_s=0.05)).data
    notes = " ".join(clock["notes"])
    assert "cannot interrupt code that has disabled interrupts" in notes
    assert "22 % of the samples, most of them in _raw_spin_unlock_irqrestore" in notes
    assert "idle CPUs are left out: 4.5 %" in notes
    assert "8.4 % of the samples are in functions without a known name" in notes
    assert "make up 214 % of the CPU time" in notes
    assert [clock["names"][at] for at in clock["odd"]] == ["_raw_spin_unlock_irqrestore"]
    cycles = flame.graph(arm("l", stacks, event="cycles")).data
    assert not cycles["odd"]
    assert "disabled interrupts" not in " ".join(cycles["notes"])


def test_drawn_frames_are_a_preorder_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made.arm("a", 1)
    monkeypatch.setattr("labkit.analysis.flame.flame_graph.MAX_FRAMES", 300)
    data = flame.graph(one, "packet").data
    assert len(data["name"]) == len(data["left"]) == 300
    assert any("smallest frames are not drawn" in note for note in data["notes"])
    open_: list[float] = []
    for depth, value in zip(data["depth"], data["left"], strict=True):
        assert depth <= len(open_)
        del open_[depth:]
        if open_:
            open_[-1] -= value
            assert open_[-1] > -0.001 * data["left"][0], "children are no larger than their parent"
        open_.append(value)
    assert set(data["name"]) == set(range(len(data["names"])))


def test_external_text_cannot_end_the_script() -> None:
    evil = f"</script>{EVIL}<!--"
    one = flame.graph(arm(evil, {f"{evil.replace(' ', '')};a": 3}))
    page = one.html()
    assert "alert" not in page.replace(page.split('application/json">')[1].split("</script>")[0], "")
    bundle = one._repr_mimebundle_()
    assert bundle["text/html"] == page
    json.dumps(bundle[flame.MIME], allow_nan=False)


def test_still_picture_has_the_frames() -> None:
    """Without scripts a notebook shows an image, in which each frame lies within its caller."""
    one = flame.graph(arm("a", {"p;f_[k];<g>_[k]": 30, "p;f_[k]": 10, "p;h_[k]": 60}))
    coded = one.html().split("base64,")[1].split('"')[0]
    root = ElementTree.fromstring(base64.b64decode(coded))
    boxes = [each.attrib for each in root if each.tag.endswith("rect")]
    title, subtitle, *words = [each.text for each in root if each.tag.endswith("text")]
    assert (title, subtitle) == (one.data["title"], one.data["subtitle"])
    at = {}
    for box, text in zip(boxes, words, strict=True):
        at[text] = (float(box["x"]), float(box["width"]), float(box["y"]))
    named = {
        name: next(place for text, place in at.items() if name in str(text)) for name in ("f", "<g>", "h")
    }
    assert named["h"][1] == pytest.approx(0.6 * 900, abs=1)
    assert named["f"][0] == pytest.approx(named["h"][0] + 0.6 * 900, abs=1), "the largest child is the first"
    assert named["<g>"][0] == named["f"][0]
    assert named["<g>"][2] > named["f"][2]


def test_function_figure_matches_the_table(planted: flame.Difference) -> None:
    table = planted.functions()
    figure = figures.functions(table)
    assert [trace.x[0] for trace in figure.data] == pytest.approx((table["difference_s"] * 1e6).tolist())
    assert figure.layout.yaxis.ticktext[0] == "planted"
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "the first stands at the top"
    open_ = [trace.marker.symbol.endswith("-open") for trace in figure.data]
    assert open_ == (~table["stands_out"]).tolist()
    assert "µs" in figure.layout.xaxis.title.text
    single = flame.difference(made.arm("a", 1, rounds=1), made.arm("b", 2, rounds=1))
    assert figures.functions(single.functions()).data


def test_excluded_profiles_and_reasons() -> None:
    row = {
        "observer": "perf_record",
        "status": "invalid",
        "reason": "the flows ran together for only 0.07 of 1 s",
    }
    rows = pd.DataFrame(
        [{**row, "artefact": "a.gz"}, {**row, "status": "ok", "reason": None, "artefact": None}]
    )
    with pytest.raises(
        BadInput, match=r"none of its profiles can be used: invalid \(the flows .*; ok \(it has no file"
    ):
        load_profiles.arm(rows, "veth_bridge")
    with pytest.raises(BadInput, match="was not profiled"):
        load_profiles.arm(rows[:0], "veth_bridge")


def profiled(name: str, **functions: int) -> flame.Arm:
    """Return an arm with slightly different rounds of these stacks."""
    rounds = [
        {f"{path.replace('__', ';')}_[k]": count + number for path, count in functions.items()}
        for number in range(5)
    ]
    return flame.Arm(name, [flame.Round(each, 1e-6, 1000.0) for each in rounds])


def test_foreign_program_is_not_first_where_the_load_is_known() -> None:
    one = flame.difference(
        profiled("a", iperf3__udp_sendmsg=1000, khugepaged__page_vma_mapped_walk=100),
        profiled("b", iperf3__udp_sendmsg=1500, khugepaged__page_vma_mapped_walk=9000),
    )
    table = one.functions()
    assert table["function"].iloc[0] == "udp_sendmsg"
    assert table["function"].iloc[-3] == "other programs (khugepaged)"
    assert "page_vma_mapped_walk" not in set(table["function"])
    total = table.iloc[-1]
    for column in ("left_s", "right_s", "difference_s"):
        assert table[column].iloc[:-1].sum() == pytest.approx(total[column])
    one = flame.difference(profiled("a", mystery__f=1000), profiled("b", mystery__f=2000))
    assert one.functions()["function"].iloc[0] == "f"


def test_no_shares_of_an_insignificant_total() -> None:
    """Two functions that differ in opposite directions used to get shares of -800 % of their sum."""
    one = flame.difference(
        profiled("a", iperf3__f=1000, iperf3__g=2000), profiled("b", iperf3__f=2000, iperf3__g=1001)
    )
    table = one.functions()
    assert table["stands_out"].iloc[:2].all()
    assert not table["stands_out"].iloc[-1]
    assert table["share_ratio"].isna().all()
    assert (flame.functions_as_text(one)["share"] == "–").all()
