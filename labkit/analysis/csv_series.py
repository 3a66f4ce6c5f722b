"""Series that other programs measured, from a CSV file (`labkit track add FILE.csv`)."""

import csv
import datetime
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.common import run_folder, units
from labkit.common.errors import BadInput

# The columns of a CSV file, and those of a history. The first two are needed.
CSV = {
    "series": "arm", "value": "value", "low": "value_low", "high": "value_high", "time": "time", "run": "run",
    "machine": "machine_class", "kernel": "kernel", "metric": "metric", "higher_is_better": "higher_is_better",
}  # fmt: skip
EXPERIMENT = "CSV file"  # what a history says instead of an experiment
CSV_LINES = 10_000  # the search for changes takes a minute for each 10,000 points


def points(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the columns of a history for each line of a CSV file. Raises BadInput for the first wrong one."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names, lines = list(reader.fieldnames or ()), [(reader.line_num, line) for line in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no CSV file: {error}") from None
    if not {"series", "value"} <= set(names) <= set(CSV) or len(set(names)) < len(names):
        raise BadInput(
            f"{path} has the columns {', '.join(names)[:100]}: series and value are needed, and possible, each"
            f" once, are {units.listed(list(CSV)[2:])}"
        )
    if not 0 < len(lines) <= CSV_LINES:
        raise BadInput(f"{path} has {len(lines)} points: 1 to {CSV_LINES} are possible")
    there, last, ways = set[tuple[Any, ...]](), dict[Any, str](), dict[Any, str]()
    for number, line in lines:
        where = f"{path}, line {number}"
        if None in line or None in line.values():
            raise BadInput(f"{where}: it has not {units.counted(len(names), 'value')}")
        low, value, high = (_number(line.get(name, "")) for name in ("low", "value", "high"))
        if not (0 < value < math.inf and line["series"]):
            raise BadInput(f"{where}: a name and a value above 0 are needed, not {line['value'][:30]!r}")
        if line.get("low", "") + line.get("high", "") and not 0 < low <= value <= high < math.inf:
            raise BadInput(f"{where}: the interval from low to high does not contain the value {value:g}")
        point: dict[str, Any] = {column: line.get(name) or None for name, column in CSV.items()}
        if "time" in line:
            point["time"] = _utc(line["time"], where)
        if (better := line.get("higher_is_better", "true")) not in ("true", "false"):
            raise BadInput(f"{where}: higher_is_better={better[:30]!r}: write true or false")
        point |= {"value": value, "value_low": low, "value_high": high, "higher_is_better": better == "true"}
        point |= {"run": line.get("run") or f"{path.name}:{number}", "metric": line.get("metric") or "value"}
        series = tuple(point[name] for name in ("arm", "metric", "machine_class"))
        if point["time"] and point["time"] < last.setdefault(series, point["time"]):
            way = "sort the lines, or leave the column time out"
            raise BadInput(f"{where}: it is earlier than the point before it: {way}")
        last[series] = point["time"]
        if ways.setdefault(series, better) != better:
            raise BadInput(f"{where}: higher_is_better is true and false in the series {point['arm']}")
        if (same := (*series, point["run"], point["time"])) in there:
            twice = f"{point['arm']} has the run {point['run']} twice"
            raise BadInput(f"{where}: {twice}: give each point a run or a time")
        there.add(same)
        about = {"experiment": EXPERIMENT, "added": run_folder.now(), "folder": str(path.resolve())}
        yield point | about


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _utc(text: str, where: str) -> str:
    try:
        time = datetime.datetime.fromisoformat(text)
        time = time.replace(tzinfo=time.tzinfo or datetime.UTC).astimezone(datetime.UTC)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        raise BadInput(f"{where}: {text[:30]!r} is no time such as 2026-11-28T09:00:00Z") from None
