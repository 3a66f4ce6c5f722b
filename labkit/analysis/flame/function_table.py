"""Present the difference between two arms: a table that adds up, and a sentence."""

import math
from dataclasses import replace

import pandas as pd

from labkit.analysis.flame.difference import Difference
from labkit.analysis.flame.significance import Estimate
from labkit.common import units


def functions_as_text(difference: Difference, inclusive: bool = False) -> pd.DataFrame:
    """Return `Difference.functions` as text: one row per function, with 95 % intervals.

    Values are rounded so that the printed ones add up to the last digit. The difference is that of the two printed
    sides, and "everything else" absorbs the rounding errors of the functions.
    """
    table = difference.functions(inclusive=inclusive)
    unit_s, unit = difference.per.unit_s, difference.per.unit
    largest = float(table[["left_s", "right_s"]].to_numpy().max()) / unit_s
    decimals = max(0, 3 - math.floor(math.log10(largest)) - 1) if largest > 0 else 0
    sides = {side: (table[f"{side}_s"] / unit_s).round(decimals) for side in ("left", "right")}
    if not inclusive:
        for values in sides.values():
            values.iloc[-2] = values.iloc[-1] - values.iloc[:-2].sum()
    sides["difference"] = sides["right"] - sides["left"]
    heads = {"left": difference.left.name, "right": difference.right.name, "difference": "difference"}
    names = [
        f"{name} ({kind})" if kind in ("user", "process") else name
        for name, kind in zip(table["function"], table["kind"], strict=True)
    ]
    result = pd.DataFrame(index=names)
    result.columns.name = "function"
    for side, head in heads.items():
        sign = "+" if side == "difference" else ""
        half = (table[f"{side}_high_s"] - table[f"{side}_s"]) / unit_s
        result[f"{head}, {unit}"] = [
            f"{value + 0.0:{sign},.{decimals}f}" + ("" if pd.isna(by) else f" ± {by:,.{decimals}f}")
            for value, by in zip(sides[side], half, strict=True)
        ]
    result["share"] = ["–" if pd.isna(share) else units.percent(share) for share in table["share_ratio"]]
    result["stands out"] = ["yes" if out else "no" for out in table["stands_out"]]
    return result


def sentence(difference: Difference, total: Estimate | None = None) -> str:
    """Return the finding as a sentence, with its interval and the functions that explain most of it.

    total: the difference in all, if it is known from elsewhere (`labkit why` counts the experiment's work alone).
    """
    table = difference.functions()
    whole, named = table.iloc[-1].copy(), table.iloc[:-2]
    if total is not None:
        columns = {
            "left_s": total.left, "right_s": total.right, "difference_s": total.difference,
            "difference_low_s": total.low, "difference_high_s": total.high, "p": total.p, "stands_out": total.certain,
        }  # fmt: skip
        whole = pd.Series({**whole, **columns})
    left, right, per = difference.left.name, difference.right.name, difference.per.description
    sides = f"{seconds(whole['left_s'])} → {seconds(whole['right_s'])}"
    if pd.isna(whole["p"]):
        return f"no evidence about {right} against {left}: a single round has no spread; measured {sides} per {per}"
    outstanding = named[named["stands_out"]]
    if not whole["stands_out"]:
        result = f"no evidence that {right} takes more or less CPU per {per} than {left}"
        result += f": {sides}, difference {_by(whole)}{_again(difference)}"
        if len(outstanding):
            return f"{result}; but the single functions {_names(outstanding)} differ"
        return result + _with_callees(difference)
    word = "more" if whole["difference_s"] > 0 else "less"
    result = f"{right} takes {_by(whole)} {word} CPU per {per} than {left} ({sides})"
    if not len(outstanding):
        return f"{result}; no single function stands out{_with_callees(difference)}"
    share = outstanding["difference_s"].sum() / whole["difference_s"]
    ending = "s" * (len(outstanding) == 1)
    if share <= 0:  # functions that do not stand out make the difference
        return f"{result}; {_names(outstanding)} stand{ending} out"
    # The others together may take less time.
    part = "all" if share > 1 else units.percent(share)
    return f"{result}; {_names(outstanding)} explain{ending} {part} of it"


def _again(difference: Difference) -> str:
    """Return by how much the left arm differs from itself, if that is why its total does not stand out."""
    control = difference.judge(difference.tree.total[:1]).control
    if control is None:
        return ""
    sides = len(difference.left.rounds) + len(difference.right.rounds)
    alone = replace(difference, control=None).judge(difference.tree.total[:1, :sides])
    if not alone.stands_out[0]:
        return ""
    middle, half = float(control.difference[0]), float(control.half[0])
    return (
        f", but {difference.left.name} measured again differs from itself by {seconds(middle)}"
        f" [{seconds(middle - half)}, {seconds(middle + half)}]"
    )


def _with_callees(difference: Difference) -> str:
    """Return the function that differs most with its callees, or an empty text if it does not stand out."""
    first = difference.functions(1, inclusive=True).iloc[0]
    if not first["stands_out"]:
        return ""
    word = "more" if first["difference_s"] > 0 else "less"
    return f"; {first['function']} with its callees takes {_by(first)} {word}"


def seconds(value: float) -> str:
    """Return a time in words, with an SI prefix."""
    return units.si(float(value), "s")


def size(difference_s: float, low_s: float, high_s: float, certain: bool) -> str:
    """Return a difference with its interval in words, without its sign if it is certain."""
    if certain:
        low_s, high_s = sorted((abs(low_s), abs(high_s)))
        difference_s = abs(difference_s)
    return f"{seconds(difference_s)} [{seconds(low_s)}, {seconds(high_s)}]"


def _by(whole: pd.Series) -> str:
    low_s, high_s = whole["difference_low_s"], whole["difference_high_s"]
    return size(whole["difference_s"], low_s, high_s, bool(whole["stands_out"]))


def _names(table: pd.DataFrame) -> str:
    """Return the first functions of a table as a list for a sentence."""
    names = list(table["function"])
    return units.shortened(names, 3) if len(names) > 3 else units.listed(names)
