"""List the kernels that a lab VM can boot, and what each can do (`labkit kernels`).

Each kernel is examined once, by booting it. The answer is stored under the digest of the image and labkit's version.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.commands import arguments
from labkit.commands.messages import json_text, note
from labkit.common import run_folder
from labkit.common.errors import BadInput, LabkitError
from labkit.common.printable import printable
from labkit.measure.hosts import debian_kernels
from labkit.runner import run as running
from labkit.system.qemu import kernels

# The capabilities in which kernels differ: the column's title, and the group and name in the doctor's answer.
CAPABILITIES = {
    "ipvlan": ("link kinds", "ipvlan"), "gre": ("tunnels", "gre"), "netem": ("queueing disciplines", "netem"),
    "Open vSwitch": ("Open vSwitch", "kernel datapath"), "function_graph": ("tracers", "function_graph"),
    "kprobe": ("tracers", "kprobe"), "BTF": ("BPF", "BTF"),
}  # fmt: skip
OF_THE_LIST = ("ask", "json")  # options that `get` and `install` cannot use
_YES_NO = {True: "yes", False: "no", None: "?"}
_COLUMNS = ("release", "flavour", "from", "size", *CAPABILITIES)


def remembered(kernel: kernels.BootableKernel) -> dict[str, Any] | None:
    """Return the stored answer of the kernel, or None if it has not been examined yet."""
    try:
        answer: dict[str, Any] = run_folder.read_json(_answer_path(kernel))
    except BadInput:
        return None
    return answer


def _answer_path(kernel: kernels.BootableKernel) -> Path:
    """Return the path of the file with the kernel's answer. Raises BadInput if the image cannot be read."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return root / "labkit/capabilities" / f"{kernel.digest}-{__version__}.json"


def ask_kernel(kernel: kernels.BootableKernel, say: Callable[[str], None]) -> dict[str, Any]:
    """Boot the kernel, and return and store what it can do. This takes about 20 s on an emulated CPU.

    Raises Unsupported if this machine cannot run a lab VM, and Failed if the kernel does not boot.
    """
    # This profile emulates all CPUs in one thread, which makes it safe to arm tracers.
    answer = next(running.ask(f"vm:{kernel.release},profile=tracing", {"do": "doctor", "alone": True}, say))
    del answer["event"]
    run_folder.write_json(_answer_path(kernel), answer)
    return answer


def ask_all(say: Callable[[str], None]) -> list[str]:
    """Examine every kernel without a stored answer, and return a sentence for each failure."""
    failed = []
    for kernel in kernels.installed():
        if remembered(kernel) is None:
            say(f"booting {kernel.release}")
            try:
                ask_kernel(kernel, say)
            except LabkitError as error:
                failed.append(f"{kernel.release}: {error}")
                say(failed[-1])
    return failed


def _describe(kernel: kernels.BootableKernel) -> dict[str, Any]:
    files = [kernel.image, *(kernel.modules.rglob("*") if kernel.modules else ())]
    size_bytes = sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())
    return {
        "release": kernel.release,
        "where": f"vm:{kernel.release}",
        "flavour": kernels.flavour(kernel.release),
        "source": kernel.source,
        "image": str(kernel.image),
        "modules": str(kernel.modules),
        "size_bytes": size_bytes,
        "digest": kernel.digest if os.access(kernel.image, os.R_OK) else None,
        "answer": remembered(kernel),
    }


def as_text() -> str:
    """Return a table with a row for each kernel, newest last, and the capabilities in which kernels differ."""
    result = [_describe(kernel) for kernel in kernels.installed()]
    if not result:
        return "there is no kernel for a lab VM: `labkit kernels get` downloads Debian's\n"
    lines = [_COLUMNS, *(_cells(each) for each in result)]
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(_COLUMNS))]
    widths[4] = len(_COLUMNS[4])  # a sentence in this column continues over the others
    shown = ["  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines]
    if any(each["answer"] is None for each in result):
        shown += ["", "`labkit kernels --ask` boots and examines the others, once each"]
    return "\n".join([*shown, "", "an experiment runs on such a kernel with where=vm:RELEASE"]) + "\n"


def _cells(described: dict[str, Any]) -> tuple[str, ...]:
    size = f"{described['size_bytes'] / 1e6:.0f} MB"
    first = (described["release"], described["flavour"], described["source"], size)
    if described["digest"] is None:
        return (*first, "only root can read it")
    if described["answer"] is None:
        return (*first, "not examined yet")
    capabilities = described["answer"]["capabilities"]
    known = {(each["group"], each["name"]): each["available"] for each in capabilities}
    return (*first, *(_YES_NO[known.get(each)] for each in CAPABILITIES.values()))


NOTES = """\
`labkit kernels get` downloads a kernel. `labkit kernels install` offers kernels to notebooks.
"""
_GET = "download a Debian kernel into labkit's store; nothing is installed on the system"
_GET_NOTES = """\
    labkit kernels get
    labkit kernels get cloud
    labkit kernels get 6.12-cloud-amd64

A series, as apt names it (linux-image-6.12-cloud-amd64 of Debian 12's backports), means its newest
kernel, also in where=vm:6.12-cloud-amd64.
"""
_INSTALL = "write kernelspecs: JupyterLab and papermill run notebooks on this kernel, or in a lab VM"
_INSTALL_NOTES = """\
Notebooks then have the kernels "labkit (this kernel)" and, for example, "labkit (Linux 6.1 lab
VM)". In the second kernel, cells run as root inside the lab VM. They write into the notebook's
folder only. `make lab` installs both.

    labkit kernels install
    papermill -k labkit-vm-6.1 --start-timeout 120 NOTEBOOK RESULT
"""

JSON_LINES = True
JSON = {
    "release": "the kernel's release",
    "where": "the value of the parameter where",
    "flavour": "the end of the release, for example cloud-amd64",
    "source": "where labkit found it",
    "image": "the path of the image",
    "modules": "the folder of its modules",
    "size_bytes": "the size of image and modules",
    "digest": "a digest of the image",
    "answer": "what `labkit doctor --json` prints in it; null: not examined yet",
}


def add_arguments(parser: arguments.CommandParser) -> None:
    parser.add_argument("--ask", action="store_true", help="boot each kernel that was not examined yet")
    arguments.add_json(parser, "print everything that is known as JSON")
    more = parser.add_subparsers(metavar="get | install")
    get = arguments.add_command(more, "kernels get", _GET, _GET_NOTES, _get)
    text = f"{', '.join(debian_kernels.SHORT)} (the newest; cloud is smaller), or a package, release or series of apt"
    usual = debian_kernels.ARCHITECTURE
    get.add_argument("name", nargs="?", default=usual, metavar="PACKAGE|RELEASE", help=text)
    install = arguments.add_command(more, "kernels install", _INSTALL, _INSTALL_NOTES, _install)
    text = "a kernel, written as in where=vm:KERNEL, with or without options; default: the newest kernel of each series"
    install.add_argument("parameters", nargs="*", metavar="RELEASE[,cpus=N,...]", help=text)


def run(given: argparse.Namespace) -> int:
    failed = ask_all(note) if given.ask else []
    if given.json:  # newest last
        print(json_text([_describe(kernel) for kernel in kernels.installed()]))
    else:
        print(printable(as_text()), end="")
    return 2 if failed else 0


def _get(given: argparse.Namespace) -> int:
    arguments.refuse(given, OF_THE_LIST, "with get")
    before = _debian_release()
    kernel = debian_kernels.get(given.name, note)
    if before not in (None, after := _debian_release()):
        note(f"vm:debian now means {after} instead of {before}: write vm:{before} to keep the old kernel")
    print(printable(f"{kernel.image}\nwhere=vm:{kernel.release}"))
    return 0


def _debian_release() -> str | None:
    """Return the kernel release that vm:debian stands for, or None when there is none."""
    try:
        return kernels.find("debian").release
    except BadInput:
        return None


def _install(given: argparse.Namespace) -> int:
    arguments.refuse(given, OF_THE_LIST, "with install")
    from labkit.jupyter import kernelspecs

    for name, display in kernelspecs.install(given.parameters).items():
        print(printable(f"{name}: {display}"))
    if not kernelspecs.newest():
        way = "fetch one with `labkit kernels get`, then repeat this command"
        note(f"there is no kernel for a lab VM yet: {way}")
    return 0
