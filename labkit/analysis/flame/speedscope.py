"""Write profiles as a file in speedscope's own format, one profile per round.

https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources, file-format-schema.json of its package.
"""

import json
from pathlib import Path
from typing import Any

from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.profile import Arm
from labkit.common import run_folder

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def document(arms: list[Arm]) -> dict[str, Any]:
    """Return the speedscope document: each round of each arm as a sampled profile in nanoseconds, all with shared
    frames."""
    frames: dict[str, int] = {}
    profiles = []
    for arm in arms:
        for number, one in enumerate(arm.rounds, 1):
            samples, weights = [], []
            for stack, count in sorted(one.stacks.items()):
                samples.append([frames.setdefault(name, len(frames)) for name in stack.split(";")])
                weights.append(round(count * one.period_s * 1e9))
            profile = {"type": "sampled", "name": f"{arm.name}, round {number}", "unit": "nanoseconds"}
            ends = {"startValue": 0, "endValue": sum(weights)}
            profiles.append(profile | ends | {"samples": samples, "weights": weights})
    shared = {"frames": [{"name": folded_stacks.plain(name)} for name in frames]}
    return {"$schema": _SCHEMA, "exporter": "labkit", "shared": shared, "profiles": profiles}


def write(arms: list[Arm], path: Path) -> Path:
    """Write the speedscope file (by custom it ends in .speedscope.json). Raises Failed if it cannot be written."""
    run_folder.write(path, json.dumps(document(arms), separators=(",", ":")).encode())
    return path
