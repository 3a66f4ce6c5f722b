"""The features of an interface, read by netlink and reported with ethtool's names."""

import pytest

from labkit.common.errors import Failed
from labkit.system.netlink import ethtool, sockets


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(Failed, match="features of none0 cannot be read: No such device"):
        ethtool.features("none0")


def test_an_attribute_that_has_no_length_ends_the_reading() -> None:
    with pytest.raises(Failed, match="attribute of 0 bytes"):
        dict(sockets.attributes(bytes(8)))
