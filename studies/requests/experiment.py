"""What datapaths cost a request, a connection and an HTTP request: the experiment `datapaths` with these loads.

Nothing can be held while it waits for an answer, so there are whole runs only. Loops are closed. Several connections
of a pair keep the path busy while one of them waits.
"""

from typing import Annotated

from labkit.common.limits import Within
from labkit.measure.experiments import measuring_loop, several_loads


class Requests(several_loads.SeveralLoads, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` with several loads."""

    topology: several_loads.Compared = (
        "veth_bridge", "veth", "veth_routed", "veth_published_proxy", "veth_published_nat", "macvlan_bridge",
        "vxlan", "ovs_netdev",
    )  # fmt: skip
    loads: tuple[str, ...] = ("tcp_rr", "tcp_crr", "http", "http_close")
    streams: Annotated[int, "open connections of each pair", Within(1, 128)] = 4
    rounds: int = 5
    duration_s: int = 1


EXPERIMENT = measuring_loop.experiment(
    Requests,
    several_loads.plan,
    about="what datapaths cost a request, a connection and an HTTP request: rate against the 99th percentile",
)
