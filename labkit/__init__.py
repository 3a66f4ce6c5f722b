"""labkit: compare Linux virtual-network datapaths: which is faster, by how much, and why.

`labkit.open("data/…")` opens a run. `labkit.panel("datapaths")` returns a panel of parameters, `labkit.paper` writes a
figure for a paper, and `%load_ext labkit`
loads the magics. They are imported on first use, because the measuring process also imports labkit and must stay small.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "open": ("labkit.notebook", "open_run"),
    "paper": ("labkit.analysis.report.paper", "paper"),
    "panel": ("labkit.parameter_panel", "Panel"),
    "load_ipython_extension": ("labkit.magics", "load_ipython_extension"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_LAZY]
