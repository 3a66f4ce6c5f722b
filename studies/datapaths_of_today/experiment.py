"""The datapaths that CNIs choose between today: the experiment `datapaths` with bulk transfers, packets of three sizes,
and requests.

They are models of draft-ietf-bmwg-containerized-infra-08: kernel-space (bridge, macvlan, routing) and eBPF acceleration
(redirects at tc and XDP). An arm that this kernel lacks is in the rows with the reason.
"""

from labkit.measure.experiments import measuring_loop, several_loads


class DatapathsOfToday(several_loads.SeveralLoads, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` with several loads."""

    topology: several_loads.Compared = (
        "veth_bridge", "macvlan_bridge", "veth_routed", "veth_redirect", "veth_redirect_peer",
        "veth_redirect_neigh", "veth_xdp",
    )  # fmt: skip
    loads: tuple[str, ...] = ("tcp", "udp:64", "udp:512", "udp:1472", "udp_rr")
    rounds: int = 5
    slices: int = 6
    whole_runs: int | None = 1
    duration_s: int = 1


EXPERIMENT = measuring_loop.experiment(
    DatapathsOfToday,
    several_loads.plan,
    about="bridge, macvlan, routing and eBPF redirects: bulk transfers, packets of three sizes, and requests",
)
