"""A console for the terminal that prints text literally, and empty tables."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.common.printable import printable

WIDTH = 110  # width if standard output is not a terminal


class _Console(Console):
    """A console that prints text literally: markup, emoji codes and control characters in rows have no effect."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def render_str(self, text: str, **words: Any) -> Text:
        """Render text literally. All text passes through this method, including table cells."""
        return super().render_str(printable(text), **words)


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
