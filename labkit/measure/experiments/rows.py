"""The columns of a row: identity, parameters, metrics, provenance."""

from __future__ import annotations

import functools
import platform
import random
import time
from dataclasses import dataclass
from typing import Any

from labkit.common import schema
from labkit.measure.experiments import consistency
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import registry
from labkit.system import machine

# Every row of a comparison has these columns; what was not measured is null.
WRITERS = ("rows", "traffic", "profile", "endpoint", "switch", "peer")
COLUMNS = [name for name in schema.names(writer=WRITERS) if name != "status"]
# Of the servers' host, where that is another one; a column is peer_ and the name.
OF_PEER = [name.removeprefix("peer_") for name in schema.names(writer=("peer",), role=("describes",))]
PARAMETERS = schema.names(writer=("rows",), role=("parametrises",))


@dataclass(frozen=True)
class Arm:
    """A topology under comparison, what programs run in at its ends, what is changed in it, and the part it plays:
    baseline, control (the baseline again) or variant; `again`: a variant that is measured a second time as well."""

    topology: str
    role: str
    endpoint: str = "namespace"
    again: bool = False
    change: Change | None = None

    @property
    def name(self) -> str:
        """`veth_bridge`, `veth_bridge/guest`, `veth_bridge+gro-off`"""
        name = self.topology if self.endpoint == "namespace" else f"{self.topology}/{self.endpoint}"
        return name if self.change is None else f"{name}+{self.change.name}"

    @property
    def label(self) -> str:
        """The name of the arm."""
        return f"{self.name} (again)" if self.again or self.role == "control" else self.name

    def parameters(self, parameters: DatapathParameters) -> DatapathParameters:
        """The experiment's parameters with those that the change sets."""
        return parameters.with_change(self.change)

    @property
    def stem(self) -> str:
        """The beginning of the names of its artefacts."""
        return self.label.replace(" ", "_").replace("/", "-")


Measured = tuple[Arm, dict[str, Any]]


@functools.cache
def _tools() -> dict[str, Any]:
    return {**registry.versions(), "python": platform.python_version()}


def row_of(
    parameters: DatapathParameters, run_context: RunContext, arm: Arm, pairs: int, metrics: dict[str, Any]
) -> dict[str, Any]:
    """A whole row: identity, parameters, metrics, provenance; `invalid` where its numbers contradict each other."""
    peer = {} if run_context.peer is None else run_context.peer.machine
    own = arm.parameters(parameters)
    row = {
        **dict.fromkeys(COLUMNS),
        **{name: getattr(own, name) for name in PARAMETERS},
        "experiment": run_context.experiment,
        "run": run_context.folder.name,
        "arm": arm.label,
        "role": arm.role,
        "topology": arm.topology,
        "endpoint": arm.endpoint,
        "change": None if arm.change is None else arm.change.name,
        "guest": parameters.guest_word if parameters.in_guests else None,
        "pairs": pairs,
        "generator": own.load_generator.name,
        "length_bytes": own.payload_bytes,
        **now(),
        **metrics,
        **run_context.machine,
        **_tools(),
        **{f"peer_{name}": peer.get(name) for name in OF_PEER},
        "seed": run_context.seed,
    }
    if row["status"] == "ok" and (why := consistency.contradiction(row)):
        row |= {"status": "invalid", "reason": why}
    return row


def order(run_context: RunContext, pairs: int, number: int, labels: list[str]) -> list[str]:
    """The order of whole runs, A B B A: what comes first in one round comes last in the next."""
    result = sorted(labels)
    random.Random(f"{run_context.seed} {pairs} {number // 2}").shuffle(result)
    return result[:: -1 if number % 2 else 1]


def now() -> dict[str, Any]:
    """The machine's load and the time of day."""
    return {"load1": machine.load1(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
