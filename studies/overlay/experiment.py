"""An observable overlay: the path of a packet hop by hop, reachability, spine failure, and the cost of encapsulation.

The network is `labkit.measure.topologies.network.leaf_spine_overlay`. The parts `path`, `reachability` and `failure`
build and observe it, and `tenants` is reachability in that network with all tenants of the report. `headers` and `cost`
compare point-to-point tunnels, as the experiment `datapaths` compares topologies.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.limits import UNIQUE, OneOf, Within
from labkit.common.packets import journey
from labkit.common.run_folder import Row
from labkit.measure import topologies
from labkit.measure.experiments import datapaths, measuring_loop, rows
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import TWO_HOSTS, DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan, Point, Running, Stages
from labkit.measure.experiments.rows import Arm
from labkit.measure.observers.capture import capture, every_interface
from labkit.measure.topologies import Topology
from labkit.measure.topologies.linux_datapaths import TUNNELS
from labkit.measure.topologies.network import build, kinds, leaf_spine_overlay, validate
from labkit.measure.topologies.network.parts import Network
from labkit.measure.topologies.state import read
from labkit.measure.traffic import ping
from studies.overlay import header_overhead, tenants
from studies.overlay import spine_failure as failing
from studies.overlay.reachability import reachability

# Whether leaves ignore routes over links without carrier; irrelevant if no carrier is lost.
LINKDOWN = {"carrier": (False, True), "silent": (False,)}
PARTS = ("path", "reachability", "tenants", "failure", "headers", "cost")
# Containers of a part, each of which pings each other one, and what that tells
REACHING = {"reachability": (5, "who reaches whom"), "tenants": (11, "which tenants reach which")}
BEFORE_S, AFTER_S = 1.0, 2.0  # seconds of probes before a spine fails, and after it has come back
ROW_PARAMETERS = ("where", "provider", "mtu_bytes", "fabric_mtu_bytes", "payload_bytes")


class Overlay(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` for the cost, and the network's."""

    ABSENT: ClassVar[tuple[str, ...]] = ("parent", *TWO_HOSTS)

    topology: Annotated[tuple[str, ...], "tunnels whose cost is compared; the first is the baseline"] = (
        "veth", "vxlan", "gre", "gretap", "vxlan_gre", "geneve",
    )  # fmt: skip
    protocol: str = "udp"
    mtu_bytes: Annotated[int, "MTU of the containers, and of the endpoints whose tunnels are compared"] = 1426
    family: Annotated[
        int, "version of IP (4 or 6) of the endpoints whose tunnels are compared; the network has IPv4"
    ] = 4
    part: Annotated[tuple[str, ...], f"parts to measure: {', '.join(PARTS)}", OneOf(PARTS), UNIQUE] = PARTS
    routes: Annotated[
        tuple[str, ...],
        "routes between the leaves: static (one spine), metric (a second route), ecmp (both at equal cost)",
        OneOf(leaf_spine_overlay.ROUTES),
        UNIQUE,
    ] = leaf_spine_overlay.ROUTES
    provider: Annotated[
        str,
        "what carries packets from leaf to leaf: gre, ipip, routed (plain routes)",
        OneOf(leaf_spine_overlay.PROVIDERS),
    ] = "gre"
    fabric_mtu_bytes: Annotated[
        int | None, "MTU of the cables between leaves and spines; none: what the containers' MTU needs"
    ] = None
    failure: Annotated[
        tuple[str, ...],
        "how a spine fails: carrier (its interfaces go down), silent (it stops forwarding)",
        OneOf(failing.FAILURES),
        UNIQUE,
    ] = failing.FAILURES
    payload_bytes: Annotated[int, "payload of the ping that is followed hop by hop"] = 56
    pings: Annotated[int, "echo requests from every container to every other", Within(1, 1000)] = 3
    probe_interval_s: Annotated[
        float, "interval between the probes while a spine fails", Within(0.002, 1)
    ] = 0.02
    outage_s: Annotated[float, "how long a spine is down", Within(0.2, 60)] = 5.0

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        super().check()
        if self.family != 4 and not {"headers", "cost"} & set(self.part):
            raise BadInput(
                f"family={self.family} applies to part=headers and part=cost only: add one of them"
            )
        if self.pairs != (1,) and "cost" not in self.part:
            raise BadInput("pairs applies to part=cost only: add part=cost, or leave pairs out")
        in_mtu = Within(16, self.mtu_bytes - 28, "the range of a ping within the MTU")
        in_mtu.check("payload_bytes", self.payload_bytes)
        validate.check(self.network(self.routes[0]))

    def check_programs(self) -> None:
        """Raise Unsupported where the program that makes the load is missing; only the cost needs one."""
        if "cost" in self.part:
            super().check_programs()

    def network(self, routes: str, *, of_all: bool = False) -> Network:
        """Return the network with these routes between the leaves. of_all: with all tenants of the report."""
        inside = kinds.overhead_bytes("vxlan")
        inside += 0 if self.provider == "routed" else kinds.overhead_bytes(self.provider)
        fabric = self.mtu_bytes + inside if self.fabric_mtu_bytes is None else self.fabric_mtu_bytes
        described = tenants.network if of_all else leaf_spine_overlay.leaf_spine_network
        return described(routes, fabric, self.mtu_bytes, self.provider)


@dataclass(frozen=True)
class Stage(Point):
    """A part of the experiment, or one combination of routes and failure in it: a description, and its seconds."""

    parameters: Overlay
    part: str
    what: str
    seconds: float
    routes: str
    failure: str | None = None
    ignores_linkdown: bool = False

    needs_arms: ClassVar[bool] = False

    @property
    def series(self) -> None:
        """None: every stage is measured."""

    def planned_s(self, usable: list[Arm]) -> float:
        """The estimated duration in seconds."""
        return self.seconds

    def measure(self, running: Running) -> Stages:
        """Measure the stage; if it fails, its row has the reason."""
        yield self.what, self.seconds
        try:
            result = self._measured(running.run_context)
        except (Unsupported, Failed) as error:
            result = [rows.not_measured(error)]
        running.rows += [_row(self.parameters, running.run_context, self, one) for one in result]

    def _measured(self, run_context: RunContext) -> list[Row]:
        """Build what the stage observes, and return its rows."""
        parameters = self.parameters
        if self.part == "headers":
            return _headers(parameters, run_context)
        described = parameters.network(self.routes, of_all=self.part == "tenants")
        folder = run_context.folder / "artefacts" / self.name
        with build.build(described) as topology:
            if self.part == "path":
                return _follow_pings(topology, parameters.payload_bytes, folder)
            if self.failure is None:
                return reachability(described, topology, parameters.pings, folder)
            row = failing.failure(
                described, topology, self.failure, ignores_linkdown=self.ignores_linkdown,
                interval_s=parameters.probe_interval_s,
                times_s=(BEFORE_S, parameters.outage_s, AFTER_S),
            )  # fmt: skip
        return [row]


def stages(parameters: Overlay) -> list[Stage]:
    """Return the stages beside the cost, in order."""
    result: dict[str, list[Stage]] = {part: [] for part in PARTS}

    def add(part: str, what: str, seconds: float, routes: str, *failure: Any) -> None:
        how, ignores = failure or (None, False)
        name = "-".join(filter(None, (part, routes, how, "linkdown" * ignores)))
        result[part].append(Stage(name, 1, 0, parameters, part, what, seconds, routes, how, ignores))

    add("path", "following packets", 4, parameters.routes[0])
    add("headers", "what tunnels add", 1.0 * len(parameters.topology), parameters.routes[0])
    for routes in parameters.routes:
        for part, (count, what) in REACHING.items():
            seconds = 4 + 0.1 * count * (count - 1) * parameters.pings
            add(part, f"{what}, {routes} routes", seconds, routes)
        for kind in parameters.failure:
            what = f"a spine fails ({kind}), {routes} routes"
            for ignores in LINKDOWN[kind]:
                add("failure", what, 6 + parameters.outage_s, routes, kind, ignores)
    return [stage for part in parameters.part for stage in result[part]]


def plan(parameters: Overlay, seed: int) -> Plan:
    """Return the plan of the experiment: the stages, and what `datapaths` measures of the tunnels."""
    if "cost" not in parameters.part:
        return Plan(parameters, stages(parameters), "", arms=[])
    cost = datapaths.plan(parameters, seed)
    points = [*stages(parameters), *cost.points_of([])]
    return dataclasses.replace(cost, points=points, columns={"part": "cost"})


def _row(parameters: Overlay, run_context: RunContext, stage: Stage, result: Row) -> Row:
    return {
        "experiment": run_context.experiment,
        "run": run_context.folder.name,
        "point": stage.name,
        "part": stage.part,
        "topology": "overlay",
        "protocol": "ping",
        "status": "ok",
        "reason": None,
        "doubts": None,
        "routes": stage.routes,
        **{name: getattr(parameters, name) for name in ROW_PARAMETERS},
        **rows.now(),
        **result,
        **run_context.machine,
        "seed": run_context.seed,
    }


def _follow_pings(topology: Topology, payload_bytes: int, folder: Path) -> list[Row]:
    """Ping between the ends of every pair, and return a row for each interface that saw an echo request or reply.

    A row has hop, direction, time since the first sighting, length, and headers of the frame. Each target is pinged
    before, so that neighbours and bridge ports are known. `folder` receives the capture and the network's state.
    Raises Failed for a ping without a reply.
    """
    if lost := ping.reachable(topology.pairs, mtu_bytes=84, family=4):  # small: only so that all are known
        raise Failed(lost)
    state = read.state(topology)
    run_folder.write_json(folder / "state.json", state)
    with capture(every_interface(topology.namespaces), folder) as seen:
        for pair in topology.pairs:
            ping.answered(pair.client, pair.server.address, 1, payload_bytes)
    journeys = seen.journeys(state.ports())
    seen.comment(journeys, state.owners())
    known = [one for one in journeys if one.inner[-1].name == "icmp"]
    report = {"doubts": seen.doubt, "artefact": str(seen.path.relative_to(folder.parents[1]))}
    return [row | report for row in journey.rows(known, seen.counts, state.owners())]


def _headers(parameters: Overlay, run_context: RunContext) -> list[Row]:
    result: list[Row] = []
    for name in (one for one in parameters.topology if one in TUNNELS):
        try:
            with topologies.build(name, parameters.spec(1, run_context.machine_netns)) as topology:
                result.append({"topology": name, **header_overhead.measure_overhead(topology)})
        except (Unsupported, Failed) as error:
            result.append({"topology": name, **rows.not_measured(error)})
    return result


EXPERIMENT = measuring_loop.experiment(
    Overlay, plan,
    about="an overlay network: the way and headers of packets, who reaches whom, a failing spine, the cost of tunnels",
)  # fmt: skip
