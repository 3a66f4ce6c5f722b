"""A part of the zoo: causes planted in this kernel, and the first sentence of `labkit why` about them."""

from pathlib import Path

import pytest

from benchmarks import zoo

# test_open_vswitch.py has a planted cause, on a machine on which nothing else runs.
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.needs("namespaces", "iperf3", "ip", "ping", "veth", "bridge", "perf", "nft"),
]


def test_planted_causes_are_named_first(tmp_path: Path) -> None:
    """The causes are two hundred rules for each packet, and a rate limit. Both are far above the noise."""
    plants = [one for one in zoo.PLANTS if one.name in ("200 nftables rules", "a rate limit")]
    answers = {
        plant.name: (named, sentence)
        for plant, sentence, named in zoo.Zoo(tmp_path, omit_s=0, rounds=3).planted(plants)
    }
    assert answers.keys() == {"200 nftables rules", "a rate limit"}
    assert all(named for named, _ in answers.values()), answers
    assert "nftables" in answers["200 nftables rules"][1]
