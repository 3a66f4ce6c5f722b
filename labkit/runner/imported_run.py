"""Make a run of results that a person measured by hand: the files that `iperf3 -J` wrote.

labkit did not see these runs, so much of a row is unknown, and it stays null: placement, CPU time of the machine, the
load beside them. What the files do not say is never guessed.
"""

import datetime
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from labkit.analysis import load
from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed
from labkit.common.plain_types import wrong_type
from labkit.measure.experiments.consistency import TCP_BLOCK_BYTES
from labkit.measure.experiments.rows import COLUMNS
from labkit.measure.traffic import iperf3

EXPERIMENT = "imported"
RECEIVED = ("sum_received", "sum_received_bidir_reverse")  # the second one only with --bidir
SYSTEM = re.compile(r"Linux (?P<host>\S+) (?P<kernel>\S+) (?P<kernel_build>.+) \S+")  # uname -a


class _Test(msgspec.Struct):
    """What `start.test_start` of a file says about the load."""

    protocol: str
    num_streams: int
    blksize: int
    duration: int
    omit: int = 0
    reverse: int = 0
    target_bitrate: int = 0


class _Start(msgspec.Struct):
    """`start` of a file."""

    version: str
    system_info: str
    timestamp: dict[str, Any]
    test_start: _Test
    connected: list[dict[str, Any]]


def write(files: Mapping[str, Sequence[Path]], again: Sequence[Path], folder: Path) -> int:
    """Write a finished run of these arms, each with its files in order, and return the number of its rows.

    The first arm is the baseline, and `again` has the files of its second measurement (the control). A file is one
    whole run. Raises BadInput if a file is not the JSON of an iperf3 client, or has another direction than the others,
    and for an arm whose load is another one than the baseline's.
    """
    if (folder / "run.json").exists():
        raise BadInput(f"{folder} holds a run: name another folder")
    baseline = next(iter(files))
    each = [(name, "baseline" if name == baseline else "variant", paths) for name, paths in files.items()]
    each += [(baseline, "control", again)] * bool(again)
    rows, seen = list[run_folder.Row](), set[str]()
    for name, role, paths in each:
        for number, path in enumerate(paths):
            start, page = _read(path)
            if str(path.resolve()) in seen:
                raise BadInput(f"{path} is named twice: each run counts once, so name another file")
            seen.add(str(path.resolve()))
            rows.append(_row(path, start, page) | _arm_columns(folder, name, role, number))
    if len({row["direction"] for row in rows}) > 1:
        raise BadInput(
            "some of these files were measured with iperf3 -R or --bidir and others not: import them apart"
        )
    table = pd.DataFrame(rows)
    for arm, own in table.groupby("topology"):
        base = table[table["topology"].eq(baseline)]
        if differ := load.differing_columns(base, own, [one for one in load.GROUP if one in table]):
            raise BadInput(
                f"{baseline} and {arm} have nothing to compare: they differ in {', '.join(differ)}"
            )
    if doubt := _doubt_of_order(rows):
        rows = [row | {"doubts": doubt} for row in rows]
    described = run_folder.describe_run(folder, EXPERIMENT, {"topology": list(files)})
    for point in {row["point"] for row in rows}:
        run_folder.write_rows(folder, point, [row for row in rows if row["point"] == point])
    finished = {"finished": run_folder.now(), "points": sorted(run_folder.finished_points(folder))}
    run_folder.write_json(folder / "run.json", described | finished)
    return len(rows)


def _read(path: Path) -> tuple[_Start, dict[str, Any]]:
    page = run_folder.read_object(path)
    if "error" in page:
        raise BadInput(f"{path}: iperf3 failed: {page['error']}; leave the file out")
    try:
        return msgspec.convert(page.get("start"), _Start), page
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} is not what iperf3 -J writes at the client: {wrong_type(error)}") from None


def _arm_columns(folder: Path, name: str, role: str, number: int) -> run_folder.Row:
    return {
        "experiment": EXPERIMENT, "run": folder.name, "point": f"1-r{number}", "round": number, "method": "whole",
        "arm": f"{name} (again)" if role == "control" else name, "again": role == "control", "role": role,
        "topology": name, "endpoint": "namespace", "nodes": "one", "pairs": 1, "where": "here",
    }  # fmt: skip


def _row(path: Path, start: _Start, page: dict[str, Any]) -> run_folder.Row:
    """Return the columns that the file knows."""
    test, protocol = start.test_start, start.test_start.protocol.lower()
    if protocol not in ("tcp", "udp"):
        raise BadInput(f"{path} has the protocol {test.protocol}: labkit compares tcp and udp")
    try:
        # iperf3 -u reports at the client what the server received.
        both = {"client": page, "server": page.get("server_output_json", page)}
        counted = iperf3.metrics([both], protocol)
        received = [page["end"][name] for name in RECEIVED if name in page["end"]]
        throughput = {
            "throughput_bps": float(counted["iperf3_bps"]),
            "received_bytes": float(sum(one["bytes"] for one in received)),
            "window_s": float(received[0]["seconds"]),
        }
        address, seconds = start.connected[0]["local_host"], float(start.timestamp["timesecs"])
        time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (Failed, LookupError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} lacks what a row needs: {error}") from None
    system = SYSTEM.fullmatch(start.system_info)
    return {
        **dict.fromkeys(COLUMNS),
        **counted,
        **throughput,
        "protocol": protocol,
        "generator": "iperf3",
        "length_bytes": None if (protocol, test.blksize) == ("tcp", TCP_BLOCK_BYTES) else test.blksize,
        "rate_bps": float(test.target_bitrate) or None,
        "streams": test.num_streams,
        "direction": "both" if len(received) > 1 else "reverse" if test.reverse else "forward",
        "duration_s": test.duration,
        "omit_s": test.omit,
        "family": 6 if ":" in str(address) else 4,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": "ok",
        "iperf3": start.version.removeprefix("iperf "),
        **({} if system is None else {name: system[name] for name in ("kernel", "kernel_build")}),
        "machine": None if system is None else system["host"],
    }


def _doubt_of_order(rows: Sequence[run_folder.Row]) -> str | None:
    """Return a doubt if one arm was measured after the other instead of in turn: drift looks like a difference."""
    order = [row["arm"] for row in sorted(rows, key=lambda row: str(row["time"]))]
    turns = sum(one != other for one, other in itertools.pairwise(order))
    least = min((order.count(arm) for arm in set(order)), default=0)
    if turns >= least * (len(set(order)) - 1):
        return None
    return (
        "the arms were measured one after the other, not in turn, so a drift of the machine looks like a difference:"
        " repeat them as A B A B, or let labkit measure"
    )
