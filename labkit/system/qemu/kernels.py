"""Kernels that a lab VM can boot: in /boot, in labkit's store, and image files.

STORE/RELEASE/boot/vmlinuz-RELEASE
              lib/modules/RELEASE/
"""

import functools
import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import BadInput, did_you_mean

BOOT, MODULES = Path("/boot"), Path("/lib/modules")
RELEASE = re.compile(r"[0-9]+\.[0-9]+[0-9A-Za-z.+~_-]{0,100}")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# "cloud" has fewer drivers. `debian` never means the real-time flavour.
_DEBIAN_FLAVOURS = {f"cloud-{ARCHITECTURE}": 0, ARCHITECTURE: 1}
# At 0x202 (Linux' Documentation/arch/x86/boot.rst) and 56 (arm64/booting.rst)
_X86, _ARM = b"HdrS", b"ARM\x64"


@dataclass(frozen=True)
class BootableKernel:
    """A kernel image and its modules; `modules` is None if none are found (all drivers may be built in).

    `source` is "installed" (/boot), "store" (fetched by `labkit kernels get`) or "file".
    """

    release: str
    image: Path
    modules: Path | None
    source: str

    @property
    def digest(self) -> str:
        """Return the first 16 hexadecimal digits of the image's SHA-256. Raises BadInput if it cannot be read."""
        try:
            status = self.image.stat()
            return _digest(self.image, status.st_mtime_ns, status.st_size)
        except OSError as error:
            raise _unreadable(self.image, error) from None


@functools.cache
def _digest(image: Path, _mtime_ns: int, _size: int) -> str:
    with open(image, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def store() -> Path:
    """Return the folder of `labkit kernels get`: labkit/kernels in $XDG_DATA_HOME, else in ~/.local/share."""
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "labkit/kernels"


def in_store(release: str) -> BootableKernel:
    """Return the paths of a release in the store, whether it exists or not."""
    folder = store() / release
    return BootableKernel(
        release, folder / f"boot/vmlinuz-{release}", folder / "lib/modules" / release, "store"
    )


def installed() -> list[BootableKernel]:
    """Return the kernels of /boot and of the store that have modules, newest last.

    A kernel of the store replaces one of /boot that this user cannot read.
    """
    result: dict[str, BootableKernel] = {}
    for image in BOOT.glob("vmlinuz-*"):
        release = image.name.removeprefix("vmlinuz-")
        result[release] = BootableKernel(release, image, MODULES / release, "installed")
    for folder in store().glob("[0-9]*"):
        there = result.get(folder.name)
        if there is None or not os.access(there.image, os.R_OK) or not _has_modules(there):
            result[folder.name] = in_store(folder.name)
    bootable = [
        each
        for each in result.values()
        if RELEASE.fullmatch(each.release) and each.image.is_file() and _has_modules(each)
    ]
    return sorted(bootable, key=lambda each: order(each.release))


def _has_modules(kernel: BootableKernel) -> bool:
    return kernel.modules is not None and (kernel.modules / "modules.dep").is_file()


def order(release: str) -> tuple[object, ...]:
    """Return a sort key that orders releases as Debian orders versions; in one version, Debian's full flavour is
    last."""
    named = flavour(release)
    version = release.removesuffix(f"-{named}").replace("-rc", "~rc")
    parts = []
    for words, digits in re.findall(r"(\D*)(\d*)", version):
        places = [-1 if letter == "~" else ord(letter) + 256 * (not letter.isalpha()) for letter in words]
        parts.append(((*places, 0), int(digits or 0)))
    return (*parts, ((0,), 0)), _DEBIAN_FLAVOURS.get(named, -1), release


def _series(release: str) -> str:
    """Return the name under which Debian has the newest kernel like this: 6.12-cloud-amd64 of
    6.12.117+deb12-cloud-amd64."""
    version = re.match(r"\d+\.\d+", release)
    return f"{version[0]}-{flavour(release)}" if version else release


def flavour(release: str) -> str:
    """Return the word at the end of a release (cloud-amd64, generic), or an empty string."""
    word = re.search(r"-(?!rc\d)([a-z][a-z0-9_-]*)$", release)
    return word[1] if word else ""


def find(name: str) -> BootableKernel:
    """Return a kernel by name: `debian` (the newest Debian kernel), a release, a series, or the absolute path of an
    image.

    A series is the end of the name of Debian's meta package, such as 6.12-cloud-amd64: it means the newest of its
    kernels here, because Debian's archive keeps a release for some weeks only. Raises BadInput with the available
    kernels.
    """
    if name.startswith("/"):
        return _describe_image(Path(name))
    there = installed()
    if name == "debian":
        named = [each for each in there if flavour(each.release) in _DEBIAN_FLAVOURS]
    else:
        named = [each for each in there if name in (each.release, _series(each.release))]
    # stable sort: the newest readable kernel is last
    named.sort(key=lambda each: os.access(each.image, os.R_OK))
    if named:
        release_of(named[-1].image)
        return named[-1]
    what = "no kernel of Debian's" if name == "debian" else f"no kernel {name[:100]!r}"
    have = f"there are {', '.join(each.release for each in there)}" if there else "there is none at all"
    near = did_you_mean(name, ["debian", *(each.release for each in there)])
    # Without its name, the command fetches Debian's usual kernel.
    fetched = (
        f"labkit kernels get {name}" if RELEASE.fullmatch(name) and flavour(name) else "labkit kernels get"
    )
    raise BadInput(
        f"{what} can be booted here ({have}){near}: run `{fetched}`, or give the absolute path of an image"
    )


def _describe_image(image: Path) -> BootableKernel:
    release = release_of(image)
    places = [
        MODULES / release,
        store() / release / "lib/modules" / release,
        image.parent / "../lib/modules" / release,
    ]
    with_them = [place.resolve() for place in places if (place / "modules.dep").is_file()]
    return BootableKernel(release, image, with_them[0] if with_them else None, "file")


def release_of(image: Path) -> str:
    """Return the release in a kernel image. Raises BadInput if it is missing, unreadable, or not bootable on this
    machine."""
    try:
        if image.exists() and not image.is_file():
            raise BadInput(f"{image} is not a regular file: name a kernel image")
        with open(image, "rb") as file:
            head = file.read(1 << 16)
            rest = file.read() if head[56:60] == _ARM else b""
    except OSError as error:
        raise _unreadable(image, error) from None
    magic = {"amd64": head[0x202:0x206] == _X86, "arm64": head[56:60] == _ARM}
    if not any(magic.values()):
        raise BadInput(f"{image} is not a kernel image: name a vmlinuz or a bzImage (not an ELF vmlinux)")
    if not magic.get(ARCHITECTURE):
        raise BadInput(
            f"{image} is a kernel for {'amd64' if magic['amd64'] else 'arm64'}, and this machine is {ARCHITECTURE}"
        )
    if magic["amd64"]:
        start = 0x200 + int.from_bytes(head[0x20E:0x210], "little")
        words = head[start : start + 128].split(b"\0")[0].split()
        release = words[0].decode(errors="replace") if words else ""
    else:
        match = re.search(rb"Linux version (\S{1,128}) ", head + rest)
        release = match[1].decode(errors="replace") if match else image.name.removeprefix("vmlinuz-")
    if not RELEASE.fullmatch(release):
        raise BadInput(f"{image} has no valid kernel release: {release[:60]!r}")
    return release


def _unreadable(image: Path, error: OSError) -> BadInput:
    if isinstance(error, PermissionError):
        return BadInput(
            f"only root may read the kernel {image}: run as root, or fetch a readable one with `labkit kernels get`"
        )
    if isinstance(error, FileNotFoundError):
        return BadInput(f"there is no file {image}: `labkit kernels` lists what can be booted")
    return BadInput(f"{image} cannot be read as a kernel image: {error.strerror}")
