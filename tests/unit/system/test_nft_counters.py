"""Counters of nftables that are read over netlink, and that somebody else may delete meanwhile."""

from contextlib import closing
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.system import netlink, process
from labkit.system.netlink.nft_counters import NftCounters


@pytest.mark.needs("root", "namespaces", "nft")
def test_flushed_rules_are_named(namespace: Any) -> None:
    fd, _kernel = namespace
    with netlink.inside(fd):
        process.output(["nft", "add table netdev t; add counter netdev t one { packets 3 bytes 9 }"])
    with closing(NftCounters(fd, "t")) as counters:
        assert counters.read(["one"]) == [3]
        with netlink.inside(fd):
            process.output(["nft", "flush ruleset"])
        with pytest.raises(Failed, match="the counters of the nftables table t are gone: "):
            counters.read(["one"])
