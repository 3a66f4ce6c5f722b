"""Draw a topology's live state: as text for the terminal, Mermaid, and a plotly figure.

Import the figure where it is drawn (`labkit.analysis.drawing.figure`), because importing plotly takes a while. It is
not in `labkit.analysis.figures`, which draws tables and imports pandas: that takes half a minute on an emulated
machine.
"""

from labkit.analysis.drawing.graph import Join, first, joins, simplify
from labkit.analysis.drawing.text import mermaid, tree

__all__ = ["Join", "first", "joins", "mermaid", "simplify", "tree"]
