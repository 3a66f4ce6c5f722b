"""The command line in unusual surroundings: every failure is one sentence and an exit code."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic_rows
from sandbox import also

from labkit import cli, start
from labkit.analysis import report
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.runner import papermill_run, yaml_files
from labkit.system import process

LABKIT = [sys.executable, "-P", "-c", "import sys; from labkit.start import main; sys.exit(main())"]


def labkit(
    *words: str, script: str = 'exec "$@"', environment: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command of labkit, which a shell's script executes as "$@"."""
    argv, env = ["sh", "-c", script, "sh", *LABKIT, *words], {**os.environ, **(environment or {})}
    return subprocess.run(
        argv, text=True, check=False, timeout=120, **{"stderr": subprocess.PIPE, "env": env, **more}
    )


def sentence(ended: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert ended.returncode == code, ended.stderr
    [line] = ended.stderr.splitlines()
    assert line.startswith("labkit: ")
    return line


@pytest.mark.parametrize("words", ["kernels", *also("long", "--version", "run --help")])
def test_full_standard_output(words: str) -> None:
    with open("/dev/full", "w") as full:
        lines = sentence(labkit(*words.split(), stdout=full))
    assert "standard output cannot be written: No space left on device" in lines


@pytest.mark.long
def test_standard_streams_may_be_full_closed_or_ascii() -> None:
    """Nothing can be written, but the exit code still tells."""
    with open("/dev/full", "w") as full:
        assert labkit("run", "nonesuch", stderr=full).returncode == 2
    ended = labkit("kernels", script='exec "$@" >&-')
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = labkit("run", "--help", stdout=subprocess.PIPE, environment={"PYTHONIOENCODING": "ascii"})
    assert sum("container_vs_vm" in line for line in ended.stdout.splitlines()) == 1
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "usage: labkit run" in ended.stdout


def test_removed_current_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ended = labkit(
        "kernels",
        script=f'cd {gone} && rmdir {gone} && exec "$@"',
        environment={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert "the current folder has been removed" in sentence(ended)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the sentence with which labkit refuses a command, without a process of its own."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert (out, line.startswith("labkit: ")) == ("", True)
    return str(line)


@pytest.mark.parametrize(
    "command", [("report",), ("run", "datapaths", "--folder"), ("compare", "."), ("sweep",)]
)
def test_invalid_folder_names(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for folder in ("x" * 300, str(loop), str(loop / "run")):
        assert len(refused(capsys, *command, folder)) < 700


def test_one_run_named_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("link").symlink_to("run")
    for other in ("run", "./run/", "link"):
        line = refused(capsys, "compare", "run", other)
        assert line == f"labkit: {Path(other)} is named twice: name two runs"


def test_overlong_value_is_cut_in_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for digits in (400, 5000):
        with pytest.raises(BadInput, match="rounds="):
            DatapathParameters.of({"rounds": "9" * digits})
    with pytest.raises(BadInput, match="pairs="):
        DatapathParameters.of({"pairs": f"1,{'9' * 400}"})
    for words in (f"rate_bps={'9' * 400}", f"topology={'9' * 400}", "9" * 400):
        line = refused(capsys, "run", "datapaths", words)
        assert "999…" in line
        assert "9" * 100 not in line


def test_unknown_arguments_are_quoted_safely(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("\x1b[31m", "x" * 5000, "d/" * 5000, "a,b " * 5000):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["report", ".", "--nonesuch", text])
        lines = capsys.readouterr().err
        assert "unrecognized arguments: --nonesuch" in lines
        assert "\x1b" not in lines
        assert max(map(len, lines.splitlines())) < 2100


def test_sweep_files_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "laughs.yaml").write_text("\n".join(lines))
    with pytest.raises(BadInput, match="more than 100,000 values"):
        yaml_files.read(tmp_path / "laughs.yaml")
    many = list(range(199))
    grid = [dict.fromkeys(("pairs", "mtu_bytes", "rounds", "slices"), many)]
    (tmp_path / "a.yaml").write_text(json.dumps({"notebook": "01_datapaths", "grid": grid}))
    line = refused(capsys, "sweep", str(tmp_path / "a.yaml"))
    assert "1,568,239,201 points or more, and 10,000 is the most" in line


def test_braces_in_a_path() -> None:
    from papermill.parameterize import parameterize_path

    path = Path("/tmp/{run}/a{}b/notebook.ipynb")
    assert parameterize_path(papermill_run._literal(path), {"folder": "x"}) == str(path)


def test_an_interrupt_during_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "labkit.cli":
                raise KeyboardInterrupt

    import labkit as package

    monkeypatch.delitem(sys.modules, "labkit.cli", raising=False)
    monkeypatch.delattr(package, "cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert start.main() == 130


def finished_run(folder: Path) -> Path:
    """Create the folder of a finished run of an experiment without rows."""
    described = {"created": "2026-01-02T03:04:05Z", "parameters": {}, "seed": 1, "why_stopped": {}}
    return synthetic_rows.save(folder, [], experiment="datapaths", **described)


def test_report_needs_a_run_of_a_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path / "run")
    monkeypatch.delenv(run_folder.PROJECT, raising=False)
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "report", str(run)).endswith("name that folder with LABKIT_PROJECT=FOLDER")
    line = refused(capsys, "report", "/etc/passwd")
    assert "there is no run folder /etc/passwd" in line


def test_images_are_in_figures_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_run(tmp_path / "run")
    (run / "notebook.ipynb").write_text("{}")
    written: list[Path] = []
    monkeypatch.setattr(report, "add_stills", lambda _notebook: None)
    monkeypatch.setattr(report, "html", lambda _notebook, page: page)
    monkeypatch.setattr(report, "images", lambda _notebook, folder: written.append(folder) or [])
    assert cli.main(["report", str(run), "--images"]) == 0
    assert written == [run_folder.project_root() / "figures" / "run"]


def test_unusable_temporary_folder() -> None:
    lines = sentence(labkit("doctor", environment={"TMPDIR": "/dev/null"}))
    assert lines.startswith("labkit: TMPDIR=/dev/null: ")
    assert lines.endswith(": name a folder that can be written, or unset TMPDIR")


@pytest.mark.needs("user namespaces")
def test_no_more_namespaces() -> None:
    limited = 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"'
    inside = f"exec unshare --user --map-root-user sh -c '{limited}' sh \"$@\""
    ended = labkit("draw", "veth", script=inside, environment={"LC_ALL": "de_DE.UTF-8"})
    assert "the experiment's process cannot create a namespace, because their number is limited" in sentence(
        ended
    )


def test_conversations_in_one_language_and_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """labkit compares the last messages with unshare's English ones."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    conversation = process.Conversation(["sh", "-c", "echo $LC_ALL"], None)
    assert list(conversation.lines()) == [b"C.UTF-8"]
    conversation.end()
    conversation = process.Conversation(["sh", "-c", "echo whole; printf half; kill -KILL $$"], None)
    assert list(conversation.lines()) == [b"whole"]
    assert conversation.end_reason() == "was killed by signal 9"
    conversation.end()
    line = "echo unshare: unshare failed: Operation not permitted >&2; exit 1"
    conversation = process.Conversation(["sh", "-c", line], None)
    assert conversation.end_reason().startswith(
        "is not permitted to create a namespace: run labkit as root, or allow user namespaces"
    )
    conversation.end()


@pytest.mark.needs("namespaces", "veth")
def test_busy_port_is_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capsys, "monitor", "veth", "--serve", "--port", str(port))
    assert line.startswith(
        f"labkit: --port {port}: 127.0.0.1 cannot give it (Address already in use): choose"
    )


INPUTS = {  # every argument that names a file to read
    "a network": ("draw", "FILE.yaml"),
    "a sweep": ("sweep", "FILE.yaml"),
    "changes": ("run", "datapaths", "change=FILE.yaml"),
    "a network of a run": ("run", "datapaths", "topology=FILE.yaml"),
    "rules": ("run", "datapaths", "change=x: nftables FILE.yaml at server"),
}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        *((INPUTS["a network"], kind) for kind in ("device", "folder", "large")),
        *((words, "pipe") for words in INPUTS.values()),
    ],
)
def test_inputs_are_regular_files_of_a_bounded_size(
    words: tuple[str, ...], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe would hang for ever, and /dev/zero fill the memory."""
    path = tmp_path / "x.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 32)
    line = refused(capsys, *(word.replace("FILE.yaml", str(path)) for word in words))
    assert ("it has more than " if kind == "large" else "it is not a regular file") in line


def test_a_byte_that_is_not_utf_8_is_one_sentence(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")
    for words, locale in ((("run", "datapaths", "--folder"), "C"), (("monitor",), "C.UTF-8")):
        ended = labkit(*words, name, environment={"LC_ALL": locale})
        assert "has a byte that is not UTF-8: use another name" in sentence(ended)
    os.mkdir(name)
    line = sentence(labkit("kernels", environment={"LC_ALL": "C"}, cwd=name))
    assert "has a byte that is not UTF-8" in line


def test_memory_that_runs_out_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(_given: object) -> int:
        raise MemoryError

    monkeypatch.setattr(cli.arguments, "parse", lambda _argv: SimpleNamespace(function=fill))
    assert "memory ran out" in refused(capsys, "kernels")


@pytest.mark.parametrize(("command", "kept"), [("doctor", False), ("sweep", True)])
def test_interrupt_promises_only_what_there_is(
    command: str, kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_words: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.arguments, "parse", interrupt)
    assert cli.main([command]) == cli.INTERRUPTED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("labkit: interrupted")
    assert ("finished points are on disk" in line) == kept
