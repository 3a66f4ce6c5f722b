"""Parameters of load tests, with the packet generator or with TRex, and what cannot be measured."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.measure.experiments import datapaths_parameters as usual
from labkit.measure.experiments.server_parameters import LINE_TAG, ServerParameters
from labkit.measure.parameters import CodeParameter, refuse_given
from labkit.measure.traffic import packet_generator, rates
from labkit.measure.traffic.packet_generator import PACKETS
from labkit.measure.traffic.packet_sender import Mix
from labkit.measure.traffic.rates import TAGS_BYTES, Line
from labkit.measure.traffic.trex import server
from labkit.measure.traffic.trex.generator import Trex
from labkit.measure.traffic.trex.streams import PROFILES, STATEFUL

KERNEL_TARGET = "50kpps"
# The packet generator's frames of the profiles. TRex's imix goes through as many addresses.
MIXES = {"imix": Mix(rates.IMIX, flows=254), "64b": Mix()}
# How long a step takes, and about how long the traffic rests after it, in seconds
STEP_S, TREX_STEP_S = 1.0, 3.0
REST_S, TREX_REST_S = 0.1, 0.6


class SharedParameters(ServerParameters, frozen=True, kw_only=True):
    """What load tests share."""

    NAMED: ClassVar[tuple[str, ...]] = ()
    OWN_DEVICE: ClassVar[tuple[str, ...]] = (
        "topology", "endpoint", "change", "without_effect", "parent", "mtu_bytes", "trex",
    )  # fmt: skip
    CODE: ClassVar[Mapping[str, CodeParameter]] = {
        "trex": CodeParameter("is the folder of a program", "trex_folder"),
        "profile": CodeParameter("is code", "trex_profile", digest_parameter="profile_digest"),
    }
    ABSENT: ClassVar[tuple[str, ...]] = (
        *usual.LOAD, *usual.REPETITION, *usual.OBSERVATION, *usual.TWO_HOSTS, "guest", "pairs", "duration_s", "family",
    )  # fmt: skip

    protocol: str = "udp"
    rounds: Annotated[int, "load tests, one after the other"] = 1
    trex: Annotated[
        str | None,
        "the folder of an unpacked TRex release, to start the server from; none: that of LABKIT_TREX",
    ] = None
    profile: Annotated[
        str,
        f"{', '.join(PROFILES)}, or with TRex FILE.py: a stateless profile of TRex; labkit runs it as Python code with"
        " your rights",
        Offered(PROFILES),
    ] = "imix"
    profile_digest: Annotated[str | None, "the SHA-256 of FILE.py; labkit fills it in"] = None

    def check(self) -> None:
        """Raise BadInput in one sentence for what cannot be measured."""
        super().check()
        self.check_server()
        if self.server is None:
            self.refuse_guests("a load test")
            self.refuse_shared_ends("a load test")
        if self.with_trex:
            self.refuse_changes_at_ends("TRex")
            self.check_is_here()
        elif self.load_generator.name != PACKETS.name:
            raise BadInput(
                f"generator={self.generator}: a load test is made by {PACKETS.name} or {Trex.name}"
            )
        else:
            refuse_given(self, ("trex",), "only TRex is there: add generator=trex")
        is_file = self.profile.endswith(".py")
        if self.profile not in self.NAMED and not is_file:
            raise BadInput(
                f"profile={self.profile}: there are {', '.join(self.NAMED)}, or the name of a file, FILE.py"
            )
        if is_file and self.profile_digest is None:
            raise BadInput(
                f"profile={self.profile}: labkit has not read this file: name it on the command line or in your"
                " notebook"
            )

    @property
    def with_trex(self) -> bool:
        """Whether TRex makes the load."""
        return self.load_generator.name == Trex.name

    def _check_load(self) -> None:
        """Check nothing: frames have sizes and rates of their own."""

    def check_programs(self) -> None:
        """Raise Unsupported without the generator, if labkit starts it. TRex's client says itself whether its package
        is there."""
        if not self.with_trex:
            super().check_programs()
        elif self.server is None:
            server.find(self.trex)

    @property
    def row_length_bytes(self) -> int | None:
        """None: frames have sizes of their own."""
        return None


class LoadTestParameters(SharedParameters, frozen=True, kw_only=True):
    """Parameters of load tests that send frames at a rate."""

    NAMED: ClassVar[tuple[str, ...]] = tuple(PROFILES)

    directions: Annotated[
        str, "both, or one: only the first port of a pair sends", OneOf(("both", "one"))
    ] = "both"
    warmup_rate: Annotated[str, "rate of the warm-up, from each port: 1kpps, 10Mbit/s, 1%"] = "1kpps"
    warmup_s: Annotated[float, "duration of the warm-up", Within(0.2, 3600)] = 5.0
    target: Annotated[
        str | None,
        f"where the ramp ends, from each port: 100%, 500kpps, 1Gbit/s; none: {KERNEL_TARGET} on kernel"
        " interfaces, as labkit's own topologies have, else 100%; at most what the latency probes leave of the line",
    ] = None
    ramp_s: Annotated[float, "duration of the linear ramp", Within(0.2, 36000)] = 60.0
    hold_s: Annotated[float, "how long the target is held", Within(0, 36000)] = 10.0
    step_s: Annotated[
        float | None,
        "duration of each step, which has rows of its own; between steps the traffic rests, so that counts are exact;"
        f" none: {STEP_S:g} s, with TRex {TREX_STEP_S:g} s, because it rests for half a second",
        Within(0.2, 600),
    ] = None
    loss_limit: Annotated[
        float,
        "the share of lost frames above which the test ends: 0.0001 is 0.01 %; one frame ends it only if this is 0",
        Within(0, 0.5, "a ratio, not per cent"),
    ] = 1e-4
    line_rate_bps: Annotated[
        float | None,
        "the rate of the line, to which percentages refer; none: that which the ports report (a veth: 10 Gbit/s)",
        Within(1e3, 1e13),
    ] = None
    line_tag: Annotated[str | None, LINE_TAG, OneOf(TAGS_BYTES)] = None
    latency: Annotated[bool, "997 latency probes a second from each port beside the load"] = True

    def check(self) -> None:
        """Raise BadInput in one sentence for what cannot be measured."""
        super().check()
        if not self.with_trex and self.profile not in MIXES:
            raise BadInput(f"profile={self.profile} is one of TRex's: add generator=trex, or server=HOST")
        if self.server is None and self.profile in MIXES:
            packet_generator.check_mix(MIXES[self.profile], self.mtu_bytes)

    def spare_count(self, offered_count: int) -> float:
        """Return how many of the offered frames may be lost: at least one, unless the limit is 0."""
        return max(1.0, self.loss_limit * offered_count) if self.loss_limit else 0.0

    @property
    def each_s(self) -> float:
        """The duration of each step in seconds."""
        return self.step_s or (TREX_STEP_S if self.with_trex else STEP_S)

    @property
    def rest_s(self) -> float:
        """About how long the traffic rests after a step, in seconds."""
        return TREX_REST_S if self.with_trex else REST_S

    def ramp_target(self, on_kernel: bool) -> str:
        """Return where the ramp ends. `on_kernel`: of kernel interfaces, whose nominal rate no generator reaches."""
        return self.target or (KERNEL_TARGET if on_kernel else "100%")

    def line(self, ports_bps: float | None) -> Line:
        """Return the line to which percentages refer; `ports_bps` is the rate that the ports report."""
        return Line(self.line_rate_bps or ports_bps, () if self.line_tag is None else (self.line_tag,))


class Stateful(SharedParameters, frozen=True, kw_only=True):
    """Parameters of stateful tests, which TRex alone can make."""

    ABSENT: ClassVar[tuple[str, ...]] = (*SharedParameters.ABSENT, "generator")
    NAMED: ClassVar[tuple[str, ...]] = STATEFUL

    generator: str | None = Trex.name
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
