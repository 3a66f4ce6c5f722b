"""What the notebooks share: measure, or show what was measured, and say in prose what the numbers mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import plotly.graph_objects as go
from IPython.display import Markdown, display
from pandas.io.formats.style import Styler

from labkit.analysis import figures, load, profile_doubts, stats
from labkit.analysis import verdicts as verdict_tables
from labkit.analysis.drawing import figure as drawings
from labkit.analysis.figures import overlay as seen
from labkit.analysis.findings import overlay
from labkit.common import run_folder, units
from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.measure.topologies import State
from labkit.runner import run as running

LARGE = 3.0  # a ratio that is told as such
PARTS = {"one": "Local: one node", "two": "Switched: two nodes"}


class Part:
    """One half of what was measured, for its figures: `rows` of one node or of two, and their `verdicts`."""

    def __init__(self, heading: str, rows: pd.DataFrame) -> None:
        self.heading = heading
        self.rows = rows
        self.verdicts = verdict_tables.verdicts(rows)

    def kernels(self) -> go.Figure | None:
        """The figure of ratios side by side over kernels, where a point was measured in more than one."""
        parameters = [name for name in load.GROUP if name not in load.HOST]
        several = any(
            len(load.hosts(group)) > 1 for _, group in load.groups(self.verdicts, [*parameters, "topology"])
        )
        return figures.kernels(self.verdicts) if several else None

    def show(self, *drawn: go.Figure | None) -> None:
        """Show figures under the part's heading; None is no figure, and one without data is shown only if all are."""
        if self.heading:
            display(Markdown(f"## {self.heading}"))
        there = [figure for figure in drawn if figure is not None]
        for figure in [figure for figure in there if figure.data] or there:
            display(figure)


class Shown:
    """A run or a sweep: `folder`, `rows` (a DataFrame, a row for each measurement that is compared), and what can be
    said of them in Markdown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all = verdict_tables.load(folder, None)
        self.rows = self.part("cost")

    def part(self, name: str) -> pd.DataFrame:
        """The rows of one part of an experiment that has several: of `overlay` path, reachability, failure, headers,
        cost."""
        return self.all[self.all["part"].fillna("cost").eq(name)]

    @functools.cached_property
    def profiles(self) -> pd.DataFrame:
        """The rows that were measured beside an observer (`loading.profiles`)."""
        return load.profiles(self.folder)

    @staticmethod
    def sentences(sentences: Sequence[str]) -> Markdown:
        """Sentences as a list."""
        return Markdown("\n".join(line if line.startswith("    - ") else f"- {line}" for line in sentences))

    @staticmethod
    def wrapped(table: pd.DataFrame) -> Styler:
        """A table of text, as a report has it."""
        return seen.wrapped(table)

    def headline(self) -> Markdown:
        """How much was measured, on which hosts, when, and why it stopped."""
        rows, ok = self.all, self.rows[self.rows["status"].eq("ok")]
        sentences = [
            _host(there.iloc[0], bool(there["where"].ne("here").any())) for _, there in load.hosts(rows)
        ]
        if len(sentences) > 1:
            sentences = [
                f"Measured on {len(sentences)} hosts. Between them only ratios are compared, never speeds:\n",
                *(f"- {host}" for host in sentences),
                "\n",
            ]
        topologies = ok["topology"].nunique()
        words = [
            f"{units.many(len(ok), 'valid measurement')} of {topologies} topolog{'y' if topologies == 1 else 'ies'}",
            f"between {rows['time'].min()} and {rows['time'].max()},",
            f"{units.duration(float(ok['window_s'].sum()))} of pure measuring.",
        ]
        words = words if len(ok) else []
        reasons = "\n".join(f"- {reason}" for reason in self._stops())
        return Markdown("\n".join(sentences) + " " + " ".join(words) + "\n\n" + reasons)

    def show(self, part: str, *drawn: Callable[[pd.DataFrame], Any]) -> None:
        """What was found in one part, as sentences, and each figure or table of its rows."""
        rows = self.part(part)
        if not len(rows):
            display(Markdown(f"*Not looked at: `{part}` is not among the parts that were asked for.*"))
            return
        if part in overlay.SENTENCES:
            display(Markdown("\n".join(f"- {line}" for line in overlay.SENTENCES[part](rows))))
        for shown in (draw(rows) for draw in drawn):
            if not isinstance(shown, pd.DataFrame):
                display(shown)
            elif len(shown):
                display(seen.wrapped(shown))

    def drawing(self) -> go.Figure | None:
        """The network as the kernel told of it while a packet was followed; None where none was."""
        followed = self.part("path")
        reasons = followed["reason"].dropna().astype("str").drop_duplicates()
        followed = followed[followed["status"].eq("ok")]
        if not len(followed):
            if len(reasons):
                display(Markdown(f"*The network is not drawn: {'; '.join(reasons)}.*"))
            return None
        capture = Path(followed["folder"].iloc[0]) / followed["artefact"].iloc[0]
        try:
            state = msgspec.convert(run_folder.read_json(capture.with_name("state.json")), State)
        except (BadInput, msgspec.ValidationError):  # its files were cleared, or are another version's
            display(
                Markdown("*What the kernel told of the network is not here any more, or another labkit's.*")
            )
            return None
        return drawings.topology(state)

    def parts(self) -> list[Part]:
        """The halves of the paper: local and switched; what was measured of them, and a heading only if it was both,
        or the second."""
        result = dict(tuple(self.rows.groupby("nodes", sort=True)))
        headed = set(result) - {"one"}
        return [
            Part(heading if headed else "", result[nodes])
            for nodes, heading in PARTS.items()
            if nodes in result
        ]

    def _stops(self) -> list[str]:
        """Why each run stopped, the same reason once."""
        result: dict[str, dict[str, None]] = {}
        for path in sorted(self.folder.rglob("run.json")):
            run = run_folder.read_json(path)
            for pairs, why in run.get("why_stopped", {}).items():
                parameters = run["parameters"]
                where = f"{', '.join(parameters.get('loads') or [parameters['protocol']])} at MTU {parameters['mtu_bytes']}"
                where += " on two nodes" if parameters.get("nodes") == "two" else ""
                where += f" in {parameters['where']}" if parameters.get("where", "here") != "here" else ""
                result.setdefault(f"{why} ({where})", {})[pairs] = None
        return [
            f"{_list(sorted(pairs, key=int))} pair{'s' * (list(pairs) != ['1'])}: {why}"
            for why, pairs in result.items()
        ]

    def findings(self, verdicts: pd.DataFrame) -> Markdown:
        """The verdicts as prose: for each host, protocol and MTU what is faster, by how much, for which numbers of
        pairs; then what could not be measured."""
        if not len(verdicts):
            return Markdown("One topology alone was measured: there is nothing to compare it with.")
        lines = []
        for nodes, part in verdicts.groupby("nodes", sort=True):
            lines += [f"\n### {PARTS[str(nodes)]}\n"] if verdicts["nodes"].ne("one").any() else []
            there = load.hosts(part)
            for name, result in there:
                lines += [f"\n**{name}**\n"] if len(there) > 1 or "emulated" in name else []
                lines += _findings(result)
        return Markdown("\n".join(lines))

    def effects(self) -> pd.DataFrame:
        """What changes changed: a line for each arm and setting, the kernel's values before and after, and the number
        of places; and the reason for each arm that was not measured."""
        changed = self.all[self.all["change"].notna()] if "changed" in self.all else self.all.iloc[:0]
        lines = []
        for arm, rows in changed.groupby("arm", sort=False):
            effects = next((one for one in rows["changed"] if isinstance(one, list)), None)
            if effects is None:
                reason = str(rows["reason"].dropna().iloc[0]) if rows["reason"].notna().any() else ""
                lines.append({"arm": arm, "setting": reason})
            lines += [{"arm": arm, **one} for one in effects or ()]
        return pd.DataFrame(lines, columns=["arm", "at", "setting", "before", "after", "count"]).fillna("")

    def doubts(self) -> Markdown:
        """Every reason for doubt, as a list."""
        result = overlay.doubts(self.all[~self.all.index.isin(self.rows.index)])
        result += verdict_tables.doubts(self.rows) if len(self.rows) else []
        result += profile_doubts.profile_doubts(self.profiles, self.rows)
        return Markdown(
            "\n".join(f"- {doubt}" for doubt in result)
            or "Nothing was noticed that would cast doubt on these numbers."
        )


def measure(experiment: str, names: Mapping[str, Any]) -> Shown:
    """Measure with the parameters that are among `names` (a notebook's globals()), or show the finished run
    or sweep in names["folder"]."""
    folder = Path(names["folder"]) if names.get("folder") else None
    if folder is None or not (folder / "sweep.json").exists():
        fields = experiments.find(experiment).parameters.__struct_fields__
        parameters = {name: names[name] for name in fields if name in names}
        folder = running.measure(experiment, parameters, folder)
    return Shown(folder)


def _host(row: pd.Series[Any], is_elsewhere: bool) -> str:
    """A host in full, from a row of it."""
    emulated = " **Emulated CPU: speeds are not those of hardware.**" if load.emulated(row) else ""
    where = f" `{row['where']}`:" if is_elsewhere else ""
    peer = f", the other node `{row['peer']}`" if not pd.isna(row["peer"]) else ""
    if peer and not pd.isna(row["peer_kernel"]):
        peer += f": Linux {row['peer_kernel']} ({_accelerator(row['peer_accelerator'])})"
    on = f"Linux {row['kernel']} on {row['cpu']}, {row['cpus_count']:g} CPUs"
    return f"{where} {on} ({_accelerator(row['accelerator'])}){peer}.{emulated}".strip()


def _findings(verdicts: pd.DataFrame) -> list[str]:
    """A line for each topology and whatever else differs but numbers of pairs, of one host."""
    lines = []
    known = verdicts[verdicts["ratio"].notna()]
    at = [name for name in load.GROUP if name not in (*load.HOST, "pairs")]
    for key, group in load.groups(known, at):
        of = dict(zip(at, key, strict=True))
        words = [str(of["protocol"]).upper(), f"MTU {of['mtu_bytes']:g}", *load.unusual(of)]
        for topology, one in group.groupby("topology", sort=False):
            lines.append(f"- **{', '.join(words)}:** {_claims(str(topology), one)}")
    for topology, one in verdicts[verdicts["ratio"].isna()].groupby("topology", sort=False):
        lines.append(f"- **{topology}** was not measured: {one['sentence'].iloc[0]}.")
    return lines


def _accelerator(name: str) -> str:
    return {"none": "bare metal", "tcg": "emulated by QEMU"}.get(name, f"a virtual machine under {name}")


def _list(words: list[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def _claims(topology: str, lines: pd.DataFrame) -> str:
    """What is found of a topology at one protocol and MTU: a verdict for each number of pairs, equal ones together."""
    claims = []
    for word, same in lines.sort_values("pairs").groupby("word", sort=False):
        each = []
        for _, line in same.iterrows():
            size = "" if pd.isna(line["low"]) else f" ({_interval(line)})"
            each.append(f"{line['pairs']:g}{' pair' * bool(line['pairs'] == 1 == len(same))}{size}")
        claims.append(f"{word} for {_list(each)}{' pairs' * bool(same['pairs'].max() > 1)}")
    sentences = [f"{topology} against {lines['baseline'].iloc[0]}: {'; '.join(claims)}."]
    sentences += [f"    - {sentence}." for sentence in lines.loc[lines["word"].eq("no evidence"), "sentence"]]
    return "\n".join(sentences)


def _interval(line: pd.Series[Any]) -> str:
    """`-5.0 % [-8.1 %, -2.0 %]`; where one of the three is large, all are factors: `39.6 times [0.994, 1580]`."""
    three = [float(line[name]) for name in ("ratio", "low", "high")]
    if three[2] > stats.WIDE * three[1]:
        return f"{three[0]:.4g} times [{stats.interval_text(three[1], three[2])}]"
    if max(three) < LARGE:
        one, low, high = map(_change, three)
    else:
        one, low, high = (f"{value:.4g}" if value < 1e6 else f"{value:.0e}" for value in three)
        one += " times"
    return f"{one} [{low}, {high}]"


def _change(ratio: float) -> str:
    if ratio >= LARGE:
        return f"{ratio:.3g} times"
    return f"{(ratio - 1) * 100:+.1f} %"
