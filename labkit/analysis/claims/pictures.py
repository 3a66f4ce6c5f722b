"""The figures of the findings: drawn in the notebook, and as SVG in docs/ for the README and docs/FINDINGS.md.

`python -m labkit.analysis.claims.pictures docs` writes docs/findings-NAME.svg. It needs a browser (extra `images`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, verdicts
from labkit.analysis.claims import document
from labkit.analysis.claims.claim import Judgement
from labkit.analysis.claims.evidence import PUBLISHED, rows_with
from labkit.analysis.claims.registry import MIRRORS
from labkit.analysis.claims.results import Results
from labkit.analysis.report import images
from labkit.common.errors import Failed

MIRRORED = ("ovs_netdev", *(arm for arm in MIRRORS if arm.startswith("ovs_netdev+")))


def claim_figures(results: Results, judgements: Sequence[Judgement]) -> dict[str, go.Figure]:
    """Return the figures by name, each if its run is published."""
    evidence = document.frame(judgements)
    measured = evidence[evidence["run"].ne(PUBLISHED)] if len(evidence) else evidence
    drawn = {"claims": figures.claims(measured)}
    if results.has("datapaths"):
        rows = results.rows("datapaths")
        drawn["datapaths"] = figures.forest(
            _without_absent(verdicts.verdicts(rows_with(rows, {"mtu_bytes": 1500}))),
            "macvlan against a veth bridge",
        )
    if results.has("ipvlan"):
        drawn["ipvlan"] = figures.forest(
            verdicts.verdicts(results.rows("ipvlan")), "macvlan and ipvlan against a veth bridge, in a lab VM"
        )
    if results.has("virtual_tap"):
        rows = rows_with(
            results.rows("virtual_tap"), {"rate_bps": None, "where": "here", "topology": MIRRORED}
        )
        with_eight = [some for _, some in load.groups(rows) if some["topology"].eq(MIRRORED[-1]).any()]
        if with_eight:
            drawn["mirrors"] = figures.forest(
                verdicts.verdicts(pd.concat(with_eight)),
                "What mirrors cost in user space, by size of packets",
            )
    if results.has("packet_size"):
        rows = rows_with(results.rows("packet_size"), {"where": "here"})
        drawn["sizes"] = figures.cost(rows)
    if results.has("switched"):
        rows = results.rows("switched")
        drawn["switched"] = figures.forest(verdicts.verdicts(rows), "Two nodes: ratios to a veth bridge")
    return drawn


def _without_absent(lines: pd.DataFrame) -> pd.DataFrame:
    return lines[lines["ratio"].notna()]


def write(drawn: Mapping[str, go.Figure], folder: Path) -> list[Path]:
    """Write each figure as findings-NAME.svg into the folder. Raises Failed without a browser."""
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, figure in drawn.items():
            made = images(figure, Path(scratch) / name)
            svg = next((path for path in made if path.suffix == ".svg"), None)
            if svg is None:
                raise Failed(f"the figure {name} was not drawn: a browser is needed (labkit doctor)")
            written.append(folder / f"findings-{name}.svg")
            written[-1].write_bytes(svg.read_bytes())
    return written


if __name__ == "__main__":
    opened = Results()
    for path in write(claim_figures(opened, document.judgements(opened)), Path(sys.argv[1])):
        print(path)
