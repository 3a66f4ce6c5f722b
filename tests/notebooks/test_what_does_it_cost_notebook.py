"""The notebook of prices, small and for real: it lists every change with its effect or with the reason why there is
none."""

import pytest
from executed_notebook import Shown, copied, papermill
from sandbox import Sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs(
    "user namespaces", "iperf3", "sockperf", "ip", "ping", "ethtool", "veth", "bridge", "nft"
)

SMALL = """
change:
- "rules-10: rules 10 at server"
- {name: mtu-1280, parameter: {mtu_bytes: 1280}}
- "nothing: offload gro off at server"
rounds: 1
slices: 4
whole_runs: 0
omit_s: 0
"""


@pytest.fixture(scope="module")
def shown(machine: Sandbox) -> Shown:
    out = machine.folder / "out.ipynb"
    argv = papermill("09_what_does_it_cost", out, "-y", SMALL)
    machine.run(*argv, cwd=copied(machine.folder), timeout=300, code=0)
    return Shown(out)


def test_all_changes_are_measured_with_both_loads(shown: Shown, machine: Sandbox) -> None:
    assert shown.data
    [folder] = (machine.data / "what_does_it_cost").iterdir()
    rows = load.load(folder)
    ok = rows[rows["status"].eq("ok")]
    assert set(zip(ok["arm"], ok["protocol"], strict=True)) == {
        (arm, protocol)
        for arm in ("veth_bridge", "veth_bridge (again)", "rules-10", "mtu-1280")
        for protocol in ("tcp", "udp", "tcp_rr", "tcp_crr")
    }
    assert set(ok["mtu_bytes"]) == {1500}  # the point's MTU; the arm's own is in `changed`


def test_prices_and_effects_are_shown(shown: Shown) -> None:
    lines, tables = shown.texts(), shown.texts("text/html")
    for words in ("rules-10", "mtu-1280", "tcp, 1 pair", "udp, 1 pair", "No profiles were taken"):
        assert words in lines
    assert "10 lines of rules" in tables
    assert "change nothing: offload at server0:eth0 has no effect" in tables


def test_both_figures_are_drawn(shown: Shown) -> None:
    assert shown.titles() == [
        "CPU time for each GB (TCP), packet (UDP), request and connection",
        "Ratios to the baseline",
    ]
