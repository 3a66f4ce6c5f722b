"""What a run leaves in its folder when its host fails."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from labkit.common import errors
from labkit.measure import hosts
from labkit.runner import run

PARAMETERS = {"topology": "veth", "pairs": 1}


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool) -> None:
    """Measure with a host that fails, before or after it has described its machine."""

    def ask(_where: str, request: dict[str, Any], _say: object) -> Iterator[dict[str, Any]]:
        if begun:
            (Path(request["folder"]) / "environment.json").write_text("{}")
            yield {"event": "progress"}
        raise errors.Failed("the kernel did not boot")

    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(hosts, "measuring_lock", lambda *_given: nullcontext())
    monkeypatch.setattr(run, "_check_machine_sysctls", lambda _parameters: None)
    with pytest.raises(errors.Failed):
        run.measure("datapaths", PARAMETERS, folder, watch=lambda _event: None)


@pytest.mark.parametrize("begun", [False, True])
def test_nothing_is_left_of_a_host_that_failed_before_the_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    measured(tmp_path / "run", monkeypatch, begun=begun)
    assert not (tmp_path / "run").exists()
