"""labkit: which Linux virtual-network datapath is faster, by how much, and why.

`labkit.open("data/…")` opens a run. `labkit.panel("datapaths")` is a panel of its parameters, and
`%load_ext labkit` loads the magics. They are imported when they are first used, because the measuring process imports
labkit, too, and has to be light.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "open": ("labkit.notebook", "open_run"),
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
