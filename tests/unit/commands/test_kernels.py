"""Kernels by name: bootable kernels in made-up folders, their order, and errors for unknown names."""

import builtins
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import sample

from labkit import cli
from labkit.commands import kernels as kernels_command
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.hosts import debian_kernels
from labkit.measure.topologies.network.kinds import remedy
from labkit.system.qemu import kernels

AMD64 = "6.1.0-56-amd64"
Make = Callable[..., Path]


def image(release: str) -> bytes:
    """Return the beginning of a bzImage: the magic, and the version at its place behind that (as in Debian's 6.1)."""
    head = bytearray(0x4000)
    head[0x202:0x206] = b"HdrS"
    head[0x20E:0x210] = (0x3100).to_bytes(2, "little")
    words = f"{release} (builder@example.org) #1 SMP".encode() + b"\0"
    head[0x3300 : 0x3300 + len(words)] = words
    return bytes(head)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Create a kernel with modules in the test's own /boot or store; return its image."""
    monkeypatch.setattr(kernels, "BOOT", tmp_path / "boot")
    monkeypatch.setattr(kernels, "MODULES", tmp_path / "lib/modules")
    monkeypatch.setattr(kernels, "ARCHITECTURE", "amd64")
    monkeypatch.setattr(kernels, "_DEBIAN_FLAVOURS", {"cloud-amd64": 0, "amd64": 1})
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def made(release: str, source: str = "store", with_modules: bool = True) -> Path:
        root = kernels.store() / release if source == "store" else tmp_path
        path = root / f"boot/vmlinuz-{release}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(release))
        if with_modules:
            (root / "lib/modules" / release).mkdir(parents=True)
            (root / "lib/modules" / release / "modules.dep").touch()
        return path

    return made


ORDERED = [
    "5.10.0-9-amd64",
    "5.10.0-30-cloud-amd64",
    "6.1.0-9-amd64",
    "6.1.0-56-cloud-amd64",
    "6.1.0-56-amd64",
    "6.12~rc2-amd64",
    "6.12.9+bpo-amd64",
    "6.12.74+deb12-amd64",
    "6.12.117+deb12-cloud-amd64",
    "6.12.117+deb12-amd64",
    "6.19.0-rc3",
    "6.19.0",
]


def test_version_order() -> None:
    for seed in range(20):
        shuffled = random.Random(seed).sample(ORDERED, len(ORDERED))
        assert sorted(shuffled, key=kernels.order) == ORDERED


def test_installed_and_stored_kernels(make: Make) -> None:
    make("6.1.0-9-amd64", "installed")
    make("6.12.9+bpo-amd64")
    make(AMD64)
    make("6.2.0-1-amd64", "installed", with_modules=False)
    make("6.2.0-2-amd64", with_modules=False)
    (kernels.store() / ".new-killed").mkdir()
    result = [(each.release, each.source) for each in kernels.installed()]
    assert result == [("6.1.0-9-amd64", "installed"), (AMD64, "store"), ("6.12.9+bpo-amd64", "store")]


def test_readable_kernels_replace_unreadable_ones(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("6.1.0-9-amd64", "installed")
    locked = make(AMD64, "installed")
    monkeypatch.setattr(os, "access", lambda path, _mode: path != locked)
    assert kernels.find("debian").release == "6.1.0-9-amd64"
    assert kernels.find("6.1-amd64").release == "6.1.0-9-amd64"
    mine = make(AMD64)
    assert kernels.find(AMD64).image == mine
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert kernels.find(AMD64).image == locked


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        (["6.1.0-9-amd64", "6.1.0-56-cloud-amd64"], "6.1.0-56-cloud-amd64"),
        (["6.1.0-56-cloud-amd64", AMD64], AMD64),
        ([AMD64, "6.1.0-57-rt-amd64", "6.19.0", "6.8.0-31-generic"], AMD64),
    ],
)
def test_debian_means_the_newest_full_kernel(make: Make, releases: list[str], expected: str) -> None:
    for release in releases:
        make(release)
    assert kernels.find("debian").release == expected


def test_series_means_its_newest_kernel_of_one_flavour(make: Make) -> None:
    for release in (
        "6.12.95+deb12-cloud-amd64",
        "6.12.117+deb12-cloud-amd64",
        "6.12.118+deb12-amd64",
        "6.120.1-amd64",
    ):
        make(release)
    assert kernels.find("6.12-cloud-amd64").release == "6.12.117+deb12-cloud-amd64"
    assert kernels.find("6.12-amd64").release == "6.12.118+deb12-amd64"
    with pytest.raises(
        BadInput, match=r"no kernel '6\.1-amd64' can be booted here .*run `labkit kernels get 6\.1-amd64`"
    ):
        kernels.find("6.1-amd64")


def test_release_and_modules_of_an_image_file(make: Make, tmp_path: Path) -> None:
    built = tmp_path / "built/boot/bzImage"
    built.parent.mkdir(parents=True)
    built.write_bytes(image("6.19.0-mine+"))
    result = kernels.find(str(built))
    assert (result.release, result.modules, result.source) == ("6.19.0-mine+", None, "file")
    beside = tmp_path / "built/lib/modules/6.19.0-mine+"
    beside.mkdir(parents=True)
    (beside / "modules.dep").touch()
    assert kernels.find(str(built)).modules == beside
    stored = make("6.19.0-mine+")
    assert kernels.find(str(built)).modules == stored.parents[1] / "lib/modules/6.19.0-mine+"


def test_digest_of_the_content(make: Make, tmp_path: Path) -> None:
    one = kernels.find(str(make(AMD64)))
    copy = tmp_path / "copy"
    shutil.copyfile(one.image, copy)
    assert kernels.find(str(copy)).digest == one.digest
    copy.write_bytes(copy.read_bytes() + b"\0")
    assert re.fullmatch("[0-9a-f]{16}", one.digest)
    assert kernels.find(str(copy)).digest != one.digest


def test_invalid_image_is_named(make: Make, tmp_path: Path) -> None:
    for content, sentence in (
        (b"\x7fELF" + bytes(5000), "is not a kernel image"),
        (bytes(56) + b"ARM\x64" + bytes(5000), "is a kernel for arm64, and this machine is amd64"),
        (image("../../etc"), "has no valid kernel release"),
        (image("")[:0x300], "has no valid kernel release"),
    ):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"{path} .*{sentence}"):
            kernels.find(str(path))


def test_missing_image(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it would block
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(BadInput, match=f"{path} is not a regular file"):
            kernels.find(str(path))
    with pytest.raises(BadInput, match="there is no file"):
        kernels.find(str(tmp_path / "none"))
    path = make(AMD64, "installed")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(BadInput, match=r"only root may read .*`labkit kernels get`"):
        kernels.find(str(path))


@pytest.mark.parametrize("name", ["", "6.1", "$(id)", "-o", "../data", "6.1.0-56-amd64; id", "x\0y"])
def test_unknown_names_are_refused(make: Make, name: str) -> None:
    make(AMD64)
    with pytest.raises(BadInput, match=rf"\(there are {AMD64}\).*: run `labkit kernels get`"):
        kernels.find(name)


def test_no_kernel_gives_the_remedy(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=r"none at all\): run `labkit kernels get`"):
        kernels.find("debian")
    assert cli.main(["kernels"]) == 0
    assert "`labkit kernels get`" in capsys.readouterr().out


def test_remedy_for_a_kernel_without_netkit_names_the_newest_one_that_is_late_enough(make: Make) -> None:
    make(AMD64)
    assert "labkit kernels get 6.12-cloud-amd64" in remedy("netkit")
    for release in ("6.12.74+deb12-amd64", "6.7.0-1-amd64"):
        make(release)
    assert remedy("netkit").endswith(" or later, here or in a lab VM (where=vm:6.12.74+deb12-amd64)")


@pytest.mark.parametrize("name", ["$(id)", "../x", "--help", "x\n"])
def test_package_name_is_validated(make: Make, name: str) -> None:
    with pytest.raises(BadInput, match="is not a Debian kernel"):
        debian_kernels.get(name, print)
    assert not kernels.store().exists()


def test_packages_of_apt() -> None:
    arch = debian_kernels.ARCHITECTURE
    assert debian_kernels.package_of("cloud") == f"linux-image-cloud-{arch}"
    assert debian_kernels.package_of(arch) == f"linux-image-{arch}"
    assert (
        debian_kernels.package_of(AMD64)
        == debian_kernels.package_of(f"linux-image-{AMD64}")
        == f"linux-image-{AMD64}"
    )
    meta, package = (
        debian_kernels.read_show(sample(f"apt-cache-show-2.6.1-{kind}.txt")) for kind in ("meta", "image")
    )
    assert (meta.image, meta.version) == ("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2")
    assert package == debian_kernels.Package(meta.image, "6.1.192-2", 26713492, 105548 * 1024, None)
    assert debian_kernels.read_show("") is None


def test_disk_space_is_checked_first(make: Make, tmp_path: Path) -> None:
    huge = debian_kernels.Package("linux-image-huge", "1", 10**6, 10**18, None)
    with pytest.raises(Failed, match=r"linux-image-huge needs 1000000000001 MB in .* and \d+ MB are free"):
        debian_kernels.room(tmp_path, huge)


@pytest.mark.parametrize(("program", "package"), [("depmod", "kmod"), ("apt-get", "apt")])
def test_missing_program_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == program else f"/usr/bin/{name}")
    with pytest.raises(Unsupported, match=rf"{program} is not installed \(Debian package {package}\)"):
        debian_kernels.get("cloud", print)
    assert not kernels.store().exists()


def test_stored_release_needs_no_apt(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    there = make(AMD64)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert debian_kernels.get(AMD64, print).image == there


def test_capability_table(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("6.1.0-56-cloud-amd64")
    make(AMD64)
    parameters: list[str] = []
    result = [
        {"group": "link kinds", "name": "ipvlan", "available": True},
        {"group": "tunnels", "name": "gre", "available": False},
        {"group": "tracers", "name": "kprobe", "available": None},
    ]

    def answer(where: str, request: dict[str, object], _say: object) -> object:
        assert request == {"do": "doctor", "alone": True}
        parameters.append(where.split(",")[0])
        if "cloud" in where:
            raise Failed("it did not boot")
        yield {"event": "doctor", "machine": {}, "capabilities": result}

    assert kernels_command.as_text().count("not examined yet") == 2
    monkeypatch.setattr(kernels_command.running, "ask", answer)
    lines: list[str] = []
    assert kernels_command.ask_all(lines.append) == ["6.1.0-56-cloud-amd64: it did not boot"]
    head, cloud, full = (line.split() for line in kernels_command.as_text().splitlines()[:3])
    assert cloud[-3:] == ["not", "examined", "yet"]
    values = dict(zip([*head[:4], "MB", *head[4:6]], full, strict=False))
    assert (values["release"], values["from"], values["ipvlan"], values["gre"]) == (
        AMD64,
        "store",
        "yes",
        "no",
    )
    assert full.count("?") == len(kernels_command.CAPABILITIES) - 2
    kernels_command.ask_all(lines.append)
    assert parameters == [f"vm:{name}" for name in ("6.1.0-56-cloud-amd64", AMD64, "6.1.0-56-cloud-amd64")]


def test_changed_meaning_of_debian_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    there = [kernels.in_store("6.1.0-56-amd64")]
    monkeypatch.setattr(kernels, "installed", lambda: there)
    monkeypatch.setattr(kernels, "release_of", lambda image: image.name)

    def get(name: str, say: object) -> kernels.BootableKernel:
        there[:] = [*there, kernels.in_store(name)]
        return there[-1]

    monkeypatch.setattr(kernels_command.debian_kernels, "get", get)
    assert cli.main(["kernels", "get", "6.12.9-cloud-amd64"]) == 0
    lines = (
        "vm:debian now means 6.12.9-cloud-amd64 instead of 6.1.0-56-amd64:"
        " write vm:6.1.0-56-amd64 to keep the old kernel"
    )
    assert capsys.readouterr().err == f"labkit: {lines}\n"
    there[:] = there[:1]
    assert cli.main(["kernels", "get", "6.1.0-56-amd64"]) == 0  # it was in the store
    assert capsys.readouterr().err == ""
