"""The source lines of a function come from perf, where its debug symbols exist."""

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from labkit.analysis.flame import source_lines
from labkit.common.errors import BadInput, Unsupported

# What perf 6.1 prints for a program with debug symbols, and for a kernel without.
WITH = """# Overhead|Symbol  |Source:Line
 94.12% |[.] spin|src/spin.c:5
 5.88%  |[.] spin|src/spin.c:4
"""
WITHOUT = """# Overhead|Symbol  |Source:Line
 3.10% |[k] ip_rcv|ip_rcv+25
 1.00% |[k] ip_rcv|??:0
"""


def profiles(folder: Path, **kept: int) -> pd.DataFrame:
    """Return rows of profiles: for each arm this many rounds that kept their perf.data."""
    rows = []
    for arm, count in kept.items():
        for number in range(count):
            (folder / f"{arm}-{number}.perf.data").touch()
            observed = {"perf_data": f"{arm}-{number}.perf.data"}
            rows.append((arm, "perf_record", folder, f"{arm}-{number}.folded.gz", observed))
        rows.append((arm, "perf_record", folder, f"{arm}-lost.folded.gz", {}))
    return pd.DataFrame(rows, columns=["arm", "observer", "folder", "artefact", "observed"])


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace perf by a program that prints WITH for files of veth, and WITHOUT for others."""
    commands: list[list[str]] = []

    def output(argv: list[str], timeout_s: float) -> str:
        commands.append(argv)
        return WITH if "veth" in argv[argv.index("-i") + 1] else WITHOUT

    monkeypatch.setattr(source_lines.process, "output", output)
    monkeypatch.setattr(source_lines.machine, "require_program", lambda name: f"/usr/bin/{name}")
    return commands


def test_shares_are_means_of_rounds(tmp_path: Path, printed: list[list[str]]) -> None:
    result = source_lines.function_lines(profiles(tmp_path, veth=2, macvlan=1), "spin")
    assert list(result["line"]) == ["src/spin.c:5", "src/spin.c:4"]
    assert list(result["arm"]) == ["veth", "veth"]
    assert list(result["share"]) == pytest.approx([0.9412, 0.0588])
    assert len(printed) == 3
    assert all(argv[-1] == "--symbols=spin" for argv in printed)


def test_missing_debug_symbols_are_one_sentence(tmp_path: Path, printed: list[list[str]]) -> None:
    with pytest.raises(Unsupported, match=r"no debug symbols of ip_rcv here: install those of the kernel"):
        source_lines.function_lines(profiles(tmp_path, macvlan=1), "ip_rcv")
    assert printed


@pytest.mark.parametrize(
    ("kept", "function", "why"),
    [(0, "spin", "no perf.data was kept"), (1, "--input=/etc/passwd", "is not a function name")],
)
def test_bad_questions(tmp_path: Path, kept: int, function: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        source_lines.function_lines(profiles(tmp_path, veth=kept), function)


@pytest.mark.needs("perf")
def test_real_perf_without_the_function(tmp_path: Path) -> None:
    data = tmp_path / "veth-0.perf.data"
    argv = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", str(data), "--", "true"]
    subprocess.run(argv, check=True, capture_output=True)
    rows = profiles(tmp_path, veth=0)
    rows.at[0, "observed"] = {"perf_data": data.name}
    with pytest.raises(BadInput, match="no sample of no_such_function"):
        source_lines.function_lines(rows, "no_such_function")
