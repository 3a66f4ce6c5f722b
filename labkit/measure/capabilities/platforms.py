"""Try Open vSwitch, lab VMs, KVM, huge pages and privileges."""

import errno
import fcntl
import mmap
import os
import re
import resource
import shutil
from contextlib import closing
from pathlib import Path

from labkit.common import packages
from labkit.common.errors import Unsupported
from labkit.common.privileges import CAP_NET_ADMIN, CAP_SYS_ADMIN, is_capable
from labkit.common.safe_files import closed
from labkit.measure.capabilities.base import (
    AS_ROOT,
    DENIED,
    UNKNOWN,
    Capability,
    Probe,
    Remedy,
    attempt,
    kernel_with,
    refused,
)
from labkit.measure.topologies.open_vswitch import dpdk
from labkit.system import machine, netlink, process
from labkit.system.netlink import ethtool
from labkit.system.qemu import boot, kernels

KVM_GET_API_VERSION, KVM_CREATE_VM = 0xAE00, 0xAE01  # linux/kvm.h
MAP_HUGETLB = 0x40000  # asm-generic/mman.h
SEES = "a guest sees the files that this user may read, read-only; it can write into the run's folder only"
ENOUGH_FILES = 4096  # for 128 pairs of four topologies: two per namespace, three per program


def open_vswitch(version: str | None) -> list[Capability]:
    """Try the kernel datapath; the userspace datapath is available if ovs-vswitchd (`version`) is installed."""

    def kernel() -> None:
        with closing(netlink.Netlink(ethtool.NETLINK_GENERIC)) as asked:
            try:
                ethtool.family(asked, "ovs_datapath")  # which loads its module
            except netlink.LinkError as error:
                raise refused(error.errno, UNKNOWN if error.errno == errno.ENOENT else None) from None

    lost = "Open vSwitch cannot switch in the kernel, only in user space, several times slower"
    result = [
        attempt("Open vSwitch", "kernel datapath", kernel, lost, lambda number: kernel_with("OPENVSWITCH"))
    ]
    lost = packages.PROGRAMS["ovs-vswitchd"].without_it
    remedy = f"{packages.install('ovs-vswitchd')}; its service need not run"
    gone = (None, None) if version else (lost, remedy)
    detail = f"ovs-vswitchd {version}" if version else "ovs-vswitchd is not installed"
    result.append(Capability("Open vSwitch", "userspace datapath", version is not None, detail, *gone))
    try:
        with_dpdk = Capability("Open vSwitch", "DPDK", True, f"without huge pages: {dpdk.program()}")
    except Unsupported:
        absent = "no ovs-vswitchd here has DPDK"
        with_dpdk = Capability("Open vSwitch", "DPDK", False, absent, "no topology ovs_dpdk", dpdk.REMEDY)
    return [*result, with_dpdk]


def lab_vm() -> Capability:
    """Return whether the programs and a readable kernel exist; no lab VM is booted for this."""
    needed = ("qemu-system-x86_64", "virtiofsd", "modprobe")
    missing = [name for name in needed if shutil.which(machine.program(name)) is None]
    if not (shutil.which("busybox-static") or shutil.which("busybox")):
        missing.append("busybox")
    there = [each.release for each in kernels.installed() if os.access(each.image, os.R_OK)]
    if there and not missing:
        booted = f"boots Linux {', '.join(there)}"
        return Capability("virtual machines", "lab VM", True, f"{booted}; {SEES}")
    lacks = [*missing, *([] if there else ["a kernel to boot"])]
    remedies = [packages.install(*missing)] if missing else []
    remedies += [] if there else ["`labkit kernels get`"]
    lost = "experiments and notebooks run on this kernel only (no where=vm:KERNEL)"
    return Capability(
        "virtual machines", "lab VM", False, f"missing: {', '.join(lacks)}", lost, " and ".join(remedies)
    )


def kvm() -> Capability:
    """Create a virtual machine without a CPU; include the result of the first lab VM."""
    hung = boot.kvm_failure_file()

    def probe() -> str:
        with closed(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)) as device:
            if fcntl.ioctl(device, KVM_GET_API_VERSION, 0) != 12:
                raise refused(errno.ENOSYS, "its API is not version 12")
            os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
        if why := boot.kvm_failure():
            raise refused(
                errno.ETIMEDOUT, f"a virtual machine can be created, but no kernel runs in it: {why}"
            )
        return "a virtual machine can be created; only booting a guest proves that one runs"

    def remedy(number: int) -> str:
        if number == errno.ETIMEDOUT:
            return f"remove {hung}; the next lab VM then tries again"
        if number in DENIED:
            return "join the group kvm (as root: usermod -aG kvm USER), or run as root"
        if machine.describe()["accelerator"] == "none":
            return "switch virtualization on in the firmware, and load kvm_intel or kvm_amd"
        return "enable nested virtualization on the host of this virtual machine, or use a physical machine"

    return attempt(
        "virtual machines", "KVM", probe, "guests are emulated (TCG), several times slower", remedy
    )


def hugepages() -> Capability:
    """Reserve and release one huge page."""

    def probe() -> str:
        text = Path("/proc/meminfo").read_text()
        size = re.search(r"Hugepagesize:\s+(\d+) kB", text)
        if size is None:
            raise refused(errno.ENOSYS, "this kernel has no huge pages")
        try:
            mmap.mmap(-1, int(size[1]) * 1024, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB).close()
        except OSError as error:
            words = "none is free" if error.errno == errno.ENOMEM else None
            raise refused(error.errno or 0, words) from None
        free = re.search(r"HugePages_Free:\s+(\d+)", text)
        return f"{free[1] if free else '?'} of {size[1]} kB are free"

    def remedy(number: int) -> str:
        if number == errno.ENOSYS:
            return kernel_with("HUGETLBFS")
        return "as root: sysctl vm.nr_hugepages=512, best at boot, before memory is fragmented"

    lost = "DPDK and TRex run only without huge pages, with more TLB misses"
    return attempt("virtual machines", "hugepages", probe, lost, remedy)


def privilege() -> list[Capability]:
    """Try the privileges of this process and what depends on them."""
    tried: tuple[tuple[str, Probe, str, Remedy], ...] = (
        ("root", _root, "no machine-wide profiles, tracers, BPF, or sysctls of the machine", AS_ROOT),
        (
            "user namespaces", _user_namespace, "without root labkit cannot run on this machine",
            _user_namespace_remedy,
        ),
        (
            "network namespaces", _namespace, "nothing can be measured: every experiment runs in its own namespaces",
            "run as root, or allow user namespaces",
        ),
        (
            "NIC as parent", _nic,
            "macvlan and ipvlan can be put on a veth only, not on a NIC of the machine (parent=NIC)",
            AS_ROOT,
        ),
        (
            "all of the CPUs", _quota, "what is measured is the quota of this cgroup, not the datapath alone",
            "raise cpu.max of the cgroup, or leave it",
        ),
        (
            "open files", _open_files, "128 pairs at once fail for lack of file descriptors",
            f"as root: raise the hard limit of open files to {ENOUGH_FILES} or more (ulimit -Hn, LimitNOFILE=)",
        ),
    )  # fmt: skip
    return [attempt("privilege", *each) for each in tried]


def _quota() -> str:
    allowed = machine.quota_cpus()
    if allowed is not None and allowed < (os.cpu_count() or 1):
        raise refused(errno.EDQUOT, f"a quota allows {allowed:.3g} of {os.cpu_count()} CPUs")
    return "no quota"


def _root() -> str | None:
    if not is_capable(CAP_SYS_ADMIN):
        raise refused(
            errno.EPERM, "uid 0 in a user namespace only" if os.geteuid() == 0 else "an ordinary user"
        )
    return None


def _user_namespace() -> str | None:
    ended = process.run(["unshare", "--user", "--map-root-user", "true"])
    if ended.returncode != 0:
        raise refused(errno.EPERM, ended.message())
    return "for root; other users may still be restricted" if is_capable(CAP_SYS_ADMIN) else None


def _user_namespace_remedy(number: int) -> str:
    for name, value in (
        ("kernel.unprivileged_userns_clone", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
    ):
        path = Path("/proc/sys", *name.split("."))
        if path.exists() and path.read_text().strip() != value:
            return f"as root: sysctl {name}={value}"
    return "as root: sysctl user.max_user_namespaces=10000"


def _namespace() -> None:
    try:
        [(descriptor, made)] = netlink.new_namespaces(1)
    except netlink.LinkError as error:
        raise refused(error.errno) from None
    made.close()
    os.close(descriptor)


def _nic() -> None:
    if not (is_capable(CAP_NET_ADMIN) and is_capable(CAP_SYS_ADMIN)):
        raise refused(errno.EPERM)


def _open_files() -> str:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    text = f"{hard} at most" if hard != resource.RLIM_INFINITY else "no limit"
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        raise refused(errno.EMFILE, text)
    return text
