"""pyproject.toml, environment.yml, requirements.lock, packages.debian and .ci/run agree with each other and the
source."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import plotly.graph_objects as go
import pytest
import yaml
from conftest import NEEDS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sandbox import shell_program

from labkit import cli
from labkit.analysis.report.images import svgs
from labkit.common.errors import Failed

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]["requires"]
DECLARED = [
    *PROJECT["dependencies"],
    *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def bounds(requirements: list[str]) -> dict[str, str]:
    """Return the version bounds by name, both normalised."""
    return {canonicalize_name(r.name): str(r.specifier) for r in map(Requirement, requirements)}


def test_missing_extra_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    # Another test of this process may have imported it: `from … import` would take the package's attribute.
    monkeypatch.delitem(sys.modules, "labkit.runner.cluster.caller", raising=False)
    monkeypatch.delattr("labkit.runner.cluster.caller", raising=False)
    assert cli.main(["sweep", str(ROOT / "params/datapaths-quick.yaml"), "--dask", "tcp://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "labkit: --dask needs the Python package distributed, which is not installed: pip install 'labkit[dask]'"
    )
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(
        Failed, match=r"the Python package kaleido is not installed: pip install 'labkit\[images]'"
    ):
        svgs({"a": go.Figure()})


def test_verdicts_and_reports_import_nothing_heavy() -> None:
    """Importing scipy.stats (once used only for ranks) or nbconvert (only for colours) takes a second."""
    code = "import sys, labkit.analysis.verdicts, labkit.analysis.report; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "scipy.special" in imported
    assert imported.isdisjoint({"scipy.stats", "nbconvert", "kaleido", "distributed"})


def test_dependencies_say_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for requirement in DECLARED:
        explained = re.compile(rf' *"{re.escape(requirement)}", +# \S.*')
        assert any(map(explained.fullmatch, lines)), f"{requirement} has no comment that says why"
    for line in (ROOT / "packages.debian").read_text().splitlines():
        assert re.fullmatch(r"#.*|[a-z0-9.+-]+(\|/[\w/.-]+)? +# .+", line), line


def test_conda_gives_the_same(tmp_path: Path) -> None:
    made = tmp_path / "environment.yml"
    make = ["make", "--silent", "environment", f"ENVIRONMENT={made}"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True)
    assert (ROOT / "environment.yml").read_text() == made.read_text(), "make environment"
    entries = yaml.safe_load(made.read_text())["dependencies"]
    [by_pip] = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    by_conda = [entry for entry in entries if isinstance(entry, str)]
    assert bounds([*by_conda[2:], *by_pip[:-1]]) == bounds(DECLARED)


def test_lock_is_within_bounds_hashed_and_without_addresses() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    entry = re.compile(
        r"^([a-z0-9.-]+)==(\S+) \\\n(?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE
    )
    assert not entry.sub("", re.sub(r"^ *#.*\n", "", lock, flags=re.MULTILINE)), (
        "an option, an address or no hash"
    )
    assert "://" not in lock
    pinned = dict(entry.findall(lock))
    for requirement in map(Requirement, [*DECLARED, *BUILD]):
        version = pinned[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} against {version}: run `make lock`"


def test_packages_that_apt_lacks_do_not_stop_the_others(tmp_path: Path) -> None:
    """Releases have other packages. In some, another package brings the file behind the bar."""
    file, absent = tmp_path / "file", tmp_path / "absent"
    file.touch()
    names = ("there", "here", "nowhere", f"gone|{file}", f"offered|{absent}", f"elsewhere|{absent}")
    (tmp_path / "packages.debian").write_text("".join(f"{name}  # a reason\n" for name in names))
    programs = {
        "dpkg-query": '[ "$3" != here ] || printf installed',
        "apt-cache": 'case $2 in there|offered|bash) echo "Package: $2" ;; *) exit 100 ;; esac',
        "apt-get": 'echo "$@" >>called',
        "id": "echo 0",
    }
    for name, script in programs.items():
        path = shell_program(tmp_path / "bin", name, script)
    environment = {**os.environ, "PATH": path, "LABKIT_NO_SKIP": ""}
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "debian"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "apt offers no nowhere here" in done.stderr
    update, install = (tmp_path / "called").read_text().splitlines()
    assert update == "update"
    assert install.startswith("install ")
    assert install.endswith(" there offered")


# The kernel of CI's machine does not have these.
NOT_IN_CI = {"ipvlan", "geneve", "gre", "ipip", "ovs kernel", "netem", "netkit", "netkit kernel"}


def test_ci_asks_for_every_need() -> None:
    [parameters] = re.findall(r"LABKIT_NO_SKIP=(.+)", (ROOT / ".ci/run").read_text())
    requested = parameters.replace('"', "").split(",")
    assert len(requested) == len(set(requested))
    assert set(requested) == set(NEEDS) - NOT_IN_CI, (
        "a need that CI does not ask for skips its tests silently"
    )


def test_pre_commit_leaves_the_notebooks_as_they_are(tmp_path: Path) -> None:
    """The hook's own command line is run on copies. Without --keep-id it numbers the cells anew."""
    [entry] = [hook["entry"] for hook in HOOKS if hook["id"] == "nbstripout"]
    program, *options = entry.split()
    copies = [Path(shutil.copy(path, tmp_path)) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    stripped = [sys.executable, "-P", "-m", Path(program).name, *options, *map(str, copies)]
    subprocess.run(stripped, check=True, capture_output=True)
    assert copies
    for copy in copies:
        assert copy.read_text() == (ROOT / "notebooks" / copy.name).read_text(), copy.name


def test_subject_of_a_commit_names_its_area() -> None:
    [wanted] = [hook["entry"] for hook in HOOKS if hook["id"] == "subject"]
    assert re.search(wanted, "why: a cause has an interval\n\nThe reason, in as many words as it takes.\n")
    for subject in ("A cause has an interval\n", "why:\n", f"why: {'x' * 68}\n", "\nwhy: a cause\n"):
        assert not re.search(wanted, subject)
