"""Tables of published figures in data/reference: of other machines, drawn beside one's own and never compared."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from labkit.common import run_folder


def table(name: str, path: Path | None = None) -> pd.DataFrame | None:
    """Read a table of the project's data/reference, or of labkit's own; None if neither has it. `path`: another."""
    roots = (run_folder.project_root(), Path(__file__).resolve().parents[2])
    places = [path] if path else [root / "data" / "reference" / name for root in roots]
    place = next((place for place in places if place.exists()), None)
    return None if place is None else pd.read_csv(place, comment="#")
