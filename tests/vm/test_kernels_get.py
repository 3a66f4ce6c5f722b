"""Debian's kernels, fetched from the network into a store of the test's own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox import also

from labkit.measure.hosts import debian_kernels
from labkit.system.qemu import kernels

pytestmark = pytest.mark.needs("apt", "depmod")

GET = [sys.executable, "-P", "-m", "labkit.cli", "kernels", "get"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return kernels.store()


@pytest.fixture
def no_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make apt know no package, as on a machine where `apt-get update` never ran."""
    (tmp_path / "lists/partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(f'Dir::State::Lists "{tmp_path}/lists";\nDir::Cache "{tmp_path}";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))


def visible(store: Path) -> list[str]:
    return [path.name for path in store.iterdir() if path.name != ".lock"]


@pytest.mark.usefixtures("no_lists")
def test_kernel_is_fetched_once_also_after_a_killed_fetch(store: Path) -> None:
    getting = subprocess.Popen([*GET, "cloud"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(store.glob(".new-*/kernel/boot/*")):  # until it is being unpacked
        assert getting.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    getting.send_signal(signal.SIGKILL)
    getting.wait()
    assert kernels.installed() == [each for each in kernels.installed() if each.source == "installed"]
    assert all(name.startswith(".new-") for name in visible(store))
    done = subprocess.run([*GET, "cloud"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    where = done.stdout.splitlines()[-1].removeprefix("where=vm:")
    assert visible(store) == [where]
    result = kernels.find(where)
    assert result.modules is not None
    assert str(result.image) == done.stdout.splitlines()[0]
    assert kernels.find("debian") == result or kernels.find("debian").source == "installed"
    assert kernels.release_of(result.image) == result.release == where
    assert (result.modules / "modules.dep").stat().st_size > 10_000
    assert any("virtiofs.ko" in line for line in (result.modules / "modules.dep").read_text().splitlines())
    assert os.access(result.image, os.R_OK)
    lines: list[str] = []
    assert debian_kernels.get(f"linux-image-{where}", lines.append) == result
    assert lines == []


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("name", ["cloud", *also("exhaustive", "6.1.0-0-none-such")])
def test_no_network_or_package_is_one_sentence(store: Path, name: str) -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    argv = ["unshare", *user, "--net", "--", *GET, name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    known = "names close to it: " in last and "amd64" in last
    assert "is there a network?" in last or (known and name != "cloud"), done.stderr
    assert done.stdout == ""
    assert visible(store) == []


@pytest.mark.exhaustive
@pytest.mark.needs("root")
def test_full_disk_is_one_sentence(store: Path) -> None:
    """The file system is smaller than the kernel and fills up only after the check for free space."""
    program = (
        "import sys; from labkit import cli; from labkit.measure.hosts import debian_kernels;"
        "debian_kernels.room = lambda *_: None; sys.exit(cli.main(['kernels', 'get', 'cloud']))"
    )
    store.mkdir(parents=True)
    mounted = f'mount -t tmpfs -o size=40m none "{store}" && exec "$@"'
    argv = ["unshare", "--mount", "--", "sh", "-c", mounted, "sh", sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
