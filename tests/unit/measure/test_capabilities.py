"""What the doctor says and advises, and that it probes while programs report their versions."""

import os
from pathlib import Path
from typing import Any

import pytest
from sandbox import shell_program, until

from labkit.commands import doctor_text
from labkit.measure import capabilities
from labkit.measure.capabilities import platforms, tools
from labkit.measure.capabilities.base import LOAD, Capability
from labkit.measure.topologies.network import kinds
from labkit.system.qemu import boot


@pytest.mark.parametrize(
    ("alone", "remedy"),
    [
        (False, "as root: modprobe ip_gre"),
        (True, "labkit does not load the module ip_gre in its lab VMs"),
    ],
)
def test_no_module_is_to_be_loaded_where_nobody_can(
    alone: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability_list = [
        Capability("links", "gre", False, "missing", "no GRE", f"{LOAD}ip_gre"),
        Capability("virtual machines", "kvm", False, "missing", "slow", "boot another kernel"),
    ]
    monkeypatch.setattr(
        capabilities, "_groups", lambda _alone, _versions: [("virtual machines", lambda: capability_list)]
    )
    assert [one.remedy for one in capabilities.capabilities(alone=alone)] == [remedy, "boot another kernel"]


@pytest.fixture
def working_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a /dev/kvm in which a virtual machine can be created, and an empty cache."""
    opened = os.open

    def open_device(path: Any, *flags: Any, **given: Any) -> int:
        return opened(os.devnull if path == "/dev/kvm" else path, *flags, **given)

    def answer(_device: int, request: int, *_: Any) -> int:
        return 12 if request == platforms.KVM_GET_API_VERSION else opened(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(platforms.os, "open", open_device)
    monkeypatch.setattr(platforms.fcntl, "ioctl", answer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("working_device")
def test_doctor_shows_why_kvm_is_not_tried() -> None:
    assert platforms.kvm().available
    boot.remember_kvm_failure("qemu-system-x86_64 was ended by SIGABRT")
    seen = platforms.kvm()
    assert not seen.available
    [line] = doctor_text._line(seen, 3).splitlines()
    assert "no kernel runs in it: qemu-system-x86_64 was ended by SIGABRT" in line
    assert f"remove {boot.kvm_failure_file()}; the next lab VM then tries again" in line
    boot.kvm_failure_file().unlink()
    assert platforms.kvm().available


def test_a_kernel_that_is_new_enough_is_advised() -> None:
    """Debian's usual kernel is 6.1, and netkit came with 6.7."""
    seen = [
        Capability("link kinds", name, False, "", "", remedy)
        for name, remedy in (("netkit", kinds.remedy("netkit")), ("vlan", "boot another kernel"))
    ]
    _, line = doctor_text._summary(seen)
    newer, usual = line.split("; with ")
    assert newer.startswith("✗ with Linux 6.7 or later (")
    assert newer.endswith("): link kinds netkit")
    assert usual == "another kernel (labkit kernels get, then where=vm:debian): link kinds vlan"


def test_programs_run_while_the_kernel_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setenv("PATH", shell_program(tmp_path, "iperf3", f"echo begun >>{begun}\necho 3.17"))
    monkeypatch.setattr(tools, "TOOLS", ("iperf3",))

    def probe() -> list[Capability]:
        assert until(begun.exists, 10, 0.01)
        return []

    def groups(alone: bool, versions: Any) -> tuple[capabilities.Group, ...]:
        return (("kernel", probe), ("tools", lambda: tools.tools(versions())))

    monkeypatch.setattr(capabilities, "_groups", groups)
    result = {one.name: one for one in capabilities.capabilities()}
    assert "all" not in result, result["all"]
    assert result["iperf3"].detail == "3.17"
    assert begun.read_text() == "begun\n"
