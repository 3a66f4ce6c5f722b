"""The survey tries every arm once: which arms can this kernel build? It also builds all arms afresh for each point."""

import errno
import random
import socket
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed, Isolated, NoEffect, Unsupported
from labkit.measure import topologies
from labkit.measure.experiments import built_arm, changes, context, slices
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.datapaths_parameters import IP_AND_UDP, DatapathParameters
from labkit.measure.experiments.rows import Arm, Measured, not_measured, row_of
from labkit.measure.observers import registry
from labkit.measure.traffic import ping
from labkit.system import netlink

SMALL_BYTES = 128  # the size of a ping that has to pass even if a change makes the MTU smaller
# Kinds of changes whose rules may drop pings
RULES = ("nftables", "rules", "tc_filter", "xdp", "tc_bpf", "function")
LARGE_S = 2  # after small pings have passed, how long one that fills the MTU may take
REFUSED = "refused"  # ends the name of the points (one for each number of pairs) whose rows say why an arm is missing
TRIAL_S = 0.1  # about how long the trial of an arm with one pair takes
# About how long an arm's guests boot, all at once, when emulated; with KVM progress soon corrects it.
BOOT_S = 6.0


def planned_arms(parameters: DatapathParameters) -> list[Arm]:
    """Return the arms with their roles, as if all of them were usable."""
    return _with_roles(_variants(parameters), parameters)


def _variants(parameters: DatapathParameters) -> list[Arm]:
    """Return an arm for every topology and endpoint kind: unchanged unless a change is the baseline, and with each
    change."""
    unchanged = (None,) if parameters.baseline_change is None else ()
    return [
        Arm(name, "variant", endpoint, change=change)
        for name in parameters.topology_names
        for endpoint in parameters.endpoint
        for change in (*unchanged, *parameters.change)
    ]


def boots_s(arms: list[Arm]) -> float:
    """Estimate how many seconds the guests of these arms take to boot in one set-up."""
    return BOOT_S * sum(arm.endpoint in topologies.IN_GUESTS for arm in arms)


def survey_s(parameters: DatapathParameters) -> float:
    tried = [arm for arm in planned_arms(parameters) if arm.role != "control" and not arm.again]
    return TRIAL_S * len(tried) + boots_s(tried)


def survey(parameters: DatapathParameters, run_context: RunContext) -> tuple[list[Arm], list[Measured]]:
    """Return the arms that can be measured here, and those that cannot, each with its status and the reason.

    The baseline comes first, its control second. The survey builds each arm with one pair and sends a ping that fills
    the MTU. A single arm has no control, because nothing is compared.
    """
    good: list[Arm] = []
    refused: list[Measured] = []
    for arm in _variants(parameters):
        why = _why_not(arm, parameters, run_context)
        if why is not None and why["status"] == "failed":
            # Try again: a single lost ping must not exclude an arm, least of all the baseline.
            why = _why_not(arm, parameters, run_context)
        if why is not None and why["status"] == "equal":
            if parameters.without_effect == "refuse":
                raise BadInput(f"{arm.name}: {why['reason']}")
            why["reason"] = f"it equals {replace(arm, change=None).name} by construction: {why['reason']}"
        if why is None:
            good.append(arm)
        else:
            refused.append((arm, why))
    return _with_roles(good, parameters), refused


def _with_roles(good: list[Arm], parameters: DatapathParameters) -> list[Arm]:
    if (name := parameters.baseline_change) is not None:
        good = sorted(good, key=lambda arm: arm.change is None or arm.change.name != name)
    arms = [replace(arm, role="variant" if number else "baseline") for number, arm in enumerate(good)]
    # The cable to a monitor carries the copies of one arm, so such an arm has no control at the same time.
    uses_the_cable = (
        parameters.has_remote_monitor and good[:1] and good[0].topology in parameters.copying_topologies
    )
    if len(arms) > 1 and not uses_the_cable:
        arms.insert(1, replace(good[0], role="control"))
    return [*arms, *_again(arms)]


def _again(arms: list[Arm]) -> list[Arm]:
    """Return the second measurement of each shared-guest variant, if there are arms with a guest for each end.

    Those arms are also compared with the shared guest, which has the same kernel and as many CPUs.
    """
    of = {arm.endpoint for arm in arms}
    shared = [arm for arm in arms if arm.endpoint == "shared_guest" and arm.role == "variant"]
    return [replace(arm, again=True) for arm in shared] if "guest" in of else []


def _why_not(arm: Arm, parameters: DatapathParameters, run_context: RunContext) -> dict[str, Any] | None:
    """Return why an arm cannot be measured here, as columns; None if it can."""
    try:
        if parameters.has_remote_servers:
            from labkit.measure.experiments.two_hosts import client_side  # what only two hosts need

            with client_side.across(parameters, run_context, arm, 1):
                return None
        with _topology(arm, parameters, run_context, 1) as topology:
            _check_congestion(arm.parameters(parameters), topology)
            apply_change(arm, topology, parameters)
            registry.check_topology(parameters, topology)
            return None
    except changes.NoPlace as error:
        if len(parameters.topology) == len(parameters.endpoint) == 1:  # no other arm can have it
            raise BadInput(f"{arm.name}: {error}") from None
        return not_measured(error)
    except (Unsupported, Isolated, Failed) as error:
        return not_measured(error)


@contextmanager
def _topology(
    arm: Arm, parameters: DatapathParameters, run_context: RunContext, pairs: int
) -> Iterator[topologies.Topology]:
    """Build an arm without its change, with all ends on this host.

    Raises Isolated, or Failed if pings that fill the MTU are not answered; of an isolated one, if they are.
    """
    own = arm.parameters(parameters)
    described, monitor = own.described_network(arm.topology), None
    if run_context.peer is not None and own.has_remote_monitor:
        monitor = topologies.RemoteMonitor(run_context.peer.ask, own.nic(topologies.CLIENTS))
    spec = own.spec(pairs, run_context.machine_netns, endpoint=arm.endpoint, monitor=monitor)
    if arm.change is not None and arm.change.programs:
        from labkit.measure.experiments.change_kinds.program import verified  # few changes are programs

        spec = replace(spec, programs={name: verified(of) for name, of in arm.change.programs.items()})
    with topologies.build(described, spec) as topology:
        if isolated := topologies.kind_of(described).isolated:
            if ping.silent(topology.pairs[0]):
                raise Isolated(f"{isolated}; no ping was answered, as expected")
            differs = "but here a ping was answered, so this kernel behaves differently than labkit expects"
            raise Failed(f"{isolated}, {differs}")
        if words := ping.reachable(topology.pairs, own.mtu_bytes, own.family):
            reason = topology.why_silent()
            raise Failed(f"{words}; {reason}" if reason else words)
        yield topology


def _check_congestion(parameters: DatapathParameters, topology: topologies.Topology) -> None:
    """Raise Unsupported if the kernel has no such TCP congestion control and cannot load it."""
    client = topology.pairs[0].client
    if (
        parameters.congestion is None
        or not parameters.protocol.startswith("tcp")
        or client.runtime is not None
    ):
        return
    with netlink.inside(client.namespace.fd), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, parameters.congestion.encode())
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise Unsupported(
                    f"this kernel has no TCP congestion control {parameters.congestion}; sysctl"
                    " net.ipv4.tcp_available_congestion_control lists what it has"
                ) from None


def refused_rows(
    loads: Sequence[DatapathParameters], run_context: RunContext, refused: list[Measured], done: Set[str]
) -> Iterator[Event]:
    """Yield the rows of arms that cannot be measured, for each load and number of pairs that has none yet.

    If an arm failed in an earlier run and can be measured now, its old rows are removed.
    """
    for pairs in loads[0].pairs:
        name = f"{pairs}-{REFUSED}"
        if name not in done and (refused or name in run_context.again):
            rows = [
                row_of(one, run_context, arm, pairs, {**metrics, "ends_on": where})
                for one in loads
                for where in slices.ends_of_requests(one)
                for arm, metrics in refused
            ]
            yield context.rows(name, rows)


def incomplete_points(
    run_context: RunContext, usable: Sequence[Arm], of_points: Mapping[str, Sequence[Arm]]
) -> set[str]:
    """Return the points that lack rows of an arm that failed when they were measured and is usable now.

    of_points: the arms that a point measures, by its name; the others measure all.
    """
    if not any(point.endswith(f"-{REFUSED}") for point in run_context.again):
        return set()
    seen: dict[str, set[str]] = {}
    for row in run_folder.read_rows(run_context.folder):
        if row.get("point") and row.get("arm"):
            seen.setdefault(row["point"], set()).add(row["arm"])
    return {
        point
        for point, labels in seen.items()
        if {arm.label for arm in of_points.get(point, usable)} - labels
    }


@contextmanager
def built(
    parameters: DatapathParameters, run_context: RunContext, pairs: int, arms: list[Arm], rng: random.Random
) -> Iterator[tuple[list[LocalArm], list[Measured]]]:
    """Build all arms afresh in random order, and keep them until the block ends.

    Yields the arms whose endpoints reach each other, and a failed row for each other arm.
    """
    built_arms: list[LocalArm] = []
    failed: list[Measured] = []
    with ExitStack() as stack:
        for arm in rng.sample(arms, len(arms)):
            try:
                topology = stack.enter_context(_topology(arm, parameters, run_context, pairs))
                # Where an end may not be changed, all arms are alike without it.
                if parameters.slices and not parameters.existing_networks:
                    _keep_window(topology)
                effects = apply_change(arm, topology, parameters)
                built_arms.append(
                    built_arm.local_arm(arm, topology, run_context.machine.get("accelerator"), effects)
                )
            except (Failed, Unsupported) as error:
                failed.append((arm, {"status": "failed", "reason": str(error)}))
        baseline = next((one for one in built_arms if one.arm.role == "baseline"), None)
        for one in built_arms:
            one.mark_as_replacement(parameters)
            if baseline is not None:
                one.compare(baseline)
        yield built_arms, failed


def apply_change(
    arm: Arm, topology: topologies.Topology, parameters: DatapathParameters
) -> list[dict[str, Any]]:
    """Apply the change of an arm and return its effects (`changes.apply`).

    Raises the same errors, and Failed if the ends no longer reach each other.
    """
    if arm.change is None:
        return []
    from labkit.measure.observers.counters import packet_loss  # a plain arm with TCP does not need it

    own = arm.parameters(parameters)
    effects = [*_set_parameters(arm.change, parameters, own), *changes.apply(arm.change, topology)]
    name = arm.change.name
    refused = packet_loss.refusals(topology)
    if words := ping.reachable(topology.pairs, SMALL_BYTES, own.family):
        counted = f"; the kernel refused packets at {where}" if (where := refused()) else ""
        rules = any(step.kind in RULES for step in arm.change.steps)
        icmp = "; labkit tries every path with pings, so rules have to accept ICMP" if rules else ""
        raise Failed(f"with the change {name} {words}{counted}{icmp}")
    # If a bridge's or a tunnel's MTU is too small for the load's packets, they vanish, and nothing says why.
    packet_bytes = _packet_bytes(own, _mtu_of_ends(topology))
    words = ping.reachable(topology.pairs, packet_bytes, own.family, LARGE_S)
    # An answer of a router lets UDP fragment.
    if words and (own.protocol == "tcp" or not words.endswith(")")):
        raise Failed(
            f"with the change {name} {words}, which is the size of the load's packets: give the interfaces between"
            " the ends (at between) an MTU as large, or make length_bytes smaller"
        )
    return effects


def _packet_bytes(parameters: DatapathParameters, mtu_bytes: int) -> int:
    """Return the size of the largest packets that the load sends, with its IP header."""
    if parameters.protocol != "udp":
        return mtu_bytes if parameters.protocol == "tcp" else SMALL_BYTES
    return max(SMALL_BYTES, min(mtu_bytes, parameters.datagram_bytes + IP_AND_UDP[parameters.family]))


def _mtu_of_ends(topology: topologies.Topology) -> int:
    """Return the smallest MTU of the pairs' interfaces on this kernel: what both ends send. In guests it is unknown."""
    return min(
        (
            link.mtu_bytes
            for end in topology.ends
            for link in netlink.links(end.namespace.netlink)
            if link.name == end.interface
        ),
        default=SMALL_BYTES,
    )


def _set_parameters(
    change: changes.Change, usual: DatapathParameters, own: DatapathParameters
) -> list[dict[str, Any]]:
    """Return the effects of a change on parameters. Raises NoEffect, or Failed if it changes more than parameters, if a
    value equals that of the unchanged arm."""
    result = []
    kind = (
        NoEffect if len(change.parameters) == sum(len(step.options) for step in change.steps) == 1 else Failed
    )
    for name in change.parameters:
        before, after = (
            getattr(one, "row_length_bytes" if name == "length_bytes" else name) for one in (usual, own)
        )
        if before == after:
            raise kind(
                f"change {change.name}: {name}={after} has no effect, the unchanged arm has it as well"
            )
        result.append(changes.parameter_effect(name, before, after))
    # Without length_bytes a datagram fills the MTU, so a change of the MTU also changes the length.
    if usual.row_length_bytes != own.row_length_bytes and "length_bytes" not in change.parameters:
        result.append(changes.parameter_effect("length_bytes", usual.row_length_bytes, own.row_length_bytes))
    return result


def _keep_window(topology: topologies.Topology) -> None:
    # A sender that is held between its slices must keep its congestion window, so this disables RFC 2861.
    for end in topology.ends:
        end.kernel.sysctl("ipv4/tcp_slow_start_after_idle", 0)
