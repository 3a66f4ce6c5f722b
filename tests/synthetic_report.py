"""Make up rows and verdicts of a run with a fixed seed, for the tests of the figures and the report."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from nbformat import v4

from labkit.analysis import figures, load
from labkit.analysis.load import GROUP

LEVEL_BPS = {
    "veth_bridge": 14e9,
    "macvlan_bridge": 15.4e9,
    "veth_routed": 11e9,
    "vxlan": 6e9,
    "loopback": 30e9,
}
NO_IPVLAN = "this kernel has no ipvlan (CONFIG_IPVLAN is not set): run with where='vm:…'"
ROUNDS, SLICES = 5, 6
EVIL = "<script>alert(1)</script>"


def rows(
    variants: tuple[str, ...] = ("macvlan_bridge",),
    protocols: tuple[str, ...] = ("tcp", "udp"),
    mtus: tuple[int, ...] = (1500,),
    pairs: tuple[int, ...] = (1, 2, 8),
    **columns: Any,
) -> pd.DataFrame:
    """Return rows like a run's: SLICES slices in every round, and a whole run in the last. ipvlan_l2 is unsupported."""
    return _rows(variants, protocols, mtus, pairs).assign(**columns)


@functools.cache
def _rows(
    variants: tuple[str, ...], protocols: tuple[str, ...], mtus: tuple[int, ...], pairs: tuple[int, ...]
) -> pd.DataFrame:
    noise = np.random.default_rng(1)
    roles = dict.fromkeys(variants, "variant") | {"veth_bridge (again)": "control"}
    arms = [("veth_bridge", "baseline"), *roles.items()]
    result = []
    for protocol, mtu, count in itertools.product(protocols, mtus, pairs):
        group = {
            "run": "r", "where": "here", "protocol": protocol, "mtu_bytes": mtu, "family": 4, "pairs": count,
            "length_bytes": None, "rate_bps": None, "streams": 1, "accelerator": "none", "doubts": None,
        }  # fmt: skip
        absent = {"arm": "ipvlan_l2", "topology": "ipvlan_l2", "role": "variant", "status": "unsupported"}
        result.append(group | absent | {"reason": NO_IPVLAN})
        for number, (arm, role) in itertools.product(range(ROUNDS), arms):
            for piece in [*range(SLICES), *([None] if number == ROUNDS - 1 else [])]:
                topology = arm.removesuffix(" (again)")
                one = {
                    "arm": arm, "topology": topology, "role": role, "status": "ok", "reason": None, "round": number,
                    "slice": piece, "method": "whole" if piece is None else "slice",
                }  # fmt: skip
                window = 1.0 if piece is None else 0.07
                level = LEVEL_BPS[topology] * noise.lognormal(0, 0.1)
                cpu = {"cpu_s": 1.8 * window, "softirq_s": 0.5 * window}
                if protocol == "ping":
                    one |= {"latency_p50_s": 2.5e-5, "received_bytes": 64.0} | cpu
                else:
                    one |= {"throughput_bps": level, "received_bytes": level * window / 8} | cpu
                result.append(group | one)
    return load.complete(pd.DataFrame(result))


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Return verdicts with the columns of tables.verdicts, about arms as far apart as in LEVEL_BPS."""
    group = [name for name in GROUP if name in table]
    variants = table[table["role"] == "variant"].drop_duplicates([*group, "topology"])
    ok = variants["status"].eq("ok")
    ratio = (variants["topology"].map(LEVEL_BPS).astype(float) / LEVEL_BPS["veth_bridge"]).where(ok)
    word = pd.Series(np.where(ratio > 1, "faster", "slower"), variants.index).where(ok, variants["status"])
    sentence = variants["reason"].where(
        ~ok, variants["topology"] + " differs from veth_bridge, and here is how"
    )
    report = {"ratio": ratio, "low": ratio * 0.96, "high": ratio * 1.04, "word": word, "sentence": sentence}
    counts = {"n_count": 30, "rounds_count": ROUNDS, "how": "Hodges-Lehmann over 30 slices"}
    control = {"control_ratio": 1.0, "control_low": 0.97, "control_high": 1.03}
    return variants[[*group, "topology"]].assign(baseline="veth_bridge", **report, **counts, **control)


FIGURES: dict[str, Callable[[pd.DataFrame], go.Figure]] = {
    "throughput": figures.throughput,
    "cpu_per_gigabyte": figures.cpu_per_gigabyte,
    "slices": figures.slices,
    "forest": lambda table: figures.forest(verdicts(table)),
    "kernels": lambda table: figures.kernels(verdicts(table)),
}


def notes(figure: go.Figure) -> str:
    return " ".join(note.text for note in figure.layout.annotations if note.name == "notes").replace(
        "<br>", " "
    )


def titles(figure: go.Figure) -> list[str]:
    return [
        note.text for note in figure.layout.annotations if note.text.startswith("<b>") and "MTU" in note.text
    ]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value, path)
    else:
        yield path, tree


def notebook(table: pd.DataFrame) -> nbformat.NotebookNode:
    """Return an executed notebook as papermill leaves it: figures, prose, a table, and odd output that must look
    normal."""

    def code(
        source: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()
    ) -> nbformat.NotebookNode:
        return v4.new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})

    def shown(**data: Any) -> nbformat.NotebookNode:
        return v4.new_output(
            "display_data", data={kind.replace("_", "/", 1): it for kind, it in data.items()}
        )

    def drawn(figure: go.Figure) -> nbformat.NotebookNode:
        forms = {
            "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
            "text/html": "<script>big()</script>",
        }
        return v4.new_output("display_data", data=forms)

    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell(
                "# How do *veth* and `macvlan` compare?\n\nThe **question**.\n\n|a|b|\n|-|-|\n|1|2|\n"
                f"|{'wide ' * 30}|{'wide ' * 30}|"
            ),
            code("pairs: list = [1, 2]  # how many", tags=("parameters",)),
            code("# Parameters\npairs = [1, 2, 8]\n", tags=("injected-parameters",)),
            code(""),
            code(
                "measure()",
                v4.new_output("stream", name="stderr", text="10 %\r100 %\n\x1b[31mred\x1b[0m <b>bold</b>\n"),
            ),
            code("pass", v4.new_output("stream", name="stdout", text="\n")),
            *(code(f"figures.{name}(rows)", drawn(figure(table))) for name, figure in FIGURES.items()),
            code("verdicts", shown(text_html=verdicts(table).to_html(), text_plain="plain table")),
            code("prose", shown(text_markdown=f"found {EVIL} ![far](http://example.org/far.png)")),
            code("picture", shown(image_png="iVBORw0KGgo=\n", text_plain="<Figure>")),
            code(
                "1 / 0",
                v4.new_output(
                    "error", ename="ZeroDivisionError", evalue=EVIL, traceback=["\x1b[31mTraceback", EVIL]
                ),
            ),
        ]
    )
