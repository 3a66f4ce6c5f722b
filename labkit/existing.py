"""A network that labkit did not make, in a notebook: its path, what slows it, the same as an arm, and a copy of it.

    path = existing.Path("container:web", "container:cli")
    path.check()
    path.clone("copy.yaml")

Each of them is a command of labkit in a process of its own (`labkit draw`, `check`, `clone`), because they enter the
network namespaces of others.
"""

from __future__ import annotations

import atexit
import re
from contextlib import ExitStack
from pathlib import Path as FilePath
from typing import Any

import msgspec

from labkit.analysis import displays, drawing
from labkit.common import existing_names, run_folder
from labkit.common.errors import Failed, Unsupported
from labkit.common.topology_state import State
from labkit.measure import topologies
from labkit.measure.hosts import local
from labkit.measure.topologies import Network
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Node, Offloads
from labkit.runner import permissions, yaml_files
from labkit.runner import run as running
from labkit.system import netlink, process

PATIENCE_S = 300.0
COMMANDS = {"undo": "to undo it", "change": "to try that on a copy, as a change"}
# Two ends at a bridge. The client's segmentation offloads are off, as after a line in a start script that nobody
# remembers.
EXAMPLE = Network(
    "example",
    (
        Node("client", container=True),
        Node("server", container=True),
        Node("switch"),
        Bridge("switch", "br0"),
        Cable(CableEnd("client", "eth0", "10.88.0.2/24"), CableEnd("switch", "to-client", master="br0")),
        Cable(CableEnd("server", "eth0", "10.88.0.3/24"), CableEnd("switch", "to-server", master="br0")),
        Offloads("client", "eth0", disable=("tso", "gso")),
    ),
    (("client", "server"),),
)
_examples: set[str] = set()  # the names of networks that `example` made


class Path:
    """The path between two ends, named as for `labkit draw`. In a notebook it is shown as its drawing.

    `state`: what the kernels report. `gap`: why the path ends before the other end, or "". Raises Failed with labkit's
    sentence, for example without the right to enter a namespace.
    """

    def __init__(self, client: str, server: str) -> None:
        self.client, self.server = client, server
        drawn, self.gap = _labkit("draw", client, server, "--json")
        self.state = msgspec.json.decode(drawn, type=State)

    @property
    def topology(self) -> str:
        """Its name as an arm of an experiment (`topology=`)."""
        return existing_names.network(self.client, self.server)

    @property
    def parameters(self) -> dict[str, int]:
        """The MTU and the version of IP that the arms beside it must have."""
        client, _server = self.state.pairs[0]
        [space] = (one for one in self.state.namespaces if one.name == client.namespace)
        [own] = (one for one in space.interfaces if one.name == client.interface)
        return {"mtu_bytes": own.mtu_bytes, "family": 6 if ":" in client.address else 4}

    def allow_traffic(self) -> None:
        """Agree that runs of this process send load between these two ends: `labkit run --yes`.

        In a sweep, whose parameters may be a stranger's, this agrees to `example` only; LABKIT_ALLOW=existing_network
        agrees to all.
        """
        if self.topology in _examples or not permissions.is_of_a_sweep():
            permissions.allow(running.EXISTING, [self.topology])

    def check(self) -> Findings:
        """Look for what slows or breaks it (`labkit check`): small packets of labkit's own, and no load."""
        report, _said = _labkit("check", self.client, self.server, "--json")
        return Findings(msgspec.json.decode(report))

    def clone(self, file: str | FilePath) -> Clone:
        """Write it as a network of parts into a file, which can be built and changed without touching the original."""
        text, _said = _labkit("clone", self.client, self.server)
        run_folder.write(FilePath(file), text.encode())
        return Clone(FilePath(file), text)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from labkit.analysis.drawing import figure

        shown: dict[str, Any] = figure.topology(self.state)._repr_mimebundle_(include, exclude) or {}
        return shown | {"text/plain": "\n".join(filter(None, [drawing.tree(self.state).rstrip(), self.gap]))}


class Findings:
    """What a check found, the answer first. `report`: as `labkit check --json` prints it."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self.findings: list[dict[str, Any]] = report["findings"]

    @property
    def change(self) -> str | None:
        """The first change that undoes a cause, to be tried on a copy; None: it has none."""
        return next((one["change"] for one in self.findings if one["change"]), None)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        lines = [] if self.findings else ["Nothing known slows or breaks this path."]
        for number, one in enumerate(self.findings, 1):
            lines += [
                f"{number}. **{one['cause']}**: {one['what']}",
                f"    - where: {one['where']} ({one['certainty']})",
            ]
            lines += [f"    - {name}: `{one[key]}`" for key, name in COMMANDS.items() if one[key]]
        lines += [f"- not seen: {one}" for one in self.report["not_seen"]]
        text = displays.inert("\n".join(lines))
        return {"text/markdown": text, "text/plain": text}


class Clone:
    """A copy of a path as a network of parts: `file`, its content `text`, and the `network`, an arm of any run."""

    def __init__(self, file: FilePath, text: str) -> None:
        self.file, self.text = file, text
        self.network = yaml_files.network(file)

    @property
    def lacks(self) -> list[str]:
        """A sentence about each thing that the copy does not have."""
        return [line.removeprefix("# ") for line in self.text.splitlines() if line.startswith("# It lacks ")]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        lines = [displays.inert(f"- {one}") for one in self.lacks]
        lines = lines or ["The copy lacks nothing that labkit knows of."]
        shown = [line for line in self.text.splitlines() if not line.startswith("#")]
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", self.text))])
        text = "\n".join([f"{fence}yaml", *shown, fence, "", *lines])
        return {"text/markdown": text, "text/plain": self.text}


def example() -> tuple[str, str]:
    """Make a small network with a fault, as somebody else might have, and return the names of its ends.

    It exists as long as this process. Raises Unsupported without root, because only root may enter namespaces by name.
    """
    if not local.privileged():
        raise Unsupported("only root may look into the network namespaces of others: start Jupyter as root")
    with ExitStack() as stack:
        built = stack.enter_context(topologies.build_network(EXAMPLE))
        names = {}
        for space in built.namespaces:  # a process in each, so that it has a name
            with netlink.inside(space.fd):
                program = process.Running([*process.DIE_WITH_US, "sleep", "infinity"])
            stack.callback(program.kill)
            names[space.name] = f"pid:{program.pid}"
        atexit.register(stack.pop_all().close)
    _examples.add(existing_names.network(names["client"], names["server"]))
    return names["client"], names["server"]


def _labkit(*words: str) -> tuple[str, str]:
    """Return the output and the message of a command. Raises Failed with its sentence."""
    ended = process.run(process.python("-m", "labkit.cli", *words), PATIENCE_S)
    said = ended.stderr.strip().removeprefix("labkit: ")
    if ended.returncode:
        raise Failed(said or ended.message())
    return ended.stdout, said
