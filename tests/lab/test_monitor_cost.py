"""The experiment `monitor_cost` on a real veth: every reader sees what the generator sent, and counts are exact."""

import shutil
from pathlib import Path

import pytest
from sandbox import Row, sandbox

from labkit.analysis import load
from labkit.common import run_folder
from studies.monitor_cost import finding as monitor_cost

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "ip", "ping", "nft", "veth", "tcpdump")]
ALSO = [name for name in ("dumpcap", "tshark") if shutil.which(name)]
READERS = ",".join(["socket", "monitor", "monitor_sampled", "tcpdump", *ALSO])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sandbox(tmp_path_factory.mktemp("cost"), user=False) as made:
        result = made.folder / "run"
        words = ["rounds=1", "loads=5kpps", "flows=100", f"readers={READERS}", "--folder", str(result)]
        made.labkit("run", "monitor_cost", *words, timeout=120, code=0)
        return result


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, Row]:
    return {row["arm"]: row for row in run_folder.read_rows(folder)}


def test_each_reader_and_nobody_twice(rows: dict[str, Row]) -> None:
    assert set(rows) == {"veth", "veth (again)", *(f"veth+{name}" for name in READERS.split(","))}
    for row in rows.values():
        assert row["status"] == "ok", row["reason"]
        # A generator on a busy machine sends less, and the row says so.
        limited = "generator-limited" in (row["doubts"] or "")
        assert limited or row["offered_count"] == pytest.approx(5000, rel=0.1)
        assert row["offered_count"] > 1000
        assert (row["load_pps"], row["flows_count"], row["part"]) == (5000, 100, "cost")
        assert row["cpu_per_sent_s"] == pytest.approx(row["cpu_s"] / row["offered_count"])
        # Counted where it arrives, whoever watches: flows take turns, and a veth without a limit loses nothing.
        assert row["wanted_received_count"] == row["wanted_count"]
        assert row["wanted_count"] == pytest.approx(row["offered_count"] / 100, abs=1)
        assert row["wanted_throughput_pps"] == pytest.approx(row["throughput_pps"] / 100, rel=0.05)
    assert rows["veth"]["reader_cpu_s"] is None


def test_each_reader_takes_what_it_should(rows: dict[str, Row]) -> None:
    for name in READERS.split(","):
        row = rows[f"veth+{name}"]
        if name in ("socket", "monitor"):  # they filter
            assert row["wanted_count"] == row["wanted_found_count"] == row["reader_taken_count"]
            assert row["wanted_count"] == pytest.approx(row["offered_count"] / 100, abs=1)
            assert row["reader_dropped_count"] == 0
        elif name == "tshark":
            assert 0 <= row["wanted_count"] - row["wanted_found_count"] <= row["reader_dropped_count"]
            assert row["reader_taken_count"] is None
            assert row["reader_cpu_s"] > 0.01, "it decodes every frame"
        else:
            # the generator's own ARP frames, and what the kernel sends now and then
            assert 0 <= row["reader_taken_count"] + row["reader_dropped_count"] - row["sent_count"] <= 20
            assert row["wanted_found_count"] is None


def test_findings_of_the_run(folder: Path) -> None:
    rows = load.load(folder)
    table = monitor_cost.costs(rows)
    assert set(table["reader"]) == {"nobody", *READERS.split(",")}
    assert len(monitor_cost.findings(rows)) >= 4
