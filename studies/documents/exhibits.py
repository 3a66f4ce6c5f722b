"""The exhibits of the documents, each beside what published runs measured: figures, tables and read-outs.

They are in the order of the documents, and read from exhibits.toml. To add one, add an entry there.

Keys of an exhibit are the fields of `Exhibit`. `printed` is a table of `data/reference`, and `ours` are tables of
published runs: `down` is the column whose values are the lines, `across` those whose values are columns (none, one or
several), `values` the columns that are shown, with their names, and `where` the values that other columns must have.
`draw` is a figure of a run: one of its own by `name`, or one of DRAWN with `where`. `why` are two arms of a run with
profiles: the conclusion of `labkit why` and its flame graph. `times` scales printed lines.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from IPython.display import HTML

from labkit.analysis import displays, figures, load, why
from labkit.analysis.change_effects import all_verdicts
from labkit.common import schema, units
from studies import reference_tables
from studies.documents import document
from studies.documents.claim import Judgement
from studies.documents.evidence import durations, rows_with, value_of
from studies.documents.registry import DOCUMENTS, where_of
from studies.documents.results import Results, how_to_measure

UNITS = {one.name: one.unit for one in schema.COLUMNS} | {"ip_rcv_s": "s", "p50_s": "s", "writes_pps": "1/s"}
DRAWN: Mapping[str, Callable[[pd.DataFrame], go.Figure]] = {
    "throughput": figures.throughput, "rates": figures.rates,
    "forest": lambda rows: figures.forest(all_verdicts(rows)),
}  # fmt: skip

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Exhibit:
    """A figure, a table or a read-out of a document.

    name: as the document calls it. title: what it shows. claims: the names of the claims that it supports. remark: what
    else a reader must know, for example why nothing here stands beside it.
    """

    document: str
    name: str
    title: str
    claims: Sequence[str] = ()
    printed: Table | None = None
    ours: Sequence[Table] = ()
    draw: Sequence[Table] = ()
    why: Sequence[Table] = ()
    remark: str = ""


EXHIBITS = tuple(
    Exhibit(**one) for one in tomllib.loads((Path(__file__).parent / "exhibits.toml").read_text())["exhibits"]
)


def show(results: Results, judgements: Sequence[Judgement], name: str) -> None:
    """Display the section of a document in a notebook: its exhibits in its order, each beside ours."""
    displays.show(displays.markdown(f"### {DOCUMENTS[name].label}"))
    for one in EXHIBITS:
        if one.document == name:
            displays.show(displays.markdown(_text(one, results, judgements)))
            if len(table := beside(one, results)):
                displays.show(HTML(f'<div style="overflow-x: auto">{table.to_html(border=0)}</div>'))
            displays.show(*drawn(one, results), *explanations(one, results))


def _text(one: Exhibit, results: Results, judgements: Sequence[Judgement]) -> str:
    """Return the heading of an exhibit, and what the document says about it with its verdicts."""
    lines = [f"**{one.name}: {one.title}**\n"]
    lines += [
        f"- {judged.claim.sentence} *{judged.word}*, {document.ratio_summary(judged)}"
        for judged in judgements if judged.claim.name in one.claims
    ]  # fmt: skip
    used = dict.fromkeys(table["run"] for table in (*one.ours, *one.draw, *one.why))
    lines += [
        f"- {how_to_measure(run)} measures the run {run}, which is not published."
        for run in used if not results.has(run)
    ]  # fmt: skip
    lines += [f"- {one.remark}"] if one.remark else []
    return "\n".join(lines) + "\n"


def beside(one: Exhibit, results: Results) -> pd.DataFrame:
    """Return what a document prints and what was measured here as one table: a line for each value of `down`."""
    made = {}
    for place, given, rows in _tables(one, results):
        across = given.get("across", [])
        for column, words in given["values"].items():
            known = rows[rows[column].notna()]
            medians = known.groupby([given["down"], *across], dropna=False)[column].median()
            for key, some in medians.groupby(level=across, dropna=False) if across else [((), medians)]:
                names = [value_of(*pair) for pair in zip(across, key, strict=True)]
                lines = some.droplevel(across) if across else some
                made[place, words, *names] = lines.map(lambda value, of=column: _cell(value, of))
    if not made:
        return pd.DataFrame()
    depth = max(map(len, made))
    joined = pd.DataFrame({(*key, *[""] * (depth - len(key))): lines for key, lines in made.items()})
    joined = joined.fillna("–").loc[sorted(joined.index, key=lambda value: (isinstance(value, str), value))]
    down = str(next(given["down"] for given in (*one.ours, one.printed) if given)).replace("_", " ")
    joined.index = pd.Index([load.value_text(value) for value in joined.index], name=down)
    return joined


def _tables(one: Exhibit, results: Results) -> Iterator[tuple[str, Table, pd.DataFrame]]:
    """Yield each table of an exhibit that is here: where it is from, its description and its rows."""
    if one.printed:
        down, called = one.printed["down"], reference_tables.table(one.printed["file"])
        called[down] = called[down].replace(one.printed.get("call", {})) * one.printed.get("times", 1)
        yield "printed", one.printed, rows_with(called, where_of(one.printed))
    for ours in one.ours:
        if results.has(ours["run"]):
            yield f"run {ours['run']}", ours, rows_with(_measured(ours, results), where_of(ours))


def _measured(ours: Table, results: Results) -> pd.DataFrame:
    """Return the valid rows of a run, or its durations of functions: of slices, if there are any."""
    if ours.get("of") == "functions":
        return durations(results.profiles(ours["run"]))
    rows = results.compared_rows(ours["run"], ours.get("of", "speed"))
    rows = rows[rows["status"].eq("ok") & rows["role"].ne("control") & ~load.unsupported_rates(rows)]
    # The thesis computes its packets a second so.
    rows = rows.assign(writes_pps=rows["throughput_bps"] / 8 / rows["length_bytes"])
    slices = rows_with(rows[rows["method"].eq("slice")], where_of(ours))
    return slices if len(slices) else rows


def _cell(value: float, column: str) -> str:
    if column.endswith("_ratio"):
        return units.percent(value)
    unit = UNITS.get(column, "").removeprefix("1")
    return units.si(value, unit) if unit else f"{value:,.0f}" if value >= 1e5 else f"{value:,.6g}"


def drawn(one: Exhibit, results: Results) -> list[go.Figure]:
    """Return the figures of an exhibit whose runs are published."""
    made = []
    for given in (each for each in one.draw if results.has(each["run"])):
        if given["name"] in DRAWN:
            rows = rows_with(results.rows(given["run"]), where_of(given))
            made.append(DRAWN[given["name"]](rows) if len(rows) else go.Figure())
        else:
            made.append(results.figures(given["run"])[given["name"]]())
    return [figure for figure in made if figure.data]


def explanations(one: Exhibit, results: Results) -> list[why.Explanation]:
    """Return why the arms of an exhibit differ, of runs that are published."""
    given = [each for each in one.why if results.has(each["run"])]
    return [why.explain(f"{results.folder / each['run']}:{each['left']}", each["right"]) for each in given]
