"""The claims of the five documents. To add a claim, add an entry to CLAIMS.

The numbers in a claim's sentence are the document's. Its verdict comes from published runs and printed numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd

from studies.documents import printed, remarks
from studies.documents.claim import (
    EXACT,
    LESS,
    MORE,
    WITHIN_10_PERCENT,
    WITHIN_25_PERCENT,
    Claim,
    Document,
    printed_range,
)
from studies.documents.evidence import (
    Source,
    arrived_share,
    computed,
    deviation,
    function_ratio,
    function_time_ratio,
    ratio_of_arms,
    ratio_of_values,
    ratios_of_counts,
    undecided_if_emulated,
    undecided_if_link_full,
    uplink_share,
)

DOCUMENTS = {
    "paper": Document("J. Claassen, University of Amsterdam, 2015", "Container Network Solutions"),
    "report": Document("a project report of the course ECE 792", "Linux networking, parts 1 and 2"),
    "thesis": Document(
        "Senanayake, University of Colombo, 2024",
        "Performance on Virtualization Environments with Virtual TAP",
    ),
    "load_tests": Document("IPng Networks", "load tests of Coloclue's links with T-Rex 2.88"),
    "test_plan": Document("Netronome", "OVS Test Plan: Benchmarking Test Suite"),
}

LOCAL, IPVLAN, SWITCHED, UPLINK = "datapaths", "ipvlan", "switched", "uplink"
PORTS = "published_ports"
PUBLISHED_PORTS = ("veth_published_proxy", "veth_published_nat")
FULL = "`params/datapaths.yaml` on a quiet machine with many cores"
AS_DOCKER = "`params/published_ports.yaml` on such a machine, with the Docker of 2015 itself in place of labkit's proxy"
NIC = "two machines with NICs of 10 Gbit/s and a switch: `where: ssh:ONE`, `peer: ssh:OTHER` in `params/nodes.yaml`"
GUEST_TO_CONTAINER = ratio_of_arms(
    "container_vs_vm",
    "veth_bridge/guest",
    "veth_bridge/container",
    protocol="udp",
    guest=(None, "debian"),
)
KVM = "`params/container_vs_vm.yaml` on a machine with KVM, where guests run on the CPU itself"
KERNEL_DATAPATH = "`params/virtual_tap.yaml` with the kernel's datapath on four cores"
SWITCHES = ("ovs_netdev", "ovs")  # datapaths of Open vSwitch: in user space, and the kernel's
MIRRORS = tuple(f"{switch}+mirrors={count}" for switch in SWITCHES for count in (1, 2, 4, 8))
READ_MIRRORS = tuple(f"{arm}+readers=count" for arm in MIRRORS)
ELSEWHERE = "It is a speed of hardware that is not here."
VETH = "veth_bridge, or of a veth bridge whose host publishes the servers' ports (veth_published_…)"


def _switch(arm: str) -> str:
    """Return the arm of the switch alone, without mirrors."""
    return arm.partition("+")[0]


def _macvlan_between_nodes(other: str) -> Source:
    """Return macvlan's UDP throughput between two nodes with MTU 1500, divided by that of another arm."""
    return undecided_if_link_full(
        ratio_of_arms(SWITCHED, "macvlan_bridge", other, protocol="udp", mtu_bytes=1500)
    )


def _macvlan_to_veth(protocol: str) -> tuple[Source, ...]:
    """Return sources of macvlan's throughput divided by that of each kind of veth bridge, on one node."""
    veths = (
        (LOCAL, "veth_bridge"),
        (IPVLAN, "veth_bridge"),
        *((PORTS, one) for one in ("veth_bridge", *PUBLISHED_PORTS)),
    )
    return tuple(ratio_of_arms(run, "macvlan_bridge", veth, protocol=protocol) for run, veth in veths)


def _header_bytes(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the bytes that the kernel added for each tunnel, divided by those of the report's captures."""
    shown = {"vxlan": printed.VXLAN_BYTES, "gre": printed.GRE_BYTES}
    shown["vxlan_gre"] = shown["vxlan"] + shown["gre"]
    for row in rows.drop_duplicates(["topology", "measured_bytes"]).to_dict("records"):
        if row["topology"] in shown:
            yield (
                f"{row['topology']}: bytes added to a packet",
                row["measured_bytes"] / shown[row["topology"]],
            )


def _captured_ratios(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the captured lengths of UDP's payload and of GRE, divided by those that the report's captures imply for
    an inner packet of this size: 106 and 138 bytes for one of 84, and 88 in GRE alone."""
    for what, own in rows.groupby("what", sort=False):
        deepest = max(own["layers"], key=len)
        inner = [layer["length_bytes"] for layer in deepest if layer["name"].startswith("ip")][-1]
        in_vxlan = any(layer["name"] == "vxlan" for layer in deepest)
        shown = {"udp": (106 - 84 + inner, 8), "gre": ((138 if in_vxlan else 88) - 84 + inner, 0)}
        for layer in deepest:
            if layer["name"] in shown:
                expected, header = shown[layer["name"]]
                yield (
                    f"{what}: length of {layer['name']} around {inner} bytes",
                    (layer["length_bytes"] - header) / expected,
                )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "macvlan-tcp",
        "On one node, macvlan in bridge mode carries 2.5 to 3 times as much TCP as a veth bridge, for 1 to 128 pairs.",
        "paper", "section 5.1.1, figure 5.1",
        f"{FULL}; and {AS_DOCKER}",
        f"TCP throughput of macvlan_bridge, divided by that of {VETH}", printed_range(2.5, 3),
        _macvlan_to_veth("tcp"),
        "How veth clients reach the servers matters more than the kind of interface. In the run published_ports, the"
        " median lead of macvlan is smallest where they send to the servers' own addresses, larger where the host"
        " translates addresses, and largest where a proxy copies.",
        conditions=remarks.PUBLISHED_PORTS_MEASURED,
    ),
    Claim(
        "macvlan-faster-tcp",
        "On one node, macvlan in bridge mode carries more TCP than a veth bridge.",
        "paper", "section 6", FULL,
        f"TCP throughput of macvlan_bridge, divided by that of {VETH}", MORE,
        _macvlan_to_veth("tcp"),
        conditions=remarks.PUBLISHED_PORTS_MEASURED,
    ),
    Claim(
        "macvlan-faster-udp",
        "On one node, macvlan in bridge mode carries more UDP than a veth bridge.",
        "paper", "section 5.1.2, figure 5.2", FULL,
        f"UDP throughput of macvlan_bridge, divided by that of {VETH}", MORE,
        _macvlan_to_veth("udp"),
        conditions=f"{remarks.PUBLISHED_PORTS_MEASURED} {remarks.DATAGRAMS}",
    ),
    Claim(
        "ipvlan-tcp",
        "On one node, ipvlan in L3 mode carries 2.5 to 3 times as much TCP as a veth bridge.",
        "paper", "section 5.1.1, figure 5.1", FULL + " whose kernel has ipvlan; and veth behind published ports",
        "TCP throughput of ipvlan_l3, divided by that of veth_bridge", printed_range(2.5, 3),
        tuple(ratio_of_arms(run, "ipvlan_l3", "veth_bridge", protocol="tcp") for run in (LOCAL, IPVLAN)),
        conditions=remarks.PUBLISHED_PORTS,
    ),
    Claim(
        "ipvlan-fastest",
        "On one node, ipvlan in L3 mode carries the most TCP, more than macvlan in bridge mode.",
        "paper", "section 5.1.1", FULL + " whose kernel has ipvlan",
        "TCP throughput of ipvlan_l3, divided by that of macvlan_bridge", MORE,
        (ratio_of_arms(IPVLAN, "ipvlan_l3", "macvlan_bridge", protocol="tcp"),),
    ),
    Claim(
        "ipvlan-udp",
        "On one node, ipvlan in L3 mode carries less UDP than macvlan in bridge mode.",
        "paper", "section 5.1.2, figure 5.2", FULL + " whose kernel has ipvlan",
        "UDP throughput of ipvlan_l3, divided by that of macvlan_bridge", LESS,
        (ratio_of_arms(IPVLAN, "ipvlan_l3", "macvlan_bridge", protocol="udp"),),
        conditions=remarks.DATAGRAMS,
    ),
    Claim(
        "udp-below-tcp",
        "On one node, macvlan in bridge mode carries 1/3.5 as much UDP as TCP.",
        "paper", "section 5.1.2", FULL,
        "UDP throughput of macvlan_bridge, divided by its TCP throughput", printed_range(1 / 3.5),
        (ratio_of_values(LOCAL, "protocol", "tcp", "udp", "macvlan_bridge"),),
        "TCP segments leave the sender in bundles of up to 64 KiB (TSO), and UDP datagrams one by one.",
        conditions=remarks.DATAGRAMS,
    ),
    Claim(
        "mtu-local",
        "On one node, an MTU of 9000 instead of 1500 makes no big difference to TCP.",
        "paper", "section 5.1.1, figure 5.1", FULL,
        "TCP throughput with MTU 9000, divided by that with MTU 1500", WITHIN_25_PERCENT,
        tuple(
            ratio_of_values(LOCAL, "mtu_bytes", 1500, 9000, arm, protocol="tcp")
            for arm in ("veth_bridge", "macvlan_bridge")
        ),
        f"{remarks.SEGMENTS} Here the MTU of the interfaces differs. The two MTUs were measured in different points,"
        " and the drift between them widens the intervals.",
    ),
    Claim(
        "pairs-share",
        "The more pairs send at the same time, the less throughput each of them has.",
        "paper", "sections 4.2 and 5.2.1", FULL,
        "TCP throughput of each of several pairs, divided by that of a single pair", LESS,
        tuple(
            ratio_of_values(LOCAL, "pairs", 1, pairs, arm, "speed_per_pair", protocol="tcp")
            for arm in ("veth_bridge", "macvlan_bridge") for pairs in (2, 4, 8, 16, 32, 64, 128)
        ),
        "The paper calls this exponentially decreasing. It doubles the number of pairs from point to point. A total"
        " that stays the same then halves for each pair from point to point, which looks exponential. Here only the"
        " direction is judged.",
        conditions="Section 5.2.1 of the paper is about two nodes. Here only pairs on one node answer.",
    ),
    Claim(
        "switched-tcp",
        "Between two nodes, TCP over veth bridges, macvlan and ipvlan is a very close call.",
        "paper", "section 5.2.1, figure 5.3", NIC,
        "TCP throughput between two nodes, divided by that of veth_bridge", WITHIN_10_PERCENT,
        tuple(
            undecided_if_link_full(ratio_of_arms(SWITCHED, arm, "veth_bridge", protocol="tcp"))
            for arm in ("macvlan_bridge", "ipvlan_l2")
        ),
        "A full link makes any two datapaths equal, so its ratios decide nothing.",
        conditions=remarks.TWO_NODES,
    ),
    Claim(
        "switched-mtu",
        "Between two nodes, TCP gains 2 of 10 Gbit/s if the MTU is 9000 instead of 1500.",
        "paper", "section 5.2.1, figure 5.3", NIC,
        "TCP throughput between two nodes with MTU 9000, divided by that with MTU 1500",
        printed_range(1.25, factor=1.12),
        tuple(
            undecided_if_link_full(ratio_of_values(SWITCHED, "mtu_bytes", 1500, 9000, arm, protocol="tcp"))
            for arm in ("veth_bridge", "macvlan_bridge")
        ),
        "2 Gbit/s more on a link of 10 Gbit/s is a ratio of about 1.25, if the larger MTU fills it. A link that both"
        f" MTUs fill decides nothing. {remarks.SEGMENTS}",
        conditions=remarks.TWO_NODES,
    ),
    Claim(
        "switched-udp",
        "Between two nodes and with MTU 1500, macvlan in bridge mode carries more UDP than a veth bridge.",
        "paper", "section 5.2.2, figure 5.4", NIC,
        "UDP throughput of macvlan_bridge between two nodes, divided by that of veth_bridge", MORE,
        (_macvlan_between_nodes("veth_bridge"),),
        conditions=f"{remarks.TWO_NODES} {remarks.DATAGRAMS}",
    ),
    Claim(
        "switched-udp-ipvlan",
        "Between two nodes and with MTU 1500, macvlan in bridge mode carries more UDP than ipvlan in L3 mode.",
        "paper", "section 5.2.2, figure 5.4", NIC,
        "UDP throughput of macvlan_bridge between two nodes, divided by that of ipvlan_l2", MORE,
        (_macvlan_between_nodes("ipvlan_l2"),),
        conditions=f"{remarks.TWO_NODES} {remarks.DATAGRAMS}",
    ),
    Claim(
        "switched-udp-9000",
        "Between two nodes and with MTU 9000, UDP over veth bridges, macvlan and ipvlan is really close.",
        "paper", "section 5.2.2, figure 5.4", NIC,
        "UDP throughput between two nodes with MTU 9000, divided by that of veth_bridge", WITHIN_10_PERCENT,
        tuple(
            undecided_if_link_full(ratio_of_arms(SWITCHED, arm, "veth_bridge", protocol="udp", mtu_bytes=9000))
            for arm in ("macvlan_bridge", "ipvlan_l2")
        ),
        conditions=f"{remarks.TWO_NODES} {remarks.DATAGRAMS}",
    ),
    Claim(
        "container-vs-vm",
        "A container receives more UDP than a virtual machine.",
        "report", "part 2, sections 2.1 to 2.3", KVM,
        "UDP throughput between two guests, divided by that between two containers", LESS,
        (
            undecided_if_emulated(GUEST_TO_CONTAINER),
        ),
        "The guests here are emulated. Emulation slows a guest, so these ratios decide nothing.",
        conditions=remarks.report_conditions(),
    ),
    Claim(
        "container-vs-vm-size",
        "A container receives around 4 Gbit/s of UDP, and a virtual machine 9.97 Mbit/s.",
        "report", "part 2, sections 2.1 and 2.2", KVM,
        "UDP throughput between two guests, divided by that between two containers",
        printed_range(printed.guest_share()),
        (GUEST_TO_CONTAINER,),
        f"{remarks.report_rates()} Emulation makes guests slower. Without it, the ratio is likely to be further above"
        " the report's.".strip(),
        conditions=remarks.report_conditions(),
    ),
    Claim(
        "ip_rcv-explains",
        "The virtual machine is slower because `ip_rcv` takes 6,000 µs in it, and 10 µs for the container.",
        "report", "part 2, sections 2.1 to 2.3",
        "guests as in `params/container_vs_vm.yaml` on a machine with KVM, and containers on that machine itself, with"
        " `observe=function_times`",
        "median duration of ip_rcv in one guest that both ends share, or of ip_list_rcv where each end is a guest,"
        " divided by that of ip_rcv in a lab VM with containers",
        printed_range(6000 / 10),
        tuple(
            function_ratio("container_vs_vm", ("container", "ip_rcv"), in_guests)
            for in_guests in (("shared_guest", "ip_rcv"), ("guest", "ip_list_rcv"))
        ),
        "The driver of a guest's NIC passes packets in lists, so the guest's kernel calls ip_list_rcv and not ip_rcv."
        " One call handles several packets. The tracer's own time is in every duration and pulls the ratio towards 1."
        " But no guest's median is near 6,000 µs."
        " Section 2.3 of the report prints 10 ms for the container, where section 2.2 has 10 µs. The claim here uses"
        " 10 µs, which the report reads from a trace of calls. By the order of its lines, 10.97 µs may belong to"
        " ip_local_deliver_finish, which ip_rcv calls, and 23.9 µs to ip_rcv itself. The printed lines are not aligned,"
        " so this is uncertain.",
        conditions=remarks.function_conditions(),
    ),
    Claim(
        "ip_rcv-fits",
        "`ip_rcv` takes 6,000 µs for each of the 8,619 datagrams that the virtual machine receives in 10 s.",
        "report", "part 2, section 2.1", "nothing more: the two numbers exclude each other",
        "CPU time of ip_rcv in a second, divided by one CPU second", LESS,
        (computed("6,000 µs times the datagrams a second of the same run", printed.cpus_of_ip_rcv),),
    ),
    Claim(
        "ip_rcv-size",
        "`ip_rcv` takes half as long for datagrams of 800 bytes as for those of 400 bytes.",
        "report", "part 2, section 2.4", "`params/packet_size.yaml` on a kernel that can trace functions",
        "median duration of ip_rcv for 800 bytes, divided by that for 400 bytes", printed_range(0.5),
        (function_time_ratio("packet_size"),),
        conditions=remarks.EMULATED_KERNEL,
    ),
    Claim(
        "double-size",
        "With twice the size of the datagrams, the throughput is twice as high.",
        "report", "part 2, section 2.4", "`params/packet_size.yaml` on a quiet machine",
        "UDP throughput with datagrams of twice the size, divided by that with the smaller ones", printed_range(2),
        tuple(
            ratio_of_values("packet_size", "length_bytes", size, 2 * size, "veth_bridge", where="here")
            for size in (200, 400)
        ),
    ),
    Claim(
        "cycles-per-packet",
        "The number of CPU cycles to send a packet is the same whatever its size.",
        "report", "part 2, section 2.4", "`params/packet_size.yaml` on a quiet machine",
        "CPU time of the machine for a larger datagram, divided by that for 200 bytes", WITHIN_25_PERCENT,
        tuple(
            ratio_of_values("packet_size", "length_bytes", 200, size, "veth_bridge", "cpu_per_packet", where="here")
            for size in (400, 800, 1472)
        ),
        "Where all CPUs are busy, this number is the inverse of the packet rate. The ratios share one denominator.",
        conditions="Here it is CPU time and not cycles, of the whole machine, of sender and receiver together, for each"
        " datagram that arrived. The report's claim is about the cycles of the sender.",
    ),
    Claim(
        "overlay-headers",
        "VXLAN adds 50 bytes to a packet, GRE 24, and VXLAN in GRE 74: a ping of 84 bytes is 106 bytes in UDP and 138"
        " in GRE.",
        "report", "part 1, captures at lc1-br1 and sc2_lc1", "nothing more: bytes are counted",
        "bytes that the kernel added, divided by those of the report", EXACT,
        (ratios_of_counts("overlay", "headers", _header_bytes), ratios_of_counts("overlay", "path", _captured_ratios)),
        "106 = 84 + 14 (Ethernet) + 8 (VXLAN); 138 = 106 + 8 (UDP) + 20 (IP) + 4 (GRE).",
    ),
    Claim(
        "mirror-count",
        "The number of mirrors, 0 to 8, does not change the throughput of TCP in writes of 64 bytes: 235 Mbit/s without"
        " mirrors, and with eight 234 if nobody reads the copies and 233 if they are read.",
        "thesis", "table 4.1 and section 4.2.2", KERNEL_DATAPATH,
        "throughput with mirrors, whose copies are read or not, divided by that without", (0.95, 1.05),
        tuple(
            ratio_of_arms("virtual_tap", arm, _switch(arm), rate_bps=None, protocol="tcp", length_bytes=64)
            for arm in (*MIRRORS, *READ_MIRRORS)
        ),
        conditions=remarks.DATAPATHS,
    ),
    Claim(
        "mirror-count-loads",
        "There is no relationship between the number of mirrors and the performance of the network.",
        "thesis", "abstract and section 4.2.4, overall summary", KERNEL_DATAPATH,
        "throughput with mirrors that nobody reads, divided by that without", (0.95, 1.05),
        tuple(
            ratio_of_arms("virtual_tap", arm, _switch(arm), rate_bps=None, **only)
            for arm in MIRRORS
            for only in ({"protocol": "tcp", "length_bytes": (None, 100, 256, 512, 1024, 1400)}, {"protocol": "udp"})
        ),
        conditions=f"{remarks.DATAPATHS} The thesis' load is TCP in writes of 64 bytes (iperf3 -l 64), where the sender"
        " is the limit. Here the writes are larger, or the load is UDP.",
    ),
    Claim(
        "mirror-counters",
        "More mirrors lead to more LLC loads, LLC misses and branches.",
        "thesis", "section 4.2.2, test one summary",
        "perf's counters of the switch with 0 to 8 mirrors in several rounds",
        "printed counter with eight mirrors, divided by that with one", MORE,
        tuple(
            computed(
                f"{column.replace('_', ' ')}, {'read' if read else 'unread'}",
                partial(printed.mirror_counter, column, read),
            )
            for column in ("llc_loads", "llc_load_misses", "branches") for read in (True, False)
        ),
        remarks.copied_counters(),
        all_points=True,
    ),
    Claim(
        "mirror-printed",
        "Eight mirrors that are read cost 2 Mbit/s, which is 0.85 % of the throughput.",
        "thesis", "table 4.1", "nothing more: it follows from the table",
        "printed throughput with eight mirrors, divided by that without", (0.991, 0.992),
        (computed("233 and 235 Mbit/s", printed.mirror_throughput_ratio),),
    ),
    Claim(
        "mirror-drop",
        "One mirror costs at most 20 % of the throughput, whatever the size of packets.",
        "thesis", "section 4.2.3, figure 4.11", KERNEL_DATAPATH,
        "throughput with one mirror, divided by that without", (0.8, math.inf),
        tuple(ratio_of_arms("virtual_tap", f"{switch}+mirrors=1", switch, rate_bps=None) for switch in SWITCHES),
        'The thesis\' "packet size" is iperf3\'s option -l, which is the length of a write. TCP puts several writes'
        ' into one'
        " packet.",
        conditions=remarks.DATAPATHS,
        all_points=True,
    ),
    Claim(
        "mirror-drop-largest",
        "The drop with one mirror is largest at 1,024 bytes.",
        "thesis", "section 4.2.3, figure 4.11", f"{KERNEL_DATAPATH}, with many more rounds",
        remark="The table of mirror-drop has the ratio of each size with its interval. Nothing here compares the"
        " sizes.",
    ),
    Claim(
        "mirror-drop-speed",
        "With one mirror, the throughput is about 4 Gbit/s less than without.",
        "thesis", "section 4.2.1", "the thesis' machine (an Intel i5-4590)", remark=ELSEWHERE,
    ),
    Claim(
        "uplink-printed",
        "Where mirrored traffic leaves the host, the NIC of 1 Gbit/s is the bottleneck.",
        "thesis", "table 4.2 and figure 4.17", "nothing more: it follows from the table",
        "captured rate where more than 1 Gbit/s is offered, divided by 1 Gbit/s", (0.85, 1.05),
        (computed("captured rate, mean of five rates above 1 Gbit/s", printed.uplink_plateau),),
    ),
    Claim(
        "uplink",
        "A mirror that leaves the host over a link delivers no more than the link carries.",
        "thesis", "section 4.2.4", "a NIC as uplink; the link here is a token bucket, of a veth or between lab VMs",
        "rate of the copies that arrived, divided by the rate of the link", (-math.inf, 1.05),
        tuple(uplink_share(run, link_bps) for run in ("virtual_tap", UPLINK) for link_bps in (1e8, 1e9)),
    ),
    Claim(
        "uplink-linear",
        "Below the rate of the link, what the monitor captures increases with what is sent, but the trend is not as"
        " linear or smooth.",
        "thesis", "section 4.2.4, table 4.2 and figure 4.17", "a NIC as uplink",
        "factor by which the copies that arrived differ from those that the mirror should have made", (1.05, math.inf),
        (
            deviation(computed("the captured share that differs most from their median", printed.uplink_outlier)),
            *(deviation(arrived_share(run, link_bps)) for run in ("virtual_tap", UPLINK) for link_bps in (1e8, 1e9)),
        ),
        remark=f"{remarks.captured_shares()} {remarks.MEASURED_ONCE_MORE}",
        conditions="The thesis captured TCP once for each rate, with Wireshark on a host with Windows behind a NIC."
        " Here labkit counts copies of paced UDP where the monitor receives them, in several rounds, and the link is a"
        " token bucket.",
    ),
    Claim(
        "uplink-flow",
        "The monitored flow itself keeps its throughput when its mirror's link is full.",
        "thesis", "table 4.2, row Transfer", "a NIC as uplink",
        "throughput of the flow with a mirror over GRE, divided by that without", (0.95, 1.05),
        (
            computed("sent rate, divided by the offered one, mean above 1 Gbit/s", printed.uplink_flow),
            ratio_of_arms(
                "virtual_tap",
                "ovs_netdev+mirrors=1+output=gre+uplink_bps=100000000",
                "ovs_netdev",
                rate_bps=(1.2e8, 1.5e8, 2e8),
            ),
            ratio_of_arms(UPLINK, "ovs+mirrors=1+output=gre", "ovs", rate_bps=(1.2e8, 1.6e8), link_rate_bps=1e8),
            ratio_of_arms(
                UPLINK, "ovs_netdev+mirrors=1+output=gre+uplink_bps=1000000000", "ovs_netdev", rate_bps=1.2e9
            ),
        ),
        "The thesis does not state this. Its table shows it: the flow sent what was offered, also where its mirror's"
        " NIC was full.",
    ),
    Claim(
        "virtualbox",
        "Between two VirtualBox guests, Open vSwitch carries no more than 200 kbit/s, with and without a mirror.",
        "thesis", "section 4.2.1", "VirtualBox on the thesis' machine",
        remark="VirtualBox is not here, and the thesis does not name the cause.",
    ),
    Claim(
        "ovs-docker-speed",
        "Open vSwitch carries 30 to 35 Gbit/s between two Docker containers.",
        "thesis", "abstract and section 4.1", "the thesis' machine (an Intel i5-4590)", remark=ELSEWHERE,
    ),
    Claim(
        "line-rate",
        "1 Gbit/s carries 1,488,095 frames of 64 bytes a second, because each takes 672 bits of the line.",
        "load_tests", "section Loadtest Setup, Baseline", "nothing more: it is arithmetic",
        "printed rate, divided by 1 Gbit/s / (84 · 8 bit)", EXACT,
        (computed("64 bytes, 20 bytes of preamble and gap", lambda: printed.line_rate("baseline")),),
    ),
    Claim(
        "line-rate-tagged",
        "With a VLAN tag, and a link that each packet passes twice, it is 710,227 frames a second in each direction.",
        "load_tests", "section Loadtest Setup, Atom86", "nothing more: it is arithmetic",
        "printed rate, divided by 1 Gbit/s / (2 · 88 · 8 bit)", EXACT,
        (computed("4 bytes of tag, two passes", lambda: printed.line_rate("64b", printed.TAG_BYTES, 2)),),
    ),
    Claim(
        "line-carried",
        "The loop and the tagged link carry what the arithmetic predicts.",
        "load_tests", "sections Step 3 and Step 4", "`params/trex.yaml` through the link itself",
        "rate that was carried, divided by that of the line", (0.98, 1.005),
        (
            computed("the loop, frames of 64 bytes", lambda: printed.carried("baseline")),
            computed("the tagged link, frames of 64 bytes", lambda: printed.carried("64b")),
        ),
    ),
    Claim(
        "loss",
        "Less than 0.01 % of the packets were lost in the loop and with TCP connections.",
        "load_tests", "read-outs in steps 3 and 5", "`params/trex.yaml` through the link itself",
        "share of packets that were lost, divided by 0.01 %", LESS,
        tuple(
            computed(f"packet counters of the test {name}", partial(printed.loss, name))
            for name in ("baseline", "astf")
        ),
        "The read-outs are of the loop and of the test with connections.",
    ),
    Claim(
        "all-passed",
        "All three tests passed: each lost less than 0.01 % of the packets.",
        "load_tests", "section Summary, and read-outs in steps 3 to 5", "`params/trex.yaml` through the link itself",
        "share of a test's read-outs without a loss above 0.01 %", EXACT,
        (
            computed("the loop, by counters", partial(printed.within_limit, "baseline")),
            computed(
                "the link, IMIX and frames of 64 bytes, by the tool's last word",
                partial(printed.within_limit, "imix", "64b"),
            ),
            computed("connections, by counters", partial(printed.within_limit, "astf")),
        ),
        'With frames of 64 bytes through the link, the document prints its tool\'s warning "DUT packetloss too high".'
        ' That'
        " test went up to 50 % of the line rate, and the document itself says that the link carries just 47 % of it.",
        all_points=True,
    ),
    Claim(
        "tags",
        "VLAN tags add 3.389 Mbit/s to 105,920 packets a second.",
        "load_tests", "section Step 5", "nothing more: it is arithmetic",
        "printed rate of the tags, divided by 4 bytes for each packet", EXACT,
        (computed("tags of 4 bytes", printed.tags),),
    ),
    Claim(
        "trex-core",
        "One CPU core is capable of 71 Gbit/s and 53 million packets a second with T-Rex.",
        "load_tests", "section Step 3", "T-Rex on the same CPU with faster NICs",
        "printed capacity, divided by the load of two lines at the rate that took 5.63 % of a core", (0.99, 1.01),
        (
            computed("2 Gbit/s out and 2 Gbit/s in", printed.trex_core_bits),
            computed("the frames of two full lines", printed.trex_core_frames),
        ),
        "Both numbers are extrapolated from a core that was hardly busy, and no full core was measured. The document"
        " also says approximately 72 Gbit/s.",
    ),
    Claim(
        "trex-latency",
        "Under 975 Mbit/s, probes take 815 µs in one direction and 702 µs in the other on average.",
        "load_tests", "section Latency Injection", "`params/trex.yaml` with probes through the link itself",
        "printed mean, divided by the least mean that the printed histogram allows", (1.0, math.inf),
        tuple(
            computed(f"port {port}, lower edges of the buckets", partial(printed.latency_ratio, port))
            for port in (0, 1)
        ),
        remarks.latencies(),
    ),
    Claim(
        "order-of-cases",
        "By two example read-outs, network to VM carries more packets than VM to network: 28.319 and 27.690 million a"
        " second.",
        "test_plan", "section Collecting Results", "`params/ovs_test_plan.yaml` on a quiet machine with many cores",
        "packet rate from VM to network, divided by that from network to VM", LESS,
        (
            computed("the two read-outs", printed.order_of_cases),
            ratio_of_arms("ovs_test_plan", "ovs_netdev+case=vm_to_net", "ovs_netdev+case=net_to_vm"),
        ),
        'The test plan claims no order: a read-out "may look like" these. The NDR and the PDR of a frame size come'
        ' from the'
        " same searches, so they are less independent than two sizes.",
        conditions="The document's read-outs are of an accelerated switch, once each, with frames of 64 bytes. Here the"
        " switch is the userspace datapath.",
    ),
    Claim(
        "flows",
        "64,000 flows are generated by each instance of the traffic generator.",
        "test_plan", "section Methodology, and both scripts", "nothing more: it is arithmetic",
        "streams times the flows of a stream in a script, divided by 64,000", EXACT,
        tuple(computed(f"the script {script}", partial(printed.flows, script)) for script in printed.STREAMS),
        "The VMs' script makes 8 streams of 2,000 flows. Four VMs together then make 64,000.",
        all_points=True,
    ),
    Claim(
        "sum-of-vms",
        "If each of four VMs receives 7,079,952 packets a second, they receive 28.319 million, or 14.5 Gbit/s in"
        " frames of 64 bytes. 27.690 million from VMs are 14.177 Gbit/s.",
        "test_plan", "sections Network to VM and VM to Network", "nothing more: it is arithmetic",
        "printed total, divided by what the printed number of one VM or of frames gives", EXACT,
        (
            computed("packets a second", lambda: printed.sum_of_vms("pps", "total_Mpps", 1e6)),
            computed("bits a second", lambda: printed.sum_of_vms("bytes_per_s", "total_Gbps", 1e9 / 8)),
            computed("bits a second from VM to network, 512 for each frame", printed.frames_bps),
        ),
        "The document reads one VM and assumes that the others receive as much.",
    ),
    Claim(
        "accelerated",
        "The accelerated switch forwards 28 million frames of 64 bytes a second.",
        "test_plan", "section Collecting Results", "an Agilio CX-4000 adapter", remark=ELSEWHERE,
    ),
)  # fmt: skip
