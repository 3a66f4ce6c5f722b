"""List the figures that a run shows (`labkit.notebook.Run.figures`, `figures/results/`), by experiment.

An experiment that shows more than verdicts and throughput is in BY_EXPERIMENT, or in an entry point of the group
`labkit.figures`: a dictionary of functions from its rows and its profiles to a figure, by the figures' names.
"""

import functools
from collections.abc import Callable, Iterator

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.figures.line_chart import varying_column
from labkit.analysis.findings import loss_rates
from labkit.analysis.load import part
from labkit.common import extensions
from labkit.common.errors import BadInput, choose

# Takes all rows of one experiment and returns its profiles on demand, because reading those takes time
Profiles = Callable[[], pd.DataFrame]
Draw = Callable[[pd.DataFrame, Profiles], go.Figure]

ALONG = {"throughput": figures.throughput, "cpu_per_gigabyte": figures.cpu_per_gigabyte}


class Figures:
    """The figures of a run by name: `run.figures.forest`, `list(run.figures)`. The display shows all of them.

    made maps each name to the function that draws the figure. A figure is drawn on first use. rows: those of `along`.
    """

    def __init__(self, made: dict[str, Callable[[], go.Figure]], rows: pd.DataFrame) -> None:
        self._made, self._rows = made, rows
        self._drawn: dict[str, go.Figure] = {}

    def along(
        self,
        name: str,
        of: str = "throughput",
        panel: str | None = None,
        colour: str | None = None,
        **more: str,
    ) -> go.Figure:
        """Draw the metric (or `of="cpu_per_gigabyte"`) against any parameter that varies, or against `"arm"`.

        panel: the parameter whose values stand side by side. colour: the one with a line for each value, usually `arm`.
        `run.figures.along("length_bytes", panel="pairs", colour="arm")`. Raises BadInput for what does not vary.
        """
        for one in more:
            raise BadInput(f"a figure has no choice {one}=: {choose(one, ('of', 'panel', 'colour'))}")
        if of not in ALONG:
            raise BadInput(f"of={of}: {choose(of, ALONG)}")
        varying_column(self._rows, "along", name)
        return ALONG[of](self._rows, name, panel, colour)

    def __getitem__(self, name: str) -> go.Figure:
        if name not in self._made:
            raise KeyError(f"there is no figure {name}: {choose(name, self._made)}")
        if name not in self._drawn:
            self._drawn[name] = self._made[name]()
        return self._drawn[name]

    def __getattr__(self, name: str) -> go.Figure:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __dir__(self) -> list[str]:
        return [*self._made, "along"]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._made)

    def __repr__(self) -> str:
        return f"figures: {', '.join(self._made)}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for name in self:
            if self[name].data:
                display(self[name])


def of_run(table: pd.DataFrame, profiles: Profiles) -> dict[str, Callable[[], go.Figure]]:
    """Return a function for each figure of a run or a sweep, by name, which draws it. A figure may be without data.

    table: all rows (`load.load` with part None). The figures are those of the experiment, and the `usual` ones for each
    number of nodes.
    """
    made: dict[str, Callable[[], go.Figure]] = {}
    others = extensions.names("labkit.figures", BY_EXPERIMENT)
    for experiment, rows in table.groupby("experiment", sort=False):
        name = str(experiment)
        drawn = extensions.load(others[name], dict) if name in others else BY_EXPERIMENT.get(name, {})
        made |= {figure: functools.partial(draw, rows, profiles) for figure, draw in drawn.items()}
    for nodes, rows in part(table, "cost").groupby("nodes", sort=True):
        end = " (two nodes)" if nodes == "two" else ""
        for name, draw in usual(rows, all_verdicts(rows)).items():
            made.setdefault(f"{name}{end}", draw)  # an experiment may have its own figure of that name
    return made


def usual(rows: pd.DataFrame, compared: pd.DataFrame) -> dict[str, Callable[[], go.Figure]]:
    """Return the figures of compared rows and their verdicts: the verdicts, three charts, and those of
    round trips and of requests if there are any."""
    made = {"forest": lambda: figures.forest(compared)}
    made["throughput"] = lambda: figures.throughput(rows)
    if (rows["cpu_s"].notna() & rows["received_bytes"].gt(0)).any():
        made["cpu_per_gigabyte"] = lambda: figures.cpu_per_gigabyte(rows)
    made["slices"] = lambda: figures.slices(rows)
    if load.timed(rows).any():
        made["percentiles"] = lambda: figures.percentiles(rows)
    if rows["transaction_rate"].notna().any():
        made["requests"] = lambda: figures.requests(rows)
    if "latency_histogram" in rows and rows["latency_histogram"].notna().any():
        made["latency_cdf"] = lambda: figures.latency_cdf(rows)
        made["latency_box"] = lambda: figures.latency_box(rows)
    return made


def of_part(name: str, draw: Callable[[pd.DataFrame], go.Figure]) -> Draw:
    """Return a function that draws the rows of one part, or an empty figure without any."""

    def drawn(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
        own = part(rows, name)
        return draw(own) if len(own) else go.Figure()

    return drawn


def of_one_host(draw: Draw) -> Draw:
    """Return a function that draws rows of one host. Rates of several hosts have no common figure."""

    def drawn(rows: pd.DataFrame, profiles: Profiles) -> go.Figure:
        return draw(rows, profiles) if len(load.measured_hosts(rows)) == 1 else go.Figure()

    return drawn


def load_loss(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
    """Draw the loss of each trial of a search against its load, and the rate found."""
    return figures.load_loss(part(rows, "trials"), loss_rates.rates(part(rows, "cost")))


BY_EXPERIMENT: dict[str, dict[str, Draw]] = {"throughput": {"load_loss": of_one_host(load_loss)}}
