"""Build wheels of labkit, msgspec and pyroute2 from this Python's files, to copy to another machine.

Equal files give equal bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import labkit
from labkit.common import extensions
from labkit.common.errors import Failed

# The dependencies of the measuring wing with their version bounds (minimum, below), as in pyproject.toml; a test
# compares both.
NEEDS = {"msgspec": ((0, 20), (1,)), "pyroute2": ((0, 9, 4), (0, 10))}
SUFFIXES = (".py", ".j2", ".css", ".js", ".json", ".toml")
# Files of the installation, not of the wheel.
INSTALLATION_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


@dataclass(frozen=True)
class Wheel:
    """A distribution: its files by their names in the archive.

    If it is not `pure`, parts of it are compiled for one Python version and platform.
    """

    name: str
    version: str
    pure: bool
    files: dict[str, bytes]

    @functools.cached_property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify these files."""
        whole = hashlib.sha256()
        for name in sorted(self.files):
            whole.update(f"{name} {hashlib.sha256(self.files[name]).hexdigest()}\n".encode())
        return whole.hexdigest()[:16]

    def content(self) -> bytes:
        """Return the archive (PEP 427)."""
        import zipfile  # imported here, because every experiment would pay for it at its start

        record = f"{self.name}-{self.version}.dist-info/RECORD"
        lines = [f"{name},{_hash(content)},{len(content)}\n" for name, content in sorted(self.files.items())]
        listed = self.files | {record: f"{''.join(lines)}{record},,\n".encode()}
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(listed.items()):
                info = zipfile.ZipInfo(
                    name
                )  # its default date is 1980, so the content does not depend on the build time
                info.external_attr = 0o644 << 16
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        return target.getvalue()


def _hash(content: bytes) -> str:
    """Return the hash in the form of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@functools.cache
def labkit_wheel() -> Wheel:
    """Return a wheel of the running labkit, with the packages that its own distribution adds."""
    root = Path(labkit.__file__).parents[1]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for package in ("labkit", *extensions.own_packages())
        for path in sorted((root / package).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    }
    needs = "".join(f"Requires-Dist: {name}{bounds(name)}\n" for name in NEEDS)
    about = f"Metadata-Version: 2.1\nName: labkit\nVersion: {labkit.__version__}\n{needs}"
    folder = f"labkit-{labkit.__version__}.dist-info"
    files[f"{folder}/METADATA"] = about.encode()
    files[f"{folder}/entry_points.txt"] = extensions.entry_points_text().encode()
    files[f"{folder}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: labkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    return Wheel("labkit", labkit.__version__, True, files)


@functools.cache
def installed_wheel(name: str) -> Wheel:
    """Return a wheel of an installed package. Raises Failed if its installer did not record its files."""
    import importlib.metadata  # takes 30 ms and is for ssh hosts only

    result = importlib.metadata.distribution(name)
    files = {
        path.as_posix(): path.read_binary()
        for path in result.files or ()
        if ".." not in path.parts and "__pycache__" not in path.parts and path.name not in INSTALLATION_FILES
    }
    about = result.read_text("WHEEL")
    if not files or about is None:
        raise Failed(
            f"this Python's {name} cannot be copied, because it has no list of its files:"
            f" install {name}{bounds(name)} on the other machine"
        )
    return Wheel(result.name, result.version, "Root-Is-Purelib: true" in about, files)


def platform() -> tuple[str | None, str]:
    """Return what compiled parts of this Python are made for, in the form that hosts/ssh_bootstrap.py reports."""
    import sysconfig

    return sysconfig.get_config_var("SOABI"), sysconfig.get_platform()


def bounds(name: str) -> str:
    """Return the version bounds, for example `>=0.20,<1`."""
    least, below = (".".join(map(str, version)) for version in NEEDS[name])
    return f">={least},<{below}"


def fits(name: str, version: str | None) -> bool:
    """Return whether this version of a package is within the bounds."""
    if version is None:
        return False
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    least, below = NEEDS[name]
    return least <= numbers < below
