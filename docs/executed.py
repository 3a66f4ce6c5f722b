"""Execute the notebooks whose runs are published, for the pages of `make docs`; nothing is measured for them.

    python -P docs/executed.py FOLDER [NOTEBOOK...]

FOLDER has copies of the notebooks, which are replaced by executed ones, and gets plotly.js, which draws their figures.
The tutorial has no published run: it measures for half a minute, where this machine can.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME
from plotly.offline import get_plotlyjs

from labkit.runner.papermill_run import private_kernel

ROOT = Path(__file__).resolve().parents[1]
PLOTLY, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
RESULTS = "data/results"
# The parameters of each notebook; a folder is left out where nothing is published in it.
PARAMETERS: dict[str, dict[str, Any]] = {
    "00_start_here": {"rounds": 3, "slices": 4, "profile_rounds": 2},
    "01_datapaths": {"folder": f"{RESULTS}/datapaths"},
    "02_container_vs_vm": {"folder": f"{RESULTS}/container_vs_vm"},
    "03_packet_size": {"folder": f"{RESULTS}/packet_size"},
    "04_overlay": {"folder": f"{RESULTS}/overlay"},
    "05_virtual_tap": {"folder": f"{RESULTS}/virtual_tap"},
    "06_live_monitor": {"folder": f"{RESULTS}/monitor_cost"},
    "07_trex": {"folder": f"{RESULTS}/load_test", "mult": []},  # that run has no multiples
    "08_ovs_test_plan": {"folder": f"{RESULTS}/ovs_test_plan"},
    "10_findings": {},
    "12_datapaths_of_today": {"folder": f"{RESULTS}/datapaths_of_today"},
}


def executed(name: str, folder: Path) -> bool:
    """Replace a notebook in `folder` by an executed one; False if its run is not here, or a cell fails."""
    parameters = PARAMETERS[name]
    if "folder" in parameters and not (ROOT / parameters["folder"]).is_dir():
        return False
    path = folder / f"{name}.ipynb"
    out = path.with_suffix(".executed.ipynb")
    try:
        papermill.execute_notebook(
            str(path), str(out), parameters, kernel_name=NATIVE_KERNEL_NAME, progress_bar=False, cwd=str(ROOT),
            request_save_on_cell_execute=False, config=private_kernel(),
        )  # fmt: skip
        document = nbformat.read(out, 4)
    except papermill.PapermillExecutionError as error:
        print(f"{name} is shown without results: {error.ename}: {error.evalue}", file=sys.stderr)
        return False
    finally:
        out.unlink(missing_ok=True)
    number = 0
    for cell in document.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            # A widget needs its kernel, and its page would fetch the script that draws it.
            data.pop(WIDGET, None)
            if PLOTLY in data:
                number += 1
                data["text/html"] = figure(f"figure-{number}", data.pop(PLOTLY))
            if "text/markdown" in data:
                data["text/markdown"] = linked("".join(data["text/markdown"]))
    document.metadata.pop("widgets", None)
    nbformat.write(document, path)
    return True


def linked(text: str) -> str:
    """Return the Markdown of an output with links to its headings as Sphinx names those of outputs."""
    return re.sub(r"\]\(#[^)]+\)", lambda link: link[0].replace("_", "-"), text)


def figure(name: str, content: dict[str, Any]) -> str:
    """Return HTML that draws a figure when the page has loaded plotly.js."""
    text = json.dumps([content["data"], content["layout"]], separators=(",", ":")).replace("<", "\\u003c")
    options = "{responsive: true, displaylogo: false}"
    draw = f'addEventListener("load", () => Plotly.newPlot("{name}", ...{text}, {options}));'
    return f'<div id="{name}"></div><script>{draw}</script>'


def main(folder: Path, names: list[str]) -> None:
    """Execute these notebooks, by default all that can be."""
    (folder.parent / "plotly.min.js").write_text(get_plotlyjs())
    with tempfile.TemporaryDirectory(prefix="labkit-docs-") as runs:
        os.environ["LABKIT_DATA"] = runs  # where the tutorial's run goes
        for name in names or PARAMETERS:
            if executed(name, folder):
                print(f"executed {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
