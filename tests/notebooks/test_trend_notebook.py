"""The notebook of trends draws a history, and says what is beside each change."""

import json
from pathlib import Path

from executed_notebook import PLOTLY, Shown, copied, papermill
from sandbox import output
from synthetic_rows import rows, save

from labkit.analysis import history


def test_trend(tmp_path: Path) -> None:
    for number in range(10):
        name, speed = f"r{number}", 0.9 if number > 4 else 1.0
        made = rows({"veth": 1.0, "veth (again)": 1.0, "vxlan": speed}, noise=0.005, seed=number, run=name)
        about = {
            "created": str(number), "experiment": "datapaths", "parameters": {}, "seed": number, "why_stopped": {},
        }  # fmt: skip
        history.add(save(tmp_path / name, made, **about), tmp_path / "track")
    out = tmp_path / "out.ipynb"
    argv = papermill("14_trend", out, "-p", "folder", str(tmp_path / "track"))
    output(argv, 300, cwd=copied(tmp_path))
    shown = json.dumps(Shown(out).data)
    assert shown.count(PLOTLY) == 2
    assert "vxlan to veth" in shown
    assert "from r4 to r5" in shown
    assert "labkit compare" in shown
