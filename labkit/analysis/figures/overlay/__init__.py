"""Figures of the experiment `overlay`: one packet hop by hop, who reaches whom and by which path, and what is lost
while a spine is down. Each takes the rows of one part (column `part`: path, reachability, failure), and has a table
beside it.

Rows of several runs are never put into one drawing: of one packet that is followed there is one run's; of the others
there are panels for each host.
"""

from labkit.analysis.figures.overlay.notes import wrapped
from labkit.analysis.figures.overlay.packet_path import hop_table, hops
from labkit.analysis.figures.overlay.reachability import matrix, matrix_table
from labkit.analysis.figures.overlay.spine_failure import failure, failure_table

__all__ = ["failure", "failure_table", "hop_table", "hops", "matrix", "matrix_table", "wrapped"]
