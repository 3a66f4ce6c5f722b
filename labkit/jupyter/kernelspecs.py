"""`labkit kernels install`: install the kernels of this machine and of lab VMs for JupyterLab and papermill."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.common import run_folder
from labkit.system.qemu import kernels, vm_spec

# A debugger listens on a port of loopback that asks for no key, and through which every user of the machine could run
# code. In a lab VM every import is emulated: without the debugger a kernel starts a third sooner, and without an IRI
# grammar, which nbformat imports before the first figure, that figure comes many seconds sooner.
_LIGHT = (
    "import sys; sys.modules.update(debugpy=None, rfc3987_syntax=None); "
    "from ipykernel import kernelapp; kernelapp.launch_new_instance()"
)
_FILE = ["-f", "{connection_file}"]
# Every user of a machine can connect to a kernel's ports, and the iopub port asks for no key. With CurveZMQ a client
# must know the public key of the connection file, which only its owner reads (ipykernel 7.4, jupyter_client 8.10).
ENCRYPTED = {"supported_encryption": ["curve"]}


def local_kernelspec() -> tuple[str, dict[str, Any]]:
    """Return the kernel that runs cells on this Linux: its name and its specification."""
    # -P, here and below: do not import a random.py or labkit/ beside the notebook, which may come from others.
    return "labkit", {
        "argv": [sys.executable, "-P", "-c", _LIGHT, *_FILE],
        "display_name": "labkit (this kernel)",
        "language": "python",
        "metadata": ENCRYPTED,
    }


def in_lab_vm(kernel: str, display: str) -> tuple[str, dict[str, Any]]:
    """Return the kernel that runs cells in the lab VM `vm:KERNEL`. Raises BadInput if that cannot be booted."""
    where = f"vm:{kernel}"
    kernels.find(vm_spec.parse(where).kernel)
    # A history would disappear with the lab VM.
    light = ["-P", "-c", _LIGHT, *_FILE, "--HistoryManager.enabled=False"]
    provisioner = {"provisioner_name": "labkit", "config": {"where": where}}
    return re.sub(r"[^a-z0-9._-]+", "-", f"labkit-vm-{display}".lower()), {
        "argv": [sys.executable, *light],
        "display_name": f"labkit (Linux {display} lab VM)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"kernel_provisioner": provisioner, **ENCRYPTED},
    }


def newest() -> dict[str, str]:
    """Return the newest bootable kernel of each series, preferably its full flavour: 6.1 to release."""
    return {".".join(each.release.split(".")[:2]): each.release for each in kernels.installed()}


def install(kernels_wanted: Sequence[str], prefix: Path = Path(sys.prefix)) -> dict[str, str]:
    """Write the kernelspecs into `prefix`; return their names with what Jupyter shows.

    `kernels_wanted`: releases, or what may follow `vm:`; without any, the newest of each series. Raises BadInput for a
    kernel that cannot be booted.
    """
    wanted = {word: word for word in kernels_wanted} if kernels_wanted else newest()
    specs = dict([local_kernelspec(), *(in_lab_vm(word, display) for display, word in wanted.items())])
    for name, spec in specs.items():
        run_folder.write_json(prefix / "share/jupyter/kernels" / name / "kernel.json", spec)
    return {name: spec["display_name"] for name, spec in specs.items()}
