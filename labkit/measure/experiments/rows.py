"""The columns of a row: identity, parameters, metrics, provenance."""

import functools
import os
import platform
from dataclasses import dataclass
from typing import Any

from labkit.common import run_folder, schema, switch_options
from labkit.common.errors import Isolated, LabkitError, NoEffect, Unsupported
from labkit.measure.experiments import consistency
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import registry

# Every row of a comparison has all these columns; a value that was not measured is null.
WRITERS = ("rows", "traffic", "profile", "endpoint", "switch", "options", "peer")
COLUMNS = [name for name in schema.names(writer=WRITERS) if name != "status"]
# What rows say about the servers' host if that is another one; the column is peer_ and this name.
PEER_COLUMNS = [name.removeprefix("peer_") for name in schema.names(writer=("peer",), role=("describes",))]
PARAMETERS = schema.names(writer=("rows",), role=("parametrises",))


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: a topology, an endpoint kind, a change (or None) and a role.

    The role is baseline, control (the baseline again) or variant. `again`: the second measurement of a variant.
    """

    topology: str
    role: str
    endpoint: str = "namespace"
    again: bool = False
    change: Change | None = None

    @property
    def name(self) -> str:
        """The name without its role: `veth_bridge`, `veth_bridge/guest`, `veth_bridge+gro-off`."""
        name = self.topology if self.endpoint == "namespace" else f"{self.topology}/{self.endpoint}"
        return name if self.change is None else f"{name}+{self.change.name}"

    @property
    def label(self) -> str:
        """The unique name of the arm in its run: the name, with " (again)" for the control and second measurements."""
        return f"{self.name} (again)" if self.is_second else self.name

    @property
    def is_second(self) -> bool:
        return self.again or self.role == "control"

    def parameters(self, parameters: DatapathParameters) -> DatapathParameters:
        """Return the experiment's parameters with the values that the change sets."""
        return parameters.with_change(self.change)

    @property
    def stem(self) -> str:
        """The label as a file name; the names of the arm's artefacts begin with it."""
        return self.label.replace(" ", "_").replace("/", "-")


OUTSIDE = Arm("outside", "baseline")  # a device that labkit did not build
Measured = tuple[Arm, dict[str, Any]]


def not_measured(error: LabkitError) -> dict[str, Any]:
    """Return the columns status and reason of what could not be measured because of this error."""
    kinds = {Unsupported: "unsupported", Isolated: "isolated", NoEffect: "equal"}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), "failed")
    return {"status": status, "reason": str(error)}


@functools.cache
def _tools() -> dict[str, Any]:
    return {**registry.versions(), "python": platform.python_version()}


def row_of(
    parameters: DatapathParameters, run_context: RunContext, arm: Arm, pairs: int, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete row: identity, parameters, metrics, provenance.

    Its status is `invalid` if its numbers contradict each other (consistency.contradiction).
    """
    peer = {} if run_context.peer is None else run_context.peer.machine
    own = arm.parameters(parameters)
    row = {
        **dict.fromkeys(COLUMNS),
        **{name: getattr(own, name) for name in PARAMETERS},
        "experiment": run_context.experiment,
        "run": run_context.folder.name,
        "arm": arm.label,
        "again": arm.is_second,
        "role": arm.role,
        "topology": arm.topology,
        **switch_options.columns(arm.topology),
        "network": getattr(parameters.described_network(arm.topology), "digest", None),
        "endpoint": arm.endpoint,
        "change": None if arm.change is None else arm.change.name,
        "guest": parameters.guest_word if parameters.in_guests else None,
        "pairs": pairs,
        "generator": own.load_generator.name,
        "length_bytes": own.row_length_bytes,
        **now(),
        **metrics,
        **run_context.machine,
        **_tools(),
        **{f"peer_{name}": peer.get(name) for name in PEER_COLUMNS},
        "seed": run_context.seed,
    }
    # If the second host is a monitor, the flow itself does not cross the link.
    checked = row | {"link_rate_bps": None} if parameters.has_remote_monitor else row
    if row["status"] == "ok" and (why := consistency.contradiction(checked)):
        row |= {"status": "invalid", "reason": why}
    return row


def now() -> dict[str, Any]:
    """Return the columns load1 (the machine's load average) and time (UTC)."""
    return {"load1": os.getloadavg()[0], "time": run_folder.now()}
