"""The parameters of the experiment `datapaths`, and their checks."""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec

from labkit.common import existing_names, switch_options
from labkit.common.errors import BadInput
from labkit.common.extensions import on_call
from labkit.common.limits import UNIQUE, UNIQUE_OR_EMPTY, Form, Offered, OneOf, UniqueItems, Within
from labkit.common.plain_types import wrong_type
from labkit.measure import hosts, topologies
from labkit.measure.experiments import changes
from labkit.measure.experiments.changes import Change, Step
from labkit.measure.experiments.context import Experiment
from labkit.measure.observers import registry as observing
from labkit.measure.parameters import Parameters, refuse_given
from labkit.measure.topologies import Network
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import LARGEST_DATAGRAM, Generator, TrialGenerator

AT_END = re.compile(r"client|server|both|(client|server)\d*:.*")  # a place of a change at an end
IP_AND_UDP = {4: 28, 6: 48}
NIC = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
MIN_MTU = {4: 68, 6: 1280}  # RFC 791, RFC 8200


# Groups of parameters, for experiments that do not have them (`Parameters.ABSENT`)
LOAD = (
    "protocol", "length_bytes", "response_bytes", "rate_bps", "rate_rps", "outstanding", "streams", "direction",
    "omit_s", "placement", "mss_bytes", "congestion", "socket", "zerocopy", "affinity",
)  # fmt: skip
REPETITION = ("slices", "whole_runs", "half_width")
OBSERVATION = (
    "observe",
    "profile_rounds",
    *(name for each in observing.PARAMETERS for name in each.__struct_fields__),
)
TWO_HOSTS = ("nodes", "peer", "link_rate_bps", "link_delay_s")


if TYPE_CHECKING:
    ObservedParameters = Parameters
else:
    ObservedParameters = observing.with_parameters(Parameters)


def _topologies(given: Any) -> tuple[str | Network, ...]:
    """Parse names of topologies and descriptions of networks from a text (`veth,gre`), a single value, or a list."""
    if isinstance(given, str):
        given = [] if given.strip().lower() in ("", "none", "null") else given.split(",")
    each = given if isinstance(given, list | tuple) else [given]
    return tuple(_topology(one) for one in each)


def _topology(given: Any) -> str | Network:
    if isinstance(given, str):
        return given.strip()
    try:
        return msgspec.convert(given, Network)
    except msgspec.ValidationError as error:
        raise BadInput(f"topology: a value is neither a name nor a network: {wrong_type(error)}") from None


def _acts_on_ip_only(step: Step) -> bool:
    """Return whether only packets of IP meet what a step changes: a queue, or rules after the ingress hook."""
    return (
        step.kind in ("qdisc", "rules", "conntrack")
        or step.options.get("hook") in ("egress", "root")
        or (step.kind == "nftables" and "ingress" not in step.options["rules"])
    )


class DatapathParameters(ObservedParameters, frozen=True, kw_only=True):
    """Parameters of the experiment, with those of all observers."""

    PARSERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"change": changes.parse, "topology": _topologies}
    # Whether other parameters than topology, endpoint and change make arms
    HAS_OTHER_ARMS: ClassVar[bool] = False

    where: Annotated[
        str,
        "the kernel that runs the experiment: here, vm:KERNEL (a lab VM), or ssh:NAME",
        Offered(("here", "vm:debian", "ssh:")),
    ] = "here"
    topology: Annotated[
        tuple[str | Network, ...],
        "topologies to compare; the first is the baseline; FILE.yaml is your own network (docs/network.yaml);"
        " existing:END+END is one that is there, for example existing:container:web+container:cli;"
        " an END on another machine has ssh:NAME/ before it",
        Offered(topologies.TABLE),
    ] = ("veth_bridge",)
    endpoint: Annotated[
        tuple[str, ...],
        "where programs run; several are compared: namespace, container, guest (one each), shared_guest",
        OneOf(topologies.ENDPOINTS),
        UNIQUE,
    ] = ("namespace",)
    change: Annotated[
        tuple[Change, ...],
        f"changes of the topology, each an arm that is compared with the unchanged topology: {changes.FORM};"
        " separate several by semicolons, or name a YAML file of changes",
    ] = ()
    without_effect: Annotated[
        str,
        "an arm on which its change has no effect: equal (it is reported as equal to the unchanged arm), or refuse"
        " (the run ends before it measures)",
        OneOf(("equal", "refuse")),
    ] = "equal"
    guest: Annotated[
        str | None,
        "kernel and options of a guest: KERNEL[,cpus=N][,queues=N][,offloads=on|off][,vhost=auto|on|off] …;"
        " none: debian",
    ] = None
    generator: Annotated[
        str | None,
        f"the traffic generator: {', '.join(registry.GENERATORS)}; none: the usual one of the protocol",
        Offered(registry.GENERATORS),
    ] = None
    protocol: Annotated[
        str,
        "tcp, udp, ping (round-trip times, closed-loop), udp_rr and tcp_rr (requests and responses), tcp_crr (each"
        " request with its own connection), tcp_cc (connections alone), http, or http_close (without keep-alive)",
        OneOf(registry.PROTOCOLS),
    ] = "tcp"
    pairs: Annotated[
        tuple[int, ...],
        "numbers of pairs of endpoints that are loaded at the same time",
        Within(1, 500, "a Linux bridge has 1,023 ports"),
        UNIQUE,
    ] = (1,)
    mtu_bytes: Annotated[int, "MTU of every endpoint's interface"] = 1500
    length_bytes: Annotated[
        int | None,
        "length of a write (TCP), datagram (UDP), request and response (none: 14), HTTP response (none: 1024) or ping"
        " payload; none: iperf3's, or what fits the MTU",
    ] = None
    response_bytes: Annotated[
        int | None,
        "length of a response by labkit's own sockets (tcp_crr; tcp_rr and udp_rr with generator=sockets); none: as the"
        " request",
    ] = None
    rate_bps: Annotated[float | None, "rate of each stream; none: as fast as possible", Within(1e3, 1e12)] = (
        None
    )
    rate_rps: Annotated[
        int | None,
        "requests per second of each pair, sent by a schedule (udp_rr, tcp_rr); none: a closed loop",
        Within(1, 500_000),
    ] = None
    outstanding: Annotated[
        int | None,
        "requests in flight on each connection of a closed loop (udp_rr, tcp_rr with generator=sockets); none: one",
        Within(2, 128, "without it there is one"),
    ] = None
    streams: Annotated[
        int,
        "parallel streams of each pair, or its open connections",
        Within(1, 128, "this is iperf3's limit"),
    ] = 1
    direction: Annotated[
        str,
        "where the load goes: forward (from clients to servers), reverse, or both at once",
        OneOf(("forward", "reverse", "both")),
    ] = "forward"
    duration_s: Annotated[int, "duration of a whole run, without the warm-up", Within(1, 3600)] = 5
    omit_s: Annotated[
        int, "warm-up that is left out of a whole run", Within(0, 60, "this is iperf3's limit")
    ] = 1
    family: Annotated[int, "version of IP: 4 or 6", OneOf((4, 6))] = 4
    rounds: Annotated[
        int, "fresh set-ups of all arms: 5 quick, 10 normal, 20 for publication", Within(1, 1000)
    ] = 1
    slices: Annotated[
        int, "slices of 100 ms of each arm in each round; 0: whole runs only", Within(0, 1000)
    ] = 0
    whole_runs: Annotated[int | None, "rounds that end with one whole run of each arm; none: every round"] = (
        None
    )
    observe: Annotated[
        tuple[str, ...],
        "observers, each in whole runs of its own after the measured rounds: " + ", ".join(observing.NAMES),
        OneOf(observing.NAMES),
        UNIQUE_OR_EMPTY,
    ] = ()
    profile_rounds: Annotated[
        int, "fresh set-ups of all arms for whole runs under each observer, and without one", Within(1, 1000)
    ] = 5
    placement: Annotated[
        str,
        "the CPUs of both ends in slices, round trips and profiled runs: balanced (all placements in turn, arms alike;"
        " requests are compared on one CPU and on two) or scheduler",
        OneOf(("balanced", "scheduler")),
    ] = "balanced"
    half_width: Annotated[
        float,
        "stop early when all intervals are at most ± this share of the ratio, but not before 8 rounds",
        Within(0, 1),
    ] = 0.02
    mss_bytes: Annotated[int | None, "TCP maximum segment size; none: the path's", Within(88, 65495)] = None
    congestion: Annotated[
        str | None,
        "TCP congestion control; none: the kernel's default",
        Form(r"[a-z0-9_]{1,15}", "an algorithm of the kernel, for example cubic"),
    ] = None
    socket: Annotated[
        str | None,
        "options of the load's sockets at both ends, as far as the generator can set them: sndbuf=BYTES rcvbuf=BYTES"
        " nodelay=on|off quickack=on|off busy_poll=MICROSECONDS writes=N (of a request); none: its usual ones",
    ] = None
    zerocopy: Annotated[bool, "iperf3 -Z"] = False
    affinity: Annotated[
        str | None,
        "CPU of the client and CPU of the server, for example 0,1",
        Form(r"\d{1,4}(,\d{1,4})?", "the clients' CPU and the servers' CPU, for example 0,1"),
    ] = None
    parent: Annotated[
        str | None,
        "NIC under macvlan and ipvlan; none: a veth. With nodes=two on real machines: NIC,NIC, of the clients'"
        " and of the servers' host",
    ] = None
    nodes: Annotated[
        str,
        "one, or two: the clients on one host, the servers on another; if mirrors copy into a tunnel, all ends are"
        " on one host, and the copies arrive on the other",
        OneOf(("one", "two")),
    ] = "one"
    peer: Annotated[
        str | None,
        "host of the servers with nodes=two; none: a second one like that of where, with labkit's cable",
    ] = None
    link_rate_bps: Annotated[
        float | None,
        "rate of labkit's cable between two nodes, each way (tbf); none: unlimited",
        Within(1e5, 1e11),
    ] = None
    link_delay_s: Annotated[
        float | None, "delay of labkit's cable between two nodes, each way (netem)", Within(0, 10)
    ] = None
    seed: Annotated[
        int | None, "seed of every random order; none: chosen at random and recorded", Within(0, 2**31 - 1)
    ] = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the parameters from names and values, as Parameters.of does.

        A generator that does not support the default protocol sets its own; a described network sets its MTU and IP
        version, and an existing one whose ends name machines sets these.
        """
        if "topology" in given:
            parsed = _topologies(given["topology"])
            own = ChainMap(*map(topologies.usual, parsed))
            given = {
                **{name: own[name] for name in own if name not in cls.ABSENT},
                **given,
                "topology": parsed,
            }
        name = given.get("generator")
        if isinstance(name, str) and name.lower() not in ("", "none", "null") and "protocol" not in given:
            spoken = registry.GENERATORS.find(name).capabilities.protocols
            if cls().protocol not in spoken:
                given = {**given, "protocol": spoken[0]}
        return super().of(given)

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        self.check_values()
        hosts.check(self.where)
        topologies.check_names(self.topology)
        if self.existing_networks and not self.where.startswith(("here", "ssh:")):
            raise BadInput(
                f"where={self.where}: {self.existing_networks[0]} is not in a lab VM: leave where out, or name its"
                " machine, where=ssh:NAME"
            )
        for name in self.existing_networks:
            own = topologies.usual(name)
            if "peer" in own and "peer" in self.ABSENT:
                raise BadInput(f"{name}: this experiment takes two ends of one machine")
            if "peer" in own and self.has_remote_monitor:
                raise BadInput(
                    f"{name} has its other end on the second host, so no mirror can send copies there: leave out"
                    f" {', '.join(self.copying_topologies)}"
                )
            if any(getattr(self, key) != value for key, value in own.items()):
                raise BadInput(
                    f"{name} decides {', '.join(own)}: leave these out, and topologies on other machines"
                )
            if "peer" in own:
                self._check_two_machines(name)
        twice = "labkit itself measures the baseline twice" if self.topology else ""
        UniqueItems(twice).check("topology", self.topology_names)
        Within(MIN_MTU[self.family], 65535, f"what IPv{self.family} allows").check(
            "mtu_bytes", self.mtu_bytes
        )
        Within(0, self.rounds, "it counts rounds").check("whole_runs", self.whole_runs)
        self._check_load()
        self._check_names()
        parent = self.parent if self.nodes == "one" else None
        load = max(self.pairs), self.mtu_bytes, self.family
        for one in self.topology:
            topologies.check(
                one, load, self.load_generator.name, self.endpoint, parent, self.has_remote_servers
            )
        self._check_endpoints()
        observing.check(self)
        self._check_changes()
        if self.nodes == "two":
            self._check_two()
        else:
            why = "it needs nodes=two: add that, or leave it out"
            refuse_given(self, ("peer", "link_rate_bps", "link_delay_s"), why)

    def _check_two_machines(self, name: str) -> None:
        usual = type(self)()
        names = ("change", "observe", "slices", "direction")
        asked = [key for key in names if getattr(self, key) != getattr(usual, key)]
        asked += [] if self.load_generator.name in ("iperf3", "ping") else ["protocol", "generator"]
        if asked:
            raise BadInput(
                f"{name}: between ends of two machines, labkit measures in whole runs of iperf3 or ping, without"
                f" changes and observers: leave {' and '.join(asked)} out"
            )

    @property
    def topology_names(self) -> tuple[str, ...]:
        """The name of each topology, as rows have it."""
        return tuple(map(str, self.topology))

    @property
    def has_one_arm(self) -> bool:
        """Whether there is nothing to compare it with."""
        return (
            not self.HAS_OTHER_ARMS and len(self.topology) * len(self.endpoint) * (1 + len(self.change)) == 1
        )

    def described_network(self, name: str) -> str | Network:
        """Return what to build for the topology of this name: the name itself, or a network's description."""
        return next((one for one in self.topology if str(one) == name), name)

    @property
    def existing_networks(self) -> list[str]:
        """The names of topologies that are there already."""
        return [name for name in self.topology_names if existing_names.is_network(name)]

    def _check_endpoints(self) -> None:
        if self.in_guests:
            self._check_guests()
        elif self.guest is not None:
            raise BadInput(f"guest={self.guest} needs guests: add endpoint=guest, or leave guest out")
        if self.nodes == "two" and self.endpoint != ("namespace",):
            raise BadInput("nodes=two runs programs in namespaces only: leave endpoint out")

    def _check_changes(self) -> None:
        if self.change and self.nodes == "two":
            raise BadInput(
                "change needs nodes=one: labkit applies a change to the whole path and reads it back from the kernel,"
                " and with nodes=two half of the path is another host's; leave change or nodes out"
            )
        for one in self.change:
            try:
                for name in one.programs:
                    self._check_program(name)
                if one.parameters:
                    self.with_change(one).check()
            except BadInput as error:
                raise BadInput(f"change {one.name}: {error}") from None
        generator = self.load_generator
        if isinstance(generator, TrialGenerator) and generator.skips_ip and not self.in_guests:
            self._refuse_changes(
                _acts_on_ip_only, f"frames of generator={generator.name} pass it by: write `at between`"
            )

    def _check_program(self, name: str) -> None:
        from labkit.measure.experiments.change_kinds import program  # few changes are programs

        if self.in_guests:
            raise BadInput("guests have programs of their own: leave program out, or endpoint")
        datapaths = {switch_options.columns(one)["datapath"] for one in self.topology_names} - {None}
        if name == program.SWITCH and (not datapaths or switch_options.Datapath.DPDK in datapaths):
            raise BadInput(
                f"program {name} is that of switches without DPDK: name one as topology, and no ovs_dpdk"
            )
        if name not in (program.SWITCH, self.load_generator.name):
            raise BadInput(
                f"program {name} is not started, because {self.load_generator.name} makes the load"
            )

    def refuse_changes_at_ends(self, what: str) -> None:
        """Raise BadInput for a change at an end, because `what` moves the interfaces there into another namespace,
        where they lose their qdiscs and filters, and the sysctls of the ends do not apply."""
        self._refuse_changes(
            lambda _step: True, f"{what} takes the interfaces of the ends: write `at between:port0`"
        )

    def _refuse_changes(self, concerned: Callable[[Step], bool], why: str) -> None:
        """Raise BadInput, with the reason, for such a step of a change at an end."""
        for one in self.change:
            for step in one.steps:
                if AT_END.fullmatch(step.at) and concerned(step):
                    raise BadInput(f"change {one.name}: {step.kind} at {step.at} has no effect: {why}")

    def refuse_shared_ends(self, what: str) -> None:
        """Raise BadInput for a topology whose pairs share ends, because `what` takes the ends of each pair for
        itself."""
        for one in self.topology:
            if topologies.kind_of(one).shares_ends:
                raise BadInput(
                    f"{one}: {what} takes the interfaces of the ends, which the pairs of a use case share, and"
                    " its flows do not differ in what the rules match: search for rates with generator=packets"
                )

    def with_change(self, change: Change | None) -> DatapathParameters:
        """Return the parameters of an arm with this change, which may set some of them. Raises BadInput."""
        if change is None or not change.parameters:
            return self
        given = {name: getattr(self, name) for name in DatapathParameters.__struct_fields__}
        return DatapathParameters.of({**given, "change": (), **change.parameters})

    def refuse_guests(self, what: str) -> None:
        """Raise BadInput if an endpoint is a guest, because `what` cannot run there."""
        for name in self.endpoint:
            if name in topologies.IN_GUESTS:
                raise BadInput(
                    f"{what} cannot run in a guest (endpoint={name}): use endpoint=namespace or endpoint=container"
                )

    def _check_guests(self) -> None:
        from labkit.measure.endpoints.guest import spec  # what only guests need

        one = spec.parse(self.guest_word)
        if "shared_guest" in self.endpoint:
            spec.GuestAdditions(2 * max(self.pairs)).of(one)
        each = 1 if "guest" in self.endpoint else 2 * min(self.pairs)
        if max(self._cpus, default=0) >= (count := each * one.machine.cpus):
            text = f"with guest={self.guest_word} a guest has CPUs 0 to {count - 1}"
            raise BadInput(f"affinity={self.affinity}: {text}; cpus=N gives it more")

    def _check_load(self) -> None:
        self.load_generator.check(self)
        if not self.slices and self.whole_runs == 0:
            raise BadInput(
                "slices=0 and whole_runs=0 leave nothing to measure: give one of them a number above 0"
            )

    def _check_names(self) -> None:
        one = self.nodes == "one"
        words = "a NIC, for example eth1" if one else "a NIC of each host, for example eth1,eth1"
        Form(NIC if one else f"{NIC},{NIC}", words).check("parent", self.parent)
        for cpu in self._cpus if self.where == "here" and {*self.endpoint} - {*topologies.IN_GUESTS} else []:
            if cpu not in os.sched_getaffinity(0):
                raise BadInput(
                    f"affinity={self.affinity}: there is no CPU {cpu}; there are {sorted(os.sched_getaffinity(0))}"
                )

    def _check_two(self) -> None:
        if self.has_remote_monitor:
            self._check_monitored()
        if self.slices:
            raise BadInput("slices need all arms on one host: with nodes=two use slices=0, for whole runs")
        if self.observe:
            raise BadInput(
                "observe needs nodes=one: an observer sees one kernel, and with nodes=two half of the work is another"
                " host's; leave observe or nodes out"
            )
        if self.peer is None and self.where.startswith("ssh:"):
            raise BadInput(
                f"nodes=two with where={self.where} needs the servers' host: add peer=ssh:NAME, or leave where out"
            )
        hosts.check(self.servers_host)
        virtual = [one.startswith("vm:") for one in (self.where, self.servers_host)]
        if any(virtual) and not all(virtual):
            raise BadInput(
                f"where={self.where} and peer={self.peer}: labkit cannot connect a lab VM with another machine;"
                " use two lab VMs, or two machines"
            )
        if all(virtual):
            refuse_given(self, ("parent",), "labkit creates the NICs of two lab VMs; leave parent out")
        if not any(virtual) and not self.has_own_cable:
            self._check_nics()

    def _check_monitored(self) -> None:
        """Check a run with all ends on the first host and a monitor of copies on the second."""
        if self.protocol == "tcp":
            raise BadInput(
                "protocol=tcp: on the way to a second host large TCP packets are divided, so copies cannot be compared"
                " with what should have been copied: use protocol=udp"
            )
        if len(self.copying_topologies) > 1:
            raise BadInput(
                "nodes=two has one cable, so one switch only can send copies through it, not"
                f" {', '.join(self.copying_topologies)}: measure them one after the other"
            )
        if len(self.topology) > 1 and self.copying_topologies == [str(self.topology[0])]:
            raise BadInput(
                f"{self.topology[0]} comes first, so it is measured twice at the same time, but nodes=two has one cable"
                " for its copies: put a switch without mirrors first"
            )

    def _check_nics(self) -> None:
        """Check the NICs of two hosts that labkit does not create."""
        why = "labkit limits only the cable that it makes itself; leave it out, or parent"
        refuse_given(self, ("link_rate_bps", "link_delay_s"), why)
        if self.topology_names == tuple(self.existing_networks):
            refuse_given(self, ("parent",), "existing ends are joined already; leave parent out")
            return
        if self.parent is None:
            raise BadInput(
                "nodes=two needs parent=NIC,NIC: the NICs of the clients' and the servers' host, joined by a cable"
            )
        near, far = self.parent.split(",")
        if (self.where, near) == (self.servers_host, far):
            raise BadInput(
                f"parent={self.parent}: clients and servers cannot share a NIC; name another for the servers"
            )

    @property
    def has_own_cable(self) -> bool:
        """Whether labkit makes the cable between two nodes: between lab VMs, or on this machine."""
        by_ssh = any(one.startswith("ssh:") for one in (self.where, self.servers_host))
        return self.nodes == "two" and self.parent is None and not by_ssh

    @property
    def has_remote_servers(self) -> bool:
        return self.nodes == "two" and not self.copying_topologies

    @property
    def has_remote_monitor(self) -> bool:
        """Whether a second host receives the copies of mirrors. All ends are then on the first host."""
        return self.nodes == "two" and not self.has_remote_servers

    @property
    def copying_topologies(self) -> list[str]:
        """The names of topologies that send copies of packets to another host."""
        return [str(one) for one in self.topology if topologies.kind_of(one).copies_leave]

    @property
    def servers_host(self) -> str:
        return self.where if self.nodes == "one" else self.peer or self.where

    def nic(self, side: int) -> str | None:
        """Return the NIC of the clients' host (side 1) or the servers' host (side 2); None for a lab VM's own."""
        return None if self.parent is None else self.parent.split(",")[side - 1 if self.nodes == "two" else 0]

    @property
    def _cpus(self) -> list[int]:
        return [int(cpu) for cpu in self.affinity.split(",")] if self.affinity else []

    @property
    def load_generator(self) -> Generator:
        return (
            registry.default_generator(self.protocol)
            if self.generator is None
            else registry.GENERATORS.find(self.generator)
        )

    @property
    def run_s(self) -> float:
        """About how long a whole run takes, in seconds."""
        return self.omit_s + self.duration_s + 0.3

    @property
    def load_parameters(self) -> DatapathParameters:
        """The parameters of the load, which observers watch."""
        return self

    @property
    def baseline_change(self) -> str | None:
        """The change whose arm is the baseline, and no topology is measured unchanged; None: the first topology."""
        return None

    def check_programs(self) -> None:
        """Raise Unsupported where the program that makes the load is missing or too old."""
        self.load_generator.version()

    @property
    def datagram_bytes(self) -> int:
        """The payload of a UDP datagram: the configured one, or the largest that is not fragmented."""
        return self.length_bytes or min(self.mtu_bytes - IP_AND_UDP[self.family], LARGEST_DATAGRAM)

    @property
    def row_length_bytes(self) -> int | None:
        """The length of a write (TCP), datagram (UDP) or ping payload in rows."""
        return self.datagram_bytes if self.protocol == "udp" else self.length_bytes

    @property
    def in_guests(self) -> bool:
        return bool({*topologies.IN_GUESTS} & {*self.endpoint})

    @property
    def guest_word(self) -> str:
        return self.guest or "debian"

    @property
    def guest_files(self) -> tuple[str, ...]:
        """The Python files that the load needs in guests."""
        return self.load_generator.guest_files

    def spec(
        self,
        pairs: int,
        machine_netns: int | None,
        side: int | None = None,
        ours: bytes = b"",
        endpoint: str = "namespace",
        monitor: topologies.RemoteMonitor | None = None,
    ) -> topologies.Spec:
        """Return the specification of a topology, or of one side of it; `ours` and `monitor` as in topologies.Spec."""
        spec = topologies.Spec(pairs, self.mtu_bytes, self.family, machine_netns=machine_netns)
        if side is not None:
            return replace(spec, parent=self.nic(side), side=side, ours=ours, delay_s=self.link_delay_s)
        # With two nodes, the NIC is that of the cable.
        parent = None if self.nodes == "two" else self.parent
        return replace(
            spec,
            parent=parent,
            endpoint=endpoint,
            guest=self.guest_word,
            guest_files=self.guest_files,
            monitor=monitor,
        )


# The command line asks for parameters, and only the process that measures imports how.
_MEASURED = "labkit.measure.experiments.datapaths:MEASURED"
EXPERIMENT = Experiment(
    DatapathParameters,
    on_call(f"{_MEASURED}.run"),
    on_call(f"{_MEASURED}.planned_s"),
    "which topology, kind of endpoint or change is faster: throughput or round-trip times",
    {"topology": "veth_bridge,macvlan_bridge", "rounds": 5, "slices": 12, "whole_runs": 1, "duration_s": 1},
)
