"""The findings of the experiment: the price of each change."""

import pandas as pd

from labkit.analysis.displays import show
from labkit.analysis.run_figures import of_part
from studies.what_does_it_cost.figure import price_list, price_sentences, prices


def show_prices(rows: pd.DataFrame) -> None:
    """Show the price of each change in sentences and in a figure."""
    priced = prices(rows)
    show(price_sentences(priced), price_list(priced))


FIGURES = {"price_list": of_part("cost", lambda rows: price_list(prices(rows)))}
