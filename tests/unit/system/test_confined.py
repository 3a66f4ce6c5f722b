"""QEMU and the server of a guest's folder run without unneeded rights."""

import os
import stat
import sys
from pathlib import Path

import pytest
from conftest import Need

from labkit.system import process
from labkit.system.qemu import command, confined

TRIES = """
import os, stat, sys
from labkit.system.qemu import confined
os.umask(0)
confined.forbid_setuid_files()
os.chdir(sys.argv[1])
def tried(name, do):
    try:
        do()
        print(name, "done")
    except PermissionError:
        print(name, "refused")
open("file", "w").close()
for bits in (0o4755, 0o2755, 0o6000, 0o1644, 0o755):
    tried(f"chmod {bits:o}", lambda: os.chmod("file", bits))
    tried(f"open {bits:o}", lambda: os.open(f"open{bits:o}", os.O_CREAT | os.O_WRONLY, bits))
    tried(f"mknod {bits:o}", lambda: os.mknod(f"mknod{bits:o}", stat.S_IFREG | bits))
    tried(f"fchmod {bits:o}", lambda: os.chmod(os.open("file", os.O_RDONLY), bits))
"""


def test_setuid_files_are_refused(tmp_path: Path) -> None:
    lines = process.output(process.python("-c", TRIES, str(tmp_path))).splitlines()
    assert len(lines) == 20
    for line in lines:
        _, bits, word = line.split()
        assert word == ("refused" if int(bits, 8) & 0o6000 else "done"), line
    assert not [path for path in tmp_path.iterdir() if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


def test_file_server_makes_no_device_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"):
        monkeypatch.setattr(command.machine, "program", lambda _, path=path: path)
        words = command.virtiofsd(command.Share("folder", Path("/f"), False), Path("/s"))
        assert "modcaps=-mknod:-setfcap:-fsetid" in " ".join(words)


def test_qemu_user(tmp_path: Path, need: Need) -> None:
    need("root")
    device = tmp_path / "kvm"
    device.touch()
    for mode, group in ((0o666, confined.NOBODY), (0o660, confined.NOBODY), (0o600, None)):
        device.chmod(mode)
        assert confined.confinement([device]).group == group
    for devices in ([], [device]):
        words = confined.confinement(devices).prefix
        shown = process.output([*words, "grep", "-E", "Cap(Prm|Eff|Bnd)|NoNewPrivs", "/proc/self/status"])
        assert {line.split()[1] for line in shown.splitlines()} == {"0000000000000000", "1"}
    assert process.output([*confined.confinement().prefix, "id", "-u"]).strip() == str(confined.NOBODY)


def test_qemu_user_without_a_mapped_nobody(need: Need) -> None:
    need("user namespaces")
    code = "from labkit.system.qemu import confined; print(confined.confinement().group)"
    words = ["unshare", "--user", "--map-root-user", "--"]
    assert process.output([*words, sys.executable, "-P", "-c", code]).strip() == "None"


def test_qemu_folder_mode(tmp_path: Path, need: Need) -> None:
    need("root")
    confined.confinement().open_folder(tmp_path)
    state = tmp_path.stat()
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (
        0o1730,
        os.geteuid(),
        confined.NOBODY,
    )
