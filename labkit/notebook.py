"""Functions for all notebooks: measure or show a run, and explain its numbers in sentences."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import plotly.graph_objects as go
from IPython.core.getipython import get_ipython
from IPython.display import Markdown, display
from pandas.io.formats.style import Styler

from labkit.analysis import (
    displays,
    figures,
    flame,
    load,
    profile_doubts,
    protocols,
    published_runs,
    run_figures,
    theme,
    verdict_cells,
)
from labkit.analysis import verdicts as verdict_tables
from labkit.analysis import why as why_page
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.drawing import figure as drawings
from labkit.analysis.findings import registry as findings_of
from labkit.analysis.flame import load_profiles, source_lines
from labkit.common import run_folder, units
from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported, did_you_mean
from labkit.common.printable import markdown_table
from labkit.common.topology_state import State
from labkit.jupyter import progress_bar
from labkit.measure import experiments
from labkit.measure.observers import registry
from labkit.runner import permissions
from labkit.runner import run as running

theme.configure_renderers()

PARTS = {"one": "Local: one node", "two": "Switched: two nodes"}


class Part:
    """The measurements on one node or on two nodes: `rows` and their `verdicts`."""

    def __init__(self, heading: str, rows: pd.DataFrame) -> None:
        self.heading = heading
        self.rows = rows
        self.verdicts = all_verdicts(rows)

    def kernels(self) -> go.Figure | None:
        """Return the figure that compares the ratios of several kernels; None if every point has a single kernel."""
        columns = [name for name in load.GROUP if name not in load.HOST]
        groups = load.groups(self.verdicts, [*columns, "topology"])
        several = any(len(load.hosts(group)) > 1 for _, group in groups)
        return figures.kernels(self.verdicts) if several else None

    def show(self, *drawn: go.Figure | None) -> None:
        """Show figures under the part's heading, each with how to read it below.

        None is skipped. A figure without data is shown only if no other figure has data.
        """
        if self.heading:
            display(displays.markdown(f"## {self.heading}"))
        existing = [figure for figure in drawn if figure is not None]
        seen: set[str] = set()
        for figure in [figure for figure in existing if figure.data] or existing:
            theme.add_notes_once(figure, seen)
            display(figure)
            if text := theme.explanation(figure):
                display(displays.markdown(text))


class Run:
    """The results of a run or a sweep: tables, figures, and findings in sentences. Each has a display in a notebook.

    folder: the run folder. percentile: that of round-trip times that are compared; None: the usual metric. all: a
    DataFrame with a row for each measurement. rows: the compared rows.
    """

    def __init__(self, folder: Path, percentile: str | None = None) -> None:
        self.folder, self.percentile = folder, percentile
        self.all = load.at_percentile(load.load(folder, None), percentile)
        self.rows = displays.Rows.of(self.part("cost"))

    def part(self, name: str) -> pd.DataFrame:
        """Return the rows of one part of an experiment; `overlay` has path, reachability, cost and others."""
        return load.part(self.all, name)

    @functools.cached_property
    def profiles(self) -> displays.Profiles:
        """Return the rows that were measured with an observer (`load.profiles`)."""
        rows = load.at_percentile(load.profiles(self.folder), self.percentile, required=False)
        return displays.Profiles.of(rows)

    @functools.cached_property
    def verdicts(self) -> displays.Verdicts:
        """Return the verdicts for each topology and point: what is faster, and by how much (`all_verdicts`)."""
        return displays.Verdicts.of(all_verdicts(self.rows))

    @functools.cached_property
    def figures(self) -> run_figures.Figures:
        """Return the figures of the run's experiment, drawn on first use: `run.figures.forest`.

        They are those of run_figures.BY_EXPERIMENT, and of each part the verdicts and, where rows can share a chart,
        throughput, CPU time and slices. `run.figures.along("length_bytes")` draws against any parameter that varies.
        """
        made = run_figures.of_run(self.all, lambda: self.profiles)
        return run_figures.Figures(made, self.rows)

    def why(
        self, arm: str = "", against: str | None = None, processes: str = load_profiles.WITHIN
    ) -> why_page.Explanation:
        """Explain why an arm differs from another one, by default from the baseline: `run.why("macvlan_bridge")`.

        arm, against: written as after RUN: in `labkit why`, so they may contain values, for example `veth,pairs=8`.
        Without an arm, the only variant is explained. processes: count their CPU time alone: a regular expression, or
        `switch` (ovs-vswitchd). Raises BadInput if the run lacks profiles of either arm.
        """
        left, right = against or self._only("baseline"), arm or self._only("variant")
        return why_page.explain(f"{self.folder}:{left}", right, processes, self.percentile)

    def causes(self, arm: str = "", against: str | None = None) -> None:
        """Show why each variant differs from the baseline, with a flame graph if perf_record profiled both.

        arm, against: show it of these two alone, and nothing if the run lacks profiles of either. A run of one arm has
        its flame graph alone. Most published runs have no profiles.
        """
        profiled = self.profiles[self.profiles["observer"].notna()]
        there = not published_runs.is_published(self.folder) or profiled["folded_stacks"].notna().any()
        if arm:
            if there and {arm, against} <= set(profiled["arm"]):
                self._show_cause(arm, against)
            return
        if not there:
            _note("Profiles are not published, so no cause is named: measure the run again to see causes.")
            return
        arms = profiled.loc[profiled["role"].eq("variant"), "arm"].unique()
        try:
            own = self._own_flames()
        except LabkitError as error:
            _note(f"There is no flame graph: {error}.")
            return
        for graph in own:
            display(graph)
        if not len(arms) and not own:
            _note("Not measured: set `observe=perf_record,counters` to see causes and flame graphs.")
        for each in arms:
            self._show_cause(str(each))

    def _show_cause(self, arm: str, against: str | None = None) -> None:
        display(displays.markdown(f"### {arm}{f' against {against}' if against else ''}"))
        try:
            display(self.why(arm, against))
        except LabkitError as error:
            _note(f"{arm} is not explained: {error}.")

    def flames(self, arm: str = "", against: str | None = None) -> flame.Flames:
        """Return the differential flame graphs of `why`; of a run of one arm, that arm's own. Raises as `why`."""
        own = flame.Flames() if arm or against else self._own_flames()
        return own or self.why(arm, against).flames

    def _own_flames(self) -> flame.Flames:
        """Return the flame graph of each point of the only arm, in CPU time per unit of work; of several arms, none."""
        profiled = self.profiles[self.profiles["observer"].eq(load_profiles.OBSERVER)]
        measured = profiled[profiled["status"].eq("ok")]
        if not len(measured) or self.rows["arm"].nunique() > 1 or profiled["arm"].nunique() > 1:
            return flame.Flames()
        return flame.Flames(
            flame.graph(
                load_profiles.arm(rows, f"{rows['arm'].iloc[0]}, {load.group_text(key)}"),
                protocols.find(rows["protocol"].iloc[0]).work,
            )
            for key, rows in load.groups(measured)
        )

    def source_lines(self, function: str) -> pd.DataFrame:
        """Return the source lines in which a function spent its time, for each arm: `source_lines.function_lines`.

        The run must have been measured with observe=perf_record and keep_perf_data=true. Raises Unsupported without
        debug symbols.
        """
        return source_lines.function_lines(self.profiles, function)

    def _only(self, role: str) -> str:
        """Return the only arm with a role."""
        every = pd.concat([self.rows, self.profiles])
        arms = list(dict.fromkeys(every.loc[every["role"].eq(role), "arm"]))
        if len(arms) != 1:
            names = ", ".join(dict.fromkeys(every["arm"].dropna()))
            raise BadInput(f"{self.folder} has {len(arms)} arms with the role {role}: name one of {names}")
        return str(arms[0])

    def __repr__(self) -> str:
        more = f", percentile={self.percentile!r}" if self.percentile else ""
        return f"labkit.open({str(self.folder)!r}{more})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        lines = "\n".join(findings_of.sentences(self.all, lambda: self.profiles))
        texts = [self.headline().data, displays.inert(lines), self.findings(self.verdicts).data]
        text = "\n\n".join(filter(None, texts))
        return {"text/markdown": text, "text/plain": repr(self)}

    @staticmethod
    def sentences(sentences: Sequence[str]) -> Markdown:
        """Return sentences as a Markdown list."""
        return displays.sentences(sentences)

    @staticmethod
    def wrapped(table: pd.DataFrame) -> Styler:
        """Return a table of text in the style of the reports."""
        return displays.wrapped(table)

    def headline(self) -> Markdown:
        """Return how much was measured, on which hosts, when, and why the runs stopped."""
        rows, ok = self.all, self.rows[self.rows["status"].eq("ok")]
        sentences = [_host(own.iloc[0], bool(own["where"].ne("here").any())) for _, own in load.hosts(rows)]
        if len(sentences) > 1:
            sentences = [
                f"Measured on {len(sentences)} hosts. Only ratios are compared between hosts, never speeds:\n",
                *(f"- {host}" for host in sentences),
                "\n",
            ]
        measured_s = float(ok["window_s"].sum())
        lasted = f", {units.duration(measured_s)} of pure measuring time" if measured_s else ""
        kinds = {"slice": "slices of 100 ms", "whole": "whole runs"}
        how = [text for kind, text in kinds.items() if ok["method"].eq(kind).any()]
        lasted = f", in {units.listed(how)}{lasted}" if how else lasted
        words = [
            f"{units.counted(len(ok), 'valid measurement')} of {_name_compared(ok)}",
            f"between {rows['time'].min()} and {rows['time'].max()}{lasted}.",
        ]
        words = words if len(ok) else []
        reasons = "\n".join(f"- {reason}" for reason in self._stops())
        return displays.markdown("\n".join(sentences) + " " + " ".join(words) + "\n\n" + reasons)

    def show(self, part: str, *drawn: Callable[[pd.DataFrame], Any]) -> None:
        """Show the sentences, figures and tables that `drawn` makes of the rows of one part.

        Each function returns a list of sentences, or a figure or table, or a list of those.
        """
        rows = self.part(part)
        if not len(rows):
            _note(f"Not measured: add `{part}` to the parameter `part`.")
            return
        for draw in drawn:
            shown = draw(rows)
            several = isinstance(shown, list) and not all(isinstance(one, str) for one in shown)
            displays.show(*(shown if several else [shown]))

    def drawing(self) -> go.Figure | None:
        """Return the drawing of the network, as the kernel reported it during the capture; None without a capture."""
        followed = self.part("path")
        reasons = followed["reason"].dropna().astype("str").drop_duplicates()
        followed = followed[followed["status"].eq("ok")]
        if not len(followed):
            if len(reasons):
                _note(f"The network is not drawn: {'; '.join(reasons)}.")
            return None
        try:
            capture = run_folder.artefact(followed["folder"].iloc[0], followed["artefact"].iloc[0])
            state = msgspec.convert(run_folder.read_json(capture.with_name("state.json")), State)
        except (BadInput, msgspec.ValidationError):
            _note("The network is not drawn: its file was deleted, or another version of labkit wrote it.")
            return None
        return drawings.topology(state)

    def parts(self) -> list[Part]:
        """Return the two parts of the paper, as far as they were measured: local (one node) and switched (two nodes).

        If only the local part was measured, it has no heading.
        """
        result = dict(tuple(self.rows.groupby("nodes", sort=True)))
        headed = set(result) - {"one"}
        known = {nodes: heading for nodes, heading in PARTS.items() if nodes in result}
        return [Part(heading if headed else "", result[nodes]) for nodes, heading in known.items()]

    def _stops(self) -> list[str]:
        """Return the reasons why the runs stopped, without duplicates."""
        result: dict[str, dict[str, None]] = {}
        for folder in sorted(set(self.all["folder"])):  # a sweep also has points that left its report
            path = Path(folder) / "run.json"
            run = run_folder.read_begun(path.parent) if path.exists() else {}
            for pairs, why in run.get("why_stopped", {}).items():
                parameters = run["parameters"]
                loads = ", ".join(parameters.get("loads") or [parameters.get("protocol", "frames")])
                where = f"{loads} at MTU {parameters['mtu_bytes']}" if "mtu_bytes" in parameters else loads
                where += " on two nodes" if parameters.get("nodes") == "two" else ""
                where += f" in {parameters['where']}" if parameters.get("where", "here") != "here" else ""
                result.setdefault(f"{why} ({where})", {})[pairs] = None
        return [
            f"{units.listed(sorted(pairs, key=int))} pair{'s' * (list(pairs) != ['1'])}: {why}"
            for why, pairs in result.items()
        ]

    def ratios(self) -> None:
        """Show the verdicts in a table and in a figure."""
        display(self.findings(self.verdicts), figures.forest(self.verdicts))

    def findings(self, verdicts: pd.DataFrame) -> Markdown:
        """Return a table of the verdicts for each host, then why there is no evidence or no ratio."""
        if not len(verdicts):
            return displays.markdown("No arm was measured beside a baseline, so nothing can be compared.")
        lines = []
        for nodes, part in verdicts.groupby("nodes", sort=True):
            lines += [f"\n### {PARTS[str(nodes)]}\n"] if verdicts["nodes"].ne("one").any() else []
            hosts = load.hosts(part)
            for name, rows in hosts:
                lines += [f"\n**{name}**\n"] if len(hosts) > 1 or "emulated" in name else []
                names, cells, same, reasons = verdict_cells.table(rows)
                lines += [f"Ratios{same}:\n", markdown_table(names, cells), *(f"- {one}" for one in reasons)]
        return displays.markdown("\n".join(lines))

    def effects(self) -> pd.DataFrame:
        """Return what each change changed: a row for each arm and setting, and the reason for each arm that was not
        measured.

        A row has the kernel's values before and after the change and the number of places.
        """
        changed = self.all[self.all["change"].notna()] if "changed" in self.all else self.all.iloc[:0]
        lines = []
        for arm, rows in changed.groupby("arm", sort=False):
            effects = next((changed for changed in rows["changed"] if isinstance(changed, list)), None)
            if effects is None:
                reason = str(rows["reason"].dropna().iloc[0]) if rows["reason"].notna().any() else ""
                lines.append({"arm": arm, "setting": reason})
            lines += [{"arm": arm, **effect} for effect in effects or ()]
        return pd.DataFrame(lines, columns=["arm", "at", "setting", "before", "after", "count"]).fillna("")

    def doubts(self) -> Markdown:
        """Return every reason for doubt as a Markdown list, the weightiest first; the lesser ones are folded."""
        result = findings_of.doubts(self.all[~self.all.index.isin(self.rows.index)])
        result += verdict_tables.doubts(self.rows, table=self.verdicts) if len(self.rows) else []
        result += profile_doubts.profile_doubts(self.profiles, self.rows)
        if not result:
            return displays.markdown("No reason to doubt these numbers was found.")
        return displays.folded(result)


def measure(experiment: str, names: Mapping[str, Any], prefix: str = "") -> Run:
    """Measure with the parameters in `names` (a notebook's globals()), or load the finished run or sweep in
    names["folder"].

    `details` in `names` is a dictionary of further parameters. A parameter that also has a name of its own takes that
    value, so papermill can set each by its name. In a notebook of two experiments, the names of one have a prefix: with
    `stateful_`, the value of stateful_folder takes the place of that of folder. If that is empty, a sweep has these
    runs in a folder beside its points, from which its report shows them.
    """
    check_injected_parameters()
    first = run_folder.named(names["folder"]) if names.get("folder") else None
    names = {**names, **{name.removeprefix(prefix): names[name] for name in names if name.startswith(prefix)}}
    folder = run_folder.named(names["folder"]) if names.get("folder") else None
    if folder is None and first is not None and prefix:
        folder = _second_folder(first, prefix)
    if folder is None or not _is_shown(folder):
        fields = experiments.find(experiment).parameters.help()
        parameters = {**names.get("details", {}), **{name: names[name] for name in fields if name in names}}
        return run_experiment(experiment, parameters, folder)
    return Run(folder)


def _is_shown(folder: Path) -> bool:
    """Return whether a notebook shows what is in a folder, whatever its parameters: a sweep, a published run, and in
    `labkit report` every finished run. That may have parameters that the notebook does not have, or that this machine
    or its user would refuse now."""
    if os.environ.get(running.KEEP_FAILED) and permissions.is_of_a_sweep():
        return is_finished(str(folder))
    return (folder / "sweep.json").exists() or published_runs.is_published(folder)


def _second_folder(first: Path, prefix: str) -> Path | None:
    """Return where a sweep has the runs of a notebook's second experiment, or that of one point: a sweep of the same
    points inside the folder of the first one. None outside of a sweep."""
    for sweep, name in ((first, ""), (first.parent, first.name)):
        if (sweep / "sweep.json").exists():
            second = sweep / prefix.rstrip("_")
            run_folder.write_json(second / "sweep.json", run_folder.read_object(sweep / "sweep.json"))
            return second / name
    return None


def check_injected_parameters() -> None:
    """Raise BadInput for a parameter that papermill has set and that the notebook does not have.

    papermill only warns of it, and the notebook would measure with the default of the parameter that was meant.
    """
    known, given = set[str](), set[str]()
    # the last cell is the one that calls
    for source in getattr(get_ipython(), "user_ns", {}).get("In", [])[:-1]:
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except SyntaxError:  # a cell with commands of IPython
            continue
        stored = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        # papermill begins the cell that it inserts with this line (papermill/translators.py), and inserts it before
        # the cell of the details, which are keys of a dictionary.
        # A notebook's own first cell may begin so, too; the inserted cell follows the one with the defaults.
        if known and source.startswith("# Parameters\n"):
            given |= stored
        else:
            keys = (key for one in nodes if isinstance(one, ast.Dict) for key in one.keys)
            known |= stored | {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    for name in sorted(given - known):
        raise BadInput(f"this notebook has no parameter {name}{did_you_mean(name, known)}")


def is_finished(folder: str) -> bool:
    """Return whether a notebook's parameter `folder` names results that the notebook shows without measuring."""
    check_injected_parameters()
    path = run_folder.named(folder)
    if not folder or not path.is_dir():
        return False
    if (path / "sweep.json").exists() or published_runs.is_published(path):
        return True
    return (path / "run.json").exists() and run_folder.is_finished(path, run_folder.read_run(path))


def run_experiment(
    experiment: str, parameters: Mapping[str, Any], folder: Path | None = None, keep_failed: bool = False
) -> Run:
    """Measure, or resume the run in `folder`, and return the run. In a notebook, a bar shows the progress.

    Raises like `runner.run.measure`, and Failed if a person interrupts the cell, in IPython in a terminal, too.
    """
    shell = get_ipython()
    if shell is None or permissions.is_of_a_sweep():
        return Run(running.measure(experiment, parameters, folder, None, keep_failed))
    bar = progress_bar.NotebookBar() if hasattr(shell, "kernel") else None
    folder = run_folder.new_run(experiment) if folder is None else folder
    try:
        return Run(running.measure(experiment, parameters, folder, bar.see if bar else None, keep_failed))
    except KeyboardInterrupt:
        if bar:
            bar.end("interrupted: finished rows are kept")
        shown = run_folder.display_path(folder)
        raise Failed(
            f"interrupted: finished rows are in {shown}; repeat the same with this folder to resume (--folder {shown},"
            f" or folder={str(shown)!r})"
        ) from None
    except LabkitError:
        if bar:
            bar.end("ended early")
        raise


def possible_observers(names: str | Sequence[str]) -> list[str]:
    """Return the observers that this user can use on this kernel, and display the reason for each other one."""
    possible = []
    for name in experiments.DatapathParameters.of({"observe": names}).observe:
        try:
            registry.TABLE[name].check(experiments.DatapathParameters())
            possible.append(name)
        except (Unsupported, Failed) as error:
            _note(f"`{name}` is left out: {error}.")
    return possible


def open_run(folder: str | Path, percentile: str | None = None) -> Run:
    """Open the folder of a run or a sweep: `run = labkit.open("data/datapaths/…")`.

    Then use `run.rows`, `run.verdicts`, `run.profiles`, `run.why("macvlan_bridge")`, `run.figures`. A relative path
    may be relative to the current folder or to the project. `percentile="p99"` (p50, p90, p99.9, max) compares round
    trips by that percentile in verdicts, figures and explanations. Raises BadInput if it is not such a folder, or if
    its rows do not have the percentile.
    """
    return Run(run_folder.named(folder), percentile)


def _note(text: str) -> None:
    """Display a remark, for example why something is not shown."""
    display(displays.markdown(f"*{text}*"))


def _host(row: pd.Series[Any], is_elsewhere: bool) -> str:
    """Return the description of a host from one of its rows; if it did not start, the reason."""
    if pd.isna(row["kernel"]) and row["status"] == "failed":
        return f"Not measured: {row['reason']}."
    emulated = " **Emulated CPU: speeds are not those of hardware.**" if load.emulated(row) else ""
    where = f" `{row['where']}`:" if is_elsewhere else ""
    peer = f", the other node `{row['peer']}`" if not pd.isna(row["peer"]) else ""
    if peer and not pd.isna(row["peer_kernel"]):
        peer += f": Linux {row['peer_kernel']} ({_accelerator(row['peer_accelerator'])})"
    if pd.isna(row["cpu"]):  # of an imported run
        return f"{where} Linux {row['kernel']}, on an unknown CPU{peer}.".strip()
    on = f"Linux {row['kernel']} on {row['cpu']}, {row['cpus_count']:g} CPUs"
    return f"{where} {on} ({_accelerator(row['accelerator'])}){peer}.{emulated}".strip()


def _name_compared(rows: pd.DataFrame) -> str:
    """Return what the rows compare: `3 topologies`, or `1 topology with 3 endpoint kinds`."""
    topologies = rows["built_topology"].nunique()
    text = "1 topology" if topologies == 1 else f"{topologies} topologies"
    ends = rows["endpoint"].fillna("namespace").nunique()
    text += f" with {ends} endpoint kinds" if ends > 1 else ""
    changes = rows["change"].dropna().nunique()
    return text + (f" and {units.counted(changes, 'change')}" if changes else "")


def _accelerator(name: str) -> str:
    return {"none": "bare metal", "tcg": "emulated by QEMU"}.get(name, f"a virtual machine under {name}")
