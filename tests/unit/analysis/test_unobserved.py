"""If a machine cannot run an observer, the loads are still measured, and a row has the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_rows import ROW, rows, save

from labkit import notebook
from labkit.analysis import load
from labkit.commands import terminal_tables
from labkit.common.errors import Unsupported
from labkit.measure.experiments import profiled_runs
from labkit.measure.observers.registry import TABLE
from studies.container_vs_vm import experiment as container_vs_vm
from studies.container_vs_vm import finding as container_vs_vm_findings
from studies.packet_size import experiment as packet_size

BLIND = {"function_graph": "this kernel has no function_graph"}


@pytest.mark.parametrize("module", [container_vs_vm, packet_size])
def test_unsupported_observer_is_skipped(module: object) -> None:
    if module is container_vs_vm:
        parameters = container_vs_vm.ContainerVsVmParameters(observe=("function_graph", "perf_stat"))
        plan = container_vs_vm.plan(parameters, 0, BLIND)
    else:
        plan = packet_size.plan(
            packet_size.PacketSizeParameters(observe=("function_graph", "perf_stat")), 0, BLIND
        )
    assert plan.parameters.observe == ("perf_stat",)
    assert all("function_graph" not in one.parameters.observe for one in plan.profiles)
    [row] = plan.extra_rows[profiled_runs.UNOBSERVED]
    assert (row["status"], row["reason"]) == ("unsupported", BLIND["function_graph"])


def test_unusable_observers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Unsupported(BLIND["function_graph"])

    class Blind:
        check = staticmethod(refuse)

    monkeypatch.setitem(TABLE, "function_graph", Blind)  # type: ignore[arg-type]
    parameters = container_vs_vm.ContainerVsVmParameters(observe=("function_graph",))
    assert profiled_runs.unusable(parameters) == BLIND
    assert profiled_runs.unobserved({}) == {}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Provide a run with the row of an observer that this machine cannot use."""
    measured = rows({"veth_bridge": 1.0}, rounds=1, slices=0, whole=1, protocol="udp", endpoint="namespace")
    [unobserved] = profiled_runs.unobserved(BLIND)[profiled_runs.UNOBSERVED]
    missing = ROW | {"arm": "veth_bridge", "topology": "veth_bridge", "protocol": "udp"} | unobserved
    return save(tmp_path / "run", [*measured, missing | {"point": profiled_runs.UNOBSERVED}])


def test_notebook_of_endpoints_shows_the_reason(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(container_vs_vm_findings, "display", shown.append)
    container_vs_vm_findings.ContainerVsVmFindings(run, load.load(run)).packets()
    assert [one.data for one in shown] == [f"*function_graph recorded nothing: {BLIND['function_graph']}.*"]


def test_doubts_and_terminal_show_the_reason(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Notebook 03 has no section of its own for function_graph."""
    line = f"- function_graph recorded nothing: {BLIND['function_graph']}"
    assert line in notebook.Run(run).doubts().data.splitlines()
    terminal_tables.show_profiles(load.profiles(run))
    assert capsys.readouterr().out.splitlines() == [line]
