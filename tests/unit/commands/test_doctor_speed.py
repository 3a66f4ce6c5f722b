"""The doctor probes while programs report their versions, and starts a process while it reads the machine."""

import time
from pathlib import Path
from typing import Any

import pytest
from sandbox import shell_program

from labkit.measure import capabilities
from labkit.measure.capabilities import Capability, tools


def test_programs_run_while_the_kernel_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setenv("PATH", shell_program(tmp_path, "iperf3", f"echo begun >>{begun}\necho 3.17"))
    monkeypatch.setattr(tools, "TOOLS", ("iperf3",))

    def probe() -> list[Capability]:
        deadline = time.monotonic() + 10
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return []

    def groups(alone: bool, versions: Any) -> tuple[capabilities.Group, ...]:
        return (("kernel", probe), ("tools", lambda: tools.tools(versions())))

    monkeypatch.setattr(capabilities, "_groups", groups)
    result = {one.name: one for one in capabilities.capabilities()}
    assert "all" not in result, result["all"]
    assert result["iperf3"].detail == "3.17"
    assert begun.read_text() == "begun\n"
