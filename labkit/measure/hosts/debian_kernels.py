"""Fetch Debian kernels with apt into labkit's store, as any user, without installing them."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.common import errors, safe_files
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.system import machine, process
from labkit.system.qemu import kernels

ARCHITECTURE = kernels.ARCHITECTURE
SHORT = {ARCHITECTURE: f"linux-image-{ARCHITECTURE}", "cloud": f"linux-image-cloud-{ARCHITECTURE}"}
PREFIX = "linux-image-"
_NAME = re.compile(rf"{PREFIX}[a-z0-9][a-z0-9+.~-]{{0,100}}")  # Debian Policy 5.6.1
_DOWNLOAD_S, _SHORT_S = 1800.0, 300.0
_FRESH = ".new-"

Say = Callable[[str], None]


def get(name: str, say: Say) -> kernels.BootableKernel:
    """Fetch a Debian kernel into the store unless it is there; return it.

    `name`: `amd64` (all drivers), `cloud` (smaller), a package, or a release. The store never holds an incomplete
    kernel. Raises BadInput for a name that apt does not know, Unsupported without apt or depmod, Failed without
    network or space.
    """
    package_name = package_of(name)
    if (there := kernels.in_store(_release(package_name))).image.is_file():
        return there
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        _program(program, "apt")
    depmod = _program("depmod", "kmod")
    with _scratch(kernels.store()) as scratch:
        package, archive = _archive(scratch, package_name, say)
        release = _release(package.name)
        if archive is not None:
            _unpack(archive, depmod, release, scratch / "kernel")
        return kernels.in_store(release)


def _release(package: str) -> str:
    return package.removeprefix(PREFIX).removesuffix("-unsigned")


def _unpack(archive: Path, depmod: str, release: str, folder: Path) -> None:
    _do(["dpkg-deb", "--extract", str(archive), str(folder)])
    if not (folder / f"boot/vmlinuz-{release}").is_file():
        raise Failed(f"the package {archive.name} does not contain boot/vmlinuz-{release}")
    if not (folder / "lib/modules").is_dir():  # since Debian 13 modules are in /usr/lib
        (folder / "usr/lib").rename(folder / "lib")
    _do([depmod, "--basedir", str(folder), release])
    folder.chmod(0o755)
    target = kernels.store() / release
    shutil.rmtree(target, ignore_errors=True)  # it has no image, otherwise the kernel would not be fetched
    folder.rename(target)


def _archive(scratch: Path, package_name: str, say: Say) -> tuple[Package, Path | None]:
    """Return the image's package and its archive; no archive if the store already has the kernel."""
    apt = _Apt(scratch)
    while True:
        try:
            package = apt.image(package_name)
            if kernels.in_store(_release(package.name)).image.is_file():
                return package, None
            room(scratch, package)
            say(f"fetching {package.name} {package.version} ({package.download_bytes / 1e6:.0f} MB)")
            return package, apt.download(package)
        except _OutOfDate as error:
            if apt.fresh:
                raise Failed(str(error)) from None
            say("apt's package lists are missing or out of date; fetching them temporarily")
            apt.refresh()


def package_of(name: str) -> str:
    """Return the package that a name means. Raises BadInput for an invalid package name."""
    package = SHORT.get(name) or (name if name.startswith(PREFIX) else PREFIX + name)
    if not _NAME.fullmatch(package):
        raise BadInput(
            f"{name[:100]!r} is not a Debian kernel: give {', '.join(SHORT)}, a package or a release"
        )
    return package


@dataclass(frozen=True)
class Package:
    """What apt knows about the newest version of a package."""

    name: str
    version: str
    download_bytes: int
    installed_bytes: int
    image: str | None  # the image package that a meta package depends on


@errors.reading("the output of apt-cache show")
def read_show(text: str) -> Package | None:
    """Parse the first (newest) package in the output of `apt-cache show`; None if there is none."""
    fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", text.split("\n\n")[0], re.MULTILINE))
    if "Package" not in fields:
        return None
    image = re.search(rf"(?:^|, ){PREFIX}[a-z0-9+.~-]+", fields.get("Depends", ""))
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        download_bytes=int(fields.get("Size", 0)),
        installed_bytes=int(fields.get("Installed-Size", 0)) * 1024,
        image=image[0].removeprefix(", ") if image else None,
    )


class _OutOfDate(Exception):
    """A request to apt failed and may work with current package lists."""


class _Apt:
    """apt with the machine's package lists; after `refresh` with its own lists in the scratch folder. No privilege
    needed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._options = ["Acquire::Retries=3"]
        if os.geteuid() == 0:  # apt's download user cannot write into root's scratch folder
            self._options.append("APT::Sandbox::User=root")
        self.fresh = False

    def image(self, name: str) -> Package:
        """Return the image package of a name: itself, or the one that the meta package depends on."""
        package = read_show(self._cache("show", name).stdout)
        if package is None or package.name != name:  # apt treats an unknown name as a pattern
            raise self._unknown(name)
        return package if package.image in (None, name) else self.image(str(package.image))

    def _unknown(self, name: str) -> Exception:
        names = self._cache("pkgnames", PREFIX).stdout.split()
        known = sorted(each for each in names if not each.endswith(("-dbg", "-unsigned", "-template")))
        if not known:
            return _OutOfDate("apt knows no kernel package: it has no Debian source")
        close = difflib.get_close_matches(name, known, 5, 0.5) or known[:5]
        short = ", ".join(each.removeprefix(PREFIX) for each in close)
        return BadInput(f"apt knows no package {name}; names close to it: {short}")

    def download(self, package: Package) -> Path:
        """Download the package into the scratch folder and return the path of its archive."""
        argv = ["env", "-C", str(self._scratch), "apt-get", *self._flags(), "download", package.name]
        ended = process.run([*process.DIE_WITH_US, *argv], _DOWNLOAD_S)
        archives = list(self._scratch.glob("*.deb"))
        if ended.returncode != 0 or len(archives) != 1:
            raise _OutOfDate(f"{package.name} cannot be fetched (is there a network?): {_errors(ended)}")
        return archives[0]

    def refresh(self) -> None:
        """Fetch package lists into the scratch folder. Raises Failed with apt's message if a list is not available."""
        self.fresh = True
        for part in ("lists/partial", "cache/archives/partial"):
            (self._scratch / part).mkdir(parents=True)
        self._options += [f"Dir::State::Lists={self._scratch}/lists", f"Dir::Cache={self._scratch}/cache"]
        argv = ["apt-get", *self._flags(), "-o", "APT::Update::Error-Mode=any", "update"]
        ended = process.run([*process.DIE_WITH_US, *argv], _DOWNLOAD_S)
        if ended.returncode != 0:
            raise Failed(f"apt's lists cannot be fetched (is there a network?): {_errors(ended)}")

    def _cache(self, *words: str) -> process.Ended:
        return process.run(["apt-cache", *self._flags(), *words], _SHORT_S)

    def _flags(self) -> list[str]:
        return ["-q", *(word for option in self._options for word in ("-o", option))]


def _errors(ended: process.Ended) -> str:
    """Return apt's error lines; the last one summarises."""
    lines = [line[3:].strip() for line in ended.stderr.splitlines() if line.startswith("E: ")]
    return "; ".join(lines)[:300] if lines else ended.message()


def _do(argv: Sequence[str]) -> None:
    ended = process.run([*process.DIE_WITH_US, *argv], _SHORT_S)
    if ended.returncode != 0:
        raise Failed(f"the kernel cannot be put into {kernels.store()}: {ended.message()}")


def _program(name: str, package: str) -> str:
    if not os.path.isabs(path := machine.program(name)):
        raise Unsupported(
            f"{name} is not installed (Debian package {package}), so no kernel can be fetched:"
            " install it, or name the absolute path of a kernel image"
        )
    return path


def room(scratch: Path, package: Package) -> None:
    needed, free = package.download_bytes + package.installed_bytes, shutil.disk_usage(scratch).free
    if needed > free:
        raise Failed(
            f"{package.name} needs {needed / 1e6:.0f} MB in {kernels.store()}, and {free / 1e6:.0f} MB are free"
        )


@contextlib.contextmanager
def _scratch(store: Path) -> Iterator[Path]:
    """Yield a temporary folder on the store's file system; one process at a time, leftovers of killed ones are
    removed."""
    try:
        store = safe_files.make_folder(store)
        with open(os.open(store / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with safe_files.own_folder(store, _FRESH) as folder:
                yield folder.path
    except OSError as error:
        full = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise Failed(f"the kernel cannot be put into {store}: {full}") from None
