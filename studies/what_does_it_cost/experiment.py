"""What everyday changes cost: the experiment `datapaths` with a list of changes on one topology, with TCP, UDP,
requests and connections.

All changed topologies and the unchanged one exist at once, and each load runs between the ends of every one of them,
in random order.
"""

from typing import Annotated

from labkit.common.errors import BadInput
from labkit.measure.experiments import changes, measuring_loop, several_loads
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.topologies import Network

PRICE_LIST = (
    "conntrack: conntrack on at both",
    "rules-10: rules 10 at server",
    "rules-100: rules 100 at server",
    "rules-1000: rules 1000 at server",
    "rp_filter: sysctl net.ipv4.conf.all.rp_filter=1 at both",
    "gro-on: offload gro on at both",
    "tso-off: offload tso off gso off at both",
    "fq_codel: qdisc fq_codel at both",
    "pfifo_fast: qdisc pfifo_fast at both",
    "mtu-1280: parameter mtu_bytes=1280",
    "mtu-9000: parameter mtu_bytes=9000",
    "rps: rps 0 at server",
    "tc_bpf: tc_bpf pass at server",
    "xdp: xdp pass at server",
)
USUAL = DatapathParameters.help()


class WhatDoesItCost(several_loads.SeveralLoads, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` with several loads."""

    topology: Annotated[tuple[str | Network, ...], "what is changed, one"] = ("veth_bridge",)
    change: tuple[Change, ...] = changes.parse(PRICE_LIST)
    loads: tuple[str, ...] = ("tcp", "udp:512", "tcp_rr", "tcp_crr")
    observe: Annotated[tuple[str, ...], USUAL["observe"] + "; with every load"] = ()
    rounds: int = 5
    slices: int = 6
    whole_runs: int | None = 2
    duration_s: int = 1

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        if len(self.topology) > 1 or len(self.endpoint) > 1:
            raise BadInput(
                "what_does_it_cost changes one topology with one kind of endpoint: name one of each"
            )
        if not self.change:
            raise BadInput("change needs at least one change")
        super().check()


EXPERIMENT = measuring_loop.experiment(
    WhatDoesItCost,
    several_loads.plan,
    about="the price list of everyday changes: firewall rules, offloads, queueing disciplines and others",
)
