"""A console for the terminal that prints text literally, and empty tables."""

import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.containers import Lines
from rich.table import Table
from rich.text import Text

from labkit.common.printable import printable

WIDTH = 110  # width if standard output is not a terminal
_PARTS = re.compile(r"(?=\+)|(?<=[_:/=,])(?!$)")  # where a name may break


class _Text(Text):
    """A text in which a word that is wider than its column breaks between the parts of a name."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """Return the lines of the text."""
        breaks, used = [], 0  # cells of the last line
        for word in re.finditer(r"\s*\S+(?: %)?\s*", self.plain):
            start, whole = word.start(), cell_len(word[0].rstrip())
            for part in _PARTS.split(word[0]) if whole > width else [word[0]]:
                if used and used + cell_len(part.rstrip()) > width:
                    breaks.append(start)
                    used = 0
                used += cell_len(part)
                start += len(part)
        return Lines(line for one in self.divide(breaks) for line in one.wrap(console, width, **how))


class _Console(Console):
    """A console that prints text literally: markup, emoji codes and control characters in rows have no effect."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def render_str(self, text: str, **words: Any) -> Text:
        """Render text literally. All text passes through this method, including table cells."""
        shown = super().render_str(printable(text), **words)
        return _Text(shown.plain, shown.style, justify=shown.justify, overflow=shown.overflow)


def new_console() -> Console:
    """Return a console on standard output."""
    console = _Console()
    return console if console.is_terminal else _Console(WIDTH)


def new_table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    """Return an empty table. Each column is a name and whether it holds numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table
