"""In a German locale, whose decimal mark is a comma, labkit reads and writes the same numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import Sandbox, sandbox

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("german locale", "root", "namespaces", "iperf3", "ip", "ping", "veth", "perf"),
]


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compile the locale into a folder of the test's own, and return the environment that selects it."""
    folder = tmp_path_factory.mktemp("locale")
    argv = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "LOCPATH": str(folder)}


def comma(machine: Sandbox, german: dict[str, str]) -> str:
    text = "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.format_string('%.1f', 0.5))"
    return machine.run(sys.executable, "-c", text, **german).stdout.strip()


def test_numbers_of_programs_are_read(german: dict[str, str], tmp_path: Path) -> None:
    with sandbox(tmp_path, user=False) as machine:
        assert comma(machine, german) == "0,5", "the locale is not in use, so this test shows nothing"
        words = ("topology=veth", "protocol=udp", "duration_s=1", "omit_s=0", "observe=perf_stat")
        rows = machine.rows(*words, "profile_rounds=1", **german)
        ping = machine.rows("topology=veth", "protocol=ping", "duration_s=1", **german)
        doctor = machine.labkit("doctor", **german)
    # on a busy machine, flows may not overlap
    assert {row["status"] for row in rows} <= {"ok", "invalid"}, [row["reason"] for row in rows]
    assert ping[0]["status"] == "ok", ping[0]["reason"]
    [counted] = [row["observed"]["events"] for row in rows if row["observer"] == "perf_stat"]
    [clock] = [one["count"] for name, one in counted.items() if name == "task-clock"]
    assert 0.5 < clock < 100  # CPU seconds of a second on a few CPUs
    assert 0 < ping[0]["latency_p50_s"] < 1
    assert (doctor.returncode, "Traceback" in doctor.stderr) == (0, False), doctor.stderr
