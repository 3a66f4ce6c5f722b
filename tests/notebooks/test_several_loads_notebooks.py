"""The notebooks about the datapaths of today and about requests, small and for real: several loads in one run."""

from pathlib import Path

import pytest
from executed_notebook import Shown, copied, papermill
from sandbox import also, sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "sockperf", "wrk", "veth", "bridge")

SMALL = "{topology: [veth_bridge, veth_routed], rounds: 1, omit_s: 0, duration_s: 1, loads: "


@pytest.mark.parametrize(
    ("name", "loads", "expected", "titles"),
    [
        (
            "13_requests",
            "[tcp_rr, http_close]}",
            {("tcp_rr", "whole"): 2, ("http_close", "whole"): 2},  # with ends on one CPU and on two
            {"Requests a second against their slowest percent", "Distribution of round-trip times"},
        ),
        *also("exhaustive", (
            "12_datapaths_of_today",
            '["udp:64", udp_rr], slices: 2, whole_runs: 0}',
            {("udp", "slice"): 2, ("udp_rr", "whole"): 2},
            {"What a packet costs, by its size", "Round-trip time by percentile"},
        )),
    ],
)  # fmt: skip
def test_several_loads_in_one_run(
    name: str, loads: str, expected: dict[tuple[str, str], int], titles: set[str], tmp_path: Path
) -> None:
    with sandbox(tmp_path) as machine:
        out = machine.folder / "out.ipynb"
        argv = papermill(name, out, "-y", f"{SMALL}{loads}")
        machine.run(*argv, cwd=copied(machine.folder), timeout=300, code=0)
        [folder] = (machine.data / name.partition("_")[2]).iterdir()
        rows = load.load(folder)
    assert set(rows["status"]) == {"ok"}
    counts = rows.groupby(["protocol", "method", "arm"]).size()
    arms = ("veth_bridge", "veth_bridge (again)", "veth_routed")
    assert counts.to_dict() == {(*key, arm): count for key, count in expected.items() for arm in arms}
    assert titles <= set(Shown(out).titles())
