"""Parameters of lab VMs and the programs that are started for them. No test boots a lab VM."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numpy._core._multiarray_umath import __cpu_baseline__

from labkit import __version__, cli
from labkit.commands import doctor
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure import hosts
from labkit.measure.hosts import vm
from labkit.system.qemu import boot, command, initramfs, vm_spec
from labkit.system.qemu.kernels import BootableKernel
from labkit.system.qemu.vm_spec import Shape


def test_vm_words_become_programs(tmp_path: Path) -> None:
    word = "vm:6.1.0-56-amd64,cpus=4,memory_mib=512,profile=tracing,append=quiet+a.b=1,modules=ipvlan+ip_gre,fresh"
    append, loaded = ("quiet", "a.b=1"), ("ipvlan", "ip_gre")
    assert vm_spec.parse(word) == Shape("6.1.0-56-amd64", 4, 512, "tracing", append, loaded, fresh=True)
    assert vm_spec.parse("vm:/boot/vmlinuz-6.1") == Shape("/boot/vmlinuz-6.1")
    # numpy does not check whether the CPU supports its baseline. An import would end by SIGILL.
    words = words_of("vm:x", tmp_path)
    model, *added = words[words.index("-cpu") + 1].split(",")
    assert model == "qemu64"
    assert __cpu_baseline__
    for level in __cpu_baseline__:  # a level that is missing in LEVELS needs a larger CPU
        assert LEVELS[level] <= set(added)
    assert "tcg,thread=multi" in words_of("vm:x", tmp_path)
    words = words_of("vm:x,profile=tracing,cpus=3,append=a=1", tmp_path)
    assert "tcg,thread=single" in words
    assert words[words.index("-smp") + 1] == "3"
    assert words[words.index("-append") + 1].endswith(" a=1")
    assert "on,obsolete=deny,elevateprivileges=deny,spawn=deny" in words
    assert not any(word.startswith("user") or "hostfwd" in word for word in words), "it must have no network"


def words_of(parameters: str, folder: Path, **more: bool) -> list[str]:
    shares = [command.Share("root", folder, True)]
    return command.argv(vm_spec.parse(parameters), folder / "vmlinuz", folder, shares, kvm=False, **more)  # type: ignore[arg-type]


# What each of the x86-64 psABI's levels adds. QEMU's qemu64 has sse3, cx16 and lahf_lm of the second level.
LEVELS = {"X86_V2": {"+ssse3", "+sse4.1", "+sse4.2", "+popcnt"}}


def modules(folder: Path, dependencies: dict[str, str], builtin: str = "") -> Path:
    folder = folder / "lib/modules/9.9-test"
    (folder / "kernel").mkdir(parents=True)
    for name in dependencies:
        (folder / name).write_bytes(b"\x7fELF " + name.encode())
    lines = [f"{name}: {needs}\n" for name, needs in dependencies.items()]
    (folder / "modules.dep").write_text("".join(lines))
    (folder / "modules.builtin").write_text(builtin)
    return folder


def test_module_order(tmp_path: Path) -> None:
    needs = {"kernel/a-b.ko": "kernel/c.ko kernel/d.ko", "kernel/c.ko": "kernel/d.ko", "kernel/d.ko": ""}
    made = modules(tmp_path, needs, "kernel/built.ko\n")
    order = initramfs.load_order(made, ["built", "a_b", "c"])
    assert [path.name for path in order] == ["d.ko", "c.ko", "a-b.ko"]
    with pytest.raises(Unsupported, match=r"9\.9-test has no module gone"):
        initramfs.load_order(made, ["gone"])


@pytest.mark.needs("busybox")
def test_initramfs_format(tmp_path: Path) -> None:
    """The test uses busybox's cpio, which is in the initramfs, instead of GNU cpio."""
    names = {f"kernel/{name}.ko": "" for name in vm.MODULES}
    kernel = BootableKernel("9.9-test", tmp_path / "vmlinuz", modules(tmp_path, names), "file")
    folder = Path("/with space/and 'quote'")
    content = vm.packed(kernel, folder, {"PATH": "/bin", "A": "b c;reboot"}, ["python", "-m", "x y"])
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["busybox", "cpio", "-idm"], input=content, cwd=unpacked, check=True, capture_output=True)
    assert (unpacked / "modules/virtiofs.ko").read_bytes() == b"\x7fELF kernel/virtiofs.ko"
    assert (unpacked / "bin/busybox").stat().st_mode & 0o111
    script = (unpacked / "init").read_text()
    subprocess.run(["busybox", "sh", "-n", unpacked / "init"], check=True)
    assert "export A='b c;reboot'" in script
    assert "python -m 'x y'" in script
    assert script.index("insmod /modules/virtio_pci") < script.index("mount -t virtiofs -o ro root /lower")


def test_hung_kvm_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(boot, "KVM", tmp_path / "kvm")
    monkeypatch.setattr(boot, "USER_SPACE_S", 0.1)
    assert not boot.kvm_worth_trying()
    (tmp_path / "kvm").touch()
    assert boot.kvm_worth_trying()
    console = tmp_path / "console"
    console.write_text(f"BIOS\r\n{boot.FIRST_WORDS}\r\n")
    guest = vm.LabVm("vm:x", tmp_path, None)
    guest.check_kvm()
    console.write_text("BIOS\r\n")
    with pytest.raises(Failed, match="KVM does not work here"):
        guest.check_kvm()
    assert boot.kvm_worth_trying()
    assert boot.kvm_failure() is None
    boot.remember_kvm_failure("it ended with SIGABRT:\nout of luck")
    assert not boot.kvm_worth_trying()
    assert boot.kvm_failure() == "it ended with SIGABRT: out of luck"


def test_aborted_kvm_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    works = {False: True, True: False}

    @contextmanager
    def attempt(accelerated: bool) -> Iterator[str]:
        if not works[accelerated]:
            raise Failed("qemu was ended by SIGABRT")
        yield "guest"

    report: list[str] = []
    monkeypatch.setattr(boot, "kvm_worth_trying", lambda: True)
    monkeypatch.setattr(boot, "remember_kvm_failure", report.append)
    assert boot.boot_twice(ExitStack(), attempt, boot.BootTimeout) == "guest"
    assert report == ["qemu was ended by SIGABRT"]
    works[False] = False
    with pytest.raises(Failed):
        boot.boot_twice(ExitStack(), attempt, boot.BootTimeout)
    assert len(report) == 1, "where emulation fails as well, KVM is not to blame"


def test_slow_boot_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot of two minutes without a word looks like a hang."""
    monkeypatch.setattr(vm, "REPORT_S", 0.1)
    report: list[str] = []
    guest = vm.LabVm("vm:x", tmp_path, None)
    with pytest.raises(Failed, match="did not boot in time"):
        vm.VmConversation(guest, time.monotonic() + 0.35, report.append)
    assert 1 <= len(report) <= 4
    assert report[0].endswith("its console is still empty")
    (tmp_path / "console").write_text("early console\r\nBooting the kernel.\r\n")
    with pytest.raises(Failed, match="did not boot in time"):
        vm.VmConversation(guest, time.monotonic() + 0.35, report.append)
    assert report[-1].endswith("the last line of its console: Booting the kernel.")


class Holder:
    """The process that holds a lab VM, which will be killed."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()

    def fileno(self) -> int:
        return self._reads

    def lines(self) -> list[bytes]:
        return [b'{"event":"ended","text":"QEMU was ended by SIGKILL"}']

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)


@pytest.mark.parametrize(
    ("is_silent", "reason"),
    [
        (False, "ended together with its lab VM: QEMU was ended by SIGKILL"),
        (True, "was silent for 1 s: its lab VM hangs"),
    ],
)
def test_process_ends_together_with_its_lab_vm(
    is_silent: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "SILENCE_S", 1.0)
    holder: Any = Holder()
    left = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "channel"))
        listener.listen()

        def greet_and_end() -> None:
            with listener.accept()[0] as port:
                port.sendall(f'{{"event":"hello","labkit":"{__version__}","problem":null}}\n'.encode())
                if is_silent:
                    left.wait(30)

        guest = threading.Thread(target=greet_and_end)
        guest.start()
        try:
            there = vm.LabVm("vm:x", tmp_path, None, holder)
            conversation = vm.VmConversation(there, time.monotonic() + 30)
            assert list(conversation.lines()) == []
            assert conversation.end_reason() == reason
            assert there.suspect()
            conversation.end()
        finally:
            left.set()
            guest.join()
            holder.close()


def test_fresh_lab_vm_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One boot serves all requests for the same lab VM, but each request boots one that is `fresh`."""
    boots: list[str] = []

    def booted(_stack: ExitStack, where: str, folder: Path, *_more: object) -> tuple[object, object]:
        boots.append(where)
        (tmp_path / "channel").touch()
        return vm.LabVm(where, tmp_path, folder), SimpleNamespace(end=lambda: None)

    monkeypatch.setattr(vm, "booted", booted)
    monkeypatch.setattr(vm.local, "measuring_lock", lambda _say: nullcontext())
    with vm.leasing(tmp_path, print) as lease:
        for where, is_shared in (("vm:x", True), ("vm:x", True), ("vm:x,fresh", False)):
            assert not lease(where)
            assert (vm._find_lease(where, str(tmp_path)) is not None) == is_shared
    assert boots == ["vm:x"]


def test_corrupt_image_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("XZ-compressed data is corrupt\r\n\r\n -- System halted")
    with pytest.raises(Failed, match="its image cannot be unpacked: XZ-compressed data is corrupt"):
        vm.VmConversation(vm.LabVm("vm:x", tmp_path, None), time.monotonic() + 60)


PANIC = "Kernel panic - not syncing: Attempted to kill init!"


def test_last_words_of_the_console(tmp_path: Path) -> None:
    machine = boot.Machine("the guest", tmp_path)
    assert machine.last_words() == ""  # there is no console yet
    for console, words in (
        ("", ""),
        ("[ 0.1] one\r\n[ 2.2] two\r\n\r\n", "two"),
        ("\x1bc\x1b[?7l[    0.1] one\r\n[ 2.2] Oops: 0002\r\n[ 3.0] end of it\r\n", "Oops: 0002"),
        (f"init: no /proc\n[ 2.2][    T1] {PANIC}\n[ 3.0] Oops\n", f"init: no /proc; {PANIC}"),
        ("x" * 300, "x" * 200),
        (
            "[ 9.1] RIP: 0010:skb_put+0x4/0x9\n[ 9.2] RIP: 0033:0x7f\n[ 9.3] Kernel panic - not syncing: Fatal",
            "RIP: 0010:skb_put+0x4/0x9; Kernel panic - not syncing: Fatal",
        ),
    ):
        machine.console.write_bytes(console.encode())
        assert machine.last_words() == (words and f"; the console's last line: {words}")


def test_doctor_in_a_lab_vm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules may stay loaded there, and one thread for all CPUs can safely arm tracers."""
    parameters: list[object] = []

    def ask(where: str, request: dict[str, object], say: object) -> object:
        parameters.append((where, request))
        raise Unsupported("no answer")

    monkeypatch.setattr(doctor.running, "ask", ask)
    for where in ("vm:debian", "vm:debian,profile=traffic", "here"):
        assert cli.main(["doctor", "--where", where]) == 2
    alone = {"do": "doctor", "alone": True}
    expected = [("vm:debian,profile=tracing", alone), ("vm:debian,profile=traffic", alone)]
    assert parameters == [*expected, ("here", {"do": "doctor"})]


def test_tracing_with_several_emulated_cpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "kvm_worth_trying", lambda: False)
    with pytest.raises(BadInput, match="profile=tracing"):
        hosts.check_tracing("vm:debian")
    for where in ("here", "ssh:other", "vm:debian,profile=tracing", "vm:debian,cpus=1"):
        hosts.check_tracing(where)
    monkeypatch.setattr(boot, "kvm_worth_trying", lambda: True)
    hosts.check_tracing("vm:debian")


def test_clock_rate_is_stable_and_plausible() -> None:
    text = Path("/proc/cpuinfo").read_text()
    rates = [command.tsc_khz(), command.tsc_khz()]
    if "constant_tsc" not in text:
        assert rates == [None, None]
        return
    one, other = (rate for rate in rates if rate is not None)
    assert one == pytest.approx(other, rel=1e-3)
    assert 5e5 < one < 1e7  # 0.5 to 10 GHz
