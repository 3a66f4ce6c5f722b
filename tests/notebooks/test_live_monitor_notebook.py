"""The notebook 06_live_monitor runs, shows what a monitor counted, and measures what readers cost."""

from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient
from sandbox import only_run, sandbox

pytestmark = pytest.mark.needs("user namespaces", "ping", "ip", "iperf3", "nft", "veth", "bridge")
SMALL = """
live_endpoint = "namespace"
live_seconds = 1.0
readers = ["socket", "monitor"]
loads = ["5kpps"]
rounds = 1
"""


def test_notebook_executes(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks/06_live_monitor.ipynb", 4)
    place = next(
        number for number, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())
    )
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(SMALL))
    [measuring] = [number for number, cell in enumerate(notebook.cells) if "notebook.measure(" in cell.source]
    # What is left of the first part while the second one measures.
    left = 'assert repr(net).endswith(", closed"), "its traffic goes on"\n'
    notebook.cells[measuring].source = notebook.cells[measuring].source.replace("run = ", left + "run = ")
    with sandbox(tmp_path) as machine:
        client = NotebookClient(notebook, timeout=120, kernel_name="python3")
        with client.setup_kernel(env=machine.environment, cwd=str(tmp_path)):
            for number, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, number)
        run = only_run(machine, "monitor_cost")
        machine.labkit("report", str(run), LABKIT_PROJECT=str(ROOT), code=0)
        executed = nbformat.read(run / "notebook.ipynb", 4)
    shown = [one["data"] for cell in notebook.cells for one in cell.get("outputs", ()) if "data" in one]
    text = "\n".join(str(one.get("text/markdown", one.get("text/plain", ""))) for one in shown)
    tables = "\n".join(str(one.get("text/html", "")) for one in shown)
    drawn = [
        one["application/vnd.plotly.v1+json"] for one in shown if "application/vnd.plotly.v1+json" in one
    ]
    titles = [figure["layout"]["title"]["text"] for figure in drawn if "title" in figure["layout"]]
    for words in ("the live monitor of ", "**monitor**, 5 kpps:"):
        assert words in text
    for words in ("UDP", "samples, Senanayake 2024", "99.98 %", "dropped"):  # UDP: the last packets, decoded
        assert words in tables
    assert any("application/vnd.jupyter.widget-view+json" in one for one in shown)
    assert {"What the monitor selects", "What it costs to watch an interface"} <= set(titles)
    [selected] = [
        figure for figure in drawn if figure["layout"]["title"]["text"] == "What the monitor selects"
    ]
    seen, chosen = (sum(trace["y"]) for trace in selected["data"])
    assert 0 < chosen < seen
    outputs = [one for cell in executed.cells for one in cell.get("outputs", ())]
    printed = "".join(one.text for one in outputs if one.output_type == "stream")
    assert "This part is left out, because a finished run is shown." in printed, "a report builds no network"
    assert "What it costs to watch an interface" in str(outputs)
    assert "What the monitor selects" not in str(outputs)
