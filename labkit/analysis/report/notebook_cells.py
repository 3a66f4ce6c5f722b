"""Convert the cells of an executed notebook into blocks, which the report's template lays out one below the other.

This module escapes all that it renders. Markup marks text that is already HTML.
"""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mistune
import nbformat
import nh3
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer

from labkit.analysis import flame
from labkit.common import safe_files
from labkit.common.errors import BadInput

Cell = dict[str, Any]
PLOTLY = "application/vnd.plotly.v1+json"
GENERAL = "general-question"  # the tag of a heading
STILLS = {"image/svg+xml", "image/png"}  # of a figure, beside plotly's type
MAX_BYTES = 512 << 20  # an executed notebook holds its figures
# The display settings that a figure may have. Others can make it send its data to a server.
_CONFIG = ("displayModeBar", "displaylogo", "responsive", "scrollZoom", "staticPlot")


class _Renderer(mistune.HTMLRenderer):
    """A renderer for a page that stands alone.

    An image is replaced by its alternative text, because a report fetches nothing, and a link to a file beside the
    notebook by its words, because the file is not beside the report. A heading has an anchor: its words in small
    letters, with hyphens between them, as in other viewers of Markdown.
    """

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, url, title) if re.match(r"#|\w+:", url) else text

    def text(self, text: str) -> str:
        """Return text in which no line begins with the sign of a number before it."""
        return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", super().text(text))

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        words = re.sub(r"<[^>]+>", "", text).replace("\N{NO-BREAK SPACE}", " ").strip().lower()
        anchor = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        return super().heading(text, level, **{**attrs, "id": anchor})

    def block_html(self, html: str) -> str:
        """Return HTML as it is if it only folds a list (displays.FOLD), even where other HTML is escaped."""
        folds = re.fullmatch(r"<details><summary>[^<>]*</summary>|</details>", html.strip())
        return html if folds else super().block_html(html)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return f"[image: {text}]"


def _markdown(escape: bool) -> mistune.Markdown:
    return mistune.create_markdown(renderer=_Renderer(escape=escape), plugins=["table", "strikethrough"])


# Markdown cells keep their HTML: the author wrote them, and papermill adds one with HTML. An output may contain any
# tool's text, so it is escaped.
_cell_markdown, _output_markdown = _markdown(escape=False), _markdown(escape=True)
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_FOLDED = {"injected-parameters": "parameters of this run", "parameters": "parameters and their defaults"}


_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# The HTML that tables and text need, without elements that navigate (meta, base, form, iframe, object, svg), fetch data
# or run code.
_CLEANER = nh3.Cleaner(
    tags=nh3.ALLOWED_TAGS - {"area", "map", "nav", "header", "footer"},
    attributes={**nh3.ALLOWED_ATTRIBUTES, "*": {"title", "style"}, **{tag: {"id"} for tag in _HEADINGS}},
    allowed_classes={"table": {"dataframe"}},
    filter_style_properties={"text-align", "vertical-align", "color", "background-color", "font-weight"},
    attribute_filter=lambda tag, name, value: value if _is_allowed(tag, name, value) else None,
    url_schemes={"http", "https", "mailto", "data"},
)


def _is_allowed(tag: str, name: str, value: str) -> bool:
    """Return whether an attribute is allowed: of addresses, images inside the page and links that a reader has to
    click."""
    if name == "src":
        return tag == "img" and value.strip().startswith("data:image/")
    # what a link leads to; in small letters no element takes the name of a script's variable
    if name == "id":
        return tag in _HEADINGS and value == value.lower()
    return name not in ("href", "cite") or not value.strip().lower().startswith("data:")


def _clean(html: str) -> Markup:
    return Markup(_CLEANER.clean(html))


@dataclass(frozen=True)
class Block:
    """One piece of the page. kind: prose, code, table, figure, flame, image, text, stderr or error."""

    kind: str
    content: str
    more: dict[str, Any] = field(default_factory=dict)


def document(cells: Sequence[Cell]) -> nbformat.NotebookNode:
    """Return a notebook of these cells."""
    whole = {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    made: nbformat.NotebookNode = nbformat.from_dict(whole)  # type: ignore[no-untyped-call]
    return made


def prose_cell(*paragraphs: str) -> Cell:
    """Return a cell of Markdown paragraphs."""
    return {"cell_type": "markdown", "metadata": {}, "source": "\n\n".join(paragraphs)}


def plain(text: str) -> str:
    """Escape text for Markdown, so that none of its characters has a special meaning."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def shown_cell(what: flame.Flame | go.Figure | pd.DataFrame) -> Cell:
    """Return a cell that shows a figure or a table."""
    if isinstance(what, pd.DataFrame):
        # With a name of its own, the index would get a header row of its own.
        head = str(what.columns.name or what.index.name or "")
        data: Cell = {"text/html": what.rename_axis(index=None, columns=head).to_html(border=0)}
    elif isinstance(what, flame.Flame):
        data = {flame.MIME: what.data}
    else:
        data = {PLOTLY: json.loads(what.to_json())}
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    return {"cell_type": "code", "metadata": {}, "source": "", "outputs": [output], "execution_count": None}


def read(path: Path) -> nbformat.NotebookNode:
    """Return the notebook in a file. Raises BadInput if it is not a notebook."""
    content = safe_files.read_regular(path, MAX_BYTES)
    try:
        document: nbformat.NotebookNode = nbformat.reads(content.decode(), as_version=4)  # type: ignore[no-untyped-call]
        nbformat.validate(document)  # reads() only logs what is wrong
        return document
    except Exception as error:  # the upgrade of old notebooks (nbformat.v4.convert) can fail in any way
        raise BadInput(f"{path} is not a notebook: {' '.join(str(error).split())[:200]}") from None


def title(document: nbformat.NotebookNode, asked: str = "") -> tuple[str, str] | None:
    """Return the page's title, and the first level-1 heading, which it repeats or replaces; None without a heading.

    asked: the question of the notebook's run. It is the title if the heading's cell has the tag GENERAL, because such a
    notebook shows runs of many questions.
    """
    for cell in document.cells:
        if cell.cell_type == "markdown" and (match := _HEADING.search(cell.source)):
            heading = _heading_words(match)
            return (asked if asked and GENERAL in cell.metadata.get("tags", []) else heading), heading
    return None


def _heading_words(heading: re.Match[str]) -> str:
    return re.sub(r"[*`]", "", heading[1]).strip()


def blocks(document: nbformat.NotebookNode, heading: str) -> list[Block]:
    """Return all blocks of a notebook that a reader should see, without the heading in whose place the page's title
    is."""
    result: list[Block] = []
    for cell in document.cells:
        if cell.cell_type == "markdown":
            source = _HEADING.sub(
                lambda found: "" if _heading_words(found) == heading else found[0], cell.source
            )
            if source.strip():
                result.append(Block("prose", _clean(str(_cell_markdown(source)))))
        elif cell.cell_type == "code" and (cell.source.strip() or cell.outputs):
            words = [what for tag, what in _FOLDED.items() if tag in cell.metadata.get("tags", [])]
            if cell.source.strip():
                code = Markup(highlight(cell.source, PythonLexer(), HtmlFormatter(cssclass="highlight")))
                result.append(Block("code", code, {"what": words[0] if words else ""}))
            result += [block for output in cell.outputs for block in _output(output)]
    return result


def _output(output: nbformat.NotebookNode) -> Iterator[Block]:
    if output.output_type == "stream":
        # Of a line that was overwritten in place (a progress bar), only the last state is kept.
        lines = _colourless(output.text).split("\n")
        text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
        if text.strip():
            yield Block("stderr" if output.name == "stderr" else "text", text.rstrip())
    elif output.output_type == "error":
        traceback = _colourless("\n".join(output.traceback))
        yield Block("error", _colourless(output.evalue), {"name": output.ename, "traceback": traceback})
    else:
        yield from _output_blocks(output.data)


def _output_blocks(data: dict[str, Any]) -> Iterator[Block]:
    """Yield the best of the forms in which an output is stored."""
    if PLOTLY in data:
        figure = data[PLOTLY]
        height = (figure.get("layout") or {}).get("height") or 450
        yield Block("figure", _json(figure), {"height": int(height), "still": _picture(data)})
    elif flame.MIME in data:
        yield Block("flame", _script_json(data[flame.MIME]))
    elif "text/markdown" in data:
        yield Block("prose", _clean(str(_output_markdown(data["text/markdown"]))), {"output": True})
    elif "text/html" in data:
        if content := _clean(data["text/html"]):  # nothing is left of a style
            yield Block("table", content)
    elif picture := _picture(data):
        yield Block("image", picture)
    elif data.get("text/plain", "").strip():
        yield Block("text", _colourless(data["text/plain"]))


def _picture(data: dict[str, Any]) -> str:
    """Return the address of an output's picture, which holds all of it; an empty text if there is none."""
    for kind in ("image/svg+xml", "image/png", "image/jpeg"):
        if content := data.get(kind):
            coded = content if kind != "image/svg+xml" else base64.b64encode(content.encode()).decode()
            return f"data:{kind};base64,{''.join(coded.split())}"
    return ""


def _colourless(text: str) -> str:
    """Return text without a terminal's escape sequences (ECMA-48, 5.4)."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def _json(figure: dict[str, Any]) -> str:
    kept = {name: value for name, value in (figure.get("config") or {}).items() if name in _CONFIG}
    shown = {name: figure[name] for name in ("data", "layout") if name in figure}
    return _script_json(shown | {"config": kept})


def _script_json(content: Any) -> str:
    """Return JSON that is safe in a script element, where `</script>` or `<!--` would break the page."""
    return Markup(json.dumps(content, separators=(",", ":")).replace("<", "\\u003c"))
