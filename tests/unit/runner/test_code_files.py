"""User-defined profiles of TRex are code: they run for the user who names them, and for a sweep file only with the
flag."""

import hashlib
from pathlib import Path

import pytest

from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.runner import code_files
from labkit.runner.permissions import ALLOW, PROGRESS
from studies.load_test.parameters import LoadTestParameters

TEXT = "def register():\n    return None\n"


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(PROGRESS, raising=False)
    monkeypatch.delenv(ALLOW, raising=False)
    path = tmp_path / "own.py"
    path.write_text(TEXT)
    return str(path)


def test_file_that_is_named_travels_with_its_digest(profile: str) -> None:
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    parameters, sources = code_files.read(LoadTestParameters, {"profile": profile, "server": "127.0.0.1"})
    assert parameters == {"profile": profile, "server": "127.0.0.1", "profile_digest": digest}
    assert sources == {digest: TEXT}
    made = experiments.find("load_test").parameters.of(parameters).asdict()
    assert made["profile_digest"] == digest


@pytest.mark.parametrize(
    ("name", "harmless", "what", "allowed"),
    [
        ("profile", "imix", "code", "machine_sysctl,trex_profile"),
        ("trex", None, "the folder of a program", "trex_folder"),
    ],
)
def test_a_sweep_needs_the_flag(
    name: str, harmless: str | None, what: str, allowed: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: profile}
    monkeypatch.setenv(PROGRESS, "/dev/null")
    monkeypatch.delenv(ALLOW, raising=False)
    with pytest.raises(BadInput, match=f"is {what}, and a sweep's file may be somebody else's"):
        code_files.read(LoadTestParameters, given)
    assert code_files.read(LoadTestParameters, {name: harmless}) == ({name: harmless}, {})
    monkeypatch.setenv(ALLOW, allowed)
    parameters, sources = code_files.read(LoadTestParameters, given)
    assert (given.items() <= parameters.items(), bool(sources)) == (True, name == "profile")


def test_digest_without_its_text_is_refused_by_the_experiment(profile: str) -> None:
    with pytest.raises(BadInput, match="labkit has not read this file: name it on the command line"):
        experiments.find("load_test").parameters.of({"server": "127.0.0.1", "profile": profile})


def test_invalid_code_file_is_refused(profile: str) -> None:
    for content, words in (
        (b"\xff\xfe", "it is not text"),
        (b"def (:", "is not valid Python"),
        (b"#" * (2 << 20), "it has more than 1 MiB"),
    ):
        Path(profile).write_bytes(content)
        with pytest.raises(BadInput, match=words):
            code_files.read(LoadTestParameters, {"profile": profile})
        with pytest.raises(BadInput, match="there is no file"):
            code_files.read(LoadTestParameters, {"profile": profile + ".py"})
