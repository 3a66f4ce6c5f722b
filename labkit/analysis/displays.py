"""Tables of a run for notebooks: DataFrames whose HTML shows the most important information first.

Selections, groups and copies of such a table are plain DataFrames.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from pandas.io.formats.style import Styler

from labkit.analysis import load, stats, verdict_cells, verdicts
from labkit.common import schema, units

if TYPE_CHECKING:
    from IPython.display import Markdown  # the command line imports this module and needs no IPython

MAX_ROWS = 10  # rows shown in a table
FOLD = "\n<details><summary>{}</summary>"  # the only HTML in Markdown of labkit's; a report keeps it
# Columns of long texts with their least and greatest widths, so that a table fits into a report.
WRAPPED = {
    "stack": (14, 23), "path": (10, 14), "expected path": (10, 14), "packet": (4, 5), "not as expected": (4, 8),
}  # fmt: skip
_POINT = [name for name in load.GROUP if name not in load.HOST]
# Where Markdown would make a tag, a link or an image, or define the address of one.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=\()|(?:^|\n)[^A-Za-z\[\n]*\[(?:\\.|[^\]\\])*\](?=:)")


def inert(text: str) -> str:
    """Return Markdown in which no text becomes a tag, a link or an image.

    Texts of a run folder may be anybody's, and JupyterLab runs scripts in the outputs of a cell that was executed.
    """
    lines = text.replace("\r", "\n")  # which also ends a line of Markdown
    return _LINK.sub(lambda match: f"{match[0]}\N{WORD JOINER}", _TAG.sub("&lt;", lines))


def markdown(text: str) -> Markdown:
    """Return text as Markdown for a notebook (`inert`)."""
    return _as_it_is(inert(text))


def _as_it_is(text: str) -> Markdown:
    from IPython.display import Markdown

    return Markdown(text)


def sentences(lines: Sequence[str]) -> Markdown:
    """Return sentences as a Markdown list. One that is an item already keeps its level."""
    return markdown("\n".join(line if line.startswith("    - ") else f"- {line}" for line in lines))


def folded(doubts: Sequence[str]) -> Markdown:
    """Return doubts as a Markdown list, the weightiest first, and the lesser ones folded."""
    first, rest = verdicts.weightiest(doubts)
    lines = [inert("\n".join(f"- {doubt}" for doubt in first))]
    if rest:
        lines += [FOLD.format(units.counted(len(rest), "lesser doubt")), ""]
        lines += [inert("\n".join(f"- {doubt}" for doubt in rest)), "", "</details>"]
    return _as_it_is("\n".join(lines))


def show(*pieces: Any) -> None:
    """Display the pieces of a section in order: lists of sentences, tables and figures. Empty ones are left out."""
    from IPython.display import display

    for piece in pieces:
        if piece is None or (isinstance(piece, list | pd.DataFrame) and not len(piece)):
            continue
        if isinstance(piece, list):
            display(sentences(piece))
        elif isinstance(piece, pd.DataFrame):
            display(wrapped(piece))
        else:
            display(piece)


def wrapped(table: pd.DataFrame) -> Styler:
    """Style a table of text for a notebook or a report: long stacks and paths wrap, numbers are short."""
    numbers: dict[Any, Any] = {name: "{:.1f}" for name in table if str(name).endswith("µs")}
    numbers |= {name: "{:.2f}" for name in table if str(name).endswith(", s")}
    left: Any = {"text-align": "left", "vertical-align": "top"}
    heads: Any = [
        {"selector": "th", "props": [("max-width", "5.5em"), ("white-space", "normal"), *left.items()]}
    ]
    shown = table.style.hide(axis="index").format(numbers, na_rep="–", escape="html")
    shown = shown.set_properties(**left).set_table_styles(heads)
    for name, (least, most) in WRAPPED.items():
        if name in table:
            wide: Any = {"white-space": "normal", "min-width": f"{least}em", "max-width": f"{most}em"}
            shown = shown.set_properties(subset=[name], **wide)
    return shown


class _Displayed(pd.DataFrame):
    """A DataFrame with its own HTML display."""

    @classmethod
    def of(cls, table: pd.DataFrame) -> Self:
        """Return the table as this class, with its `attrs`."""
        made = cls(table)
        made.attrs = dict(table.attrs)
        return made

    def _summary(self) -> tuple[str, pd.DataFrame, list[str]]:
        """Return the parts of the display: a line above, a table, and sentences below."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the display as text, for print()."""
        head, table, sentences = self._summary()
        shown = _whole(table).to_string(index=False, na_rep="–", float_format=_number) if len(table) else ""
        columns = f"A DataFrame of {len(self.columns)} columns, which .columns names."
        return "\n".join(filter(None, (head, shown, *(f"- {one}" for one in sentences), columns)))

    def _repr_html_(self) -> str:
        head, table, sentences = self._summary()
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
        items = re.sub("`([^`]+)`", r"<code>\1</code>", items)
        body = ""
        if len(table):
            body = _whole(table).to_html(index=False, border=0, na_rep="–", float_format=_number)
            # JupyterLab styles cells, so a style of the table alone has no effect there. A wide table is scrolled.
            body = body.replace("<td>", '<td style="white-space: nowrap">')
            body = body.replace("<th>", '<th style="white-space: nowrap">')
            body = f'<div style="overflow-x: auto">{body}</div>'
        return f"<p>{html.escape(head)}</p>{body}" + (f"<ul>{items}</ul>" if items else "")


class Rows(_Displayed):
    """Measurements, one per row. The display shows the first rows, with units, and only columns that vary."""

    def _summary(self) -> tuple[str, pd.DataFrame, list[str]]:
        roles = ("identifies", "parametrises", "measures")
        there = schema.described(map(str, self)).values()
        known = [one for one in there if one.role in roles and one.type != "object"]
        varying, alike = [], []
        for one in known:
            values = self[one.name].dropna()
            if not len(values):
                continue
            if one.type != "list" and values.nunique() == 1 and len(values) == len(self):
                alike.append(f"{one.name}={load.value_text(values.iloc[0])}")
            else:
                varying.append(one)
        table = pd.DataFrame(self[[one.name for one in varying]].head(MAX_ROWS))
        table.columns = pd.Index([_head(one) for one in varying])
        counts = ", ".join(f"{count} {status}" for status, count in self["status"].value_counts().items())
        head = f"{units.counted(len(self), 'row')} of {len(self.columns)} columns: {counts}."
        shown = f"The first {len(table)} rows" if len(self) > len(table) else "All rows"
        sentences = [f"{shown}, in the columns that vary; `labkit rows --columns` explains every column."]
        return head, table, [*sentences, *([f"Alike in all rows: {', '.join(alike)}."] if alike else [])]


class Verdicts(_Displayed):
    """Verdicts, a row for each topology and point. The display shows ratios with intervals, and reasons."""

    def _summary(self) -> tuple[str, pd.DataFrame, list[str]]:
        varying = [name for name in (*load.HOST, *_POINT) if self[name].nunique(dropna=False) > 1]
        usual = [name for name in ("protocol", "pairs", "mtu_bytes") if name not in varying]
        table = pd.DataFrame(self[["topology", "baseline", *usual, *varying]])
        table["ratio"] = [f"{one:.4g}" if pd.notna(one) else "–" for one in self["ratio"]]
        table["95 % interval"] = [
            stats.interval_text(low, high) if pd.notna(low) else "–"
            for low, high in zip(self["low"], self["high"], strict=True)
        ]
        table["verdict"] = self["word"]
        reasons = verdict_cells.reasons(self, self["word"].eq("no evidence") | self["ratio"].isna())
        return f"{units.counted(len(self), 'verdict')}, each a ratio to the baseline.", table, reasons


class Profiles(_Displayed):
    """Measurements under observers. The display shows the number and the cost for each arm and observer."""

    def _summary(self) -> tuple[str, pd.DataFrame, list[str]]:
        observed = self[self["observer"].notna()] if len(self) else self
        if not len(observed):
            return "No profiles: measure with observe=perf_record,counters to have them.", pd.DataFrame(), []
        lines, reasons = [], dict[str, None]()
        for (arm, observer), rows in observed.groupby(["arm", "observer"], sort=False):
            ok = rows["status"].eq("ok")
            cost = rows.loc[ok, "overhead_ratio"].median() if ok.any() else float("nan")
            lines.append({"arm": arm, "observer": observer, "profiles": int(ok.sum()), "not ok": int((~ok).sum()),
                          "speed with it": f"{cost:.3g} times" if pd.notna(cost) else "–"})  # fmt: skip
            reasons |= {f"{arm}, {observer}: {reason}": None for reason in rows.loc[~ok, "reason"].dropna()}
        head = f"{units.counted(len(observed), 'measurement')} under observers."
        return head, pd.DataFrame(lines), list(reasons)


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose counts have no decimals: beside missing values pandas makes floats of them."""
    floats = table.select_dtypes("float")
    known = {name: floats[name].dropna() for name in floats}
    whole = [name for name, values in known.items() if len(values) and values.mod(1).eq(0).all()]
    result = table.astype(dict.fromkeys(whole, "Int64"))
    for name in whole:
        result[name] = result[name].astype(object).where(floats[name].notna(), "–")
    return result


def _number(value: float) -> str:
    """Return a number with four digits, and the digits of large ones in groups: 58,800,000 or 0.1235."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def _head(column: schema.Column) -> str:
    return f"{column.name} [{column.unit}]" if column.unit not in ("", "1") else column.name
