"""Experiments over ssh: the copied files, valid host names, and hostile answers."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import labkit
from labkit.common.errors import BadInput, Failed
from labkit.measure import hosts
from labkit.measure.hosts import ssh


def test_names_of_machines() -> None:
    for name in ("lab", "me@lab", "lab-2.example.net", "10.0.0.7", "fe80::1", "_gate"):
        hosts.check(f"ssh:{name}")
    for name in (
        "", "-oProxyCommand=true", "-lab", "me@-lab", "@lab", "a b", "lab;true", "$(id)", "a\n", "a/b",
    ):  # fmt: skip
        with pytest.raises(BadInput, match="a machine has the form ssh:NAME"):
            hosts.check(f"ssh:{name}")


def test_requirements_match_the_package() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(re.match(r"([\w-]+)(.*)", line).groups() for line in lines)  # type: ignore[union-attr]
    assert {name: ssh.bounds(name) for name in ssh.NEEDS} == {name: bounds[name] for name in ssh.NEEDS}


def test_accepted_versions() -> None:
    for name, version, good in (
        ("msgspec", "0.20", True), ("msgspec", "0.19.9", False), ("msgspec", "1.0", False),
        ("pyroute2", "0.9.10", True),
        ("pyroute2", None, False),
    ):  # fmt: skip
        assert ssh.fits(name, version) is good


def test_copied_packages_are_enough(tmp_path: Path) -> None:
    copied = [ssh.own_package(), *(ssh.installed_package(name) for name in ssh.NEEDS)]
    for one in copied:
        with zipfile.ZipFile(io.BytesIO(one.content())) as archive:
            archive.extractall(tmp_path)
    assert [one.pure for one in copied] == [True, False, True]
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import labkit.measure.agent.main"
    code += "; import labkit.measure.agent.ssh_entry; print(labkit.__file__)"
    code += "; from labkit.measure import experiments; experiments.find('packet_size')"  # of a study
    bare = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.run(bare, capture_output=True, text=True, check=True).stdout.startswith(str(tmp_path))


def test_digest_depends_on_files() -> None:
    one = ssh.own_package()
    other = ssh.Package(one.name, one.version, one.pure, one.files | {"labkit/common/errors.py": b""})
    assert other.digest != one.digest


SSH = """#!{python}
import json, sys
print("Welcome!", flush=True)
print("labkit-python 3 11", flush=True)
sys.stdin.readline()
sys.stdin.readline()
print({packages!r}, flush=True)
sys.stdin.readline()
print(json.dumps({{"event": "hello", "labkit": {version!r}}}), flush=True)
sys.stdin.readline()
print({answer!r}, flush=True)
sys.stdin.read()
"""
PACKAGES = {
    "versions": {"msgspec": "0.20.0", "pyroute2": "0.9.5"},
    "there": ["labkit"],
    "python": "3.12",
    "platform": ["cpython-312-x86_64-linux-gnu", "linux-x86_64"],
}


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Replace ssh by a script that plays a machine and gives this answer to a request."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    words = {"packages": json.dumps(PACKAGES), "version": labkit.__version__, "answer": lines}
    program.write_text(SSH.format(python=sys.executable, **words))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> list[dict[str, Any]]:
    play(tmp_path, monkeypatch, lines)
    request = {"do": "experiment", "folder": str(tmp_path / "data" / "run")}
    with hosts.conversation("ssh:lab", request, print) as conversation:
        result = []
        for line in conversation.lines():
            result.append(json.loads(line))
            if result[-1]["event"] in ("done", "error"):
                break
    return result


def file(path: Any, content: bytes = b"what was measured") -> str:
    return json.dumps({"event": "file", "path": path, "content": base64.b64encode(content).decode()})


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_returned_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [file("environment.json"), file("artefacts/1-r0/veth (again).json.gz"), '{"event":"done"}']
    assert answers(tmp_path, monkeypatch, "\n".join(lines)) == [{"event": "done"}]
    assert files(tmp_path / "data") == ["run/artefacts/1-r0/veth (again).json.gz", "run/environment.json"]


@pytest.mark.parametrize(
    "path",
    ["/tmp/x", "artefacts/../../x", "artefacts/..", "run.json",
     "rows/1-r0.jsonl", "artefacts/\0", 7],
)  # fmt: skip
def test_returned_files_outside_the_folder(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "an invalid file event" if path == 7 else "a file that labkit does not accept"
    with pytest.raises(Failed, match=f"lab sent {wrong}"):
        answers(tmp_path, monkeypatch, file(path))
    assert files(tmp_path / "data") == []


def test_oversized_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "MAX_BYTES", 100)
    with pytest.raises(Failed, match=r"not accept: 'artefacts/b', 60 bytes"):
        answers(tmp_path, monkeypatch, f"{file('artefacts/a', bytes(60))}\n{file('artefacts/b', bytes(60))}")
    assert files(tmp_path / "data") == ["run/artefacts/a"]


def test_silent_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh's own connection may work while the machine behind it is silent."""
    monkeypatch.setattr(ssh, "SILENCE_S", 0.5)
    play(tmp_path, monkeypatch, '{"event":"log","text":"I begin"}')
    with hosts.conversation("ssh:lab", {"do": "doctor"}, print) as conversation:
        assert len(list(conversation.lines())) == 1
        assert conversation.end_reason() == "lost its connection to lab: ssh was silent for 0.5 s"


def test_messages_name_their_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = '{"event": "log", "text": "waiting"}\n\n{"event": "error", "kind": "Failed", "text": "no disk"}'
    result = answers(tmp_path, monkeypatch, lines)
    assert [event["text"] for event in result] == ["on lab: waiting", "on lab: no disk"]
