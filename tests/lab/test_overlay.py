"""The experiment `overlay` on this kernel, with plain routes below the tenants' VXLAN: killed and resumed runs, rows,
the printed report, and rejected input."""

from pathlib import Path
from typing import Any

import overlay_checks
import pytest
from conftest import met
from sandbox import LABKIT, Done, Sandbox, one_sentence, until

from labkit.common import run_folder
from labkit.measure.topologies.network import leaf_spine_overlay

pytestmark = pytest.mark.needs("user namespaces", "ip", "ping", "veth", "bridge", "vxlan")

PARAMETERS = ("part=path,reachability,failure", "provider=routed", "routes=metric", "outage_s=1", "pings=1")
FAILURES = [("carrier", False), ("carrier", True), ("silent", False)]
ROUTED = leaf_spine_overlay.leaf_spine_network("metric", fabric_mtu_bytes=1476, provider="routed")
Rows = list[dict[str, Any]]


def run(machine: Sandbox, folder: Path, *words: str) -> Done:
    return machine.labkit("run", "overlay", *words, "--folder", str(folder), timeout=240)


@pytest.fixture(scope="module")
def folder(machine: Sandbox) -> Path:
    return machine.folder / "seen"


@pytest.fixture(scope="module")
def killed(machine: Sandbox, folder: Path) -> tuple[bytes, int]:
    """Return the rows of the first part, and their times, of a run that was killed in the second part."""
    before, path = machine.interfaces(), folder / "rows" / "path-metric.jsonl"
    process = machine.start(*LABKIT, "run", "overlay", *PARAMETERS, "--folder", str(folder))
    result = until(path.exists, 60)
    process.kill()
    assert result, process.communicate()
    process.communicate()
    assert until(lambda: not machine.processes(), 10), machine.processes()
    assert until(machine.only_namespace, 10)
    assert machine.interfaces() == before
    assert run_folder.finished_points(folder) == {"path-metric"}
    return path.read_bytes(), path.stat().st_mtime_ns


@pytest.fixture(scope="module")
def lines(machine: Sandbox, folder: Path, killed: tuple[bytes, int]) -> str:
    """Return what the same command prints after resuming the run to its end."""
    done = run(machine, folder, *PARAMETERS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rows(lines: str, folder: Path) -> Rows:
    result = run_folder.read_rows(folder)
    assert {(row["experiment"], row["status"], row["doubts"]) for row in result} == {("overlay", "ok", None)}
    return result


@pytest.mark.long
def test_killed_run_keeps_finished_parts(killed: tuple[bytes, int], lines: str, folder: Path) -> None:
    path = folder / "rows" / "path-metric.jsonl"
    assert (path.read_bytes(), path.stat().st_mtime_ns) == killed
    assert run_folder.finished_points(folder) == {
        "path-metric", "reachability-metric", "failure-metric-carrier",
        "failure-metric-carrier-linkdown", "failure-metric-silent",
    }  # fmt: skip
    assert list(folder.rglob(".*")) == []


@pytest.mark.long
def test_packets_match_the_expected_paths(rows: Rows, folder: Path) -> None:
    overlay_checks.as_promised(rows, ROUTED)
    seen = overlay_checks.seen(rows, "cs1 > cs5 echo request", "sc2:sc2_lc1")
    assert seen["stack"].startswith(
        "Ethernet / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30 / Ethernet / IP 20.0.0.1"
    )
    assert (seen["length_bytes"], seen["provider"], seen["routes"]) == (98 + 50, "routed", "metric")
    assert (folder / seen["artefact"]).is_file()


@pytest.mark.long
def test_reachability_rows(rows: Rows) -> None:
    between = [row for row in rows if row["part"] == "reachability"]
    assert len({(row["source"], row["target"]) for row in between}) == len(between) == 20
    assert [row for row in between if not row["as_expected"]] == []
    ends = {(row["source"], row["target"]): (row["ttl"], row["spine"]) for row in between}
    assert (ends["cs1", "cs5"], ends["cs1", "cs4"], ends["cs1", "cs2"]) == (
        (64, "sc2"),
        (61, "sc2"),
        (64, None),
    )


@pytest.mark.long
def test_spine_failure_rows(rows: Rows) -> None:
    failures = {(row["failure"], row["ignores_linkdown"]): row for row in rows if row["part"] == "failure"}
    assert sorted(failures) == FAILURES
    for (how, noticed), row in failures.items():
        assert (row["failed"], row["path_before"]) == ("sc2", ["sc2", "sc2"])
        assert row["up_s"] - row["down_s"] >= 1
        meanwhile = [
            rtt_s for sent_s, rtt_s in row["probes"] if row["down_s"] + 0.5 < sent_s < row["up_s"] - 0.1
        ]
        if (how, noticed) == ("carrier", True):
            assert (row["expected_during"], row["path_during"]) == (["sc1"], ["sc1", "sc1"])
            assert any(rtt_s is not None for rtt_s in meanwhile)
        else:
            assert row["path_during"] == [None, None]
            assert row["outage_s"] > 0.8
            assert not any(rtt_s is not None and rtt_s < 0.1 for rtt_s in meanwhile)


@pytest.mark.long
def test_provider_depends_on_gre(machine: Sandbox) -> None:
    """A part that this kernel does not support gives a row with the reason, and the command says so."""
    folder = machine.folder / "gre"
    done = run(machine, folder, "part=path", "routes=static")
    rows = run_folder.read_rows(folder)
    if met("gre"):
        assert done.returncode == 0, done.stderr
        overlay_checks.as_promised(rows, leaf_spine_overlay.leaf_spine_network())
        return
    sentence = one_sentence(done)
    [row] = rows
    assert (row["part"], row["status"], row["provider"]) == ("path", "unsupported", "gre")
    assert sentence == f"path-static: {row['reason']}"
    assert row["reason"].startswith("this kernel has no gre (")
    assert f"- Not measured: {row['reason']}." in " ".join(done.stdout.split())
