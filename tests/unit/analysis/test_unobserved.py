"""If a machine cannot run an observer, the loads are still measured, and a row has the reason."""

from __future__ import annotations

import pytest

from labkit.common.errors import Unsupported
from labkit.measure.experiments import container_vs_vm, packet_size, profiled_runs
from labkit.measure.observers.registry import TABLE

BLIND = {"function_graph": "this kernel has no function_graph"}


@pytest.mark.parametrize("module", [container_vs_vm, packet_size])
def test_unsupported_observer_is_skipped(module: object) -> None:
    if module is container_vs_vm:
        parameters = container_vs_vm.ContainerVsVm(observe=("function_graph", "perf_stat"))
        plan = container_vs_vm.plan(parameters, 0, BLIND)
    else:
        plan = packet_size.plan(packet_size.PacketSize(observe=("function_graph", "perf_stat")), 0, BLIND)
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
    parameters = container_vs_vm.ContainerVsVm(observe=("function_graph",))
    assert profiled_runs.unusable(parameters) == BLIND
    assert profiled_runs.unobserved({}) == {}
