"""Confinement of lab VMs: what a guest's root can do through the shared folder, and the rights with which QEMU runs."""

import stat
import sys
from pathlib import Path

import pytest
from qemu_machine import Machine

from labkit.measure.hosts import vm
from labkit.system.qemu import kernels, vm_spec

pytestmark = pytest.mark.needs("root", "qemu", "lab kernel")

PYTHON = "python3 -c 'import os; os.umask(0); os."
BAD = (
    "mknod disk b 8 0",
    "mknod mem c 1 1",
    "cp /bin/true suid; chmod 4755 suid",
    "cp /bin/true sgid; chmod 2755 sgid",
    f'{PYTHON}open("made", os.O_CREAT | os.O_WRONLY, 0o4777)\'',
    f'{PYTHON}mknod("made by mknod", 0o104777)\'',
    "cp /bin/true theirs; chown 1000 theirs; chmod 6755 theirs",
    "install -m 4755 /bin/true installed",
)
GOOD = "touch ordinary; chmod 640 ordinary; mkdir below && echo x > below/file && mv below/file moved; mkfifo pipe"


def _qemu(folder: Path) -> int:
    """Return the pid of the QEMU process that has its console in this folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if b"qemu-system" in words[0] and f"file:{folder}/console".encode() in words:
            return int(path.parent.name)
    raise AssertionError("QEMU does not run")


def test_guest_root_makes_no_setuid_file_or_device(lab_kernel: str, tmp_path: Path) -> None:
    where = f"vm:{lab_kernel}"
    parameters = vm_spec.parse(where)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    first = [sys.executable, str(Path(__file__).with_name("guest_init.py"))]
    with vm.started(where, parameters, kernels.find(parameters.kernel), folder, None, False, first) as guest:
        machine = Machine(guest)
        machine.greet()
        output_lines = machine.run("sh", "-c", f"cd {folder} && {GOOD}")
        assert output_lines.returncode == 0, output_lines.stderr
        for script in BAD:
            machine.run("sh", "-c", f"cd {folder} && {script}")
        result = {path.name: path.lstat().st_mode for path in folder.rglob("*")}
        assert {"ordinary", "below", "pipe", "moved", "suid", "theirs"} <= result.keys()
        assert stat.S_IMODE(result["ordinary"]) == 0o640
        for name, mode in result.items():
            assert not mode & (stat.S_ISUID | stat.S_ISGID), name
            assert stat.S_IFMT(mode) not in (stat.S_IFBLK, stat.S_IFCHR), name
        mounted = machine.run("grep", f" {folder} ", "/proc/mounts").stdout
        assert {"nodev", "nosuid"} <= set(mounted.split()[3].split(","))
        lines = Path(f"/proc/{_qemu(guest.scratch)}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65534"}
        assert status["Groups"].strip() == ""
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        machine.close()
