"""What labkit counts of TCP is payload, with and without segmentation offload."""

import json
from pathlib import Path
from typing import Any

import pytest
from sandbox import printed

pytestmark = pytest.mark.needs("namespaces", "ethtool", "veth", "bridge")
NEAR = 0.004
REQUESTS = [
    [name, family, offloads]
    for name in ("loopback", "veth", "veth_bridge", "macvlan_bridge", "vxlan")
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
