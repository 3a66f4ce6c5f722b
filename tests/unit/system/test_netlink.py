"""What is read over netlink and is not there, is gone meanwhile, or has no end."""

from contextlib import closing
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.system import netlink, process
from labkit.system.netlink import ethtool, sockets
from labkit.system.netlink.nft_counters import NftCounters


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(Failed, match="features of none0 cannot be read: No such device"):
        ethtool.features("none0")


def test_an_attribute_that_has_no_length_ends_the_reading() -> None:
    with pytest.raises(Failed, match="attribute of 0 bytes"):
        dict(sockets.attributes(bytes(8)))


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
