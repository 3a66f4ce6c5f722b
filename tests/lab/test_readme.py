"""Every command of the README runs as written there, but with one round."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.commands import arguments

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
]
CELLS = "".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
OTHERWISE = {"make test", "make report", "make lab"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    # If make runs these tests, its variables would make the inner make print the folders it enters and leaves.
    mine = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return {**mine, "LABKIT_DATA": str(tmp_path / "data")}


def test_readme_has_commands() -> None:
    assert set(COMMANDS) > OTHERWISE


@pytest.mark.parametrize("words", sorted(set(re.findall(r"`labkit ([^`]+)`", README))))
def test_command_in_a_sentence_is_one(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands without what it needs (`labkit attach`), or the parser takes it whole, and its files exist."""
    argv = words.split()
    if len(argv) == 1 or argv[-1] == "--help":
        with pytest.raises(SystemExit, match=r"^0$"):
            arguments.parse([argv[0], "--help"])
        assert "usage: labkit" in capsys.readouterr().out
    else:
        assert arguments.parse(argv).command == argv[0]
    assert all((ROOT / word).exists() for word in argv if word.startswith("params/"))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the commands measure what others read, as in the project's own."""
    folder = tmp_path_factory.mktemp("here")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.needs("openvswitch") if "virtual_tap" in command else ())
        for command in COMMANDS
        if command not in OTHERWISE
    ],
)
@pytest.mark.needs("set-up", "namespaces", "iperf3", "ping", "vxlan", "nft", "perf")
def test_readme_command(command: str, environment: dict[str, str], here: Path) -> None:
    argv = shlex.split(re.sub(r"rounds=\d", "rounds=1", command))
    done = subprocess.run(argv, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if (file := re.search(r"--csv (\S+)", command)) is not None:
        assert (here / file[1]).read_text().count("\n") > 20
    else:
        assert done.stdout.strip()


@pytest.mark.long
@pytest.mark.needs("set-up", "namespaces", "iperf3", "nft", "perf")
def test_readme_cells(environment: dict[str, str], here: Path) -> None:
    """The commands before have measured data/rules."""
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", CELLS],
        cwd=here, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^A DataFrame of \d+ columns", done.stdout, re.MULTILINE), done.stdout
    assert "Error" not in done.stdout + done.stderr


def test_make_test_is_the_first_that_ci_runs() -> None:
    parts = re.findall(r"^make (test\S*)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert parts[0] == "test"


def test_make_report_measures_the_quick_sweep() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "report"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ".venv/bin/labkit sweep params/datapaths-quick.yaml" in done.stdout


@pytest.mark.long
@pytest.mark.needs("set-up", "namespaces", "iperf3", "macvlan")
def test_make_report(environment: dict[str, str], tmp_path: Path) -> None:
    """The quick sweep with fewer rounds, slices and numbers of pairs, and without warm-ups."""
    quick = (ROOT / "params/datapaths-quick.yaml").read_text()
    short = tmp_path / "datapaths-short.yaml"
    for usual, less in (
        ("rounds: 5", "rounds: 1"), ("slices: 12", "slices: 4"), ("omit_s: 1", "omit_s: 0"), ("[1, 2, 8]", "[2]"),
    ):  # fmt: skip
        assert quick.count(usual) == 1
        quick = quick.replace(usual, less)
    short.write_text(quick)
    report = ["make", "report", f"PARAMS={short}"]
    first = subprocess.run(report, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert first.returncode == 0, first.stderr
    last = first.stdout.splitlines()[-1]
    page = Path(last.removeprefix("report: "))
    assert "Plotly.newPlot" in page.read_text()
    for topology in ("macvlan_bridge", "ipvlan_l2", "ipvlan_l3"):
        assert re.search(rf"^(tcp|udp) .*{topology}.*veth_bridge", first.stdout, re.MULTILINE), first.stdout
    rows = {path: path.read_bytes() for path in page.parent.glob("*/rows/*.jsonl")}
    measured = [json.loads(line) for content in rows.values() for line in content.splitlines()]
    assert {row["protocol"] for row in measured if row["status"] == "ok"} == {"tcp", "udp"}
    assert {row["pairs"] for row in measured} == {2}
    again = subprocess.run(report, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert again.stdout.splitlines()[-1] == last
    assert "Installing" not in again.stdout + again.stderr
    assert {path: path.read_bytes() for path in page.parent.glob("*/rows/*.jsonl")} == rows


@pytest.fixture
def lab(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Start JupyterLab like `make lab`; return its address with the token."""
    log = tmp_path / "lab.log"
    home = {"HOME": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    with log.open("wb") as file:
        server = subprocess.Popen(
            ["make", "lab"], cwd=ROOT, env={**environment, **home}, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
        try:
            result = None
            deadline = time.monotonic() + 90
            while result is None and time.monotonic() < deadline and server.poll() is None:
                time.sleep(0.2)
                result = re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=\w+", log.read_text())
            assert result, log.read_text()
            yield result[0]
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # this test created the session
            server.wait(30)


def _status(address: str) -> int:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except urllib.error.URLError as error:  # JupyterLab prints its address before it listens
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.long
@pytest.mark.needs("set-up")
def test_make_lab_is_local_and_needs_the_token(lab: str) -> None:
    token = lab.partition("token=")[2]
    contents = re.sub(r"/lab\S*", "/api/contents", lab)
    assert _status(contents) == 403
    assert _status(f"{contents}?token={token}") == 200
