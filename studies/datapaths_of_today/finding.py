"""The figures of the experiment: what a packet costs each datapath."""

from labkit.analysis import figures
from labkit.analysis.run_figures import of_part

FIGURES = {"cost": of_part("cost", lambda rows: figures.cost(rows[rows["protocol"].eq("udp")]))}
