"""Try every topology: each is built with one pair and removed again.

The groups are the models of draft-ietf-bmwg-containerized-infra-08: where packets are forwarded between containers.
"""

from pathlib import Path

from labkit.common.errors import Isolated, LabkitError
from labkit.measure import topologies
from labkit.measure.capabilities.base import Capability
from labkit.measure.topologies.base import HARDWARE, NETWORKING_MODELS, USER_SPACE, Spec

NICS = Path("/sys/class/net")
# What the draft has and labkit does not: its model, what it needs, and the file of sysfs that shows whether a NIC can
# do it (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net).
WITHOUT_TOPOLOGY: dict[str, tuple[str, str, str | None]] = {
    "VPP": (USER_SPACE, "the packages of the project FD.io, which Debian does not have", None),
    "SR-IOV": (
        HARDWARE,
        "a NIC with virtual functions, and what joins them: the NIC's own switch or a cable",
        "device/sriov_totalvfs",
    ),
    "SmartNIC": (HARDWARE, "a NIC that forwards in hardware (switchdev), and its driver", "phys_switch_id"),
}


def datapaths() -> list[Capability]:
    """Build each topology, by model. Takes about ten seconds; nothing remains."""
    result = [_built(name, kind.networking_model) for name, kind in topologies.TABLE.items()]
    result += [
        Capability(
            model, name, False, f"labkit has no topology for it; it needs {needs}{_capable_nics(file)}"
        )
        for name, (model, needs, file) in WITHOUT_TOPOLOGY.items()
    ]
    return sorted(result, key=lambda one: NETWORKING_MODELS.index(one.group))


def _built(name: str, model: str) -> Capability:
    try:
        with topologies.build(name, Spec()):
            return Capability(model, name, True)
    except Isolated as reason:
        return Capability(model, name, True, str(reason))
    except LabkitError as reason:
        return Capability(model, name, False, str(reason))


def _capable_nics(file: str | None) -> str:
    """Return which NICs have a file of sysfs, as the end of a sentence; nothing without a file."""
    if file is None:
        return ""
    able = sorted(path.parts[len(NICS.parts)] for path in NICS.glob(f"*/{file}") if _is_able(path))
    return f"; {', '.join(able)} could" if able else "; no NIC of this machine can"


def _is_able(path: Path) -> bool:
    """Return whether a file of sysfs has a value other than 0. Many drivers refuse to answer."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
