"""Route netlink and network namespaces: the only user of pyroute2.

pyroute2 encodes the messages; they travel over one plain socket per namespace, many to a system call. pyroute2's
own `IPRoute` object costs several milliseconds per namespace, which is most of what building 256 of them takes.
"""

from labkit.netlink.dumps import Link, Route, addresses, id_of, links, qdiscs, routes
from labkit.netlink.messages import (
    FIRST_INDEX,
    Message,
    default_route,
    delete_link,
    move_link,
    new_address,
    new_ingress,
    new_link,
    new_neighbour,
    new_qdisc,
    set_link,
    set_master,
)
from labkit.netlink.netns import index_of, inside, new_namespaces
from labkit.netlink.sockets import LinkCounters, LinkError, Netlink
from labkit.netlink.taps import Tap, check_taps, new_tap

__all__ = [
    "FIRST_INDEX", "Link", "LinkCounters", "LinkError", "Message", "Netlink", "Route", "Tap", "addresses",
    "check_taps", "default_route", "delete_link", "id_of", "index_of", "inside", "links", "move_link",
    "new_address", "new_ingress", "new_link", "new_namespaces", "new_neighbour", "new_qdisc", "new_tap",
    "qdiscs", "routes", "set_link", "set_master",
]  # fmt: skip
