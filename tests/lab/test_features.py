"""What an arm reports about its interfaces by netlink equals what ethtool and ip print."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from labkit.measure.hosts import local

pytestmark = pytest.mark.needs("namespaces", "ip", "ethtool", "veth")


@pytest.mark.parametrize("topology", ["veth", "veth_bridge"])
def test_features_and_qdisc_are_those_of_the_programs(topology: str) -> None:
    script = str(Path(__file__).with_name("change_offloads.py"))
    done = subprocess.run(
        [*local.prefix(), sys.executable, script, topology],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for end in [*answers["before"], *answers["after"]]:
        for kernel, program in end.values():
            assert kernel == program
    (before, _), (after, _) = answers["before"], answers["after"]
    assert before["offloads"][0]["tcp-segmentation-offload"]
    assert not after["offloads"][0]["tcp-segmentation-offload"]
    assert (before["qdisc"][0], after["qdisc"][0]) == ("noqueue", "pfifo")
    assert answers["alone"] == [after["offloads"][0], "pfifo"]  # read without starting a program
