"""The notebook of prices, small and for real: it lists every change with its effect or with the reason why there is
none."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from sandbox import Sandbox, sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs(
    "user namespaces", "iperf3", "sockperf", "ip", "ping", "ethtool", "veth", "bridge", "nft"
)

SMALL = """
change:
- "rules-10: rules 10 at server"
- {name: mtu-1280, parameter: {mtu_bytes: 1280}}
- "nothing: offload gro off at server"
rounds: 2
slices: 2
whole_runs: 0
omit_s: 0
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        shutil.copytree(ROOT / "notebooks", made.folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        yield made


@pytest.fixture(scope="module")
def outputs(machine: Sandbox) -> list[dict[str, object]]:
    """Return the outputs of the executed notebook, by MIME type."""
    words = [
        "09_what_does_it_cost.ipynb",
        str(machine.folder / "out.ipynb"),
        "-y",
        SMALL,
        "--no-progress-bar",
    ]
    done = machine.run(
        sys.executable, "-m", "papermill", *words, cwd=machine.folder / "notebooks", timeout=300
    )
    assert done.returncode == 0, done.stderr
    cells = nbformat.read(machine.folder / "out.ipynb", as_version=4).cells
    return [one["data"] for cell in cells for one in cell.get("outputs", []) if "data" in one]


def texts(outputs: list[dict[str, object]]) -> str:
    return "\n".join(str(one["text/markdown"]) for one in outputs if "text/markdown" in one)


def test_all_changes_are_measured_with_both_loads(outputs: list[dict[str, object]], machine: Sandbox) -> None:
    assert outputs
    [folder] = (machine.data / "what_does_it_cost").iterdir()
    rows = load.load(folder)
    ok = rows[rows["status"].eq("ok")]
    assert set(zip(ok["arm"], ok["protocol"], strict=True)) == {
        (arm, protocol)
        for arm in ("veth_bridge", "veth_bridge (again)", "rules-10", "mtu-1280")
        for protocol in ("tcp", "udp", "tcp_rr", "tcp_crr")
    }
    assert set(ok["mtu_bytes"]) == {1500}  # the point's MTU; the arm's own is in `changed`


def test_prices_and_effects_are_shown(outputs: list[dict[str, object]]) -> None:
    lines = texts(outputs)
    for name in ("rules-10", "mtu-1280"):
        assert name in lines
    assert "tcp, 1 pair" in lines
    assert "udp, 1 pair" in lines
    assert "No profiles were taken" in lines
    tables = "\n".join(str(one.get("text/html", "")) for one in outputs)
    assert "10 lines of rules" in tables
    assert "change nothing: offload at server0:eth0 has no effect" in tables


def test_both_figures_are_drawn(outputs: list[dict[str, object]]) -> None:
    drawn = [
        one["application/vnd.plotly.v1+json"] for one in outputs if "application/vnd.plotly.v1+json" in one
    ]
    titles = [figure["layout"]["title"]["text"] for figure in drawn]  # type: ignore[index]
    assert titles == [
        "CPU time for each GB (TCP), packet (UDP), request and connection",
        "Ratios to the baseline",
    ]


def test_full_price_list() -> None:
    from labkit.measure import experiments
    from labkit.runner import sweep

    [point] = sweep.load(Path(ROOT / "params" / "what_does_it_cost.yaml")).points
    parameters = experiments.find("what_does_it_cost").parameters.of({})
    assert len(parameters.asdict()["change"]) >= 10
    assert point.parameters["observe"] == ["perf_record", "counters"]
