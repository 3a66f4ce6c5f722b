"""The claims of the five documents. To add a claim, add an entry to CLAIMS.

The numbers in a claim's sentence are the document's. Its verdict comes from published runs and printed numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd

from labkit.analysis.claims import printed
from labkit.analysis.claims.claim import (
    EXACT,
    LESS,
    MORE,
    WITHIN_10_PERCENT,
    WITHIN_25_PERCENT,
    Claim,
    Document,
    printed_range,
)
from labkit.analysis.claims.evidence import (
    arrived_share,
    computed,
    function_ratio,
    function_time_ratio,
    ratio_of_arms,
    ratio_of_values,
    ratios_of_counts,
    undecided_if_emulated,
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
FULL = "the full-length sweep `params/datapaths.yaml` on a quiet machine with many cores"
NIC = "two machines with NICs of 10 Gbit/s and a switch: `where: ssh:ONE`, `peer: ssh:OTHER` in `params/nodes.yaml`"
KVM = "`params/container_vs_vm.yaml` on a machine with KVM, where guests run on the CPU itself"
NAT = (
    "The paper's veth clients reached their servers by ports that Docker published at the host (appendix A and B), so"
    " its veth path includes NAT. labkit's veth_bridge has a bridge and no NAT."
)
ELSEWHERE = "It is a speed of hardware that is not here."


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
        FULL + "; and veth behind NAT, as the paper's clients reached their servers",
        "TCP throughput of macvlan_bridge, divided by that of veth_bridge", printed_range(2.5, 3),
        tuple(ratio_of_arms(run, "macvlan_bridge", protocol="tcp") for run in (LOCAL, IPVLAN)),
        conditions=NAT,
    ),
    Claim(
        "macvlan-faster-tcp",
        "On one node, macvlan in bridge mode carries more TCP than a veth bridge.",
        "paper", "section 6", FULL,
        "TCP throughput of macvlan_bridge, divided by that of veth_bridge", MORE,
        tuple(ratio_of_arms(run, "macvlan_bridge", protocol="tcp") for run in (LOCAL, IPVLAN)),
    ),
    Claim(
        "macvlan-faster-udp",
        "On one node, macvlan in bridge mode carries more UDP than a veth bridge.",
        "paper", "section 5.1.2, figure 5.2", FULL,
        "UDP throughput of macvlan_bridge, divided by that of veth_bridge", MORE,
        tuple(ratio_of_arms(run, "macvlan_bridge", protocol="udp") for run in (LOCAL, IPVLAN)),
    ),
    Claim(
        "ipvlan-tcp",
        "On one node, ipvlan in L3 mode carries 2.5 to 3 times as much TCP as a veth bridge.",
        "paper", "section 5.1.1, figure 5.1", FULL + " whose kernel has ipvlan; and veth behind NAT",
        "TCP throughput of ipvlan_l3, divided by that of veth_bridge", printed_range(2.5, 3),
        tuple(ratio_of_arms(run, "ipvlan_l3", protocol="tcp") for run in (LOCAL, IPVLAN)),
        conditions=NAT,
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
    ),
    Claim(
        "udp-below-tcp",
        "On one node, macvlan in bridge mode carries 1/3.5 as much UDP as TCP.",
        "paper", "section 5.1.2", FULL,
        "UDP throughput of macvlan_bridge, divided by its TCP throughput", printed_range(1 / 3.5),
        (ratio_of_values(LOCAL, "protocol", "tcp", "udp", "macvlan_bridge"),),
        "UDP datagrams fill one packet here. TCP segments leave the sender in bundles of up to 64 KiB (TSO).",
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
    ),
    Claim(
        "pairs-share",
        "The more pairs send at the same time, the less throughput each of them has.",
        "paper", "sections 4.2 and 5.2.1", FULL,
        "TCP throughput of each of several pairs, divided by that of a single pair", LESS,
        tuple(
            ratio_of_values(LOCAL, "pairs", 1, pairs, arm, "speed_per_pair", protocol="tcp")
            for arm in ("veth_bridge", "macvlan_bridge") for pairs in (4, 16, 128)
        ),
    ),
    Claim(
        "switched-tcp",
        "Between two nodes, TCP over veth bridges, macvlan and ipvlan is a very close call.",
        "paper", "section 5.2.1, figure 5.3", NIC,
        "TCP throughput between two nodes, divided by that of veth_bridge", WITHIN_10_PERCENT,
        tuple(ratio_of_arms(SWITCHED, arm, protocol="tcp") for arm in ("macvlan_bridge", "ipvlan_l2")),
        "The two nodes here are lab VMs with a link of 100 Mbit/s, which is full, or of no set rate, where the emulated"
        " CPUs are the limit. A full link makes datapaths equal, and only its ratios agree.",
    ),
    Claim(
        "switched-mtu",
        "Between two nodes, TCP gains 2 of 10 Gbit/s if the MTU is 9000 instead of 1500.",
        "paper", "section 5.2.1, figure 5.3", NIC,
        "TCP throughput between two nodes with MTU 9000, divided by that with MTU 1500",
        printed_range(1.25, factor=1.12),
        tuple(
            ratio_of_values(SWITCHED, "mtu_bytes", 1500, 9000, arm, protocol="tcp")
            for arm in ("veth_bridge", "macvlan_bridge")
        ),
        "2 Gbit/s more on a link of 10 Gbit/s is a ratio of about 1.25, if the larger MTU fills it.",
        conditions="The paper's hosts are joined by NICs of 10 Gbit/s, which they cannot fill with the smaller MTU."
        " Here the link has 100 Mbit/s, which both MTUs fill, or no set rate, where the emulated CPUs are the limit.",
    ),
    Claim(
        "switched-udp",
        "Between two nodes and with MTU 1500, macvlan in bridge mode carries more UDP than a veth bridge.",
        "paper", "section 5.2.2, figure 5.4", NIC,
        "UDP throughput of macvlan_bridge between two nodes, divided by that of veth_bridge", MORE,
        (ratio_of_arms(SWITCHED, "macvlan_bridge", protocol="udp"),),
    ),
    Claim(
        "container-vs-vm",
        "A container receives more UDP than a virtual machine.",
        "report", "part 2, sections 2.1 to 2.3", KVM,
        "UDP throughput between two guests, divided by that between two containers", LESS,
        (
            undecided_if_emulated(
                ratio_of_arms("container_vs_vm", "veth_bridge/guest", protocol="udp", guest=(None, "debian"))
            ),
        ),
        "The guests here are emulated, so the ratio is a lower bound of what a guest can do.",
    ),
    Claim(
        "container-vs-vm-size",
        "A container receives 4.66 Gbit/s of UDP and a virtual machine 9.97 Mbit/s, 467 times less.",
        "report", "part 2, sections 2.1 and 2.2", KVM,
        "UDP throughput between two guests, divided by that between two containers", printed_range(9.97 / 4660),
        (ratio_of_arms("container_vs_vm", "veth_bridge/guest", protocol="udp", guest=(None, "debian")),),
        "If an emulated guest, which is slower than a guest with KVM, loses less, then so large a factor is not a"
        " property of virtual machines.",
    ),
    Claim(
        "ip_rcv-explains",
        "The virtual machine is slower because `ip_rcv` takes 6,000 µs in it, and 10 µs for the container.",
        "report", "part 2, section 2.3", KVM + ", with profile=tracing",
        "median duration of ip_rcv in guests, divided by that in a lab VM with namespaces", printed_range(6000 / 10),
        (function_ratio("ip_rcv", ("packet_size", "namespace"), ("guest_functions", "guest")),),
        "The guests' kernel and that of the lab VM are the same release, and both are emulated. Containers share the"
        " kernel of their host, as namespaces do.",
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
        "The CPU time to send a packet is the same whatever its size.",
        "report", "part 2, section 2.4", "`params/packet_size.yaml` on a quiet machine",
        "CPU time of the machine for a larger datagram, divided by that for 200 bytes", WITHIN_25_PERCENT,
        tuple(
            ratio_of_values("packet_size", "length_bytes", 200, size, "veth_bridge", "cpu_per_packet", where="here")
            for size in (400, 800, 1472)
        ),
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
        "The number of mirrors, 0 to 8, does not change the throughput: 235 Mbit/s without and 234 with eight.",
        "thesis", "table 4.1 and section 4.2.2", "`params/virtual_tap.yaml` with the kernel's datapath on four cores",
        "throughput with mirrors, divided by that without", (0.95, 1.05),
        tuple(
            ratio_of_arms("virtual_tap", f"ovs_netdev+mirrors={count}", rate_bps=None) for count in (1, 2, 4, 8)
        ),
        conditions="The thesis measured the kernel's datapath with writes of 64 bytes (iperf3 -l 64), where the sender"
        " is the limit. Here the datapath is in user space.",
    ),
    Claim(
        "mirror-printed",
        "Eight mirrors cost 2 Mbit/s, which is 0.85 % of the throughput.",
        "thesis", "table 4.1", "nothing more: it follows from the table",
        "printed throughput with eight mirrors, divided by that without", (0.991, 0.992),
        (computed("233 and 235 Mbit/s", printed.mirror_throughput_ratio),),
    ),
    Claim(
        "mirror-drop",
        "One mirror costs at most 20 % of the throughput, whatever the size of packets.",
        "thesis", "section 4.2.3, figure 4.11", "`params/virtual_tap.yaml` with the kernel's datapath on four cores",
        "throughput with one mirror, divided by that without", (0.8, math.inf),
        (ratio_of_arms("virtual_tap", "ovs_netdev+mirrors=1", rate_bps=None),),
        every=True,
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
        (uplink_share("virtual_tap", 1e8), uplink_share(UPLINK, 1e8), uplink_share(UPLINK, 1e9)),
    ),
    Claim(
        "uplink-linear",
        "Below the rate of the link, the monitor captures in proportion to what is sent.",
        "thesis", "table 4.2 and figure 4.17", "a NIC as uplink",
        "copies that arrived, divided by those that the mirror should have made", (0.95, 1.05),
        (arrived_share("virtual_tap", 1e8), arrived_share(UPLINK, 1e8), arrived_share(UPLINK, 1e9)),
        remark="The thesis captured 1.05 to 1.28 times the bytes that were sent: copies have GRE's headers.",
    ),
    Claim(
        "uplink-flow",
        "The monitored flow itself keeps its throughput when its mirror's link is full.",
        "thesis", "sections 4.2.4 and 4.3", "a NIC as uplink",
        "throughput of the flow with a mirror over GRE, divided by that without", (0.95, 1.05),
        (
            ratio_of_arms(
                "virtual_tap", "ovs_netdev+mirrors=1+output=gre+uplink_bps=100000000", rate_bps=(1.2e8, 1.6e8)
            ),
            ratio_of_arms(UPLINK, "ovs+mirrors=1+output=gre", rate_bps=(1.2e8, 1.6e8), link_rate_bps=1e8),
            ratio_of_arms(UPLINK, "ovs_netdev+mirrors=1+output=gre+uplink_bps=1000000000", rate_bps=1.2e9),
        ),
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
        "The read-outs are of the loop and of the test with connections. For the 64-byte test through the link, the"
        " document prints no counters, but its tool's warning that the loss was too high.",
    ),
    Claim(
        "trex-core",
        "One CPU core generates 71 Gbit/s or 53 million packets a second with T-Rex.",
        "load_tests", "section Step 3", "T-Rex on the same CPU with faster NICs", remark=f"{ELSEWHERE} The document"
        " extrapolates it from a core that was 5.63 % busy.",
    ),
    Claim(
        "trex-latency",
        "Under 975 Mbit/s the link adds 0.7 to 0.8 ms in the mean and never more than 24 ms.",
        "load_tests", "section Latency Injection", "`params/trex.yaml` with probes through the link itself",
        remark="The link (Atom86) is not here.",
    ),
    Claim(
        "order-of-cases",
        "Network to VM carries at least as many packets as VM to network: 28.319 and 27.690 million a second.",
        "test_plan", "section Collecting Results", "`params/ovs_test_plan.yaml` on a quiet machine with many cores",
        "packet rate from VM to network, divided by that from network to VM", LESS,
        (
            computed("the two read-outs", printed.order_of_cases),
            ratio_of_arms("ovs_test_plan", "ovs_netdev+case=vm_to_net"),
        ),
        "The read-outs are of an accelerated switch, once each. Here the switch is the userspace datapath.",
    ),
    Claim(
        "sum-of-vms",
        "Four VMs with 7,079,952 packets a second each receive 28.319 million, or 14.5 Gbit/s in frames of 64 bytes.",
        "test_plan", "section Network to VM", "nothing more: it is arithmetic",
        "printed total, divided by four times the printed number of one VM", EXACT,
        (
            computed("packets a second", lambda: printed.sum_of_vms("pps", "total_Mpps", 1e6)),
            computed("bits a second", lambda: printed.sum_of_vms("bytes_per_s", "total_Gbps", 1e9 / 8)),
        ),
    ),
    Claim(
        "accelerated",
        "The accelerated switch forwards 28 million frames of 64 bytes a second.",
        "test_plan", "section Collecting Results", "an Agilio CX-4000 adapter", remark=ELSEWHERE,
    ),
)  # fmt: skip
