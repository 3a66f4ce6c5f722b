"""Parameters of the experiments with TRex, and what cannot be measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.measure.experiments import datapaths_parameters as usual
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.parameters import CodeParameter, refuse_given
from labkit.measure.traffic import packet_generator
from labkit.measure.traffic.packet_sender import FCS_BYTES, Mix
from labkit.measure.traffic.rates import TAGS_BYTES, Line
from labkit.measure.traffic.trex import client, server
from labkit.measure.traffic.trex.generator import Trex
from labkit.measure.traffic.trex.streams import PROFILES, STATEFUL

KERNEL_TARGET = "50kpps"
ONLY_OWN_SERVER = "not used with server=…: its ports reach a device that labkit does not build"
ONLY_WITH_SERVER = "not used without server=…: labkit's own server has the ports 0 and 1"

LINE_TAG = f"what encapsulation adds to a frame on the line: {', '.join(TAGS_BYTES)}"


class ServerParameters(DatapathParameters, frozen=True, kw_only=True):
    """What experiments share that can use a TRex server elsewhere.

    `OWN_DEVICE`: the parameters of what labkit builds, which lies between the ports of its own server only.
    """

    OWN_DEVICE: ClassVar[tuple[str, ...]] = ()

    server: Annotated[
        str | None,
        "HOST or HOST:PORT of a TRex server that runs: PORT (4501) is that of its RPC, and its publisher has the port"
        " below (4500), as TRex's own; none: labkit starts one on the topology",
    ] = None
    ports: Annotated[
        tuple[int, ...],
        "pairs of its ports that send to each other through the device: 0,1; a throughput search sends from the first"
        " of each pair alone",
    ] = (0, 1)
    force: Annotated[bool, "take ports that somebody else owns, and stop their traffic"] = False

    def check_server(self) -> None:
        """Raise BadInput for what a server elsewhere cannot be given, or what only such a server has."""
        if self.server is None:
            refuse_given(self, ("ports", "force"), ONLY_WITH_SERVER)
            return
        refuse_given(self, self.OWN_DEVICE, ONLY_OWN_SERVER)
        client.address(self.server)
        client.ports(self.ports)
        self.check_is_here()

    def check_is_here(self) -> None:
        """Raise BadInput for another host: this one starts or reaches the server."""
        if self.where != "here":
            raise BadInput(f"where={self.where}: a TRex server is reached from this machine: leave where out")

    @property
    def companion(self) -> str | None:
        """TRex, for a server that runs elsewhere: its client must leave the server in order after the run."""
        return None if self.server is None else Trex.name

    @property
    def address(self) -> client.Address:
        """Where the server listens."""
        assert self.server is not None
        return client.address(self.server)


class TrexParameters(ServerParameters, frozen=True, kw_only=True):
    """What the experiments with a TRex server share."""

    NAMED: ClassVar[tuple[str, ...]] = ()
    OWN_DEVICE: ClassVar[tuple[str, ...]] = (
        "topology", "endpoint", "change", "without_effect", "parent", "mtu_bytes", "trex",
    )  # fmt: skip
    CODE: ClassVar[Mapping[str, CodeParameter]] = {
        "trex": CodeParameter("is the folder of a program", "trex_folder"),
        "profile": CodeParameter("is code", "trex_profile", digest_parameter="profile_digest"),
    }
    ABSENT: ClassVar[tuple[str, ...]] = (
        *usual.LOAD, *usual.REPETITION, *usual.OBSERVATION, *usual.TWO_HOSTS, "guest", "generator", "pairs",
        "duration_s", "family",
    )  # fmt: skip

    protocol: str = "udp"
    rounds: Annotated[int, "load tests, one after the other"] = 1
    trex: Annotated[
        str | None,
        "the folder of an unpacked TRex release, to start the server from; none: that of LABKIT_TREX",
    ] = None
    profile: Annotated[
        str,
        f"{', '.join(PROFILES)}, or FILE.py: a stateless profile of TRex; labkit runs it as Python code with your"
        " rights",
        Offered(PROFILES),
    ] = "imix"
    profile_digest: Annotated[str | None, "the SHA-256 of FILE.py; labkit fills it in"] = None

    def check(self) -> None:
        """Raise BadInput in one sentence for what cannot be measured."""
        super().check()
        self.check_server()
        if self.server is None:
            self.refuse_guests("TRex")
            self.refuse_changes_at_ends("TRex")
            self.refuse_shared_ends("TRex")
        self.check_is_here()
        if self.profile not in self.NAMED and not is_file(self.profile):
            raise BadInput(
                f"profile={self.profile}: there are {', '.join(self.NAMED)}, or the name of a file, FILE.py"
            )
        if is_file(self.profile) and self.profile_digest is None:
            raise BadInput(
                f"profile={self.profile}: labkit has not read this file: name it on the command line or in your"
                " notebook"
            )

    def _check_load(self) -> None:
        """TRex makes the load."""

    def check_programs(self) -> None:
        """Raise Unsupported without TRex, if labkit starts it. Its client says itself whether its package is there."""
        if self.server is None:
            server.find(self.trex)

    @property
    def row_length_bytes(self) -> int | None:
        """None: frames have sizes of their own."""
        return None


class Stateless(TrexParameters, frozen=True, kw_only=True):
    """Parameters of stateless tests."""

    NAMED: ClassVar[tuple[str, ...]] = tuple(PROFILES)

    directions: Annotated[
        str, "both, or one: only the first port of a pair sends", OneOf(("both", "one"))
    ] = "both"
    warmup_rate: Annotated[str, "rate of the warm-up, from each port: 1kpps, 10Mbit/s, 1%"] = "1kpps"
    warmup_s: Annotated[float, "duration of the warm-up", Within(0.2, 3600)] = 5.0
    target: Annotated[
        str | None,
        f"where the ramp ends, from each port: 100%, 500kpps, 1Gbit/s; none: {KERNEL_TARGET} on kernel"
        " interfaces, as labkit's own server has, else 100%; at most what the latency probes leave of the line",
    ] = None
    ramp_s: Annotated[float, "duration of the linear ramp", Within(0.2, 36000)] = 60.0
    hold_s: Annotated[float, "how long the target is held", Within(0, 36000)] = 10.0
    step_s: Annotated[
        float,
        "duration of each step; between steps the traffic rests for half a second, so that counts are exact",
        Within(0.2, 600),
    ] = 3.0
    loss_limit: Annotated[
        float,
        "the share of lost frames that ends the test: 0.0001 is 0.01 %",
        Within(0, 0.5, "a ratio, not per cent"),
    ] = 1e-4
    line_rate_bps: Annotated[
        float | None,
        "the rate of the line, to which percentages refer; none: that of the server's ports",
        Within(1e3, 1e13),
    ] = None
    line_tag: Annotated[str | None, LINE_TAG, OneOf(TAGS_BYTES)] = None
    latency: Annotated[bool, "997 latency probes a second from each port beside the load"] = True

    def check(self) -> None:
        """Raise BadInput in one sentence for what cannot be measured."""
        super().check()
        if self.server is None and self.profile in PROFILES:
            sizes = tuple(size + FCS_BYTES for size, _pps, _start in PROFILES[self.profile])
            packet_generator.check_mix(Mix(sizes), self.mtu_bytes)

    def ramp_target(self, on_kernel: bool) -> str:
        """Return where the ramp ends. `on_kernel`: TRex has kernel interfaces, whose nominal rate it does not reach."""
        return self.target or (KERNEL_TARGET if on_kernel else "100%")

    def line(self, server_bps: float) -> Line:
        """Return the line to which percentages refer; `server_bps` is the rate of the server's ports."""
        return Line(self.line_rate_bps or server_bps, () if self.line_tag is None else (self.line_tag,))


class Stateful(TrexParameters, frozen=True, kw_only=True):
    """Parameters of stateful tests."""

    NAMED: ClassVar[tuple[str, ...]] = STATEFUL

    protocol: str = "tcp"
    profile: Annotated[
        str,
        f"{', '.join(STATEFUL)} (a GET and an answer of 32 KiB), or FILE.py: a stateful profile of TRex; labkit"
        " runs it as Python code with your rights",
        Offered(STATEFUL),
    ] = "http_simple"
    mult: Annotated[
        tuple[float, ...],
        "load, as a multiple of the profile's rate (http_simple: 2.776 connections per second); one test for each"
        " value",
        Within(0.001, 1e6),
        UNIQUE,
    ] = (100.0,)
    test_s: Annotated[
        float, "duration of a test", Within(2, 36000, "as TRex's counters are read once a second")
    ] = 30.0
    latency_pps: Annotated[
        int, "latency probes a second in each direction; 0: none", Within(0, 80_000, "what TRex takes")
    ] = 1000


def is_file(profile: str) -> bool:
    """Return whether a profile is a file of Python."""
    return bool(re.fullmatch(r".*\.py", profile))
