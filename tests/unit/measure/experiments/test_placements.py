"""The placements of slices: all CPUs in turn, the same for every arm."""

import os
import random
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments import slices
from labkit.measure.experiments.datapaths_parameters import DatapathParameters


def arms(pairs: int, runtime: object = None, **own: Any) -> Any:
    end = SimpleNamespace(runtime=runtime)
    topology = SimpleNamespace(pairs=[SimpleNamespace(client=end, server=end)] * pairs)
    parameters = DatapathParameters.of({"topology": "veth", **own})
    arm = SimpleNamespace(parameters=lambda _given: parameters)
    return [SimpleNamespace(arm=arm, topology=topology)] * 2


def placed(count: int, live: Any, **given: Any) -> list[Any]:
    parameters = DatapathParameters.of({"topology": "veth", **given})
    return list(islice(slices.placements(parameters, live, random.Random(1)), count))


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 2, 4, 6})


@pytest.mark.usefixtures("four_cpus")
def test_placements_repeat_only_after_all_were_used() -> None:
    given = [one for [one] in placed(32, arms(1))]
    everywhere = {(client, server) for client in (0, 2, 4, 6) for server in (0, 2, 4, 6)}
    assert set(given[:16]) == everywhere == set(given[16:])
    assert given[:16] != given[16:]


@pytest.mark.usefixtures("four_cpus")
def test_pairs_are_spread_over_the_cpus() -> None:
    """Each of eight clients and servers shares its CPU with as few others of its side as there can be."""
    for placement in placed(16, arms(8)):
        for side in zip(*placement, strict=True):
            assert sorted(side) == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("live", "given"),
    [
        (arms(1), {"placement": "scheduler"}),
        (arms(1, affinity="0,0"), {}),
        (arms(1, streams=2), {}),
        (arms(1, runtime=object()), {}),
    ],
)
def test_the_scheduler_places_what_cannot_be_placed_alike(live: Any, given: dict[str, Any]) -> None:
    assert placed(2, live, **given) == [None, None]


def test_one_cpu_leaves_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert placed(1, arms(1)) == [None]
