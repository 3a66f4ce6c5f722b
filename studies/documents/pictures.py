"""The figures of the findings, and those of each published run, as SVG.

`python -m studies.documents.pictures figures` (`make figures`) writes figures/NAME.svg for the documents, and the
figures of each published run into figures/results/RUN. It needs a browser (extra `images`).
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, report, verdicts
from labkit.analysis.flame.flame_graph import still_picture
from labkit.common import run_folder
from studies.documents import document, exhibits
from studies.documents.claim import Judgement
from studies.documents.evidence import PRINTED, Filter, rows_with
from studies.documents.figure import claims
from studies.documents.results import Results

DIGEST = "rows.sha256"  # beside the figures of a published run
MAX_BYTES = 760_000  # of a figure: one of many thousand points is larger, and is left out
DEADLINE_S = 300.0  # for all figures of a run
MIRRORS = ("ovs_netdev", *(f"ovs_netdev+mirrors={count}" for count in (1, 2, 4, 8)))
# TCP through a switch without a mirror and with one, as fast as it can, in writes of several lengths
BY_SIZE = {"protocol": "tcp", "rate_bps": None, "topology": MIRRORS[:2]}
# Ratios of published runs: which run, which rows, and the title
FORESTS: dict[str, tuple[str, Filter, str]] = {
    "datapaths": ("datapaths", {"mtu_bytes": 1500}, "macvlan against a veth bridge"),
    "ipvlan": ("ipvlan", {"mtu_bytes": 1500}, "macvlan and ipvlan against a veth bridge, in a lab VM"),
    "switched": ("switched", {}, "Two nodes: ratios to a veth bridge"),
    "mirror_drop": ("mirrors", BY_SIZE, "What one mirror leaves of TCP in user space, by length of writes"),
}


def claim_figures(results: Results, judgements: Sequence[Judgement]) -> dict[str, go.Figure]:
    """Return the figures by name, each if its run is published."""
    evidence = document.frame(judgements)
    measured = evidence[evidence["run"].ne(PRINTED)] if len(evidence) else evidence
    drawn = {"claims": claims(measured)}
    for name, (run, where, title) in FORESTS.items():
        if results.has(run):
            compared = rows_with(results.verdicts(run), where)
            drawn[name] = figures.forest(compared[compared["word"].ne("unsupported")], title)
    if results.has("virtual_tap"):
        own = rows_with(results.rows("virtual_tap"), {"rate_bps": None, "where": "here", "topology": MIRRORS})
        with_eight = [some for _, some in load.groups(own) if some["topology"].eq(MIRRORS[-1]).any()]
        if with_eight:
            title = "What mirrors cost in user space, by length of writes and datagrams"
            drawn["mirrors"] = figures.forest(verdicts.verdicts(pd.concat(with_eight)), title)
    if results.has("mirrors"):
        drawn["mirror_rates"] = figures.rates(rows_with(results.rows("mirrors"), BY_SIZE))
    if results.has("packet_size"):
        rows = rows_with(results.rows("packet_size"), {"where": "here", "protocol": "udp", "mtu_bytes": 1500})
        drawn["sizes"] = figures.cost(rows)
    return drawn


def write_figures_of_runs(results: Results, results_figures: Path) -> Iterator[Path]:
    """Write the figures of each published run into a folder of its name, with the digest of its rows; yield each file.

    Raises Failed without a browser.
    """
    for name in results.names():
        folder, digest = results_figures / name, results.description(name)["sha256"]
        figures = {of: draw() for of, draw in results.figures(name).items()}
        named = {"-".join(re.findall(r"\w+", of)): figure for of, figure in figures.items() if figure.data}
        made = report.svgs(named, DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)
        for file, svg in made.items():
            if len(svg) <= MAX_BYTES:
                yield _written(folder / f"{file}.svg", svg)
        yield _written(folder / DIGEST, f"{digest}\n".encode())


def _written(path: Path, content: bytes) -> Path:
    run_folder.write(path, content)
    return path


if __name__ == "__main__":
    opened, figures_folder = Results(), Path(sys.argv[1])
    drawn = claim_figures(opened, document.judgements(opened))
    for name, svg in report.svgs(drawn).items():
        print(_written(figures_folder / f"{name}.svg", svg))
    for explained in (one for exhibit in exhibits.EXHIBITS for one in exhibits.explanations(exhibit, opened)):
        path = figures_folder / f"{explained.sides[0].folders[0].name}.svg"
        print(_written(path, still_picture(explained.flames[0].data).encode()))
    for path in write_figures_of_runs(opened, figures_folder / "results"):
        print(path)
