"""What a run says of its folder: other parameters, and rows that are kept."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed
from labkit.measure import experiments
from labkit.runner import run


def test_parameters_that_an_older_run_lacks_have_their_defaults(tmp_path: Path) -> None:
    requested = experiments.find("datapaths").parameters.of({"topology": "veth", "pairs": 2}).asdict()
    description = run._description(tmp_path, "datapaths", requested)
    del description["parameters"]["placement"]
    (tmp_path / "run.json").write_text(json.dumps(description))
    usual = experiments.find("datapaths").parameters.of({"topology": "veth", "pairs": 2}).asdict()
    assert run._description(tmp_path, "datapaths", usual)["parameters"] == description["parameters"]
    with pytest.raises(BadInput, match="with other parameters"):
        run._description(tmp_path, "datapaths", usual | {"placement": "scheduler"})
    with pytest.raises(BadInput, match="with other parameters"):
        run._description(tmp_path, "datapaths", usual | {"pairs": [3]})


@pytest.mark.parametrize("rows_count", [0, 1])
def test_kept_rows_are_mentioned_only_if_there_are_any(
    rows_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def conversation(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            lines=lambda: iter(()), end_reason=lambda: "ended together with its lab VM: it has ended"
        )

    monkeypatch.setattr(run.hosts, "conversation", conversation)
    run_folder.write_json(tmp_path / "run.json", {"run": "a", "points": ["1-r0"]})
    if rows_count:
        run_folder.write_rows(tmp_path, "1-r0", [{"arm": "veth", "status": "ok"}])
    with pytest.raises(Failed) as raised:
        list(run.ask("vm:x", {"folder": str(tmp_path)}))
    how, _, kept = str(raised.value).partition("; ")
    assert how == "the experiment's process ended together with its lab VM: it has ended"
    if rows_count:
        assert kept.startswith("finished rows are kept; repeat the command with --folder ")
    else:
        assert kept == "nothing was measured"


def test_report_of_earlier_rows_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`labkit report` would show it again. A run remembers its percentile, by which its early stop judges."""
    requests: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "_record", lambda request, *_: requests.append(request))
    monkeypatch.setenv("LABKIT_PERCENTILE", "p99")
    report = tmp_path / "notebook.ipynb"
    report.touch()
    run.measure("datapaths", {"protocol": "ping"}, tmp_path)
    assert not report.exists()
    described = run_folder.read_run(tmp_path)
    assert described["percentile"] == "p99"
    run_folder.write_json(tmp_path / "run.json", described | {"finished": "now", "points": []})
    monkeypatch.setenv("LABKIT_PERCENTILE", "p90")
    report.touch()
    run.measure("datapaths", {"protocol": "ping"}, tmp_path)
    assert report.exists(), "nothing was measured"
    assert [one["latency"] for one in requests] == ["latency_p99_s"]
    assert run_folder.read_run(tmp_path)["percentile"] == "p99"
    monkeypatch.setenv("LABKIT_PERCENTILE", "p95")
    with pytest.raises(BadInput, match="LABKIT_PERCENTILE=p95"):
        run.measure("datapaths", {"protocol": "ping"}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_resumed_run_shows_its_earlier_rows_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of points that are measured again are not among them."""
    monkeypatch.setattr(run, "_record", lambda *_: None)
    events: list[dict[str, Any]] = []
    run.measure("datapaths", {}, tmp_path, events.append)
    assert events == []
    for point, status in (("1-r0", "ok"), ("1-r1", "failed")):
        run_folder.write_rows(tmp_path, point, [{"point": point, "status": status}])
    run.measure("datapaths", {}, tmp_path, events.append)
    assert events == [{"event": "kept", "rows": [{"point": "1-r0", "status": "ok"}]}]
