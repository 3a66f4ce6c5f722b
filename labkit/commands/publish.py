"""`labkit publish`: write a run or a sweep as a few files that others can read, draw, compare with and explain."""

import argparse
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.analysis import flame, parquet_rows, published_runs
from labkit.analysis.flame import folded_stacks, load_profiles
from labkit.commands import arguments
from labkit.commands import rows as exported
from labkit.commands.messages import note
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

Row = run_folder.Row
HOST = ("where", "kernel", "accelerator", "cpu", "cpus_count", "labkit", "git_revision")
# What rows or run.json may quote from the machine: a path in the reason of a failure, or in a parameter
PRIVATE = re.compile(
    r"(?<![\w.])/(?:[\w.+-]+/)*(?:home|root|srv|tmp|work|mnt|media|opt|nfs|folders)/|(?<![\w.])/(?:data|export|scratch)/"
)
ACCOUNT = re.compile(r"\bssh:[^\s@,:;/\"']+@")  # in where=ssh:user@machine
OF_KERNEL = re.compile(rf".*{re.escape(folded_stacks.KERNEL)}|{load_profiles.BPF}")  # frames

NOTES = """\
FOLDER gets rows.parquet, with the unit and meaning of each column, and run.json: the command, the
versions of labkit and the kernels, which of them were emulated, CPUs and memory, when it was
measured, and the SHA-256 digest of the rows. Rows of perf_record get their stacks for labkit why,
with the names of the experiment's own programs alone; artefacts (captures) stay where they are.
labkit refuses rows and parameters that quote a path of this machine, and leaves out the user of
where=ssh:user@machine. labkit rows, compare and `labkit.open` read FOLDER as any run.

    labkit publish data/datapaths/RUN data/results/NAME
    labkit compare data/datapaths/RUN data/results/datapaths
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser, text="the folder of a finished run or a sweep")
    text = "the folder to write; an earlier rows.parquet and run.json in it are replaced"
    parser.add_argument("folder", action=arguments.Folder, metavar="FOLDER", help=text)


def run(given: argparse.Namespace) -> int:
    count = publish(given.run, given.folder)
    note(f"{units.counted(count, 'row')} in {run_folder.display_path(given.folder)}")
    return 0


def publish(folder: Path, out: Path) -> int:
    """Write the rows of a finished run or sweep and their description to `out`; return the number of rows.

    It leaves out the user of where=ssh:user@machine. Raises BadInput if the run is not finished, or if a row or
    run.json quotes a path of this machine.
    """
    rows = _without_accounts(exported.read(folder))
    runs = _runs(folder)
    if not rows or not all("finished" in one for one in runs):
        raise BadInput(f"{folder} is not finished: repeat its command to continue it, then publish it")
    if (out / "rows").exists() or (out / "sweep.json").exists():
        raise BadInput(f"{out} holds a run that was measured there: name another folder")
    sources = {own["run"]: source for own, source in zip(runs, _folders(folder), strict=True)}
    rows = [_with_stacks(row, sources.get(str(row.get("run")), folder)) for row in rows]
    for row in rows:
        _check_private(row, "the column")
    content, of_sweep = parquet_rows.encode(rows, __version__), folder / "sweep.json"
    asked = run_folder.read_object(of_sweep) if of_sweep.exists() else runs[0]
    description = {
        "experiment": runs[0]["experiment"],
        "run": out.name,
        "command": _command(asked),
        "parameters": _common([one["parameters"] for one in runs]),
        "seed": runs[0]["seed"],
        "percentile": asked.get("percentile"),
        "why_stopped": {},
        "created": min(one["created"] for one in runs),
        "finished": max(one["finished"] for one in runs),
        "measuring_s": round(sum(one.get("measuring_s", 0.0) for one in runs), 1),
        "points": [],
        "hosts": _hosts(rows),
        "memory_bytes": _memory(folder),
        "max_foreign_cpu_share": _max_foreign_cpu_share(runs),
        "rows_count": len(rows),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    description = _without_accounts(description)
    _check_private(description, "run.json:")
    run_folder.write(out / published_runs.ROWS, content)
    run_folder.write_json(out / "run.json", description)
    return len(rows)


def _with_stacks(row: Row, folder: Path) -> Row:
    """Return a row of perf_record with its stacks, and any other row as it is. `folder`: that of its run.

    Of other programs' processes only the kernel's frames are kept. Interrupts of the experiment run there, too. Other
    frames name the functions of somebody's programs.
    """
    source = row | {"folder": folder}
    is_profile = row.get("observer") == load_profiles.OBSERVER and row.get("artefact")
    if not is_profile or not load_profiles.has_stacks(source):
        return row  # `labkit why` says that stacks are lost
    stacks = Counter[str]()
    for stack, count in load_profiles.stacks_of(source).items():
        process, *frames = stack.split(";")
        if process == load_profiles.OUTSIDE:
            frames = [one for one in frames if OF_KERNEL.fullmatch(one)]
        stacks[";".join((process, *frames))] += count
    return row | {"folded_stacks": flame.text(stacks)}


def _folders(folder: Path) -> list[Path]:
    if not (folder / "sweep.json").exists():
        return [folder]
    return [folder / name for name in run_folder.sweep_points(folder)]


def _runs(folder: Path) -> list[dict[str, Any]]:
    missing = next((one for one in _folders(folder) if not (one / "run.json").exists()), None)
    if missing is not None:
        raise BadInput(
            f"{missing.name} of the sweep {folder} is not measured yet: repeat the sweep's command"
        )
    return [run_folder.read_run(one) for one in _folders(folder)]


def _check_private(values: Mapping[str, Any], where: str) -> None:
    """Raise BadInput if a value, or a text in a list or an object, quotes a path of this machine."""
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if match := PRIVATE.search(text):
            quoted = text[max(0, match.start() - 50) : match.end() + 50]
            raise BadInput(
                f"{where} {name} quotes a path of this machine and is not published: {quoted}:"
                " measure it again without parameters that name such a path, and with LABKIT_DATA=FOLDER that is not"
                " in a home folder, and not below /root, /srv, /tmp, /work, /mnt, /media, /opt, /data or the like"
            )


def _without_accounts(value: Any) -> Any:
    """Return a value of JSON in which ssh:user@machine is ssh:machine."""
    if isinstance(value, str):
        return ACCOUNT.sub("ssh:", value)
    if isinstance(value, list):
        return [_without_accounts(one) for one in value]
    if isinstance(value, dict):
        return {name: _without_accounts(one) for name, one in value.items()}
    return value


def _max_foreign_cpu_share(runs: Sequence[dict[str, Any]]) -> float | None:
    """Return the largest share of all CPUs that a program outside of the experiment took for some seconds (`others` in
    run.json), or None if no run recorded it, or one recorded more than all CPUs. Its name is not published."""
    known = [one["others"] for one in runs if isinstance(one.get("others"), list)]
    most = max((each["cpu_share"] for others in known for each in others), default=0.0)
    return most if known and most <= 1 else None


def _command(asked: Mapping[str, Any]) -> str:
    """Return the command that measures the same again. asked: sweep.json, or the run.json of a single run."""
    percentile = ["--percentile", asked["percentile"]] if asked.get("percentile") else []
    if "sweep" in asked:
        return shlex.join(["labkit", "sweep", f"params/{asked['sweep']}.yaml", *percentile])
    from labkit.measure import experiments

    usual, own = experiments.find(asked["experiment"]).parameters().asdict(), asked["parameters"]
    given = {name: value for name, value in own.items() if value != usual.get(name, value)}
    words = [f"{name}={arguments.typed(value)}" for name, value in given.items()]
    return shlex.join(["labkit", "run", asked["experiment"], *words, *percentile])


def _common(parameters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters that all runs share."""
    first, *others = parameters
    return {key: value for key, value in first.items() if all((key, value) in one.items() for one in others)}


def _hosts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what ran the experiment, each once, and whether its CPUs were emulated."""
    result: list[dict[str, Any]] = []
    for row in rows:
        one = {name: row.get(name) for name in HOST}
        one["emulated"] = "tcg" in (row.get("accelerator"), row.get("peer_accelerator"))
        if row.get("guest_kernel"):
            one["guest_kernel"] = row["guest_kernel"]
            one["guest_emulated"] = row.get("guest_accelerator") == "tcg"
        if one not in result and one["kernel"]:
            result.append(one)
    return result


def _memory(folder: Path) -> int | None:
    """Return the memory of the machine that ran the first run, or None if it is not recorded."""
    for path in _folders(folder):
        if (path / "environment.json").exists():
            memory_bytes = run_folder.read_object(path / "environment.json").get("memory_bytes")
            return int(memory_bytes) if isinstance(memory_bytes, int) else None
    return None
