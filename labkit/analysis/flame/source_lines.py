"""Find the source lines in which a function spent its time, with perf and the debug symbols of this machine.

A run keeps what perf needs for it (perf.data) only with `keep_perf_data=true`.
"""

import re
from pathlib import Path

import pandas as pd

from labkit.analysis.flame import load_profiles
from labkit.common import run_folder
from labkit.common.errors import BadInput, Unsupported
from labkit.system import machine, process

PATIENCE_S = 300.0  # the debug symbols of a kernel are hundreds of megabytes
COLUMNS = ["arm", "line", "share"]


def function_lines(profiles: pd.DataFrame, function: str) -> pd.DataFrame:
    """Return for each arm the source lines of a function (`arm`, `line` as FILE:NUMBER) with their `share` of all
    samples, the largest first; rounds are averaged.

    profiles: rows of `load.profiles`. Raises BadInput if no perf.data was kept or it has no sample of the function,
    Unsupported without perf or without the function's debug symbols.
    """
    if not re.fullmatch(r"[\w.:~<>-]+", function) or function.startswith("-"):
        raise BadInput(f"{function[:60]!r} is not a function name: write one, for example ip_rcv")
    files = _kept_files(profiles)
    if not files:
        raise BadInput(
            "no perf.data was kept, so source lines are not known: measure with observe=perf_record keep_perf_data=true"
        )
    found = [(arm, line, share) for arm, path in files for line, share in _read_perf_data(path, function)]
    samples = pd.DataFrame(found, columns=COLUMNS)
    if not len(samples):
        raise BadInput(f"there is no sample of {function} in these profiles")
    lines = samples["line"].str
    known = samples[lines.fullmatch(r".+:\d+") & ~lines.contains("??", regex=False)]
    if not len(known):
        raise Unsupported(
            f"there are no debug symbols of {function} here: install those of the kernel"
            " (Debian's package linux-image-RELEASE-dbg, or dnf debuginfo-install kernel) or of its program"
        )
    rounds = pd.Series([arm for arm, _ in files]).value_counts()
    shares = known.groupby(["arm", "line"], sort=False)["share"].sum().reset_index()
    shares["share"] /= shares["arm"].map(rounds)
    result: pd.DataFrame = shares.sort_values(["arm", "share"], ascending=[True, False], ignore_index=True)
    return result


def _kept_files(profiles: pd.DataFrame) -> list[tuple[str, Path]]:
    """Return the arm and the perf.data file of each round that kept it."""
    result = list[tuple[str, Path]]()
    for _, row in profiles.iterrows():
        name = load_profiles.observed(row["observed"]).get("perf_data")
        if row["observer"] == load_profiles.OBSERVER and isinstance(name, str) and "/" not in name:
            path = run_folder.artefact(row["folder"], row["artefact"]).with_name(name)
            result += [(str(row["arm"]), path)] if path.is_file() else []
    return result


def _read_perf_data(path: Path, function: str) -> list[tuple[str, float]]:
    """Return the source lines of a function in one perf.data file, with their shares of all samples."""
    argv = [
        machine.require_program("perf"), "report", "--stdio", "-i", str(path), "-g", "none", "--no-children",
        "--full-source-path", "-F", "overhead,sym,srcline", "-t", "|", f"--symbols={function}",
    ]  # fmt: skip
    text = process.output(["env", "-u", "DEBUGINFOD_URLS", *argv], PATIENCE_S)
    matches = re.findall(r"^ *([\d.]+)% *\|\[.\] [^|]*\|(.*)$", text, re.MULTILINE)
    return [(line.strip(), float(share) / 100) for share, line in matches]
