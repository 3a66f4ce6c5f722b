"""A small load that runs beside one of two runs is in its rows, its doubts, and in the comparison."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.common import run_folder

# Both runs and the load are alone in a PID namespace: other programs of this machine are not seen there.
SCRIPT = """
run() { unshare --net $LABKIT run datapaths topology=veth,veth_bridge rounds=4 duration_s=1 omit_s=0 --folder $1; }
run $1/quiet &&
{ setsid --fork sh -c 'while :; do ip link; ip link; sleep 0.02; done >/dev/null' && run $1/loaded; } &&
$LABKIT compare $1/quiet $1/loaded --json >$1/compared.json
"""


@pytest.mark.long
@pytest.mark.needs("root", "namespaces", "veth", "iperf3", "ethtool")
def test_short_programs_beside_one_run(tmp_path: Path) -> None:
    labkit = f"LABKIT='{sys.executable} -P -m labkit.cli'"
    alone = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        f"{labkit}\n{SCRIPT}",
        "sh",
    ]
    done = subprocess.run([*alone, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    quiet, loaded = (
        [row["host_foreign_share"] for row in run_folder.read_rows(tmp_path / name)]
        for name in ("quiet", "loaded")
    )
    assert max(quiet) < 0.01
    assert 0.02 < min(loaded) <= max(loaded) < 0.4
    compared = json.loads((tmp_path / "compared.json").read_text())
    [doubt] = [one for one in compared["doubts"] if "of all CPU time, up to " in one]
    assert doubt.startswith("loaded: other processes (")
    assert "started by sh) took " in doubt
