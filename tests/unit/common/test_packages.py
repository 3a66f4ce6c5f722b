"""A sentence about a missing program says what is lost, and its package for the package manager of the system."""

import platform
import re
from pathlib import Path

import pytest
from conftest import ROOT

from labkit.common import packages
from labkit.measure.capabilities import tools


@pytest.fixture
def without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("without_apt")
def test_without_apt_two_package_managers_are_named() -> None:
    missing = packages.missing("/usr/bin/perf")
    assert missing.startswith("the program /usr/bin/perf is not installed (without it: no profiles (observe=")
    assert missing.endswith("): dnf install perf or pacman -S perf")
    shown = {one.name: one for one in tools.tools(dict.fromkeys(tools.TOOLS))}  # as the doctor shows them
    assert shown["ping"].remedy == "dnf install iputils or pacman -S iputils"
    assert all(shown[name].lost == packages.PROGRAMS[name].without_it for name in tools.TOOLS)
    assert packages.install("ping", "ip", "nft") == (
        "dnf install iputils iproute nftables or pacman -S iputils iproute2 nftables"
    )
    assert packages.install("modprobe", "depmod") == "dnf install kmod or pacman -S kmod"
    assert packages.install("kprobe-perf").startswith("install kprobe-perf from source")


def test_with_apt_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    apt.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.install("ping", "ip") == "apt install iputils-ping iproute2"
    assert packages.missing("nonsense") == "the program nonsense is not installed: install it"


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, "qemu-system-common"),
        ({"ID": "debian"}, "virtiofsd"),  # testing has no number
        ({"ID": "ubuntu", "VERSION_ID": "22.04"}, "qemu-system-common"),
        (None, "virtiofsd"),
    ],
)
def test_package_of_virtiofsd_is_that_of_the_release(
    system: dict[str, str] | None, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release() -> dict[str, str]:
        if system is None:
            raise OSError
        return system

    (tmp_path / "apt-get").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "freedesktop_os_release", release)
    assert packages.install("virtiofsd", "modprobe") == f"apt install {package} kmod"


def test_names_are_those_of_debian_and_of_shells() -> None:
    words = [
        word for program in packages.PROGRAMS.values() for word in (program.apt, program.dnf, program.pacman)
    ]
    words += [package for _, package in packages.EARLIER.values()]
    assert all(re.fullmatch(r"[a-z0-9.+-]*", word) for word in words if word is not None)
    ours = set(re.findall(r"^([a-z0-9.+-]+) +#", (ROOT / "packages.debian").read_text(), re.MULTILINE))
    # optional, or brought by tshark and qemu-system-x86
    ours |= {"wireshark-common", "docker.io", "podman", "crun", "virtiofsd"}
    assert {program.apt for program in packages.PROGRAMS.values()} <= ours


@pytest.mark.parametrize("manager", ["dnf", "pacman"])
@pytest.mark.usefixtures("without_apt")
def test_installation_page_names_the_same_packages(manager: str) -> None:
    optional = [
        "docker",
        "podman",
        "crun",
        "kprobe-perf",
        "rootlesskit",
        "sockperf",
        "nginx",
        "wrk",
        "unshare",
    ]
    wanted = packages.install(*(name for name in packages.PROGRAMS if name not in optional))
    [command] = [way for way in wanted.split(" or ") if way.startswith(manager)]
    page = (ROOT / "docs/INSTALL.md").read_text()
    [line] = re.findall(rf"^sudo {re.escape(packages.MANAGERS[manager])} (.*)$", page, re.MULTILINE)
    assert set(line.split()) == set(command.removeprefix(packages.MANAGERS[manager]).split())
