"""What tests may need of a machine, and the one way to skip when it is not there.

In a test `need("iperf3", "macvlan")` (a fixture), or for a whole test, class or module `@pytest.mark.needs("iperf3")`.
A need that this machine does not meet skips the test with a sentence. The environment variable LABKIT_NO_SKIP turns
such skips into failures: "1" for all needs, or a comma-separated list of those that this machine must meet.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
AS_ROOT = os.geteuid() == 0
IN_A_NAMESPACE = ["unshare", "--net"] if AS_ROOT else ["unshare", "--user", "--map-root-user", "--net"]

Need = Callable[..., None]


def works(*argv: str, stdin: str = "") -> bool:
    """Tell if a program is there and ends well within a minute (a browser's first start is slow)."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def link(kind: str, *links: str) -> tuple[Callable[[], bool], str]:
    """The need for a kind of link, tried in a namespace that is thrown away. Links are what follows `ip link add`."""
    lines = "".join(f"link add {each}\n" for each in links)
    why = (
        f"no {kind} link can be made: the kernel has none (CONFIG_{kind.upper()}), or this user no namespace"
    )
    return lambda: works(*IN_A_NAMESPACE, "ip", "-batch", "-", stdin=lines), why


@functools.cache
def kernel(flavour: str) -> str | None:
    """The release of Debian's newest kernel of a flavour ("cloud", or "" for everything), fetched where it is not
    there; without a network the newest one that is there; None where there is none."""
    from labkit.common.errors import LabkitError
    from labkit.measure.hosts import debian_kernels
    from labkit.system.qemu import kernels

    try:
        return debian_kernels.get(flavour or debian_kernels.ARCHITECTURE, print).release
    except LabkitError:
        wanted = f"{flavour}-{debian_kernels.ARCHITECTURE}".removeprefix("-")
        there = [each for each in kernels.installed() if kernels.flavour(each.release) == wanted]
        return there[-1].release if there else None


def lists_can_be_fetched() -> bool:
    """Tell if apt's sources answer, with lists that are thrown away."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"Dir::State::Lists={scratch}", f"Dir::Cache={scratch}", "APT::Update::Error-Mode=any"]
        (Path(scratch) / "partial").mkdir()
        return works("apt-get", *(word for each in options for word in ("-o", each)), "update")


def ovs_in_kernel() -> bool:
    """Tell if this kernel has the datapath of Open vSwitch."""
    from labkit.measure.capabilities import genetlink

    return genetlink.generic_family("ovs_datapath") == 0


VETH = "name one type veth peer name two"
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: AS_ROOT, "this user is not root"),
    "namespaces": (lambda: works(*IN_A_NAMESPACE, "true"), "unshare cannot make a network namespace here"),
    "user namespaces": (
        lambda: works("unshare", "--user", "--map-root-user", "--net", "true"),
        "unshare cannot make a user namespace here",
    ),
    "iperf3": (lambda: works("iperf3", "--version"), "there is no iperf3 (Debian package iperf3)"),
    "ip": (lambda: works("ip", "-V"), "there is no ip (Debian package iproute2)"),
    "ping": (lambda: works("ping", "-V"), "there is no ping (Debian package iputils-ping)"),
    "ethtool": (lambda: works("ethtool", "--version"), "there is no ethtool (Debian package ethtool)"),
    "tcpdump": (lambda: works("tcpdump", "--version"), "there is no tcpdump (Debian package tcpdump)"),
    "tshark": (lambda: works("tshark", "--version"), "there is no tshark (Debian package tshark)"),
    "jq": (lambda: works("jq", "--version"), "there is no jq (Debian package jq)"),
    "nft": (lambda: works("nft", "--version"), "there is no nft (Debian package nftables)"),
    "perf": (
        lambda: works("perf", "stat", "--all-cpus", "-e", "cpu-clock", "true"),
        "there is no perf (Debian package linux-perf), or this user may not watch the whole machine",
    ),
    "bpftrace": (lambda: works("bpftrace", "--version"), "there is no bpftrace (Debian package bpftrace)"),
    "perf-tools": (
        lambda: Path("/usr/sbin/funcgraph-perf").exists(),
        "there are no perf-tools (Debian package perf-tools-unstable)",
    ),
    "sshd": (
        lambda: works("ssh", "-V") and Path("/usr/sbin/sshd").exists(),
        "there is no sshd (Debian package openssh-server)",
    ),
    "chromium": (lambda: works("chromium", "--version"), "there is no browser (Debian package chromium)"),
    "veth": link("veth", VETH),
    "bridge": link("bridge", "name one type bridge"),
    "macvlan": link("macvlan", VETH, "name three link one type macvlan"),
    "ipvlan": link("ipvlan", VETH, "name three link one type ipvlan"),
    "vxlan": link("vxlan", "name one type vxlan id 1 dstport 4789"),
    "geneve": link("geneve", "name one type geneve id 1 remote 192.0.2.1"),
    "gre": link("net_ipgre", "name one type gre local 192.0.2.1 remote 192.0.2.2"),
    "ipip": link("net_ipip", "name one type ipip local 192.0.2.1 remote 192.0.2.2"),
    "tap": (
        lambda: works(*IN_A_NAMESPACE, "ip", "tuntap", "add", "name", "one", "mode", "tap"),
        "no tap can be made: the kernel has none (CONFIG_TUN), or /dev/net/tun is not for this user",
    ),
    "openvswitch": (
        lambda: works("ovs-vswitchd", "--version"),
        "there is no Open vSwitch (Debian package openvswitch-switch)",
    ),
    "ovs kernel": (ovs_in_kernel, "this kernel has no Open vSwitch datapath (CONFIG_OPENVSWITCH)"),
    "runc": (lambda: works("runc", "--version"), "there is no runc (Debian package runc)"),
    "apt": (lists_can_be_fetched, "there is no apt here, or its sources do not answer"),
    "depmod": (
        lambda: works("/usr/sbin/depmod", "--version"),
        "there is no depmod (Debian package kmod)",
    ),
    "qemu": (
        lambda: works("qemu-system-x86_64", "--version"),
        "there is no QEMU (Debian package qemu-system-x86)",
    ),
    "busybox": (lambda: works("busybox", "true"), "there is no busybox (Debian package busybox-static)"),
    "lab kernel": (
        lambda: kernel("cloud") is not None,
        "Debian's cloud kernel is not here (`labkit kernels get cloud`)",
    ),
    "full kernel": (lambda: kernel("") is not None, "Debian's kernel is not here (`labkit kernels get`)"),
    "git": (lambda: works("git", "rev-parse"), "these files are not in a git work tree, or git refuses it"),
    "set-up": (lambda: Path(sys.prefix) == ROOT / ".venv", "this Python is not that of `make setup`"),
}


@functools.cache
def met(name: str) -> bool:
    if name not in NEEDS:
        raise LookupError(f"no need is called {name!r}; there are {', '.join(NEEDS)}")
    return NEEDS[name][0]()


def require(*names: str) -> None:
    """Go on if this machine meets all these needs; skip otherwise, or fail where LABKIT_NO_SKIP forbids to skip."""
    must = os.environ.get("LABKIT_NO_SKIP", "").split(",")
    for name in names:
        if met(name):
            continue
        sentence = f"needs {name}: {NEEDS[name][1]}"
        if name in must or "1" in must:
            pytest.fail(f"{sentence}, and LABKIT_NO_SKIP says that this machine must meet it", pytrace=False)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def need() -> Need:
    return require


@pytest.fixture(scope="session")
def lab_kernel() -> str:
    """The release of a small kernel that a lab VM boots quickly."""
    require("qemu", "lab kernel")
    return str(kernel("cloud"))


@pytest.fixture(scope="session")
def full_kernel() -> str:
    """The release of a kernel with everything."""
    require("qemu", "full kernel")
    return str(kernel(""))


@pytest.fixture(autouse=True)
def _needs_of_mark(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("needs"):
        require(*mark.args)
