"""Small multiples of a table: the division into panels, the empty grid, and notes about gaps.

Every host has its own panels, below those of the previous host, so that no axis has absolute numbers of two hosts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.analysis import load, protocols, theme
from labkit.analysis.load import emulated, group_similar, hosts, value_text, varying
from labkit.analysis.protocols import PROTOCOLS
from labkit.common import schema
from labkit.common.units import si

# Columns that divide a table into panels: what is never compared never shares one.
_GROUP = [name for name in schema.names(use="group") if name != "pairs"]
KEYS = (*dict.fromkeys(("protocol", "mtu_bytes", *_GROUP)), "pairs")
ARM = "topology"  # the column of an arm's name, the same for both measurements of the baseline
MAX_COLUMNS = 3  # side by side at 900 px
BETWEEN_PX = 88  # between two plots, one below the other: axis, axis title, panel title
HOST_PX = 18  # added to that for each further line of a title, for example the host
GAP_COLUMNS = ["topology", "protocol", "pairs", "status", "reason"]  # the columns that `gaps` needs
MAX_REASONS = 3
TITLES_WIDTH = 48  # characters of all panel titles side by side in a figure 680 px wide, beside its legend
TOP_PX, TITLE_SHIFT_PX = 95, 5  # above the plots: the figure's title, panel titles; from a plot to its title
NOTES_PX = 52  # from a plot to the notes: axis and axis title
LETTER_PX, LINE_PX, LEAST_LETTERS = 7.5, 17, 8  # of labels; letters of a line of those that are turned
# What titles call values for which sentences have more room
SHORT: dict[str, Callable[[Any], str]] = {
    "protocol": lambda name: protocols.find(name).label,
    "length_bytes": "{:.0f} B each".format,
    "rate_bps": lambda rate: si(rate, "bit/s"),
    "direction": str,
    "guest": lambda word: f"guests of {word.replace(',', ' · ')}",
}
TURNED = -90  # the angle of labels that would overlap


@dataclass(frozen=True)
class Panel:
    """A small plot: its part of the table, its title, its place on the grid (from 1), and its host if there are
    several."""

    table: pd.DataFrame
    protocol: str
    title: str
    row: int
    column: int
    host: str = ""

    @property
    def at(self) -> tuple[int, int]:
        return self.row, self.column

    @property
    def titled(self) -> str:
        """Return the title above the plot; the host has its own line."""
        return f"<b>{self.title}</b>" + (f"<br>{self.host}" if self.host else "")

    @property
    def place(self) -> dict[str, int]:
        """Return the row and column arguments of plotly's add_trace, update_xaxes and others."""
        return {"row": self.row, "col": self.column}


def panels(
    table: pd.DataFrame,
    columns_count: int | None = None,
    by_host: bool = True,
    along: "str | pd.Series[str]" = "",
    beside: str | None = None,
    by_arm: Sequence[str] = (),
) -> list[Panel]:
    """Divide a table into panels: protocols side by side and MTUs below each other, or in reading order if that is too
    wide or would leave holes.

    columns_count: the number of columns, in reading order. by_host: whether each host has its own panels; otherwise a
    panel has all hosts, which is for ratios only. along: the parameter (of all rows, or of each) that has an axis and
    therefore does not divide these rows. beside: the parameter whose values stand side by side, instead of protocols.
    by_arm: the arms in order, if each has its own panel. A title names the arm, the number of pairs unless it is always
    1, and the other parameters that differ between panels of its protocol.
    """
    table = table.assign(axis=along)
    there = [key for key in KEYS if key in table]
    vary = varying(table, there)
    several = ["pairs"] if "pairs" in there and table["pairs"].gt(1).any() else []
    keys = [key for key in there if key in (*KEYS[:2], *vary, *several)]
    keys += [ARM] * bool(by_arm)
    named = _named(table, keys)
    if beside is not None:
        columns_count = min(table[beside].nunique(dropna=False), MAX_COLUMNS)
    if not by_host:
        return _panels(table, keys, named, columns_count, beside, by_arm)
    each, result = hosts(table), list[Panel]()
    for name, rows in each:
        above = max((panel.row for panel in result), default=0)
        for panel in _panels(rows, keys, named, columns_count, beside, by_arm):
            host = theme.plain(name) if len(each) > 1 else ""
            result.append(replace(panel, row=above + panel.row, host=host))
    return result


def _panels(
    table: pd.DataFrame,
    keys: list[str],
    named: dict[str, list[str]],
    columns_count: int | None,
    beside: str | None,
    names: Sequence[str],
) -> list[Panel]:
    own = table.assign(**{ARM: table[ARM].map(names.index)}) if names else table  # arms by their order
    by = [*(own[key].mask(table["axis"].eq(key)) for key in keys), table["axis"]]
    groups = [(dict(zip([*keys, "axis"], values, strict=True)), part) for values, part in _groups(table, by)]
    groups.sort(key=lambda group: _order(group[0]))
    if beside is not None:
        groups.sort(key=lambda group: _order(group[0] | {beside: None}))
    columns = list(dict.fromkeys(_order(one)[:-1] for one, _ in groups))
    mtus = sorted({mtu for one, _ in groups if pd.notna(mtu := one.get("mtu_bytes", 0))}) or [0]
    has_holes = len(columns) > 2 and len(groups) < len(columns) * len(mtus)
    wrap = columns_count or (2 if len(columns) > MAX_COLUMNS or has_holes else None)
    words, result = {key: words_of(key, table[key]) for key in keys if key != ARM}, []
    words[ARM] = {str(place): name for place, name in enumerate(names)}
    for place, (one, part) in enumerate(groups):
        mtu = one.get("mtu_bytes", 0)
        row, column = mtus.index(mtu) if mtu in mtus else 0, columns.index(_order(one)[:-1])
        if wrap:
            row, column = divmod(place, wrap)
        title = _title(one, named[one["protocol"]], words)
        result.append(Panel(part, one["protocol"], title, row + 1, column + 1))
    return result


def _groups(table: pd.DataFrame, keys: list[Any]) -> Iterator[tuple[Any, pd.DataFrame]]:
    yield from table.groupby(keys, dropna=False, sort=False)


def _named(table: pd.DataFrame, keys: list[str]) -> dict[str, list[str]]:
    """Return for each protocol the parameters that the titles of its panels must name."""
    return {
        str(protocol): [
            key for key in keys if key in (ARM, "pairs") or (key not in KEYS[:2] and varying(part, [key]))
        ]
        for protocol, part in table.groupby("protocol")
    }


def _order(one: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a panel: protocol, other differing parameters (missing values first), then the MTU."""
    protocol = one["protocol"]
    known = list(PROTOCOLS).index(protocol) if protocol in PROTOCOLS else len(PROTOCOLS)
    rest = [_place(value) for key, value in one.items() if key not in KEYS[:2]]
    return (known, protocol, *rest, one.get("mtu_bytes", 0))


def _place(value: Any) -> tuple[Any, ...]:
    """Return the sort key of a value: a missing one first, and texts by the numbers in them."""
    if pd.isna(value) or isinstance(value, int | float | np.number):
        return (0,) if pd.isna(value) else (1, (value, ""))
    return 1, tuple(load.version(value)), value


def words_of(column: str, own: "pd.Series[Any]", names: Sequence[str] = ()) -> dict[str, str]:
    """Return the values of a column of GROUP, or arms (in the order of `names`), in order and in words, by their texts.

    Those that would read the same have their texts in brackets.
    """
    order: Callable[[Any], Any] = names.index if column == ARM else _place
    named = {value_text(one): in_words(column, one) for one in sorted(own.drop_duplicates(), key=order)}
    often = Counter(named.values())
    return {text: f"{words} ({text})" if often[words] > 1 else words for text, words in named.items()}


def in_words(name: str, value: Any) -> str:
    """Return a value of a column of GROUP, or an arm, in words."""
    if name == ARM:
        return str(value)
    return SHORT[name](value) if name in SHORT and pd.notna(value) else load.in_words(name, value)


def _title(one: dict[str, Any], named: list[str], words: dict[str, dict[str, str]]) -> str:
    usual = [key for key in KEYS[:2] if pd.notna(one.get(key))]
    named = [key for key in named if key != one["axis"]]
    return theme.plain(" · ".join(words[key][value_text(one[key])] for key in [*usual, *named]))


def grid(parts: list[Panel], panel_px: int, labels_px: Sequence[int] = ()) -> go.Figure:
    """Return an empty figure with a titled place for every panel, each `panel_px` high (plot and axis), and room for
    the labels of its x axis that are turned (`labels_px`)."""
    rows = max((part.row for part in parts), default=1)
    columns = max((part.column for part in parts), default=1)
    parts = [replace(part, title=wrapped(part.title, TITLES_WIDTH // columns)) for part in parts]
    more_px = HOST_PX * max((part.titled.count("<br>") for part in parts), default=0)
    turned = list(zip(parts, labels_px, strict=False))
    above_px = max((px for part, px in turned if part.row < rows), default=0)
    last_px = max((px for part, px in turned if part.row == rows), default=0)
    between, top = BETWEEN_PX + more_px + above_px, TOP_PX + more_px
    plots_px = rows * panel_px + (rows - 1) * above_px
    spacing = {"horizontal_spacing": 0.25 / columns if columns > 1 else 0}
    spacing |= {"vertical_spacing": between / plots_px if rows > 1 else 0}
    figure = titled_grid({part.at: part.titled for part in parts}, rows=rows, cols=columns, **spacing)
    figure.update_layout(height=plots_px + last_px + top, margin={"t": top, "b": last_px})
    return figure


def labels(texts: Sequence[str], room_px: float) -> tuple[list[str], int]:
    """Return labels side by side in `room_px`, and 0; or in lines that are to be turned (TURNED), and their height."""
    each_px = room_px / max(len(texts), 1)
    lines = [theme.wrapped(text, int(each_px / LETTER_PX)) for text in texts]
    if all(len(line) * LETTER_PX <= each_px for text in lines for line in text.split("<br>")):
        return lines, 0
    for letters in range(LEAST_LETTERS, max(map(len, texts)) + 1):
        lines = [theme.wrapped(text, letters) for text in texts]
        if all(text.count("<br>") + 1 <= max(each_px / LINE_PX, 1) for text in lines):
            break
    return lines, round(LETTER_PX * max(len(line) for text in lines for line in text.split("<br>")))


def wrapped(title: str, width: int) -> str:
    """Break each line of a panel's title between its words (at ` · `) into lines of at most `width` characters."""
    lines: list[str] = []
    for line in title.split("<br>"):
        lines.append("")
        for word in line.split(" · "):
            longer = f"{lines[-1]} · {word}".removeprefix(" · ")
            if not lines[-1] or len(longer) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
    return "<br>".join(lines)


def titled_grid(titles: dict[tuple[int, int], str], **grid: Any) -> go.Figure:
    """Call plotly's make_subplots (arguments `grid`), with a plot only where there is a title; (row, column) from 1."""
    places = [[(row + 1, column + 1) for column in range(grid["cols"])] for row in range(grid["rows"])]
    specs: list[list[dict[str, Any] | None]] = [
        [{} if place in titles else None for place in row] for row in places
    ]
    # plotly expects a title for each existing plot only.
    bold = [titles[place] for row in places for place in row if place in titles]
    figure = make_subplots(specs=specs if titles else None, subplot_titles=bold, **grid)
    # Without plotly's own font size, so that the template's applies; above the label of a tick at the upper edge.
    figure.update_annotations(font=None, yshift=TITLE_SHIFT_PX)
    return figure


class Marks:
    """Shapes and annotations for the plots of a figure, which `add` puts into it at once.

    plotly copies all earlier ones whenever one is added, which takes seconds for two hundred of them.
    """

    def __init__(self, figure: go.Figure) -> None:
        self._figure = figure
        self._shapes: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def shape(self, **words: Any) -> None:
        """Take a shape with the arguments of plotly's add_shape."""
        self._shapes.append(self._placed(**words))

    def annotation(self, **words: Any) -> None:
        """Take a text with the arguments of plotly's add_annotation."""
        self._annotations.append(self._placed(**words))

    def _placed(self, row: int | None = None, col: int | None = None, **words: Any) -> dict[str, Any]:
        """Replace a row and a column by the names of that plot's axes, as plotly does. `x domain` stays a domain.

        Without them, the words already name the axes.
        """
        if row is None and col is None:
            return words
        axes = self._figure.get_subplot(row, col)
        for one, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            domain = " domain" * words.get(f"{one}ref", "").endswith(" domain")
            words[f"{one}ref"] = axis.plotly_name.replace("axis", "") + domain
        return words

    def add(self) -> None:
        """Put everything into the figure."""
        layout = self._figure.layout
        layout.shapes = (*layout.shapes, *self._shapes)
        layout.annotations = (*layout.annotations, *self._annotations)


def arms(table: pd.DataFrame, column: str = "arm") -> list[tuple[str, str]]:
    """Return the (arm, role) pairs of a table in drawing order: baseline, variants, control. column: that of arms."""
    roles = ("baseline", "variant", "control")
    result = table[[column, "role"]].drop_duplicates().itertuples(index=False, name=None)
    return sorted(result, key=lambda one: (roles.index(one[1]), theme.arm_order(one[0])))


def finish(figure: go.Figure, table: pd.DataFrame, title: str, subtitle: str) -> go.Figure:
    """Add the title, and notes below about rows that are not drawn or about an empty table.

    The legend keeps one of the traces with the same group and name that have `showlegend`.
    """
    marked = np.atleast_1d(emulated(table))  # a single False for a table without these columns
    some = "emulated CPU" if marked.all() else "in part on an emulated CPU"
    theme.titled(figure, title, subtitle, some if marked.any() else "")
    notes = gaps(table) if len(table) else ["There is nothing to draw: the table is empty."]
    theme.add_notes(figure, notes, NOTES_PX + (figure.layout.margin.b or 0))
    shown, first = set[tuple[str, str]](), dict[tuple[str, str], int]()
    for place, trace in enumerate(figure.data, 1000):  # 1000 is plotly's own rank
        trace.legendrank = first.setdefault((trace.legendgroup, trace.name), place)
    # An arm has a trace in each panel, and the legend has it once, with a line if it has one anywhere.
    for trace in sorted(figure.data, key=lambda one: "lines" not in (getattr(one, "mode", None) or "")):
        if trace.showlegend:
            trace.showlegend = (trace.legendgroup, trace.name) not in shown
            shown.add((trace.legendgroup, trace.name))
    theme.legend_fits(figure)
    return figure


def gaps(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each reason why rows are not "ok": `ipvlan_l2, ipvlan_l3: this kernel has no ipvlan`.

    Needs the columns topology, protocol, pairs, status, reason. If only some of a topology's protocols, numbers of
    pairs or hosts are affected, the sentence names them. If others of its rows are ok, the sentence has a count. Only
    the first few of many reasons for one topology and status are listed.
    """
    # Of all columns the table would have so many blocks that pandas warns about adding one.
    table = pd.concat(
        [rows[GAP_COLUMNS].assign(host=name) for name, rows in hosts(table)] or [table], ignore_index=True
    )
    # Unsupported first.
    left = table[table["status"] != "ok"].sort_values("status", ascending=False, kind="stable")
    reasons: dict[tuple[str, str], list[str]] = {}
    left = left.assign(reason=group_similar(left["reason"].fillna("").astype("str")))
    for key, rows in _groups(left, ["topology", "status", "reason"]):
        topology, status, reason = (str(part) for part in key)
        scope = _scope(rows, table[table["topology"] == topology])
        reasons.setdefault((topology, status), []).append(f"{scope}: {reason or status}")
    topologies: dict[str, list[str]] = {}
    for (topology, _), lines in reasons.items():
        left_out = len(lines) - MAX_REASONS
        more = [f": … and {left_out} more reasons of that kind"] if left_out > 0 else []
        for sentence in lines[:MAX_REASONS] + more:
            topologies.setdefault(sentence, []).append(topology)
    return [", ".join(names) + sentence for sentence, names in topologies.items()]


def _scope(rows: pd.DataFrame, whole: pd.DataFrame) -> str:
    """Describe which of the topology's rows these are, in brackets; "" for all."""
    words = []
    if set(rows["protocol"]) != set(whole["protocol"]):
        words.append(" and ".join(protocols.find(name).label for name in sorted(rows["protocol"].unique())))
    if set(rows["pairs"]) != set(whole["pairs"]):
        words.append(", ".join(f"{count:.0f}" for count in sorted(rows["pairs"].unique())) + " pairs")
    if set(rows["host"]) != set(whole["host"]):
        words.append("on " + " and on ".join(rows["host"].unique()))
    if whole["status"].eq("ok").any() and rows["status"].iloc[0] in ("invalid", "failed"):
        words.append(f"{len(rows)} of {len(whole)} rows left out")
    return f" ({'; '.join(words)})" if words else ""
