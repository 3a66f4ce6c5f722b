"""The notebook about a network of one's own, executed for real on its example: the fault is found, explained and undone
on a copy."""

from pathlib import Path

import pytest
from executed_notebook import Shown, copied, papermill
from sandbox import sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs("root", "iperf3", "ip", "nft", "ethtool", "veth", "bridge")

SMALL = """
rounds: 2
slices: 3
profile_rounds: 1
observe: [counters]
"""


def test_example_is_found_explained_and_repaired(tmp_path: Path) -> None:
    with sandbox(tmp_path, user=False) as machine:
        before, out = machine.interfaces(), machine.folder / "out.ipynb"
        # As a sweep, which needs no permission for the example.
        as_sweep = {"LABKIT_PROGRESS": str(tmp_path / "progress")}
        argv = papermill("11_your_network", out, "-y", SMALL)
        machine.run(*argv, cwd=copied(machine.folder), timeout=300, **as_sweep, code=0)
        assert (machine.interfaces(), machine.processes()) == (before, {})
        runs = [load.load(folder) for folder in sorted((machine.data / "datapaths").iterdir())]
    text = Shown(out).texts()
    assert "1. **offload off**: " in text
    assert "`offload: offload tso on gso on at client`" in text
    assert "disable: [tso, gso]" in text
    existing, copy = ({role: set(own["arm"]) for role, own in rows.groupby("role")} for rows in runs)
    assert existing["baseline"] == {"veth_bridge"}
    assert all(arm.startswith("existing:pid:") for arm in existing["variant"])
    assert copy == {"baseline": {"copy"}, "control": {"copy (again)"}, "variant": {"offload"}}
    assert all(set(rows["status"]) == {"ok"} for rows in runs)
    speed = [rows.groupby("role")["throughput_bps"].median() for rows in runs]
    assert speed[0]["baseline"] > 1.2 * speed[0]["variant"]
    assert speed[1]["variant"] > 1.2 * speed[1]["baseline"]
