"""Run a sweep: papermill executes a notebook for every point of a grid, resumable, with one report of all points.

The file has `notebook` (a name in notebooks/), `parameters` for all points, and `grid`: a list of grids, each with axes
(name: list of values) and optionally its own `parameters`. Put values to compare into lists among the parameters, which
the notebook interleaves. An axis of the grid is for values that need no interleaving.
"""

import ast
import contextlib
import functools
import hashlib
import itertools
import math
import os
import random
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import run_folder, safe_files, schema, units
from labkit.common.errors import BadInput, Failed, choose, reading
from labkit.measure import experiments, hosts
from labkit.measure.parameters import Parameters
from labkit.runner import papermill_run, plain_notebook, unmeasured_point, yaml_files
from labkit.runner.progress import Bar
from labkit.system import machine

MAX_POINTS = 10_000  # in a sweep; at some seconds each, this many take a day
HERE = ("kernel", "kernel_build", "machine")  # columns that finished points of one folder have in common
START_S = 6.0  # start time of a notebook, for the estimate of the remaining time


# The parameters of a notebook by name, with their values if these are constants, or UNSET
Known = dict[str, Any]


@dataclass(frozen=True)
class SweepPoint:
    """One execution of the notebook: its name and its parameters. `others`: constants of the notebook that count beside
    them."""

    name: str
    parameters: dict[str, Any]
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """A digest of the parameters, with the content of the files that they name, and of the kernels on other hosts.

        vm:debian may mean a newer kernel later, a path may get another build, and a person may change a constant of the
        notebook. Then it is another point.
        """
        kernels = []
        for name in ("where", "peer"):
            with contextlib.suppress(BadInput):  # only workers may have this kernel
                kernels.append(hosts.identified(str(self.parameters.get(name) or "here")))
        every = self.others | self.parameters
        content = msgspec.json.encode([every, kernels], order="deterministic")
        return hashlib.sha256(content).hexdigest()[:8]


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file describes it, checked against the notebook and the experiment.

    known: the notebook's parameters. about: the comment with which the file begins, as one text.
    """

    name: str
    notebook: Path
    experiment: str
    points: list[SweepPoint]
    digest: str
    known: Known
    about: str = ""

    @property
    def folder(self) -> Path:
        """The sweep's folder. Its digest covers the kernel and the machine, so another kernel makes another sweep."""
        return run_folder.data_root() / self.experiment / f"{self.name}-{self.digest}"

    def planned_s(self, point: SweepPoint) -> float:
        """Return the planned seconds of a point, for the estimate of the remaining time."""
        result = experiments.find(self.experiment)
        own = _experiment_parameters(self.known, point, result.parameters)
        return START_S + result.planned_s(own)


Measure = Callable[[Sweep, list[SweepPoint], Bar], None]  # executes the points of a sweep into its folder


def load(path: Path) -> Sweep:
    """Read a sweep file. Raises BadInput in one sentence for anything that would not work, before anything runs."""
    content = yaml_files.read(path)
    if not isinstance(content, dict) or not {"notebook", "grid"} <= content.keys() <= {
        "notebook",
        "grid",
        "parameters",
    }:
        raise BadInput(f"{path} is not a sweep: it needs notebook and grid, and may have parameters")
    if content["grid"] == []:
        raise BadInput(f"{path}: grid is an empty list: there would be nothing to measure")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", str(content["notebook"])):
        raise BadInput(
            f"{path}: notebook must be the name of a notebook in notebooks/, without folder and suffix"
        )
    notebook = run_folder.notebooks() / f"{content['notebook']}.ipynb"
    known = parameters_of(notebook)
    experiment = experiment_of(notebook)
    usual = experiments.find(experiment).parameters().asdict() if experiment in experiments.TABLE else {}
    # A new parameter of labkit with its usual value makes no point another one.
    others = {
        name: value
        for name, value in known.items()
        if value is not msgspec.UNSET and (name not in usual or value != usual[name])
    }
    points = [replace(point, others=others) for point in _points(path, content)]
    for point in points:
        check(path, notebook, known, point)
    here = machine.describe()
    machine_of = [content["notebook"], *(here[name] for name in HERE)]
    digest = hashlib.sha256(msgspec.json.encode(machine_of)).hexdigest()[:8]
    sweep = Sweep(path.stem, notebook, experiment, points, digest, known, yaml_files.comment(path))
    return replace(sweep, points=_named_as_before(sweep))


class RecordedPoints:
    """All points that a sweep ever had, as its sweep.json says; none if there is no such file. `names`: theirs."""

    def __init__(self, path: Path, experiment: str) -> None:
        state = run_folder.read_object(path) if path.exists() else {}
        identities = state.get("identities", {})
        if not isinstance(identities, dict) or not all(
            isinstance(one, str) and run_folder.is_name(name) for name, one in identities.items()
        ):
            raise BadInput(f"{path} is invalid: its identities are not texts by the names of points")
        self.names = identities.keys()
        self._by_identity: dict[str, str] = {identity: name for name, identity in identities.items()}
        self._has_source, self._experiment = "source" in state, experiment
        self._written: dict[bytes, list[dict[str, Any]]] = {}
        with reading(str(path), BadInput):
            for written in state.get("parameters", {}).values():
                self._written.setdefault(_canonical(experiment, written), []).append(written)

    def name_of(self, point: SweepPoint) -> str | None:
        """Return the name that a point has there, also if its parameters are written in another way. An earlier labkit
        wrote no source, and identities without `others`."""
        known = point if self._has_source else replace(point, others={})
        for written in [
            point.parameters,
            *self._written.get(_canonical(self._experiment, point.parameters), ()),
        ]:
            if name := self._by_identity.get(replace(known, parameters=written).identity):
                return name
        return None


def _canonical(experiment: str, written: dict[str, Any]) -> bytes:
    """Return parameters in one form: `pairs: 1` is `pairs: [1]` if the experiment has a list there."""
    with contextlib.suppress(BadInput):  # an earlier labkit may have had other parameters
        kind = experiments.find(experiment).parameters
        own = {name: value for name, value in written.items() if name in kind.__struct_fields__}
        written = written | kind.values_of(own)
    return msgspec.json.encode(written, order="deterministic")


def _named_as_before(sweep: Sweep) -> list[SweepPoint]:
    """Return the points with the names that they had in the folder; another point of that name gets its identity."""
    before, result = RecordedPoints(sweep.folder / "sweep.json", sweep.experiment), []
    for point in sweep.points:
        other = f"{point.name}-{point.identity}" if point.name in before.names else point.name
        result.append(replace(point, name=before.name_of(point) or other))
    return result


def experiment_of(notebook: Path) -> str:
    """Return the experiment of a notebook: its name without the number, or else the first one that it measures."""
    name = notebook.stem.split("_", 1)[-1]
    if name in experiments.TABLE or not notebook.is_file():
        return name
    measured = _measured_by(notebook)
    return measured[0] if measured else name


def _measured_by(notebook: Path) -> list[str]:
    """Return the experiments that a notebook measures, in order."""
    text = safe_files.read_regular(notebook).decode(errors="replace")
    return re.findall(r'notebook\.measure\(\\?"(\w+)', text)


def notebook_of(experiment: str) -> Path | None:
    """Return the notebook that shows a run of an experiment: the one that has its name, or else measures nothing else.

    None: it has none. Raises BadInput if there are no notebooks at all.
    """
    folder = run_folder.notebooks()
    every = sorted(folder.glob("*.ipynb"))
    named = [path for path in every if path.stem.split("_", 1)[-1] == experiment]
    if paths := named or [path for path in every if _measured_by(path) == [experiment]]:
        return paths[0]
    if not every:
        raise BadInput(
            f"there are no notebooks in {folder}: give the command in the folder of labkit's project, or name that"
            f" folder with {run_folder.PROJECT}=FOLDER"
        )
    return None


def parameters_of(notebook: Path) -> Known:
    """Return the parameters of a notebook by name: those of the cell tagged `parameters`, and the keys of the
    dictionaries in the cell tagged `details`. Raises BadInput for a notebook that cannot be read."""
    if not notebook.is_file():
        names = sorted(one.stem for one in notebook.parent.glob("*.ipynb"))
        raise BadInput(f"there is no notebook {notebook.stem}: {choose(notebook.stem, names)}")
    result: Known = {}
    with reading(str(notebook), BadInput):
        for cell in run_folder.read_json(notebook)["cells"]:
            tags = cell["metadata"].get("tags", ())
            for line in _assignments(cell) if "parameters" in tags or "details" in tags else ():
                if "parameters" in tags:
                    targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                    result |= {one.id: _constant(line.value) for one in targets if isinstance(one, ast.Name)}
                elif isinstance(line.value, ast.Dict):
                    each = zip(line.value.keys, line.value.values, strict=True)
                    result |= {
                        str(key.value): _constant(one) for key, one in each if isinstance(key, ast.Constant)
                    }
    return result


def _assignments(cell: dict[str, Any]) -> list[ast.Assign | ast.AnnAssign]:
    """Return the assignments of a cell. Raises ValueError for one that is not Python."""
    try:
        lines = ast.parse(re.sub(r"(?m)^[%!].*$", "", "".join(cell["source"]))).body  # without magics
    except SyntaxError as error:
        raise ValueError(f"its cell of parameters is not Python ({error})") from None
    return [line for line in lines if isinstance(line, ast.Assign | ast.AnnAssign)]


def _constant(value: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(value or "")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # it calls something
        return msgspec.UNSET


def _experiment_parameters(known: Known, point: SweepPoint, kind: type[Parameters]) -> Parameters:
    """Return an experiment's parameters at a point: the notebook's constants, then the point's own. Raises BadInput."""
    constants = {name: value for name, value in known.items() if value is not msgspec.UNSET}
    values = constants | point.parameters
    return kind.of({name: value for name, value in values.items() if name in kind.__struct_fields__})


def _points(path: Path, content: dict[str, Any]) -> Iterator[SweepPoint]:
    common = content.get("parameters") or {}
    grids = content["grid"] if isinstance(content["grid"], list) else [content["grid"]]
    seen, count = set[str](), 0
    for grid in grids:
        if not isinstance(grid, dict) or not isinstance(common, dict):
            raise BadInput(
                f"{path}: grid must be a list of mappings from names to values, and parameters must be a mapping"
            )
        own = grid.get("parameters") or {}
        axes = {name: values for name, values in grid.items() if name != "parameters"}
        if not all(isinstance(values, list) and values for values in axes.values()) or not isinstance(
            own, dict
        ):
            raise BadInput(f"{path}: every axis of grid needs a list of values")
        count += math.prod(map(len, axes.values()))
        if count > MAX_POINTS:
            raise BadInput(
                f"{path}: the grid has {count:,} points or more, and {MAX_POINTS:,} is the most: leave out values, or"
                " put what is compared into lists among the parameters"
            )
        for values in itertools.product(*axes.values()):
            at = dict(zip(axes, values, strict=True))
            name = "-".join(map(_word, values)) or "all"
            if name in seen:
                raise BadInput(f"{path}: the grid has the point {name} twice")
            seen.add(name)
            yield SweepPoint(name, _with_files({**common, **own, **at}, path.parent))


def _with_files(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the parameters with changes and networks as JSON, including the content of the files that they name.

    Such files are in the sweep file's folder; networks may also be in the project. Raises BadInput.
    """
    result = yaml_files.with_files(parameters, folder, run_folder.project_root(), of_a_sweep=True)
    return {
        name: msgspec.json.decode(msgspec.json.encode(value)) if name in ("change", "topology") else value
        for name, value in result.items()
    }


def _word(value: Any) -> str:
    """Return a value as part of a point's name. A change has its own name."""
    words = [
        one.get("name") if isinstance(one, dict) else one
        for one in (value if isinstance(value, list) else [value])
    ]
    text = "_".join(map(str, words))
    return re.sub(r"[^A-Za-z0-9.]+|^\.+", "_", text)


def check(path: Path, notebook: Path, known: Known, point: SweepPoint) -> None:
    """Raise BadInput, prefixed with `path`, for parameters that the notebook or the experiment does not support.

    `known` is the result of `parameters_of`.
    """
    experiment = experiment_of(notebook)
    for name in point.parameters:
        if name not in known or name == "folder":
            names = ", ".join(sorted(known.keys() - {"folder"}))
            raise BadInput(f"{path}: {notebook.name} has no parameter {name}; it has: {names}")
    if experiment in experiments.TABLE:
        _experiment_parameters(known, point, experiments.find(experiment).parameters)


def run(
    sweep: Sweep,
    bar: Bar,
    say: Callable[[str], None],
    measure: Measure | None = None,
    keep_failed: bool = False,
    reuse: Path | None = None,
) -> Path:
    """Measure every unfinished point in random order, then execute the notebook once more over all points.

    A sweep grows: its points are known by their parameters, so a new value in its file adds a point, and a value that
    is taken out leaves the point's rows and takes it from the report. `reuse`: the folder of another sweep, whose
    finished points are copied where the kernel and the parameters are the same.

    Points with failed rows are measured again unless `keep_failed` is set. `measure` puts the points into the sweep's
    folder; without it they are measured here, one by one. Returns that folder, in which notebook.ipynb shows all
    points. If the sweep is interrupted or killed, the same call resumes it.
    """
    folder = sweep.folder
    state = _state(sweep)
    if state["percentile"]:  # also if it was chosen before, and this call only continues
        os.environ[schema.PERCENTILE] = state["percentile"]
    order = list(sweep.points)
    random.Random(state["seed"]).shuffle(order)
    # Absolute values of different kernels are not compared, so the points of one kernel can share one boot.
    wheres = list(dict.fromkeys(where(point) for point in order))
    order.sort(key=lambda point: wheres.index(where(point)))
    left = [point for point in order if not (folder / point.name / "notebook.ipynb").exists()]
    if reuse is not None:
        left = _without_reused(sweep, left, reuse, say)
    if elsewhere := len(state["parameters"]) - len(order):
        say(f"kept in {folder}, but not in the report: {units.counted(elsewhere, 'point')} of earlier values")
    again = [
        point
        for point in order
        if point not in left and not keep_failed and run_folder.failed_points(folder / point.name)
    ]
    if again:
        say(f"{units.counted(len(again), 'point')} with a failed row will be measured again")
        left = [point for point in order if point in left or point in again]
    if not left:
        say(f"all {len(order)} points were measured before; to measure anew, remove {folder}")
    elif len(left) < len(order):
        say(f"{len(order) - len(left)} of {len(order)} points were measured before; continuing in {folder}")
    if left:
        # After an interrupt it would be a report without these points.
        safe_files.remove(folder / "notebook.ipynb")
        (measure or functools.partial(_one_by_one, keep_failed=keep_failed))(sweep, left, bar)
    without = failed(folder)
    if without.keys() >= {point.name for point in order}:
        raise Failed("; ".join(dict.fromkeys(without.values())))
    if not (folder / "notebook.ipynb").exists():
        bar.before_s, bar.after_s = sum(map(sweep.planned_s, left)), 0.0
        bar.doing(f"executing the notebook over {units.counted(len(order), 'point')}, for the report")
        papermill_run.execute(
            sweep.notebook, folder, {"folder": str(folder)}, bar, "report", keep_failed=True
        )
    return folder


def rows(folder: Path) -> list[run_folder.Row]:
    """Return all rows of all points of a sweep. Raises BadInput as `run_folder.read_rows`."""
    return [row for name in run_folder.sweep_points(folder) for row in run_folder.read_rows(folder / name)]


def failed(folder: Path) -> dict[str, str]:
    """Return the points of a sweep that could not be measured, each with the reason. The next call of the same command
    measures them again."""
    reasons = {name: unmeasured_point.reason(folder / name) for name in run_folder.sweep_points(folder)}
    return {name: why for name, why in reasons.items() if why is not None}


def record_unmeasured(sweep: Sweep, point: SweepPoint, why: str, bar: Bar) -> None:
    """Record that a point could not be measured: its kernel did not boot, or its machine did not answer.

    This says nothing about the points on other hosts.
    """
    unmeasured_point.write(
        sweep.folder / point.name, sweep.experiment, point.parameters, f"{where(point)}: {why}"
    )
    bar.say(f"point {point.name} could not be measured: {why}; the sweep goes on")


def _one_by_one(sweep: Sweep, points: list[SweepPoint], bar: Bar, keep_failed: bool) -> None:
    planned = list(map(sweep.planned_s, points))
    for point in points:  # a missing kernel is reported before the first point
        hosts.resolved(where(point))
    with hosts.leasing(sweep.folder, bar.say) as lease:
        for number, point in enumerate(points):
            bar.before_s, bar.after_s = sum(planned[:number]), sum(planned[number + 1 :])
            # Two nodes boot their own lab VMs with a cable between them.
            leased = "here" if point.parameters.get("nodes") == "two" else where(point)
            try:
                _measure_on(sweep, point, leased, lease, bar, keep_failed)
            except Failed as error:
                if where(point) == "here":
                    raise
                record_unmeasured(sweep, point, str(error), bar)


def _measure_on(
    sweep: Sweep, point: SweepPoint, leased: str, lease: Callable[[str], bool], bar: Bar, keep_failed: bool
) -> None:
    """Measure a point on its host. If its lab VM has ended, boot it again and retry once."""
    lease(leased)
    try:
        _measure(sweep, point, bar, keep_failed)
    except Failed as error:
        if not lease(leased):
            raise
        bar.say(f"{error}; labkit booted its lab VM again and continues the point")
        _measure(sweep, point, bar, keep_failed)


def _measure(sweep: Sweep, point: SweepPoint, bar: Bar, keep_failed: bool) -> None:
    folder = sweep.folder / point.name
    parameters = {**point.parameters, "folder": str(folder)}
    papermill_run.execute(sweep.notebook, folder, parameters, bar, point.name, keep_failed=keep_failed)


def where(point: SweepPoint) -> str:
    """Return the host on which a point is measured."""
    return str(point.parameters.get("where", "here"))


def show(folder: Path, bar: Bar) -> Path:
    """Execute the notebook of a run's experiment for the finished run in `folder`; return the executed notebook.

    An experiment without a notebook gets a plain one. Raises BadInput if the folder has no run or an unfinished one.
    """
    if (folder / "sweep.json").exists():
        raise BadInput(
            f"the sweep in {folder} is not finished: repeat the same labkit sweep command to continue it"
        )
    described = run_folder.read_run(folder)
    if not run_folder.is_finished(folder, described):
        raise BadInput(
            f"the run in {folder} is not finished: repeat the command with --folder {folder} to continue it"
        )
    with contextlib.ExitStack() as stack:
        result = notebook_of(described["experiment"])
        if result is None:
            scratch = stack.enter_context(
                safe_files.own_folder(safe_files.runtime_folder(), "labkit-report-")
            )
            result = scratch.path / "plain.ipynb"
            plain_notebook.write(result, described["experiment"])
        known = parameters_of(result)
        parameters = {name: value for name, value in described["parameters"].items() if name in known}
        bar.doing(f"executing the notebook {result.name} over the run, for the report")
        parameters["folder"] = str(folder.absolute())
        papermill_run.execute(result, folder, parameters, bar, "report", keep_failed=True)
    return folder / "notebook.ipynb"


def _without_reused(
    sweep: Sweep, points: list[SweepPoint], other: Path, say: Callable[[str], None]
) -> list[SweepPoint]:
    """Copy the points that another sweep has finished on this kernel, and return those that are left."""
    if not (other / "sweep.json").exists():
        raise BadInput(f"{other} is not the folder of a sweep: it has no sweep.json")
    there = RecordedPoints(other / "sweep.json", sweep.experiment)
    here = machine.describe()
    reused = []
    for point in points:
        own = other / (there.name_of(point) or "")
        if own == other or not (own / "notebook.ipynb").exists() or run_folder.failed_points(own):
            continue
        rows = run_folder.read_rows(own)
        if not rows or (
            where(point) == "here" and any(row.get(name) != here[name] for row in rows for name in HERE)
        ):
            continue
        with safe_files.opened_folder(sweep.folder / point.name) as target:
            shutil.copytree(own, f"/proc/self/fd/{target}", ignore=_not_copied, dirs_exist_ok=True)
        # The last file, because it says that the point is finished.
        executed = safe_files.read_regular(own / "notebook.ipynb")
        run_folder.write(sweep.folder / point.name / "notebook.ipynb", executed)
        reused.append(point)
    say(f"taken from {other}: {len(reused)} of {units.counted(len(points), 'point')}")
    return [point for point in points if point not in reused]


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Return the names of executed notebooks, of links, which could lead to any file, and of pipes and devices, which
    could be endless."""
    return [
        name
        for name in names
        if name == "notebook.ipynb"
        or stat.S_IFMT((Path(folder) / name).lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR)
    ]


def _state(sweep: Sweep) -> dict[str, Any]:
    """Return what sweep.json says, with the points of the sweep. If that differs from before, the report of before is
    removed."""
    path = sweep.folder / "sweep.json"
    before = run_folder.read_object(path) if path.exists() else {}
    state = {
        "sweep": sweep.name,
        "notebook": sweep.notebook.name,
        "seed": run_folder.drawn_seed(),
        "created": run_folder.now(),
        **before,
        "about": sweep.about,
        "source": hashlib.sha256(safe_files.read_regular(sweep.notebook)).hexdigest()[:8],
        "percentile": os.environ.get(schema.PERCENTILE) or before.get("percentile"),
        "points": [point.name for point in sweep.points],
        "parameters": before.get("parameters", {}) | {point.name: point.parameters for point in sweep.points},
        "identities": before.get("identities", {}) | {point.name: point.identity for point in sweep.points},
    }
    if msgspec.json.decode(msgspec.json.encode(state)) != before:
        safe_files.remove(sweep.folder / "notebook.ipynb")
        run_folder.write_json(path, state)
    return state
