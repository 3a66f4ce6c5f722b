"""Show the findings of the experiment `what_does_it_cost` in its notebook."""

from __future__ import annotations

import pandas as pd

from labkit.analysis import figures
from labkit.analysis.displays import show


def show_prices(rows: pd.DataFrame) -> None:
    """Show the price of each change in sentences and in a figure."""
    prices = figures.prices(rows)
    show(figures.price_sentences(prices), figures.price_list(prices))
