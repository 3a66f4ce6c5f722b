"""`labkit why` about counters, about loss, and about rounds in which nothing arrived."""

import re
from pathlib import Path
from typing import Any

import pytest
import synthetic_rows
from synthetic_rows import Row
from synthetic_why_run import observed, page, run, section, tables, words

from labkit.analysis.why import explain
from labkit.common import run_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("data") / "run")


@pytest.fixture
def rows(folder: Path) -> list[Row]:
    """Return the rows of a run with all observers, for a test to change."""
    return run_folder.read_rows(folder)


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_counters_include_the_warm_up(protocol: str, tmp_path: Path) -> None:
    """Counters are divided by what arrived while they counted. The row's window is a part of that time.

    The part differs between the two sides, which makes no difference to the result.
    """
    for name, times_the_window in (("one", 2), ("two", 3)):
        arrived = 200_000 * times_the_window
        pair = {"sent_count": arrived, "lost_count": 0, "hops": []}
        pair |= {"udp": {"unit": "datagrams", "received_count": arrived},
                 "tcp": {"unit": "frames", "received_count": 7, "received_bytes": arrived}}[protocol]  # fmt: skip
        counted = {"namespaces": {"client0": {"interfaces": {"eth0": {"tx_packets": arrived}}}}, "loss": [pair],
                   "cpus": {"0": {"softirq_s": 0.1 * times_the_window}}}  # fmt: skip
        row = {"received_count": 200_000, "received_bytes": 200_000, "cpu_s": 0.2, "protocol": protocol}
        run(tmp_path / name, {"veth_bridge": "baseline"}, observed=counted, **row)
    report = tables(f"{tmp_path}/one:veth_bridge", tmp_path / "two", "CPU time by kind")
    words, table = report["The kernel's counters"]
    assert (words, table) == ("No counter differs by more than the spread between rounds.", None)
    _, table = report["CPU time by kind"]
    unit, softirq, busy = ("ns", 500, 1000) if protocol == "udp" else ("ms", 500_000, 1_000_000)
    for side in ("veth_bridge (one)", "veth_bridge (two)"):
        assert float(table.loc[f"softirq, {unit}", side].split()[0].replace(",", "")) == softirq
        assert float(table.loc[f"all that was busy, {unit}", side].split()[0].replace(",", "")) == busy


@pytest.mark.parametrize("received_count", [0, None])
def test_rounds_without_traffic_are_left_out(received_count: int | None, tmp_path: Path) -> None:
    """If all rounds are left out, the page has no costs. If one is left out, the others are unchanged."""
    folder = run(tmp_path / "one", {"veth_bridge": "baseline", "macvlan_bridge": "variant"})
    run(tmp_path / "none", {"macvlan_bridge": "baseline"}, received_count=received_count)
    text = words(page(f"{folder}:veth_bridge", str(tmp_path / "none"), tmp_path / "none.html")[0])
    assert text.count("the amount is unknown: 5 of 5 rounds of macvlan_bridge (none).") == 3
    rows = [row for row in run_folder.read_rows(folder) if row["arm"] == "macvlan_bridge"]
    for row in rows:
        if row["method"] == "profile" and row["round"] == 2:
            row["received_count"] = received_count
    synthetic_rows.save(tmp_path / "some", rows)
    timed, table = section("Function times", f"{folder}:veth_bridge", tmp_path / "some")
    assert "1 of 5 rounds of macvlan_bridge (some)" in timed
    assert table.loc["ip_rcv", "ns per packet, macvlan_bridge (some)"] != "–"


def test_loss_has_a_unit(tmp_path: Path) -> None:
    """With fragments, frames and the socket's losses of datagrams are shown. With frames only, the text says that
    losses at sockets are not included."""
    pair = observed("counters", 0, "")["loss"][0]
    frames = {"unit": "frames", "sent_count": 600_000, "lost_count": 6000, "unexplained_count": 0,
              "hops": [{"at": "client0:eth0 to server0:eth0", "lost_count": 6000}]}  # fmt: skip
    shown = {}
    for name, one in {"both": pair | {"frames": frames}, "frames": frames}.items():
        shown[name] = section("Loss per hop", run(tmp_path / name, observed={"loss": [one]}))
    (both, table), (alone, _) = shown.values()
    assert both.startswith("Of the datagrams that were sent")
    assert "listed separately" in both
    assert table["veth_bridge"]["frames: client:eth0 to server:eth0"] == "1.0000 %"
    assert table["veth_bridge"]["server: UDP socket"] == table["veth_bridge"]["in all"] == "0.44776 %"
    assert alone.startswith("Of the frames that were sent")
    assert alone.endswith("Losses at sockets are not included.")


def test_copies_of_each_mirror(tmp_path: Path) -> None:
    """One of two mirrors lost a quarter of its copies, and its reader a tenth. A side without mirrors has none."""
    counts = {"mirror0": (1000, 1000, 0), "mirror1": (1000, 750, 100)}
    names = ("sent_count", "arrived_count", "unread_count")
    of_mirrors = {name: dict(zip(names, each, strict=True)) for name, each in counts.items()}
    pair = {"unit": "frames", "sent_count": 1000, "lost_count": 0, "hops": []}
    copies = {"unit": "copies", "sent_count": 2000, "lost_count": 350, "hops": [], "mirrors": of_mirrors}
    arm = {"veth_bridge": "baseline"}
    run(tmp_path / "with", arm, observed={"loss": [pair], "copies": copies})
    for name in ("without", "plain"):
        run(tmp_path / name, arm, observed={"loss": [pair]})
    assert "Copies of each mirror" not in tables(f"{tmp_path}/without:veth_bridge", tmp_path / "plain")
    _, table = section("Copies of each mirror", f"{tmp_path}/with:veth_bridge", tmp_path / "plain")
    [side] = table.columns
    assert [text.split()[0] for text in table[side]] == ["0.0", "0.0", "25.000", "10.000"]
    assert list(table.index) == [
        "mirror0: did not arrive", "mirror0: not read", "mirror1: did not arrive", "mirror1: not read",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scopes", "words"),
    [
        (("processes 7", "processes 9"), "The events are those of ovs-vswitchd alone."),
        (("processes 7", "whole machine"), "Not compared: some are of ovs-vswitchd alone"),
    ],
)
def test_events_of_a_switch_alone(scopes: tuple[str, str], words: str, tmp_path: Path) -> None:
    for name, scope in zip(("one", "two"), scopes, strict=True):
        report = observed("perf_stat", 0, "") | {"scope": scope}
        run(tmp_path / name, {"veth_bridge": "baseline"}, observed=report)
    text, table = section("Events that perf counted", f"{tmp_path}/one:veth_bridge", tmp_path / "two")
    assert words in text
    assert (table is None) == words.startswith("Not compared")


def test_averages_of_a_switch(tmp_path: Path) -> None:
    arm = {"veth_bridge": "baseline"}
    for name, lookups in (("one", 1.0), ("two", 2.0)):
        rows = run_folder.read_rows(run(tmp_path / "all" / name, arm, observer="switch"))
        for row in rows:
            count = lookups + (row["round"] - 2) / 1000
            row["observed"] = {"flows": [], "averages": {"subtable lookups per megaflow hit": count}}
        synthetic_rows.save(tmp_path / name, rows)
    _, table = section("What a packet costs Open vSwitch", f"{tmp_path}/one:veth_bridge", tmp_path / "two")
    [line] = table.to_dict("records")
    assert list(table.index) == ["subtable lookups per megaflow hit"]
    assert [str(text).split()[0] for text in line.values()] == ["1.0000", "2.0000", "ratio"]
    assert line["ratio"] == "ratio 2 [1.443, 2.771]", "two runs vary"


@pytest.mark.parametrize("read", [True, False])
def test_guest_counters(read: bool, tmp_path: Path) -> None:
    report = observed("counters", 0, "")
    if read:
        cpus = {name: {"cpus": {"0": {"softirq_s": 0.2, "NET_RX": 10}}} for name in ("client0", "client1")}
        report |= {"guests": cpus, "not_read": "queueing disciplines in guests"}
    arms = {"veth_bridge": "baseline", "macvlan_bridge": "variant"}
    result = tables(run(tmp_path / "one", arms, endpoint="guest", observed=report), last="Loss per hop")
    lines = "not read: queueing disciplines in guests." if read else "the guests' counters were not read."
    for title in ("The kernel's counters", "Loss per hop"):
        assert result[title][0].endswith(lines)
    table = result["CPU time by kind"][1]
    in_client = [name for name in table.index if name == "softirq in the guest client, ns"]
    assert len(in_client) == read
    assert all(table.loc[name, "veth_bridge"].startswith(("1,9", "2,0")) for name in in_client)


def test_interface_of_one_side_does_not_stand_out(tmp_path: Path) -> None:
    """A side without the interface has no counter of it. 0 packets against thousands would be no finding."""
    for name, interfaces in (("one", ["eth0"]), ("two", ["eth0", "vxlan0"])):
        counted = {"namespaces": {"client0": {"interfaces": {each: {"tx_packets": 200_000} for each in interfaces}}},
                   "loss": [{"unit": "datagrams", "received_count": 200_000}], "cpus": {}}  # fmt: skip
        row = {"received_count": 200_000, "received_bytes": 200_000, "cpu_s": 0.2, "protocol": "udp"}
        run(tmp_path / name, {"veth_bridge": "baseline"}, observed=counted, **row)
    text, table = section("The kernel's counters", f"{tmp_path}/one:veth_bridge", tmp_path / "two")
    assert table is None
    assert text.endswith("Not compared, because one side lacks it: client: vxlan0.")


def test_an_observer_without_a_section_is_shown_with_its_numbers(rows: list[Row], tmp_path: Path) -> None:
    for row in rows:
        if row.get("observer") == "counters":
            switches = row["round"] + 10 * (row["arm"] == "macvlan_bridge")
            report = {"switches_count": switches, "on": True, "of": "all"}
            row |= {"observer": "context_switches", "observed": report}
    report = tables(synthetic_rows.save(tmp_path / "two", rows))
    _, table = report["What context_switches saw"]
    assert table.to_dict("index") == {"switches_count": {"veth_bridge": "2", "macvlan_bridge": "12"}}
    assert [title for title in report if title.endswith(" saw")] == ["What context_switches saw"]


def test_kprobe_calls_by_process(rows: list[Row], tmp_path: Path) -> None:
    """Calls are a mean over rounds. Processes and returned values are shares of the recorded events."""
    for row in rows:
        if row.get("observer") == "perf_stat":
            of = {"veth_bridge": {"512": 30, "-11": 10}}.get(row["arm"], {"512": 40})
            observed = {"function": "udp_sendmsg:return", "calls_count": 1000 + row["round"], "kept_count": 40,
                        "processes": {"iperf3": 30, "<idle>": 10}, "values": of}  # fmt: skip
            row |= {"observer": "kprobe", "observed": observed}
    text, table = section("Calls that kprobe recorded", synthetic_rows.save(tmp_path / "two", rows))
    assert text.startswith("Calls of udp_sendmsg:return on the whole machine")
    left, right = (table[name] for name in ("veth_bridge", "macvlan_bridge"))
    assert (left["calls"], left["in iperf3"], left["returned -11"]) == ("1,002", "75 %", "25 %")
    assert (right["returned 512"], right["returned -11"]) == ("100 %", "–")


def losing(folder: Path, losses: dict[str, int]) -> dict[str, str]:
    """Write a run without profiles for each of these numbers of lost datagrams, of 24,979."""
    sides = {}
    for name, lost in losses.items():
        hop = {"at": "client0: IP to eth0", "lost_count": lost, "why": {"qdisc tbf 800c: dropped": lost}}
        pair = {
            "unit": "datagrams",
            "sent_count": 24_979,
            "received_count": 24_979 - lost,
            "lost_count": lost,
        }
        counted = {"loss": [pair | {"hops": [hop], "unexplained_count": 0}]}
        made = run(folder / "all" / name, {"veth_bridge": "baseline"}, observed=counted)
        rows = [row for row in run_folder.read_rows(made) if row.get("observer") != "perf_record"]
        sides[name] = str(synthetic_rows.save(folder / name, rows))
    return sides


def test_two_runs_lose_differently_by_themselves(tmp_path: Path) -> None:
    """20 and 28 %: what arrives differs by 5 % (standard deviation) between two runs of the same arm."""
    sides = losing(tmp_path, {"one": 4_996, "other": 6_994})
    [sentence, *_] = explain(*sides.values()).sentences()
    assert sentence.startswith("No conclusion about")


@pytest.mark.parametrize("way", ["more", "fewer"])
def test_loss_is_the_answer_without_profiles(way: str, tmp_path: Path) -> None:
    """The counters say where packets are lost, so the page asks for no profile."""
    sides = losing(tmp_path, {"open": 0, "narrow": 22_569})
    order = ("open", "narrow") if way == "more" else ("narrow", "open")
    [sentence, *_] = explain(*(sides[name] for name in order)).sentences()
    place = "100 % of these at client: IP to eth0 (qdisc tbf dropped)"
    assert sentence.startswith({
        "more": f"veth_bridge (narrow) loses 90 % of the datagrams instead of 0 %, {place}",
        "fewer": f"veth_bridge (open) loses 0 % of the datagrams instead of 90 %, {place} of veth_bridge (narrow)",
    }[way])  # fmt: skip
    assert "observe=perf_record" not in sentence
    text = words(page(*(sides[name] for name in order))[0])
    assert "None: no recorded setting differs" not in text
    assert re.search(rf"{way} packets are lost\s+strong\s+counters: veth_bridge", text)


def test_loss_in_a_single_round_is_told_as_uncertain(tmp_path: Path) -> None:
    sides = losing(tmp_path, {"open": 0, "narrow": 22_569})
    rows = [row for row in run_folder.read_rows(Path(sides["narrow"])) if not row["round"]]
    single = str(synthetic_rows.save(tmp_path / "single", rows))
    [sentence, *_] = explain(sides["open"], single).sentences()
    assert sentence.startswith("No conclusion about veth_bridge (single) against veth_bridge (open): ")
    told = "veth_bridge (single) loses 90 % of the datagrams instead of 0 %, 100 % of these at client: IP to eth0"
    assert f"{told} (qdisc tbf dropped), too few rounds to be certain" in sentence


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_loss_of_the_control_too_is_no_answer(share: float, rows: list[Row], tmp_path: Path) -> None:
    """The control loses this share of what the right side loses."""
    lost = {"baseline": 0, "control": int(20_000 * share), "variant": 20_000}
    rows = [row for row in rows if row.get("observer") != "perf_record"]
    for row in rows:
        if row.get("observer") == "counters":
            pair = {"unit": "datagrams", "sent_count": 250_000, "lost_count": lost[row["role"]], "hops": []}
            row["observed"] = {"loss": [pair]}
    [sentence, *_] = explain(str(synthetic_rows.save(tmp_path / "some", rows)), None).sentences()
    assert sentence.startswith("macvlan_bridge loses 8 %" if share < 0.1 else "No conclusion about")


def test_ratio_of_two_runs_with_a_round_each_has_no_interval(tmp_path: Path) -> None:
    for name, arm in (("one", "veth_bridge"), ("two", "macvlan_bridge")):
        rows = run_folder.read_rows(run(tmp_path / "all" / name, {arm: "baseline"}))
        synthetic_rows.save(tmp_path / name, [row for row in rows if not row["round"]])
    _, table = section("What follows from them", tmp_path / "one", tmp_path / "two")
    assert table.loc["LLC-load-misses / LLC-loads", "ratio"] == "ratio 2"


def test_ratios_are_of_the_same_rounds_if_each_side_lacks_one(rows: list[Row], tmp_path: Path) -> None:
    """What a round costs doubles from each round to the next, and the right side always costs three times as much."""
    lacking = {"veth_bridge": 0, "macvlan_bridge": 4}
    for row in rows:
        if row.get("observer") == "perf_stat":
            cycles = 10 * 2 ** row["round"] * (3 if row["arm"] == "macvlan_bridge" else 1)
            known = {"cycles": cycles, "instructions": 10}
            row["observed"] = {"events": {name: {"count": count} for name, count in known.items()}}
            row["status"] = "failed" if row["round"] == lacking.get(row["arm"]) else "ok"
    _, table = section("What follows from them", synthetic_rows.save(tmp_path / "some", rows))
    assert table.loc["cycles per instruction", "ratio"] == "ratio 3 [3, 3]"


def between(left: Any, right: Any, share: float) -> Any:
    """Return a report like left's, with numbers that are this share of the way to right's."""
    if isinstance(left, dict):
        return {name: between(of, right.get(name, of), share) for name, of in left.items()}
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    return left + share * (right - left) if numbers else left


@pytest.mark.parametrize("share", [1.0, 0.01])
def test_a_baseline_that_differs_from_itself_widens_every_table(
    share: float, rows: list[Row], tmp_path: Path
) -> None:
    """What the control shows as well is no difference in any table, and a much larger effect is one in all."""
    rows = [row for row in rows if (row["role"], row.get("observer")) != ("control", "perf_record")]
    for row in rows:
        if row["role"] == "control" and (observer := row.get("observer")):
            both = [observed(observer, row["round"], arm) for arm in ("veth_bridge", "macvlan_bridge")]
            row["observed"] = between(*both, share)
    report = tables(synthetic_rows.save(tmp_path / "some", rows))
    shown = {title: table for title, (_, table) in report.items()}
    events, times = shown["Events that perf counted"], shown["Function times"]
    ratio = shown["What follows from them"].loc["LLC-load-misses / LLC-loads", "ratio"]
    claims = [events.loc["context-switches", "stands out"] == "yes", times.loc["ip_rcv", "stands out"] == "yes",
              "factor of 100" not in ratio, shown["The kernel's counters"] is not None]  # fmt: skip
    assert claims == [share < 1] * 4
