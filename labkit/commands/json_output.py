"""The JSON output of commands (--json), and the meaning of each field. docs/COMMANDS.md contains these tables.

Numbers are in base units, as in columns. Unknown values are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from labkit.analysis import load, verdicts
from labkit.common.printable import printable_json

FIELDS: dict[str, dict[str, str]] = {
    "doctor": {
        "machine": "the columns that describe the host (docs/ROWS.md)",
        "details": "what lscpu and the system say about it; its fields depend on the machine",
        "capabilities": "a list: `group`, `name`, `available` (null: not tested), `detail`, `lost` (what is"
        " not possible without it), `remedy` (how to get it)",
    },
    "sweep": {
        "folder": "the sweep's folder",
        "report": "the path of the HTML report",
        "failed": "points that could not be measured, each with the reason",
        "verdicts": "a list, a line for each topology and point: the columns by which points differ (`group` and `host`"
        " in docs/ROWS.md), `topology`, `baseline`, `ratio` with its 95 % interval `low` to `high`, `n_count` and"
        " `rounds_count`, `how` (the estimator), `word` (the verdict), `sentence`; `control_…` of the baseline against"
        " itself, `whole_…` of whole runs; `disagree`: slices and whole runs do; `vetoed`: by the control",
        "doubts": "sentences",
    },
    "report": {
        "report": "the path of the HTML report",
        "figures": "with --images, the paths of the images",
    },
    "compare": {
        "lines": "a list, a line for each topology and point of both runs: the columns by which points differ,"
        " `topology`, `baseline`, `left_host`, `right_host`, `method`, `metric`, `left_median` and `right_median` in"
        " the metric's unit, `left_setups_count`, `right_setups_count`, `ratio` right to left with `low` and `high`,"
        " `relative_…` of the ratios to the baseline, `how`, `word`, `sentence`",
        "doubts": "sentences",
    },
    "why": {
        "left": "the name of the left side",
        "right": "the name of the right side",
        "verdicts": "verdicts from the rounds without observers, in sentences",
        "notes": "notes on the verdicts, in sentences",
        "points": "a list: `point`, `sentence` (the conclusion), `cause` (null: withheld), `notes`, `next` (what would"
        " decide), `candidates` (`name`, `evidence`: strong, good, weak or none, `known`, `difference_s` of CPU"
        " time for each unit that arrived, `half_width_s` of its 95 % interval)",
        "page": "the path of the HTML page",
        "exported": "with --export, a sentence that names the files; otherwise null",
    },
    "kernels": {
        "release": "the kernel's release",
        "where": "the value of the parameter where",
        "flavour": "the end of the release, for example cloud-amd64",
        "source": "where labkit found it",
        "image": "the path of the image",
        "modules": "the folder of its modules",
        "size_bytes": "the size of image and modules",
        "digest": "a digest of the image",
        "answer": "what `labkit doctor --json` prints in it; null: not examined yet",
    },
    "monitor": {
        "hop": "the interface, NAMESPACE:INTERFACE",
        "seen_count": "packets that the interface received and sent",
        "selected_count": "of these, those that the filter in the kernel selected",
        "dropped_count": "of the selected, those that were lost because the ring was full",
        "waiting_count": "those that were not read yet; 0 at the end",
        "unsampled_count": "those that the sampler left out",
        "sampled_count": "those that the sampler chose",
        "kept_count": "of the sampled, those in memory",
        "forgotten_count": "those that were pushed out of memory",
        "hidden_count": "those that the display filter did not match",
        "unexamined_count": "those that tshark was too slow for",
        "classes": "for each class of packets, the number of packets and their bytes",
        "conversations": "a list of lists: class, source, destination, packets, bytes",
        "packets": "the headers of the last packets, a line of text each",
    },
    "draw": {
        "topology": "its name",
        "kernel": "the kernel's release",
        "pairs": "a list of pairs, a client and a server each: `name`, `namespace`, `interface`, `address`",
        "namespaces": "a list: `name`; `interfaces` (`name`, `index`, `kind`, `mode`, `up`, `carrier`, `mtu_bytes`,"
        " `mac`, `addresses`, `master`, `peer`, `lower`, `tunnel`, `copies`); `routes` (`to`, `hops`, `source`,"
        " `metric`, `connected`)",
    },
}
ROWS = {"run"}  # commands that print rows, whose fields are in docs/ROWS.md
LINES = {"kernels"}  # commands that print a list of such objects


def text(content: Any) -> str:
    """Return indented JSON, safe for a terminal."""
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain values, with null for missing ones."""
    return [
        {str(name): None if pd.isna(value) else getattr(value, "item", lambda value=value: value)()
         for name, value in line.items()}
        for line in table.to_dict("records")
    ]  # fmt: skip


def compared(table: pd.DataFrame, doubts: Sequence[str]) -> dict[str, Any]:
    """Return the result of `labkit compare`."""
    return {"lines": records(table), "doubts": list(doubts)}


def of_sweep(folder: Path, report: Path, failed: dict[str, str]) -> dict[str, Any]:
    """Return the result of `labkit sweep`."""
    rows = load.load(folder)
    return {
        "folder": str(folder),
        "report": str(report),
        "failed": failed,
        "verdicts": records(verdicts.verdicts(rows)),
        "doubts": verdicts.doubts(rows),
    }
