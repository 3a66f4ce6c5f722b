"""Try every topology: each is built with one pair and removed again.

The groups are the models of draft-ietf-bmwg-containerized-infra-08: where packets are forwarded between containers.
"""

from labkit.common.errors import Isolated, LabkitError
from labkit.measure import topologies
from labkit.measure.capabilities.base import Capability
from labkit.measure.topologies.base import NETWORKING_MODELS, Spec
from labkit.measure.topologies.registry import WITHOUT_TOPOLOGY


def datapaths() -> list[Capability]:
    """Build each topology, by model. Takes about ten seconds; nothing remains."""
    result = [_built(name, kind.networking_model) for name, kind in topologies.TABLE.items()]
    result += [
        Capability(model, name, False, f"labkit has no topology for it; it needs {needs}")
        for name, (model, needs) in WITHOUT_TOPOLOGY.items()
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
