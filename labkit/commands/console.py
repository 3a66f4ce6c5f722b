"""The terminal: a console that prints texts as they are, and empty tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.common.printable import printable

WIDTH = 110  # where standard output is no terminal


class _Console(Console):
    """Prints text as it is: what is in a row is no markup, no emoji, and no command to the terminal."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def render_str(self, text: str, **words: Any) -> Text:
        """Every text comes through here, also that of a table's cells."""
        return super().render_str(printable(text), **words)


def new_console() -> Console:
    """A console on standard output."""
    console = _Console()
    return console if console.is_terminal else _Console(WIDTH)


def new_table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    """An empty table; each column has a name, and says whether it is of numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table
