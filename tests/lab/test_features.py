"""What an arm reports about its interfaces by netlink equals what ethtool and ip print."""

from pathlib import Path

import pytest
from sandbox import printed

pytestmark = pytest.mark.needs("namespaces", "ip", "ethtool", "veth")


@pytest.mark.parametrize("topology", ["veth", "veth_bridge"])
def test_features_and_qdisc_are_those_of_the_programs(topology: str) -> None:
    answers = printed(Path(__file__).with_name("change_offloads.py"), topology, timeout_s=120)
    for end in [*answers["before"], *answers["after"]]:
        for kernel, program in end.values():
            assert kernel == program
    (before, _), (after, _) = answers["before"], answers["after"]
    assert before["offloads"][0]["tcp-segmentation-offload"]
    assert not after["offloads"][0]["tcp-segmentation-offload"]
    assert (before["qdisc"][0], after["qdisc"][0]) == ("noqueue", "pfifo")
    assert answers["alone"] == [after["offloads"][0], "pfifo"]  # read without starting a program
