"""Parameters of guests and the files they boot with. No test boots a guest."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints.guest import initramfs, qemu_guest
from labkit.measure.endpoints.guest.spec import GuestAdditions, Nic, parse
from labkit.measure.experiments import DatapathParameters
from labkit.measure.traffic import socket_loops
from labkit.system import process
from labkit.system.qemu import boot
from labkit.system.qemu.kernels import BootableKernel
from studies.requests.experiment import Requests

NEIGHBOUR = ("fd00::2:1", "02:00:00:00:00:01")
NIC = Nic("client0", [7, 8], 9000, "fd00::1:1/64", "02:00:00:00:00:00", [NEIGHBOUR])
# All that it needs is built in.
KERNEL = BootableKernel("9.9-test", Path("/boot/vmlinuz-9.9-test"), None, "file")


def test_guest_words_become_options() -> None:
    parameters = parse("debian,cpus=2,queues=2,offloads=off,vhost=off,programs=perf+tc,boot_s=9,append=a=1")
    machine = parameters.machine
    assert (machine.kernel, machine.cpus, machine.append) == ("debian", 2, ("a=1",))
    assert (parameters.queues, parameters.offloads, parameters.vhost) == (2, False, "off")
    assert (parameters.programs, parameters.boot_s) == (("perf", "tc"), 9)
    assert parse("debian") == parse("debian,cpus=1,queues=1,offloads=on,vhost=auto")
    for endpoint, pairs in (("guest", (17,)), ("shared_guest", (1, 16))):  # 16 pairs share at most 64 CPUs
        given = {"endpoint": endpoint, "guest": "debian,cpus=2", "pairs": [*pairs]}
        assert DatapathParameters.of(given).pairs == pairs
    for cpu in (0, 3, 63):  # on a machine with any number of CPUs
        words = {"endpoint": "guest", "guest": "debian,cpus=64", "affinity": f"{cpu}"}
        assert DatapathParameters.of(words).affinity == f"{cpu}"
    words = qemu_guest.nic_words(parse("debian,cpus=2,queues=2,offloads=off"), NIC, vhost=True)
    assert words[1] == "tap,id=nic,fds=7:8,vhost=on"
    assert "mq=on,vectors=6" in words[3]
    assert "guest_tso4=off" in words[3]
    assert "host_mtu=9000" in words[3]
    assert "=off" not in qemu_guest.nic_words(parse("debian"), NIC, vhost=False)[3]
    assert GuestAdditions(32).of(parse("debian,cpus=2")).machine.cpus == 64


def test_boot_timeout_shows_the_console(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("[    1.2] one\n[    2.3] waiting for nothing\n")
    program = process.Running(["sleep", "100"])
    with process.all_ended([program]):
        late = qemu_guest.QemuGuest("client0", tmp_path, program, {})
        with pytest.raises(
            boot.BootTimeout, match=r"client0 did not boot in time; .*last line: waiting for nothing"
        ):
            late.greet(time.monotonic() - 1)
        program.kill()
        program.ended()
        with pytest.raises(
            Failed, match=r"client0 did not boot: sleep was ended by SIGKILL; .*waiting for nothing"
        ):
            late.greet(time.monotonic() + 60)


def test_early_qemu_exit_is_not_a_kvm_failure(tmp_path: Path) -> None:
    program = process.Running(["sh", "-c", "echo no such CPU >&2; exit 1"])
    with process.all_ended([program]):
        dead = qemu_guest.QemuGuest("client0", tmp_path, program, {})
        with pytest.raises(Failed, match="client0 did not boot: sh ended with 1: no such CPU"):
            dead.check_kvm()


@pytest.mark.needs("busybox")
def test_guest_files_are_complete(tmp_path: Path) -> None:
    """The unpacked files contain all that Python and the programs need: `inside` runs with them as its root."""
    for content in (initramfs.packed(KERNEL, ()), initramfs.own(NIC, KERNEL, (), 16)):
        subprocess.run(
            ["busybox", "cpio", "-idmu"], input=content, cwd=tmp_path, check=True, capture_output=True
        )
    subprocess.run(["busybox", "sh", "-n", tmp_path / "init"], check=True)
    script = (tmp_path / "init").read_text()
    assert "ip address add fd00::1:1/64 dev eth0 nodad" in script
    assert "disable_ipv6" not in script
    assert (tmp_path / "bin/cat").is_symlink()
    with pytest.raises(BadInput, match="the program no-such-program is not installed"):
        initramfs.packed(KERNEL, ("no-such-program",))


def test_guests_have_the_files_of_their_loads() -> None:
    for given, names in (
        ({"protocol": "ping"}, []),
        ({"protocol": "tcp_crr"}, ["socket_loops.py"]),
        ({"protocol": "udp_rr", "generator": "sockets"}, ["socket_loops.py"]),
    ):
        parameters = DatapathParameters.of({"endpoint": "guest", **given})
        assert [Path(one).name for one in parameters.spec(1, None).guest_files] == names
    several = Requests.of({"endpoint": "guest", "topology": "veth_bridge", "loads": "tcp,udp_rr,tcp_crr"})
    assert [Path(one).name for one in several.spec(1, None).guest_files] == ["socket_loops.py"]


@pytest.mark.needs("busybox", "root")
def test_sockets_run_with_the_files_of_a_guest(tmp_path: Path) -> None:
    content = initramfs.packed(KERNEL, (), (socket_loops.__file__,))
    unpack = ["busybox", "cpio", "-idmu"]
    subprocess.run(unpack, input=content, cwd=tmp_path, check=True, capture_output=True)
    sizes = {"length_bytes": 1, "response_bytes": 1, "count": 1}
    request = {"serves": True, "protocol": "tcp_crr", "address": "192.0.2.1", "port": 5201, **sizes}
    words = [
        *initramfs.command(socket_loops.__file__),
        json.dumps({**request, "socket": {}, "congestion": None}),
    ]
    ended = subprocess.run(["chroot", tmp_path, *words], capture_output=True, text=True)
    assert ended.stderr == "Cannot assign requested address\n"  # nobody has this address
