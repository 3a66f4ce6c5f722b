"""The message classes of pyroute2 that labkit uses, and its version, imported without the rest of pyroute2.

`import pyroute2` also imports its object layers, asyncio and SSL: 0.15 s, and seconds on an emulated CPU at each boot
of a lab VM. Therefore an empty package of that name replaces it during these imports only.
"""

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _bare(name: str) -> Iterator[None]:
    result = importlib.util.find_spec(name)
    if name in sys.modules or result is None or result.submodule_search_locations is None:
        yield
        return
    stand_in = types.ModuleType(name)
    stand_in.__path__ = list(result.submodule_search_locations)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


with _bare("pyroute2"):
    from pyroute2.config.version import __version__ as pyroute2_version
    from pyroute2.netlink import nla
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg, ifinfveth
    from pyroute2.netlink.rtnl.ndmsg import ndmsg
    from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg
    from pyroute2.netlink.rtnl.tcmsg import tcmsg

__all__ = [
    "ifaddrmsg", "ifinfmsg", "ifinfveth", "ndmsg", "nla", "nsidmsg", "pyroute2_version", "rtmsg", "tcmsg",
]  # fmt: skip
