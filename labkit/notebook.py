"""What the notebooks share: measure, or show what was measured, and say in prose what the numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown

from labkit import experiments, records, tables, units
from labkit import run as running


class Shown:
    """A run or a sweep: `folder`, `rows` (a DataFrame, a row for each measurement), and what can be said of
    them in Markdown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = tables.load(folder)

    def headline(self) -> Markdown:
        """How much was measured, where, when, and why it stopped."""
        rows, ok = self.rows, self.rows[self.rows["status"].eq("ok")]
        first = rows.iloc[0]
        emulated = (
            " **Emulated CPU: speeds are not those of hardware.**"
            if rows["accelerator"].eq("tcg").any()
            else ""
        )
        words = [
            f"Linux {first['kernel']} on {first['cpu']}, {first['cpus_count']} CPUs",
            f"({_accelerator(first['accelerator'])}).{emulated}",
            f"{len(ok)} valid measurements of {ok['topology'].nunique()} topologies",
            f"between {rows['time'].min()} and {rows['time'].max()},",
            f"{units.duration(float(ok['window_s'].sum()))} of pure measuring.",
        ]
        return Markdown(" ".join(words) + "\n\n" + "\n".join(f"- {reason}" for reason in self._stops()))

    def _stops(self) -> list[str]:
        """Why each run stopped, the same reason once."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.rglob("run.json")):
            run = records.read_json(path)
            for pairs, why in run.get("why_stopped", {}).items():
                asked = run["parameters"]
                where = f"{asked['protocol']} at MTU {asked['mtu_bytes']}"
                found.setdefault(f"{why} ({where})", []).append(pairs)
        return [f"{_list(sorted(pairs, key=int))} pairs: {why}" for why, pairs in found.items()]

    def findings(self, verdicts: pd.DataFrame) -> Markdown:
        """The verdicts as prose: for each protocol and MTU what is faster, by how much, for which numbers of
        pairs; then what could not be measured."""
        if not len(verdicts):
            return Markdown("One topology alone was measured: there is nothing to compare it with.")
        lines = []
        known = verdicts[verdicts["ratio"].notna()]
        for (protocol, mtu), group in known.groupby(["protocol", "mtu_bytes"], sort=True):
            for topology, one in group.groupby("topology", sort=False):
                lines.append(f"- **{str(protocol).upper()}, MTU {mtu}:** {_claims(str(topology), one)}")
        for topology, one in verdicts[verdicts["ratio"].isna()].groupby("topology", sort=False):
            lines.append(f"- **{topology}** was not measured: {one['sentence'].iloc[0]}.")
        return Markdown("\n".join(lines))

    def doubts(self) -> Markdown:
        """Every reason for doubt, as a list."""
        found = tables.doubts(self.rows)
        return Markdown(
            "\n".join(f"- {doubt}" for doubt in found)
            or "Nothing was noticed that would cast doubt on these numbers."
        )


def measure(experiment: str, names: Mapping[str, Any]) -> Shown:
    """Measure with the parameters that are among `names` (a notebook's globals()), or show the finished run
    or sweep in names["folder"]."""
    folder = Path(names["folder"]) if names.get("folder") else None
    if folder is None or not (folder / "sweep.json").exists():
        fields = experiments.find(experiment).parameters.__struct_fields__
        asked = {name: names[name] for name in fields if name in names}
        folder = running.measure(experiment, asked, folder)
    return Shown(folder)


def _accelerator(name: str) -> str:
    return {"none": "bare metal", "tcg": "emulated by QEMU"}.get(name, f"a virtual machine under {name}")


def _list(words: list[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def _claims(topology: str, lines: pd.DataFrame) -> str:
    """What is found of a topology at one protocol and MTU: a verdict for each number of pairs, equal ones together."""
    claims = []
    for word, same in lines.sort_values("pairs").groupby("word", sort=False):
        each = []
        for _, line in same.iterrows():
            size = (
                ""
                if pd.isna(line["low"])
                else f" ({_change(line['ratio'])} [{_change(line['low'])}, {_change(line['high'])}])"
            )
            each.append(f"{line['pairs']:g}{size}")
        claims.append(f"{word} for {_list(each)} {'pair' if same['pairs'].max() == 1 else 'pairs'}")
    said = [f"{topology} against {lines['baseline'].iloc[0]}: {'; '.join(claims)}."]
    said += [f"    - {sentence}." for sentence in lines.loc[lines["word"].eq("no evidence"), "sentence"]]
    return "\n".join(said)


def _change(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
