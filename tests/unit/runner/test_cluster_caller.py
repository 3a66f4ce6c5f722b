"""A sweep on a Dask cluster: points whose kernel does not boot, and workers that cannot measure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from labkit.commands import sweep as sweep_command
from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed
from labkit.runner import papermill_run, sweep
from labkit.runner.cluster import folders
from labkit.runner.cluster.request import Request

WORKER = "tcp://127.0.0.1:1"
OTHER = "the worker has labkit 0.0.9"
NO_BOOT = "the lab VM did not boot: its image cannot be unpacked"


class Client:
    """A cluster of one worker, whose answers are known, as far as the caller uses it."""

    status = "running"

    def __init__(self, answers: dict[str, dict[str, Any]], resources: dict[str, int]) -> None:
        self.answers, self.submitted, self.scheduler = answers, list[str](), self
        self.percentiles = list[str | None]()
        self.resources = resources

    def subscribe_topic(self, *_: Any) -> None:
        """Send no events."""

    async def identity(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {WORKER: {"resources": self.resources}}}

    def submit(self, _function: Any, request: bytes, point: str, _topic: str, **_: Any) -> Any:
        self.submitted.append(point)
        self.percentiles.append(msgspec.json.decode(request, type=Request).percentile)
        result = asyncio.get_running_loop().create_future()
        result.set_result(self.answers[point])
        return result


def measured(folder: Path) -> dict[str, Any]:
    """Return a worker's answer about a point that it measured in this folder."""
    run_folder.write_json(folder / "run.json", run_folder.describe_run(folder, "datapaths", {}))
    run_folder.write_rows(folder, "1-r0", [{"arm": "veth", "status": "ok", "point": "1-r0"}])
    run_folder.write(folder / "notebook.ipynb", b"{}")
    return {"kind": "done", "packed": folders.pack(folder), "folder": str(folder)}


def unmeasured(name: str, folder: Path) -> dict[str, Any]:
    """Return a worker's answer about a point whose notebook failed."""
    run_folder.write(folder / "failed.ipynb", b"{}")
    packed = folders.pack(folder)
    return {"kind": "Failed", "text": f"point {name}: {NO_BOOT}", "packed": packed, "folder": str(folder)}


def swept(
    wheres: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labkit: int = 1
) -> tuple[Path, Client]:
    """Run a sweep of these points on the cluster. The worker cannot measure the point `old`, and refuses `foreign`."""
    from labkit.runner.cluster import caller

    worker = tmp_path / "worker"
    answers = {
        name: unmeasured(name, worker / name) if name == "old" else measured(worker / name) for name in wheres
    }
    answers["foreign"] = {"kind": "refused", "text": OTHER}
    client = Client(answers, {"labkit": labkit})

    @asynccontextmanager
    async def connected(_address: str) -> AsyncIterator[Client]:
        yield client

    monkeypatch.setattr(caller, "_connect", connected)
    monkeypatch.setattr(papermill_run, "execute", lambda *_, **__: None)  # the report
    run_folder.write(tmp_path / "01_datapaths.ipynb", b"{}")
    made: Any = SimpleNamespace(
        name="sweep", about="",
        folder=tmp_path / "sweep", notebook=tmp_path / "01_datapaths.ipynb", experiment="datapaths",
        points=[sweep.SweepPoint(name, {"where": where}) for name, where in wheres.items()],
        planned_s=lambda _: 1.0,
    )  # fmt: skip
    run_folder.write_json(made.folder / "sweep.json", {"seed": 1, "points": list(wheres)})
    bar: Any = SimpleNamespace(
        say=lambda _: None, see=lambda _: None, doing=lambda _: None, stop=lambda: None
    )
    try:
        sweep.run(made, bar, bar.say, lambda *given: caller.measure(WORKER, *given))
    finally:
        assert bool(client.submitted) == bool(labkit), "a point reaches a worker that may measure"
    return made.folder, client


def test_unbootable_kernel_fails_its_point_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheres = {"old": "vm:old", "new": "vm:new", "newer": "vm:newer"}
    folder, client = swept(wheres, tmp_path, monkeypatch)
    assert sorted(client.submitted) == sorted(wheres)
    assert sweep.failed(folder) == {"old": f"vm:old: point old: {NO_BOOT}; that was on {WORKER}"}
    rows = {row["status"]: row for row in sweep.rows(folder)}
    assert [row["status"] for row in sweep.rows(folder)] == ["failed", "ok", "ok"]
    assert (rows["failed"]["where"], rows["failed"]["point"]) == ("vm:old", "host")
    assert (folder / "old" / "failed.ipynb").exists()
    assert sweep_command.judge_sweep(folder) == 2


def test_worker_gets_the_percentile_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept({"new": "here"}, tmp_path / "usual", monkeypatch)[1].percentiles == [None]
    monkeypatch.setenv("LABKIT_PERCENTILE", "p99")
    assert swept({"new": "here"}, tmp_path / "chosen", monkeypatch)[1].percentiles == ["p99"]


def test_failure_of_this_kernel_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failed, match=f"point old: {NO_BOOT}; that was on {WORKER}"):
        swept({"old": "here"}, tmp_path, monkeypatch)


@pytest.mark.parametrize(("labkit", "says"), [(0, "it lacks the resource labkit=1, .*"), (1, OTHER)])
def test_unsuitable_worker_is_refused(
    labkit: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = f'start one with: dask worker {WORKER} --resources "labkit=1"'
    with pytest.raises(BadInput, match=f"no worker of the Dask cluster can measure: {WORKER}: {says}; {how}"):
        swept({"foreign": "here"}, tmp_path, monkeypatch, labkit)


def test_notebook_leads_no_sweep_on_a_cluster() -> None:
    from labkit.runner.cluster import caller

    async def cell() -> None:
        nothing: Any = None
        caller.measure(WORKER, nothing, [], nothing)

    with pytest.raises(BadInput, match="give the labkit sweep command in a terminal"):
        asyncio.run(cell())
