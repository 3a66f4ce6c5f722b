"""Early stop: it needs a minimum of rounds, a comparison, and a narrow enough interval for every ratio."""

import math
import random
from typing import Any

import pytest

from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.early_stop import MIN_ROUNDS, History

Row = dict[str, Any]
MORE = MIN_ROUNDS + 2
ARMS = {"veth_bridge": 10e9, "veth_bridge (again)": 10e9, "macvlan_bridge": 11e9}
ROLES = {"veth_bridge": "baseline", "veth_bridge (again)": "control"}


def made(
    rounds: int,
    spread: float,
    *,
    slices: int = 12,
    between: float = 0.0,
    arms: dict[str, float] = ARMS,
    metric: str = "throughput_bps",
) -> list[Row]:
    """Return rows whose log-ratios vary this much between slices and between rounds."""
    noise = random.Random(1)
    rows = []
    for number in range(rounds):
        for arm, level in arms.items():
            of_round = noise.gauss(0, between)
            for at in range(slices) if slices else [None]:
                value = level * math.exp(of_round + noise.gauss(0, spread))
                row = {"status": "ok", "pairs": 1, "round": number, "slice": at, "arm": arm, metric: value}
                rows.append(
                    row | {"method": "whole" if at is None else "slice", "role": ROLES.get(arm, "variant")}
                )
    return rows


def history(rows: list[Row], latency: str | None = None, **parameters: Any) -> History:
    usual = {"topology": "veth_bridge,macvlan_bridge", "rounds": "20", "slices": "12", "half_width": "0.02"}
    return History(DatapathParameters.of(usual | parameters), rows, latency)


def test_quiet_rounds_stop_early() -> None:
    assert history(made(MIN_ROUNDS, 0.01)).enough(1) == (
        f"every half-width was below 2 % after {MIN_ROUNDS} of 20 rounds"
    )
    rows = [row | {"status": "invalid"} if row["round"] == 0 else row for row in made(MIN_ROUNDS + 1, 0.01)]
    assert history(rows).enough(1) == f"every half-width was below 2 % after {MIN_ROUNDS + 1} of 20 rounds"
    plain = {"slices": "0"}
    assert history(made(MORE, 0.005, slices=0), **plain).enough(1)
    assert history(made(MORE, 0.2, slices=0), **plain).enough(1) is None
    rows = made(MORE, 0.005, slices=0, metric="latency_p50_s")
    assert history(rows, protocol="ping", slices="0").enough(1)
    noisy = made(MORE, 0.2, slices=0, metric="latency_p50_s")
    both = [row | {"ends_on": on} for on, some in (("one_cpu", rows), ("two_cpus", noisy)) for row in some]
    assert history(both, protocol="udp_rr", slices="0").enough(1) is None
    rows = made(MORE, 0.01)
    known = history([])
    for row in rows:
        known.add([row])
    assert known.enough(1) == history(rows).enough(1) is not None
    assert known.enough(8) is None


@pytest.mark.parametrize("protocol", ["ping", "http"])
def test_the_judged_percentile_decides(protocol: str) -> None:
    quiet, tails = ("transaction_rate", "latency_p50_s"), made(MORE, 0.2, slices=0, metric="latency_p99_s")
    rows = [row | dict.fromkeys(quiet, ARMS[row["arm"]]) for row in tails]
    assert history(rows, protocol=protocol, slices="0").enough(1)
    assert history(rows, "latency_p99_s", protocol=protocol, slices="0").enough(1) is None
    rows = [row | dict.fromkeys(quiet, row["latency_p99_s"]) | {"latency_p99_s": 1.0} for row in rows]
    assert history(rows, "latency_p99_s", protocol=protocol, slices="0").enough(1)
    tcp = made(MORE, 0.25)
    assert history([row | {"latency_p99_s": 1.0} for row in tcp], "latency_p99_s").enough(1) is None


def test_slices_that_were_not_placed_need_a_narrower_spread() -> None:
    rows = made(MIN_ROUNDS, 0.001, between=0.0, slices=12)
    placed = [row | {"placement": "0,1"} for row in rows]
    unplaced_bound, placed_bound = (
        one._half_width(one._seen[1, None], "macvlan_bridge", tuple(list(ARMS)[:2]))
        for one in (history(rows), history(placed))
    )
    assert unplaced_bound / placed_bound == pytest.approx(2.571 / 2.365)


def test_noise_and_differences_continue() -> None:
    assert history(made(MIN_ROUNDS - 1, 0.001, slices=100)).enough(1) is None
    assert history(made(MORE, 0.25)).enough(1) is None
    counts = [rounds for rounds in range(MIN_ROUNDS, 21) if history(made(rounds, 0.1)).enough(1)]
    assert counts
    assert counts[0] > MIN_ROUNDS
    assert history(made(MORE, 0.005, between=0.1)).enough(1) is None
    rows = made(MORE, 0.01) + made(MORE, 0.5, arms={"vxlan": 5e9})
    assert history(rows).enough(1) is None
    rows = made(20, 0.001, arms={"veth_bridge": 10e9})
    assert history(rows, topology="veth_bridge").enough(1) is None


@pytest.mark.parametrize("change", [{"status": "failed"}, {"status": "invalid"}, {"method": "whole"}])
def test_invalid_rows_are_ignored(change: Row) -> None:
    rows = [row | change for row in made(MORE, 0.01)]
    assert history(rows).enough(1) is None
