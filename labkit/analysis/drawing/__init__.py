"""Drawings of a topology's live state: as text for the terminal, DOT, Mermaid, and a plotly figure.

The figure is imported where it is drawn (`labkit.analysis.drawing.figure`): plotly takes a while. It is not one of
`labkit.analysis.figures`, which are of tables and import pandas: an emulated machine takes half a minute for that.
"""

from labkit.analysis.drawing.graph import Join, first, joins, shown
from labkit.analysis.drawing.text import dot, mermaid, tree

__all__ = ["Join", "dot", "first", "joins", "mermaid", "shown", "tree"]
