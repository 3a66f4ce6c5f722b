"""Kernelspecs, the connection data that the guest gets, and how Jupyter learns that a kernel has ended."""

import asyncio
import json
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from sandbox import MARK, marked, until

from labkit.common.errors import BadInput, Failed
from labkit.jupyter import kernelspecs, vm_kernel
from labkit.jupyter.provisioner import Events, LabProvisioner
from labkit.measure.agent import notebook_kernel
from labkit.system import process
from labkit.system.qemu import kernels

CONNECTION = {
    "shell_port": 50001, "iopub_port": 50002, "stdin_port": 50003, "control_port": 50004, "hb_port": 50005,
    "ip": "127.0.0.1", "key": "secret", "transport": "tcp", "signature_scheme": "hmac-sha256",
}  # fmt: skip
THERE = ["6.1.0-9-amd64", "6.1.0-56-cloud-amd64", "6.1.0-56-amd64", "6.12.117+deb12-cloud-amd64"]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [kernels.in_store(release) for release in THERE]
    monkeypatch.setattr(kernels, "installed", lambda: there)
    monkeypatch.setattr(kernels, "release_of", lambda image: image.name)


def specs(prefix: Path) -> KernelSpecManager:
    return KernelSpecManager(kernel_dirs=[str(prefix / "share/jupyter/kernels")], ensure_native_kernel=False)


def test_installed_kernelspecs(tmp_path: Path) -> None:
    """Without a name: this kernel, and the newest one of each series, preferably its full flavour."""
    report = kernelspecs.install([], tmp_path)
    assert report == {
        "labkit": "labkit (this kernel)",
        "labkit-vm-6.1": "labkit (Linux 6.1 lab VM)",
        "labkit-vm-6.12": "labkit (Linux 6.12 lab VM)",
    }
    result = {name: specs(tmp_path).get_kernel_spec(name) for name in report}
    assert set(specs(tmp_path).find_kernel_specs()) == set(result)
    assert {name: spec.display_name for name, spec in result.items()} == report
    where = {name: spec.metadata["kernel_provisioner"]["config"]["where"] for name, spec in result.items()
             if name != "labkit"}  # fmt: skip
    assert where == {"labkit-vm-6.1": "vm:6.1.0-56-amd64", "labkit-vm-6.12": "vm:6.12.117+deb12-cloud-amd64"}
    for name, spec in result.items():
        assert "{connection_file}" in spec.argv
        assert spec.interrupt_mode == ("signal" if name == "labkit" else "message")


def test_kernelspec_with_vm_options(tmp_path: Path) -> None:
    parameters = "6.12.117+deb12-cloud-amd64,memory_mib=4096"
    names = kernelspecs.install([parameters], tmp_path)
    assert "labkit-vm-6.12.117-deb12-cloud-amd64-memory_mib-4096" in names
    spec = specs(tmp_path).get_kernel_spec(list(names)[-1])
    assert spec.metadata["kernel_provisioner"] == {
        "provisioner_name": "labkit",
        "config": {"where": f"vm:{parameters}"},
    }


@pytest.mark.parametrize(
    ("parameters", "words"), [("5.4", "no kernel '5.4'"), ("debian,cpus=0", "cpus=0 is outside 1 to 64")]
)
def test_unbootable_kernel_is_not_installed(tmp_path: Path, parameters: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        kernelspecs.install([parameters], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_connection_of_the_guest(tmp_path: Path) -> None:
    environment = {
        "LANG": "C",
        "JPY_PARENT_PID": "1",
        "XDG_RUNTIME_DIR": "/run/user/0",
        "LABKIT_LAB_VM": "{}",
    }
    report = vm_kernel.kernel_request(CONNECTION, ["python"], tmp_path, environment)
    assert report["connection"] == {**CONNECTION, "ip": "10.0.2.15"}
    assert report["folder"] == str(tmp_path)
    assert report["environment"] == {"LANG": "C", "LABKIT_DATA": str(tmp_path / "data")}
    inside = {"LABKIT_DATA": str(tmp_path / "runs")}
    assert vm_kernel.kernel_request(CONNECTION, [], tmp_path, inside)["environment"] == inside
    with pytest.raises(BadInput, match="folder of its own"):
        vm_kernel.kernel_request(CONNECTION, [], Path("/"), {})


def test_port_forwarding_is_local() -> None:
    with closing(vm_kernel.Monitor()) as monitor:
        assert any("restrict=on" in word.split(",") for word in monitor.arguments)
    ports = [value for name, value in CONNECTION.items() if name.endswith("_port")]
    expected = {f"tcp:127.0.0.1:{port}-10.0.2.15:{port}" for port in ports}
    assert set(vm_kernel.forwards(CONNECTION)) == expected
    assert len(expected) == 5


@pytest.mark.needs("set-up")
def test_unbootable_kernel_is_one_sentence(tmp_path: Path) -> None:
    [_, name] = kernelspecs.install(["6.1.0-56-amd64"], tmp_path)
    file = tmp_path / "share/jupyter/kernels" / name / "kernel.json"
    spec = json.loads(file.read_text())
    spec["metadata"]["kernel_provisioner"]["config"]["where"] = "vm:9.9.9-none"
    file.write_text(json.dumps(spec))
    manager = KernelManager(kernel_name=name, kernel_spec_manager=specs(tmp_path))
    mark = tmp_path.name
    with pytest.raises(Failed, match=r"vm:9.9.9-none.*no kernel '9.9.9-none' can be booted"):
        manager.start_kernel(env={**os.environ, MARK: mark}, cwd=str(tmp_path))
    assert until(lambda: not marked(mark), 10)


def test_restart_count(capfd: pytest.CaptureFixture[str]) -> None:
    """Jupyter gives up after five restarts. The process that boots the lab VM lives long before its kernel does."""
    reads, writes = os.pipe()
    provisioner = LabProvisioner("vm:debian")
    provisioner._events = Events(reads)
    with open(writes, "wb", buffering=0) as pipe:
        pipe.write(b'{"event":"started"}\n{"event":')
        assert provisioner.get_stable_start_time(10) == float("inf")
        pipe.write(b'"ready"}\n')
        assert provisioner.get_stable_start_time(10) == 10
        pipe.write(b'{"event":"error","text":"it has ended"}\n')
    for _ in range(2):  # a kernel manager polls again and again
        assert asyncio.run(provisioner.poll()) == 0  # exit code of a missing process
    assert capfd.readouterr().err == "labkit: vm:debian: it has ended\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -ILL $$", "was ended by SIGILL: a library uses an instruction that the lab VM's CPU does not have"),
        ("echo Traceback >&2; echo ImportError: no zmq >&2; exit 1", "ended with 1: ImportError: no zmq"),
    ],
)  # fmt: skip
def test_last_words_of_a_kernel(script: str, words: str) -> None:
    kernel = process.Running(["sh", "-c", script])
    with process.all_ended([kernel]):
        assert not process.wait([kernel], time.monotonic() + 20)
        assert notebook_kernel._last_words(kernel) == f"sh {words}"


def test_boot_progress_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(vm_kernel, "PROGRESS_S", 0.02)
    monkeypatch.setattr(vm_kernel, "say", lines.append)
    with vm_kernel.boot_progress("vm:6.1") as booted:
        assert until(lambda: len(lines) >= 3, 10)
        booted.set()
        assert until(
            lambda: not any(one.name.endswith("(print_progress)") for one in threading.enumerate()), 10
        )
        count = len(lines)
        time.sleep(0.1)
        assert len(lines) == count
    assert lines[0].startswith("vm:6.1 boots")
    assert all(line.startswith("vm:6.1 is still booting (") for line in lines[1:])
