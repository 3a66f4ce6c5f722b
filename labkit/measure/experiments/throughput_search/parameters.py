"""Parameters of the experiment `throughput`, and their checks."""

import dataclasses
from typing import Annotated, ClassVar, Self

from labkit.common import switch_options
from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.measure import topologies
from labkit.measure.experiments import datapaths_parameters as usual
from labkit.measure.experiments.server_parameters import LINE_TAG, ServerParameters
from labkit.measure.experiments.throughput_search.mlrsearch import LONGEST_S, PRESETS, Settings
from labkit.measure.observers import registry as observing
from labkit.measure.traffic import packet_generator, packet_sender, rates, registry
from labkit.measure.traffic.packet_sender import Mix
from labkit.measure.traffic.rates import TAGS_BYTES, Line

# The OVS test plan's flow profile: N flows send one packet each, M times, then the next N flows, and so on,
# repeatedly.
PROFILES = {"turns": (0, 1), "test_plan": (2000, 10)}
# A pass on a device without noise decides about 2 to 10 loads. Repeats and retreats on a noisy machine multiply that.
# The preset's passes share this limit. More passes than the preset has extend it.
MIN_LIMIT_S, LIMIT_SUMS = 60.0, 28


class Throughput(ServerParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` that define what is measured, and the search's."""

    ABSENT: ClassVar[tuple[str, ...]] = (
        *(name for name in usual.LOAD if name != "direction"), *usual.REPETITION, "duration_s",
    )  # fmt: skip

    # What labkit builds, observes and measures with other ends than the ports of a server elsewhere
    OWN_DEVICE: ClassVar[tuple[str, ...]] = (
        "topology", "endpoint", "change", "without_effect", "parent", "guest", "pairs", "nodes", "observe", "family",
        "vlan", "trial_frames", "burst_frames",
    )  # fmt: skip

    observe: Annotated[
        tuple[str, ...],
        "observers; after the searches each watches every arm at one common rate, half of what the slowest arm"
        " carries: " + ", ".join(observing.NAMES),
    ] = ()
    protocol: str = "udp"
    rounds: Annotated[int, "searches of each arm, each with a fresh set-up: 3 or more for an interval"] = 3
    frame_bytes: Annotated[
        tuple[str, ...],
        f"sizes of frames with FCS, without a VLAN tag, 64 to 9018, or {', '.join(rates.MIXES)}",
        Offered(rates.MIXES),
        UNIQUE,
    ] = ("64",)
    flows: Annotated[tuple[int, ...], "numbers of flows", Within(1, packet_generator.MAX_FLOWS), UNIQUE] = (
        1000,
    )
    vlan: Annotated[
        int | None,
        "VLAN of an 802.1Q tag in every frame, which makes it 4 bytes longer; none: no tag",
        Within(1, 4094, "IEEE 802.1Q reserves 0 and 4095"),
    ] = None
    vary: Annotated[
        tuple[str, ...],
        "the fields in which flows differ, the first fastest: source_port, target_ip, source_mac …",
        Offered(packet_sender.CAPACITY),
    ] = ("source_port",)
    flow_profile: Annotated[
        str,
        "turns (each flow a packet, again and again) or test_plan (2,000 flows, 10 times, then the next)",
        OneOf(PROFILES),
    ] = "turns"
    burst_frames: Annotated[
        int | None,
        "frames that each sender sends back to back; none: what is due within 0.15 ms. Rows have the measured number",
        Within(1, packet_sender.MAX_BURST, "what one call of sendmmsg(2) sends"),
    ] = None
    loss: Annotated[
        tuple[float, ...],
        "ratios of loss that are searched for: 0 is the NDR (non-drop rate), others are PDRs (partial drop rates)",
        Within(0, 0.5, "a ratio, not per cent"),
        UNIQUE,
    ] = (0.0, 0.005)
    preset: Annotated[
        str, f"how a search decides: {', '.join(PRESETS)} (one trial of 60 s without loss)", OneOf(PRESETS)
    ] = "mlrsearch"
    trial_s: Annotated[float | None, "duration of a trial; none: the preset's", Within(0.05, 600)] = None
    trial_frames: Annotated[
        int | None,
        "exact number of frames in each trial of the search, instead of trial_s; a load is decided by as many"
        " trials as with the preset's trial_s (sum_s / trial_s)",
        Within(1, 10**9),
    ] = None
    sum_s: Annotated[
        float | None,
        "total duration of the trials that decide about a load; none: the preset's",
        Within(0.05, 3600),
    ] = None
    passes: Annotated[
        int | None,
        "complete searches whose mean is the rate, as many of them as fit into limit_s; none: the preset's",
        Within(1, 20),
    ] = None
    exceed_ratio: Annotated[
        float | None,
        "share of sum_s in which the loss may exceed the goal; none: the preset's",
        Within(0, 0.9),
    ] = None
    width: Annotated[
        float | None,
        "largest relative distance of the bounds at the end of a search; none: the preset's",
        Within(0.001, 0.5),
    ] = None
    limit_s: Annotated[
        float | None,
        f"the longest time of one search; none: {LIMIT_SUMS} times sum_s, at least {MIN_LIMIT_S:g} s, and more for"
        f" more passes than the preset has; trials of {LONGEST_S:g} s in all may follow, to see whether the loss is"
        " the same at every load",
        Within(1, 36000),
    ] = None
    min_rate: Annotated[str, "the lowest load: 1kpps, 10Mbit/s, 5%"] = "1kpps"
    max_rate: Annotated[str | None, "the highest load; none: what the generator reaches on this path"] = None
    line_rate_bps: Annotated[
        float | None,
        "rate of the line, to which percentages refer; none: no line, or with server=HOST that of its sending ports"
        " together",
        Within(1e3, 1e13),
    ] = None
    line_tag: Annotated[str | None, LINE_TAG, OneOf(TAGS_BYTES)] = None
    latency: Annotated[
        bool,
        "after each search, one-way latency at 10, 50 and 90 % of the last rate found; not between two kernels",
    ] = True

    def check(self) -> None:
        self.check_values()
        if self.settings.sum_s < self.settings.trial_s:
            raise BadInput(
                f"sum_s={self.settings.sum_s:g} is less than one trial of {self.settings.trial_s:g} s"
            )
        if self.search_limit_s <= self.settings.sum_s:
            raise BadInput(
                f"limit_s={self.limit_s:g} is too short: the trials that decide about one load already take"
                f" {self.settings.sum_s:g} s, and a search needs several loads; leave limit_s out"
            )
        super().check()
        if "target_mac" in self.vary and max(self.pairs) > 1:
            raise BadInput(
                "vary=target_mac needs pairs=1: a switch sends a frame to an address that it has not learned to every"
                " port, so each server would count it"
            )
        self.check_server()
        self._check_generator()
        if self.vlan is not None:
            for one in self.topology:
                topologies.check_tags(one, self.vlan)
        for frame in self.frame_bytes:
            for flows in self.flows:
                self.mix(frame, flows)
            if self.server is None or self.line_rate_bps is not None:
                for one in self.topology_names:
                    self.for_topology(one).check_bounds(frame)

    def check_bounds(self, frame: str) -> None:
        """Raise BadInput for loads that cannot be searched. Percentages need the rate of the line."""
        least, most = self.bounds(frame)
        self._check_frames(least)
        if most is not None and most <= least:
            raise BadInput(f"max_rate={self.max_rate} is not above min_rate={self.min_rate}")

    def _check_load(self) -> None:
        """Raise BadInput for a load that the generator's trials do not support."""
        registry.find_trial(self.load_generator.name).check_direction(self)

    def _check_generator(self) -> None:
        generator = self.load_generator
        if not generator.guest_files:
            self.refuse_guests(f"generator={generator.name}")
        if generator.moves_interfaces:
            self.refuse_changes_at_ends(f"generator={generator.name}")
            self.refuse_shared_ends(f"generator={generator.name}")
        if "shared_guest" in self.endpoint:
            raise BadInput(
                f"generator={generator.name} cannot run in a guest that several endpoints share: use endpoint=guest"
            )
        if self.nodes == "two" and not generator.across_hosts:
            raise BadInput(
                f"generator={generator.name} needs both ends on one host: leave out nodes=two, or choose"
                " another generator"
            )
        if self.trial_frames is not None and not generator.exact_counts:
            raise BadInput(
                f"generator={generator.name} cannot send an exact number of frames: leave out trial_frames or generator"
            )

    def _check_frames(self, min_pps: float) -> None:
        """Raise BadInput for a number of frames that takes longer than a search at the lowest load."""
        if self.trial_frames is None:
            return
        if self.trial_s is not None:
            raise BadInput(f"trial_frames={self.trial_frames} and trial_s={self.trial_s:g}: give one of them")
        if (longest_s := self.trial_frames / min_pps) > self.search_limit_s:
            raise BadInput(
                f"trial_frames={self.trial_frames} takes {longest_s:g} s at min_rate={self.min_rate}, and a search"
                f" at most {self.search_limit_s:g} s: use a higher min_rate, a longer limit_s, or fewer frames"
            )

    def check_programs(self) -> None:
        """Raise Unsupported where the program that makes the load is missing. A server elsewhere is one already."""
        if self.server is None:
            super().check_programs()

    @property
    def settings(self) -> Settings:
        """The search settings: the preset's with the given changes; a longer trial also extends the sum.

        Trials are at least as long as the generator needs.
        """
        preset = PRESETS[self.preset]
        if preset.trial_s < (min_s := self.load_generator.min_trial_s):
            preset = dataclasses.replace(preset, trial_s=min_s, sum_s=max(preset.sum_s, min_s))
        names = ("trial_s", "sum_s", "exceed_ratio", "width", "passes")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.preset == "rfc2544" and "trial_s" in given:
            given.setdefault("sum_s", given["trial_s"])
        return dataclasses.replace(preset, **given)

    @property
    def search_limit_s(self) -> float:
        """The longest time of one search in seconds. The default grows with the trials of one load."""
        if self.limit_s is not None:
            return self.limit_s
        more_passes = max(1.0, self.settings.passes / PRESETS[self.preset].passes)
        return max(MIN_LIMIT_S, LIMIT_SUMS * self.settings.sum_s) * more_passes

    def line(self) -> Line:
        """The line whose rate percentages refer to."""
        vlan = () if self.vlan is None or self.line_tag == "vlan" else ("vlan",)
        return Line(self.line_rate_bps, (*vlan, *(() if self.line_tag is None else (self.line_tag,))))

    def mix(self, frame: str, flows: int) -> Mix:
        """Return the frames to send. Raises BadInput."""
        block, repeats = PROFILES[self.flow_profile]
        mix = Mix(rates.sizes(frame), flows, self.vary, block, repeats, self.vlan, self.burst_frames)
        packet_generator.check_mix(mix, self.mtu_bytes, self.family)
        return mix

    def for_topology(self, topology: str) -> Self:
        """Return the parameters for one topology: a VLAN or VXLAN makes the frames on a switch's network longer."""
        tunnel = switch_options.columns(topology)["tunnel"]
        if self.line_tag is not None or tunnel in (None, "off"):
            return self
        return type(self).like(self, line_tag=tunnel)

    def bounds(self, frame: str) -> tuple[float, float | None]:
        """Return the minimum and maximum load in frames per second; a maximum of None is what the generator reaches.

        Raises BadInput.
        """
        sizes = rates.sizes(frame)
        line_max = self.line().max_pps(rates.mean_bytes(sizes))
        least = rates.pps("min_rate", self.min_rate, sizes, self.line())
        if self.max_rate is None:
            return least, line_max
        return least, rates.pps("max_rate", self.max_rate, sizes, self.line())
