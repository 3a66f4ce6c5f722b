"""What labkit counts is payload: of TCP with and without segmentation offload, of UDP inside tunnels, too."""

import json
from pathlib import Path
from typing import Any

import pytest
from sandbox import printed

pytestmark = pytest.mark.needs("namespaces", "ethtool", "veth", "bridge")
NEAR = 0.004
REQUESTS = [
    [name, family, offloads]
    for name in ("loopback", "veth", "veth_bridge", "macvlan_bridge", "vxlan", "bridged")
    for family in (4, 6)
    for offloads in (True, False)
]


@pytest.mark.needs("macvlan", "vxlan")
def test_counted_bytes_are_payload() -> None:
    """Without offload, 1,514 bytes of a frame are 1,448 of payload (4.6 % less), or 1,428 with IPv6 (6 % less).

    What TCP sends again on a busy machine may arrive twice.
    """
    check(REQUESTS)


@pytest.mark.needs("user-mode networks")
def test_counted_bytes_are_payload_without_timestamps() -> None:
    """The TCP of these programs sends none: 1,514 bytes of a frame are 1,460 of payload."""
    check([[name, 4, True] for name in ("pasta_published", "rootlesskit_slirp4netns")])


def check(requests: list[list[Any]]) -> None:
    answers = printed(Path(__file__).with_name("count_payload.py"), json.dumps(requests), timeout_s=120)
    for request, (of_program, of_tcp) in zip(requests, answers, strict=True):
        assert of_program > 1 - NEAR, request
        assert of_tcp < 1 + NEAR, request


@pytest.mark.needs("vxlan")
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_counted_datagrams_are_the_programs(direction: str) -> None:
    """The kernel counts what a tunnel takes out as received, by the version of IP outside; and losses are followed on
    the way of the data."""
    requests = [(outside, inside, direction) for outside in (4, 6) for inside in (4, 6)]
    program = Path(__file__).with_name("count_datagrams.py")
    for request, one in zip(requests, printed(program, json.dumps(requests), timeout_s=60), strict=True):
        assert (one["counted"], one["sent"]) == (500, 500), request
        [loss] = one["losses"]
        assert loss["pair"] == ("c1 > c2" if direction == "forward" else "c2 > c1")
        counts = loss["unit"], loss["sent_count"], loss["received_count"], loss["lost_count"]
        assert counts == ("datagrams", 600, 500, 100), request
