"""A sentence about a missing program says what is lost, and its package for the package manager of the system."""

from __future__ import annotations

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
    assert packages.missing("/usr/bin/perf") == (
        "the program /usr/bin/perf is not here (without it: no profiles and no counters on the command line):"
        " dnf install perf or pacman -S perf"
    )
    assert packages.install("ping", "ip", "nft") == (
        "dnf install iputils iproute nftables or pacman -S iputils iproute2 nftables"
    )
    assert packages.install("modprobe", "depmod") == "dnf install kmod or pacman -S kmod"
    assert packages.install("kprobe-perf").startswith("install it from source")


def test_with_apt_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    apt.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.install("ping", "ip") == "apt install iputils-ping iproute2"
    assert packages.missing("nonsense") == "the program nonsense is not here: install it"


@pytest.mark.usefixtures("without_apt")
def test_doctor_uses_the_table() -> None:
    shown = {one.name: one for one in tools.tools(dict.fromkeys(tools.TOOLS))}
    assert shown["ping"].remedy == "dnf install iputils or pacman -S iputils"
    for name in tools.TOOLS:
        assert shown[name].lost == packages.PROGRAMS[name].lost


def test_debian_names_are_those_that_setup_installs() -> None:
    ours = set(re.findall(r"^([a-z0-9.+-]+) +#", (ROOT / "packages.debian").read_text(), re.MULTILINE))
    # optional, or brought by tshark and qemu-system-x86
    ours |= {"wireshark-common", "docker.io", "podman", "crun", "virtiofsd"}
    assert {program.apt.split()[0] for program in packages.PROGRAMS.values()} <= ours


@pytest.mark.parametrize("manager", ["dnf", "pacman"])
@pytest.mark.usefixtures("without_apt")
def test_installation_page_names_the_same_packages(manager: str) -> None:
    optional = {"docker", "podman", "crun", "kprobe-perf", "unshare"}
    wanted = packages.install(*(name for name in packages.PROGRAMS if name not in optional))
    [command] = [way for way in wanted.split(" or ") if way.startswith(manager)]
    page = (ROOT / "docs/INSTALL.md").read_text()
    [line] = re.findall(rf"^sudo {re.escape(packages.MANAGERS[manager])} (.*)$", page, re.MULTILINE)
    assert set(line.split()) == set(command.removeprefix(packages.MANAGERS[manager]).split())
