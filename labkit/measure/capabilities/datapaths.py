"""Try every topology: each is built with one pair and removed again.

The groups are the models of draft-ietf-bmwg-containerized-infra-08: where packets are forwarded between containers.
"""

from pathlib import Path

from labkit.common.errors import Isolated, LabkitError
from labkit.measure import topologies
from labkit.measure.capabilities.base import Capability
from labkit.measure.topologies.base import HARDWARE, NETWORKING_MODELS, Spec

NICS = Path("/sys/class/net")
# Files of sysfs (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net) that show what a NIC can do.
HARDWARE_NEEDS = {
    "SR-IOV": (
        "device/sriov_totalvfs",
        "a NIC with virtual functions, and what joins them: the NIC's own switch or a cable",
    ),
    "SmartNIC": ("phys_switch_id", "a NIC that forwards in hardware (switchdev), and its driver"),
}


def datapaths() -> list[Capability]:
    """Build each topology, by model. Takes about ten seconds; nothing remains."""
    result = [_built(name, kind.networking_model) for name, kind in topologies.TABLE.items()]
    result += [_hardware(name, *needs) for name, needs in HARDWARE_NEEDS.items()]
    return sorted(result, key=lambda one: NETWORKING_MODELS.index(one.group))


def _built(name: str, model: str) -> Capability:
    try:
        with topologies.build(name, Spec()):
            return Capability(model, name, True)
    except Isolated as reason:
        return Capability(model, name, True, str(reason))
    except LabkitError as reason:
        return Capability(model, name, False, str(reason))


def _hardware(name: str, file: str, needs: str) -> Capability:
    able = sorted(path.parts[len(NICS.parts)] for path in NICS.glob(f"*/{file}") if _is_able(path))
    here = f"{', '.join(able)} could" if able else "no NIC of this machine can"
    return Capability(HARDWARE, name, False, f"labkit has no topology for it; it needs {needs}; {here}")


def _is_able(path: Path) -> bool:
    """Return whether a file of sysfs has a value other than 0. Many drivers refuse to answer."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
