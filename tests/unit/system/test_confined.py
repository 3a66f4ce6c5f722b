"""QEMU and the server of a guest's folder run without unneeded rights."""

import os
import stat
import sys
from pathlib import Path

from conftest import Need

from labkit.system import process
from labkit.system.qemu import confined


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
