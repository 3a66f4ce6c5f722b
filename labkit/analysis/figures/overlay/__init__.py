"""Figures of the experiment `overlay`: one packet hop by hop, reachability and paths, and loss while a spine is down.

Each figure takes the rows of one part (column `part`: path, reachability, failure). Reachability and failure have a
corresponding table. Rows of several runs never share a drawing. The path is drawn from one run; the other figures have
panels for each host.
"""

from labkit.analysis.figures.overlay.notes import wrapped
from labkit.analysis.figures.overlay.packet_path import flows, hops
from labkit.analysis.figures.overlay.reachability import matrix, matrix_table
from labkit.analysis.figures.overlay.spine_failure import failure, failure_table

__all__ = ["failure", "failure_table", "flows", "hops", "matrix", "matrix_table", "wrapped"]
