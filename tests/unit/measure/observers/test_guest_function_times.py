"""guest_function_times traces each guest by its kernel's own function names, and leaves none traced."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import BadInput, Unsupported
from labkit.measure.endpoints import Kernel
from labkit.measure.experiments import DatapathParameters, RunContext, survey
from labkit.measure.observers.ftrace import function_times
from labkit.measure.observers.ftrace.function_times import guest_function_times as watched

THERE = "ip_rcv\n__netif_receive_skb_core.constprop.0\nbr_handle_frame [bridge]\n"


class Folder(Kernel):
    """A folder that stands in for a guest's tracefs."""

    @property
    def prefix(self) -> list[str]:
        return []

    def __init__(self, path: Path, name: str, tracers: str = "function_graph nop") -> None:
        self.name, self._top = name, path
        path.mkdir(exist_ok=True)
        self.write("available_tracers", tracers.encode())
        self.write("available_filter_functions", THERE.encode())

    def read_bytes(self, path: str) -> bytes:
        return (self._top / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        (self._top / path).write_bytes(content)

    def file(self, name: str, content: bytes) -> Any:
        raise NotImplementedError


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(function_times, "TRACEFS", str(tmp_path))
    return tmp_path


def test_guest_symbol_names(top: Path) -> None:
    guest: Any = Folder(top, "client0")
    with watched([guest], ("ip_rcv", "__netif_receive_skb_core")):
        armed = (top / "set_ftrace_filter").read_text()
        assert armed.split() == ["ip_rcv", "__netif_receive_skb_core.constprop.0"]
        assert (top / "current_tracer").read_text() == "function_graph"
    assert (top / "current_tracer").read_text() == "nop"


def test_failed_arming_disarms_other_guests(top: Path) -> None:
    class Bare(Folder):
        def read_bytes(self, path: str) -> bytes:
            return b"nop" if path.endswith("available_tracers") else super().read_bytes(path)

    guests: list[Any] = [Folder(top, "client0"), Bare(top, "client1")]
    with pytest.raises(Unsupported, match="client1"), watched(guests, ["ip_rcv"]):
        pass
    assert (top / "current_tracer").read_text() == "nop"


def test_untraceable_functions_are_refused_before_measuring(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest: Any = Folder(top, "client0")
    guest.report = {"guest_accelerator": "tcg", "guest_cpus_count": 1}
    end = SimpleNamespace(kernel=guest, runtime=guest)
    topology = SimpleNamespace(pairs=[SimpleNamespace(client=end, server=end)], ends=[end, end])
    monkeypatch.setattr(survey.topologies, "build", lambda *_, **__: nullcontext(topology))
    monkeypatch.setattr(survey.ping, "reachable", lambda *_: None)

    def tried(*functions: str) -> list[str]:
        parameters = DatapathParameters(
            endpoint=("guest",), observe=("guest_function_times",), functions=functions
        )
        return [arm.label for arm in survey.survey(parameters, RunContext("datapaths", top, 1, {}))[0]]

    assert tried("ip_rcv") == ["veth_bridge/guest"]
    with pytest.raises(BadInput, match=r"client0 cannot trace ip_recv \(did you mean ip_rcv"):
        tried("ip_rcv", "ip_recv")
    guest.report["guest_cpus_count"] = 2  # such a guest is not traced; everything else is measured
    assert tried("ip_recv") == ["veth_bridge/guest"]
    with pytest.raises(Unsupported, match="an emulated guest with several CPUs may panic"):
        function_times._guests(DatapathParameters(endpoint=("guest",)), topology)
    assert not (top / "current_tracer").exists()
