"""If a machine cannot run an observer, the loads are still measured, and a row has the reason."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from synthetic_rows import ROW, rows, save

from labkit import notebook
from labkit.analysis import load
from labkit.commands import terminal_tables
from labkit.common.errors import Unsupported
from labkit.measure.experiments import RunContext, survey
from labkit.measure.experiments.rows import Arm
from labkit.measure.observers.base import Observer
from labkit.measure.observers.registry import TABLE
from studies.container_vs_vm import experiment as container_vs_vm
from studies.container_vs_vm import finding as container_vs_vm_findings
from studies.packet_size import experiment as packet_size

BLIND = {"function_graph": "this kernel has no function_graph"}


@pytest.mark.parametrize("module", [container_vs_vm, packet_size])
def test_an_observer_that_this_machine_lacks_is_reported(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Unsupported(BLIND["function_graph"])

    blind = Observer(check=refuse, armed=lambda *_: nullcontext())  # type: ignore[arg-type]
    monkeypatch.setitem(TABLE.loaded, "function_graph", blind)
    surveyed: list[Any] = []

    def survey_of(parameters: Any, _run_context: RunContext) -> Any:
        surveyed.append(parameters)
        return [Arm("veth", "baseline")], []

    monkeypatch.setattr(survey, "survey", survey_of)
    experiment = module.EXPERIMENT
    parameters = experiment.parameters(observe=("function_graph",))
    first = next(experiment.run(parameters, RunContext("toy", tmp_path, 1, {})))
    [row] = first["rows"]
    assert (row["status"], row["reason"]) == ("unsupported", BLIND["function_graph"])
    assert (row["method"], row["observer"], first["point"]) == ("profile", "function_graph", "unobserved")
    assert [one.observe for one in surveyed] == [()]


def test_reason_is_shown_in_notebooks_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = rows({"veth_bridge": 1.0}, rounds=1, slices=0, whole=1, protocol="udp", endpoint="namespace")
    missing = ROW | {"arm": "veth_bridge", "topology": "veth_bridge", "protocol": "udp", "method": "profile"}
    missing |= {"status": "unsupported", "observer": "function_graph", "reason": BLIND["function_graph"]}
    run = save(tmp_path / "run", [*measured, missing | {"point": "unobserved"}])
    shown: list[Any] = []
    monkeypatch.setattr(container_vs_vm_findings, "display", shown.append)
    container_vs_vm_findings.ContainerVsVmFindings(run, load.load(run)).packets()
    assert [one.data for one in shown] == [f"*function_graph recorded nothing: {BLIND['function_graph']}.*"]
    # Notebook 03 has no section of its own for function_graph.
    line = f"- function_graph recorded nothing: {BLIND['function_graph']}"
    assert line in notebook.Run(run).doubts().data.splitlines()
    terminal_tables.show_profiles(load.profiles(run))
    assert capsys.readouterr().out.splitlines() == [line]
