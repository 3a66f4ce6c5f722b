"""The search on simulated devices: known capacity, known loss, disturbance, and a generator that ends early."""

import dataclasses
import math
import random
import statistics
import time
from typing import Any, Protocol

import pytest

from labkit.measure.experiments.throughput_search import mlrsearch
from labkit.measure.experiments.throughput_search.conditions import Conditions, interface_drops
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic.base import Trial

PRESET = mlrsearch.PRESETS["mlrsearch"]
FAST = dataclasses.replace(PRESET, passes=1)


def trial(rate_pps: float, duration_s: float, received: float, offered: float | None = None) -> Trial:
    count = round((rate_pps if offered is None else offered) * duration_s)
    arrived = min(count, round(received * duration_s))
    counts = {"offered_count": count, "sent_count": count, "received_count": arrived}
    usual: dict[str, Any] = {"hops": {}, "slip_s": 0.0, "generator_cpu_s": 0.0}
    return Trial(rate_pps=rate_pps, duration_s=duration_s, elapsed_s=duration_s, **counts, **usual)


def searched(
    measure: mlrsearch.Measure, losses: tuple[float, ...] = (0.0, 0.005), least: float = 1e3
) -> mlrsearch.Result:
    return mlrsearch.search(measure, FAST, losses, least, 500e3, 30)


def test_capacity_and_limits() -> None:
    result = searched(lambda rate, duration: (trial(rate, duration, 123_000), None))
    ndr, pdr = result.bounds
    assert result.problem is None
    assert ndr.rate_pps == pytest.approx(123_000, rel=0.06)
    assert ndr.lower_pps <= 123_000 <= ndr.upper_pps  # type: ignore[operator]
    assert pdr.lower_pps <= 123_000 / 0.995 <= pdr.upper_pps * 1.001  # type: ignore[operator]
    assert (result.repeated_count, result.disturbed_count) == (0, 0)
    for one in searched_lossy(LossyDevice(1, 0.0, 500)):
        assert (one.rate_pps, one.constant_loss) == (None, None)
    for one in searched(lambda rate, duration: (trial(rate, duration, rate), None)).bounds:
        assert one.upper_pps is None
        assert one.lower_pps == pytest.approx(500e3)

    def slow(rate: float, duration: float) -> tuple[Trial, str | None]:
        one = trial(rate, duration, rate, min(rate, 80_000))
        return one, "limited" if one.generator_limited else None

    result = searched(slow)
    assert result.max_pps <= 80_000
    assert all(one.upper_pps is None for one in result.bounds)


class Device(Protocol):
    """A device with a clock that only its trials advance."""

    now_s: float

    def measure(self, rate: float, duration: float) -> tuple[Trial, str | None]: ...


def timed(
    device: Device,
    settings: mlrsearch.Settings = FAST,
    losses: tuple[float, ...] = (0.0,),
    max_pps: float = 500e3,
    limit_s: float = 600,
    measure: mlrsearch.Measure | None = None,
) -> mlrsearch.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: device.now_s)
        return mlrsearch.search(measure or device.measure, settings, losses, 1e3, max_pps, limit_s)


class LossyDevice:
    """A device that loses each frame with the same probability at every load, and what is above its capacity.

    `rising_pps`: a load at which it loses twice as much as it does almost without load.
    """

    def __init__(
        self, seed: int, loss: float, capacity_pps: float = math.inf, rising_pps: float = math.inf
    ) -> None:
        self.now_s, self._rng = 0.0, random.Random(seed)
        self._loss, self._capacity_pps, self._rising_pps = loss, capacity_pps, rising_pps

    def measure(self, rate: float, duration: float) -> tuple[Trial, str | None]:
        self.now_s += duration + 0.03
        count = round(rate * duration)
        mean = self._loss * (1 + rate / self._rising_pps) * count
        lost = round(self._rng.gauss(mean, math.sqrt(mean))) if mean > 50 else self._poisson(mean)
        passed = min(count - min(count, max(0, lost)), self._capacity_pps * duration)
        return trial(rate, duration, passed / duration), None

    def _poisson(self, mean: float) -> int:
        count, product, least = 0, self._rng.random(), math.exp(-mean)
        while product > least:
            count, product = count + 1, product * self._rng.random()
        return count


def searched_lossy(
    device: LossyDevice, settings: mlrsearch.Settings = PRESET
) -> tuple[mlrsearch.FoundRate, ...]:
    result = timed(device, settings, (0.0, 0.005), 400e3, 60)
    assert result.problem is None
    return tuple(result.bounds)


@pytest.mark.parametrize(
    "settings",
    [PRESET, dataclasses.replace(FAST, sum_s=0.4), dataclasses.replace(FAST, trial_s=1.0, exceed_ratio=0.0)],
    ids=["preset", "two trials a load", "strict"],
)
@pytest.mark.parametrize("loss", [0.002, 0.01])
def test_loss_at_every_load_alike_has_no_rate(loss: float, settings: mlrsearch.Settings) -> None:
    """A trial of 0.2 s at 1 kpps has 200 frames, so most lose none of one in 500. Nevertheless no rate is loss-free.

    0.2 % is above the NDR's goal at every load and below the PDR's. 1 % is above both.
    """
    for seed in range(4):
        ndr, pdr = searched_lossy(LossyDevice(seed, loss), settings)
        for one in (ndr, pdr) if loss > 0.005 else (ndr,):
            assert (one.rate_pps, one.lower_pps) == (None, None), (seed, one)
            assert one.constant_loss.loss_ratio == pytest.approx(loss, rel=0.15)
            assert one.constant_loss.min_pps == one.upper_pps
            assert one.constant_loss.min_pps <= 2e3
            assert one.constant_loss.max_pps == pytest.approx(400e3)
        if loss < 0.005:
            assert pdr.constant_loss is None
            assert (pdr.rate_pps, pdr.upper_pps) == (pytest.approx(400e3 * (1 - loss), rel=0.01), None)


def test_capacity_is_a_rate_although_few_frames_are_lost_below_it() -> None:
    """Few frames are lost at random, too: at most one in half of the trials, which the exceed ratio allows."""
    for capacity, noise in ((1_500, 1e-5), (20_000, 0.0), (123_000, 1e-5), (390_000, 1e-6)):
        for seed in range(4):
            for one in searched_lossy(LossyDevice(seed, noise, capacity)):
                assert one.constant_loss is None, (seed, one)
                if one.loss_ratio or noise * capacity < 1:
                    assert one.rate_pps == pytest.approx(capacity, rel=0.06)


def test_disturbed_attempts_are_repeated_and_counted() -> None:
    rng = random.Random(1)

    def disturbed(rate: float, duration: float) -> tuple[Trial, str | None]:
        if rng.random() < 0.3:
            return trial(rate, duration, 0.5 * min(rate, 100_000)), "a thread waited"
        return trial(rate, duration, 100_000), None

    result = searched(disturbed)
    assert result.repeated_count > 0
    assert result.bounds[0].rate_pps == pytest.approx(100_000, rel=0.06)


def test_a_lost_frame_of_a_load_that_was_not_offered_is_no_loss_of_the_device() -> None:
    """The generator reaches 60 kpps. The fastest of its disturbed attempts loses a frame."""
    rng = random.Random(1)

    def late(rate: float, duration: float) -> tuple[Trial, str | None]:
        if rate <= 60_000:
            return trial(rate, duration, rate), None
        reached = 55_000 + 5_000 * rng.random()
        one = trial(rate, duration, reached, reached)
        lost = reached > 57_500
        return dataclasses.replace(one, received_count=one.offered_count - lost), "limited"

    result = searched(late)
    assert result.bounds[0].upper_pps is None
    assert 50_000 < (result.bounds[0].lower_pps or 0) <= 60_000


class SlowDevice:
    """A device of 50 kpps whose trials take longer than their load; a share of them is `disturbed` by the machine."""

    def __init__(self, besides_s: float, reach: float = 1e6, disturbed: float = 0.0) -> None:
        self.now_s = 0.0
        self._besides_s, self._reach, self._disturbed = besides_s, reach, disturbed
        self._rng = random.Random(1)

    def measure(self, rate: float, duration: float) -> tuple[Trial, str | None]:
        self.now_s += duration + self._besides_s
        one = trial(rate, duration, 50_000, min(rate, self._reach))
        if one.generator_limited:
            return dataclasses.replace(one, received_count=one.offered_count), "limited"
        return one, "a thread waited" if self._rng.random() < self._disturbed else None


@pytest.mark.parametrize("limit_s", [2.0, 20.0])
@pytest.mark.parametrize(
    "device",
    [
        SlowDevice(0.3),
        SlowDevice(0.3, disturbed=0.9),  # most attempts are repeats
        SlowDevice(0.3, reach=80_000),  # the search restarts with a load that the generator can offer
        SlowDevice(0.0, disturbed=1.0),
    ],
)
def test_time_limit_includes_repeats_and_restarts(device: SlowDevice, limit_s: float) -> None:
    result = timed(device, limit_s=limit_s)
    assert result.took_s <= limit_s
    if result.problem is None:
        assert result.bounds[0].rate_pps == pytest.approx(50_000, rel=0.06)
    else:
        assert result.problem == f"the search did not end within {limit_s:.0f} s"
        assert result.took_s > limit_s - 1


def test_time_limit_keeps_the_bounds() -> None:
    device = SlowDevice(0.3)
    full = timed(device)
    assert full.problem is None
    result = timed(device, limit_s=full.took_s - 1)
    assert result.problem is not None
    [one] = result.bounds
    assert one.rate_pps is None
    assert (one.lower_pps or 0) <= 50_000 <= (one.upper_pps or math.inf)
    assert one.lower_pps or one.upper_pps


def test_the_preset_rfc2544_ends_in_its_own_time() -> None:
    """Each trial takes 60 s."""
    parameters = Throughput.of({"preset": "rfc2544"})
    for capacity in (5_000, 400_000):
        device = LossyDevice(1, 0.0, capacity)
        result = timed(device, parameters.settings, parameters.loss, limit_s=parameters.search_limit_s)
        assert result.problem is None
        assert result.took_s > 60
        assert result.bounds[0].rate_pps == pytest.approx(capacity, rel=0.02)


class SteppingDevice:
    """A device on a machine whose speed changes in steps.

    It keeps each of two speeds, 12 % apart, for 10 s on average. Its capacity also varies by 4 % from trial to trial.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s, self._slow, self._until_s = 0.0, self.rng.random() < 0.5, self.rng.expovariate(0.1)

    def measure(self, rate: float, duration: float) -> tuple[Trial, str | None]:
        self.now_s += duration + 0.03
        while self.now_s > self._until_s:
            self._slow, self._until_s = not self._slow, self._until_s + self.rng.expovariate(0.1)
        capacity = 280e3 * (0.88 if self._slow else 1) * math.exp(self.rng.gauss(0, 0.04))
        return trial(rate, duration, capacity), None


@pytest.mark.parametrize(("passes", "least", "most"), [(1, 0.05, 0.08), (5, 0.0, 0.045)])
def test_passes_average_over_the_steps_of_a_machine(passes: int, least: float, most: float) -> None:
    """The standard deviation of the logarithms of NDRs. Seeds make the simulation repeat exactly."""
    logs = []
    for seed in range(60):
        settings = dataclasses.replace(PRESET, passes=passes)
        result = timed(SteppingDevice(seed), settings, (0.0, 0.005), 400e3, 60)
        ndr = result.bounds[0]
        assert len(ndr.passes_pps) == passes
        assert result.took_s <= 60
        assert ndr.lower_pps < ndr.upper_pps  # type: ignore[operator]
        logs.append(math.log(ndr.rate_pps))  # type: ignore[arg-type]
    assert least <= statistics.stdev(logs) <= most


def test_passes_fit_into_the_limit() -> None:
    device = SlowDevice(0.0)
    alone = timed(device)
    limit_s = 3.5 * alone.took_s
    result = timed(device, PRESET, limit_s=limit_s)
    assert result.problem is None
    assert result.took_s <= limit_s
    assert result.bounds[0].passes_pps == pytest.approx(alone.bounds[0].passes_pps * 3, rel=0.06)


def one_pass(rate: float | None, upper: float | None) -> mlrsearch.FoundRate:
    return mlrsearch.FoundRate(0.0, rate, rate, upper)


def test_mean_of_passes_or_their_middle_where_one_is_open() -> None:
    for passes, middle, open_count in (
        ([one_pass(100.0, 105.0), one_pass(400.0, 420.0)], one_pass(200.0, 210.0), 0),
        ([one_pass(100.0, 105.0), one_pass(130.0, None), one_pass(125.0, None)], one_pass(125.0, None), 2),
        ([one_pass(100.0, 105.0), one_pass(130.0, None), one_pass(110.0, 115.0)], one_pass(110.0, 115.0), 1),
        ([one_pass(None, 50.0), one_pass(None, 50.0), one_pass(60.0, 63.0)], one_pass(None, 50.0), 2),
    ):
        one = mlrsearch.mean(passes)
        assert (one.rate_pps, one.lower_pps, one.upper_pps) == pytest.approx(
            (middle.rate_pps, middle.lower_pps, middle.upper_pps)
        )
        assert one.passes_pps == tuple(each.rate_pps for each in passes)
        assert one.open_count == open_count


def test_pass_whose_generator_reaches_no_load_is_left_out() -> None:
    """The generator is late at every load from the second pass on. The first pass is the result."""
    device = SlowDevice(0.0)
    alone = timed(device)
    trials_left = alone.trials_count

    def late(rate: float, duration: float) -> tuple[Trial, str | None]:
        nonlocal trials_left
        made, disturbance = device.measure(rate, duration)
        trials_left -= 1
        return (
            (made, disturbance) if trials_left >= 0 else (trial(rate, duration, rate, 0.66 * rate), "limited")
        )

    settings = dataclasses.replace(FAST, passes=3)
    result = timed(device, settings, limit_s=6000, measure=late)
    assert result.problem is None
    assert result.left_out_count == 2
    assert result.bounds[0].passes_pps == alone.bounds[0].passes_pps
    assert result.max_pps == alone.max_pps


def test_generator_that_reaches_no_or_little_load() -> None:
    """Its CPU is taken from it for a third of the time, so it is late at every load."""

    def late(rate: float, duration: float) -> tuple[Trial, str | None]:
        one = trial(rate, duration, rate, 0.66 * rate)
        return dataclasses.replace(one, slip_s=0.34 * duration), "limited"

    result = searched(late)
    [ndr, _] = result.bounds
    assert ndr.rate_pps is None
    assert ndr.lower_pps == pytest.approx(0.66 * 500e3)
    assert result.limited
    assert str(result.problem).startswith(
        "the generator was late for 34 % of the time and missed every maximum load from 500 kpps down to"
    )

    # What a path loses between 1,000 and 1,050 frames a second, when the generator misses all else, is no rate.
    def late(rate: float, duration: float) -> tuple[Trial, str | None]:
        if rate <= 1_000:
            return trial(rate, duration, rate), None
        if rate <= 1_100:  # disturbed, and lossy
            return trial(rate, duration, 0.9 * rate), "the sender was late"
        return trial(rate, duration, rate, max(1_000, 0.3 * rate)), "limited"

    result = mlrsearch.search(late, FAST, (0.0,), 1e3, 40e3, 60)
    assert result.limited
    [ndr] = result.bounds
    assert (ndr.rate_pps, ndr.lower_pps) == (None, pytest.approx(12e3))


def conditions(**given: float) -> Conditions:
    names = ("slip_s", "datapath_wait_s", "steal_s", "cpu_s", "softirq_s", "datapath_cpu_s")
    usual = dict.fromkeys(names, 0.0)
    return Conditions(**usual | given, softnet_drops_count=0, socket_drops_count=0, drops={})  # type: ignore[arg-type]


def test_scheduling_loss_against_datapath_loss() -> None:
    for given, received, words in (
        ({}, 900, None),
        ({"datapath_wait_s": 0.003}, 900, "a thread of the datapath waited 3.0 ms for a CPU"),
        ({"slip_s": 0.003}, 900, "the sender was late by 3.0 ms"),
        ({"datapath_wait_s": 0.003, "slip_s": 0.003}, 1000, None),  # nothing was lost
        ({"datapath_wait_s": 0.001, "slip_s": 0.001}, 900, None),
    ):
        assert conditions(**given).disturbance(trial(1000, 0.2, received)) == words


def test_late_trials_and_drops() -> None:
    one = trial(100_000, 0.2, 100_000, 98_000)
    assert one.generator_limited
    assert "the generator reached 98000 of 100000 pps" in str(conditions().disturbance(one))
    assert not trial(100_000, 0.2, 100_000, 99_500).generator_limited
    text = "Inter-|\n face |\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n    lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    assert interface_drops(text) == {"eth0": 4 + 12, "lo": 0}


@pytest.mark.parametrize(
    ("given", "loss", "max_pps", "pdr_pps"),
    [
        # The PDR is the capacity, and the loss below it is the same down to the lowest load.
        ({"capacity_pps": 120e3}, (0.0016, 0.0024), (60e3, 121e3), pytest.approx(120e3, rel=0.06)),
        # From 0.2 % almost without load to 1 % at the highest: a PDR where the loss is 0.5 %
        ({"rising_pps": 100e3}, (0.0015, 0.005), (0, 400e3), pytest.approx(150e3, rel=0.15)),
    ],
)
def test_no_rate_is_loss_free_and_the_pdr_is_one(
    given: dict[str, float], loss: tuple[float, float], max_pps: tuple[float, float], pdr_pps: float
) -> None:
    for seed in range(4):
        ndr, pdr = searched_lossy(LossyDevice(seed, 0.002, **given))
        assert ndr.rate_pps is None
        assert loss[0] <= ndr.constant_loss.loss_ratio <= loss[1]
        assert max_pps[0] <= ndr.constant_loss.max_pps <= max_pps[1]
        assert (pdr.rate_pps, pdr.constant_loss) == (pdr_pps, None)
