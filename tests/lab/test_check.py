"""`labkit check` names what is wrong with networks of others: a zoo of plain commands, the true cause beside each.

Each network is in namespaces of its own, with names that only it sees (its own /run). The ends are client and server.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Need
from sandbox import LABKIT, MARK, TOGETHER, also, ended_together, fifth_of_a_cpu, marked, until

from labkit.measure import topologies
from labkit.measure.experiments import changes
from labkit.runner import yaml_files

pytestmark = pytest.mark.needs("root", "namespaces", "ip", "nft", "ethtool", "veth", "bridge")


def nft(
    at: str, hook: str, *rules: str, kind: str = "filter", priority: int = 0, policy: str = "accept"
) -> str:
    """Return the command that adds a chain with these rules."""
    chain = f"add chain ip f c {{ type {kind} hook {hook} priority {priority}; policy {policy}; }}"
    lines = ["add table ip f", chain, *(f"add rule ip f c {rule}" for rule in rules)]
    return f"ip netns exec {at} nft '{'; '.join(lines)}'"


def snat(to: str) -> str:
    return nft("mid", "postrouting", f"ip saddr 10.1.0.0/24 {to}", kind="nat", priority=100)


ENDS = "ip netns add client; ip netns add server; ip netns add mid\n"
# Two ends at ports c and s of the bridge lan in the namespace mid.
BRIDGE = (
    ENDS
    + """
ip -n mid link add name lan up type bridge
for n in client server; do
  ip -n mid link add port-$n up master lan type veth peer name eth0 netns $n
  ip -n $n link set eth0 up
done
ip -n client address add 10.1.0.1/24 dev eth0
ip -n server address add 10.1.0.2/24 dev eth0
"""
)
# Two ends in two subnets, with the router mid between them.
ROUTED = (
    ENDS
    + """
for n in client server; do
  ip -n mid link add to-$n up type veth peer name eth0 netns $n
  ip -n $n link set eth0 up
done
ip -n client address add 10.1.0.1/24 dev eth0; ip -n mid address add 10.1.0.254/24 dev to-client
ip -n server address add 10.2.0.1/24 dev eth0; ip -n mid address add 10.2.0.254/24 dev to-server
ip -n client route add default via 10.1.0.254; ip -n server route add default via 10.2.0.254
ip netns exec mid sysctl -qw net.ipv4.ip_forward=1
"""
)
# A VXLAN between two ends over a bridge; MTU of the tunnel as the kernel chooses it.
OVERLAY = (
    BRIDGE
    + """
ip -n client link add vx up type vxlan id 7 dstport 4789 local 10.1.0.1 remote 10.1.0.2 dev eth0
ip -n server link add vx up type vxlan id 7 dstport 4789 local 10.1.0.2 remote 10.1.0.1 dev eth0
ip -n client address add 10.9.0.1/24 dev vx; ip -n server address add 10.9.0.2/24 dev vx
"""
)
# As flannel's: no remote of its own, and an entry for each other end, also those of four further machines.
FLANNEL = (
    BRIDGE
    + """
others() { for n in $1 $2; do ip netns exec $3 bridge fdb add 02:00:00:00:09:0$n dev vx dst 10.1.0.$n; done; }
add() {
  ip -n $1 link add vx address $3 mtu 1450 up type vxlan id 1 dstport 8472 local $2 nolearning
  ip -n $1 address add $4/24 dev vx; ip -n $1 neigh add $5 lladdr $6 dev vx nud permanent
  others 3 4 $1; ip netns exec $1 bridge fdb add $6 dev vx dst $7; others 5 6 $1
}
add client 10.1.0.1 02:00:00:00:09:01 10.9.0.1 10.9.0.2 02:00:00:00:09:02 10.1.0.2
add server 10.1.0.2 02:00:00:00:09:02 10.9.0.2 10.9.0.1 02:00:00:00:09:01 10.1.0.1
"""
)
# As Calico's: the host answers for a gateway that nobody has.
CALICO = (
    ENDS
    + """
ip -n mid link add nic up type veth peer name far; ip -n mid link set far up
ip -n mid address add 192.0.2.1/24 dev nic; ip -n mid route add default via 192.0.2.2
ip netns exec mid sysctl -qw net.ipv4.ip_forward=1
for n in client:10.1.0.1 server:10.2.0.1; do
  a=${n#*:}; n=${n%:*}
  ip -n mid link add to-$n up type veth peer name eth0 netns $n
  ip netns exec mid sysctl -qw net.ipv4.conf.to-$n.proxy_arp=1 net.ipv4.neigh.to-$n.proxy_delay=0
  ip -n mid route add $a dev to-$n; ip -n $n link set eth0 up; ip -n $n address add $a/32 dev eth0
  ip -n $n route add 169.254.1.1 dev eth0; ip -n $n route add default via 169.254.1.1
done
"""
)
# As LXD's: the host answers for single addresses of IPv6, and forwards it by switches of Linux 6.17 where it has them.
NEIGHBOURS = (
    ENDS
    + """
ip netns exec mid sysctl -qw net.ipv6.conf.all.proxy_ndp=1
for n in client:1:2 server:2:1; do
  a=${n#*:}; n=${n%%:*}
  ip -n mid link add to-$n up type veth peer name eth0 netns $n
  ip netns exec mid sysctl -qw net.ipv6.conf.to-$n.force_forwarding=1 2>/dev/null ||
    ip netns exec mid sysctl -qw net.ipv6.conf.all.forwarding=1
  ip netns exec mid sysctl -qw net.ipv6.conf.to-$n.forwarding=1
  ip -n mid route add fd00::${a%:*} dev to-$n; ip -n mid neigh add proxy fd00::${a#*:} dev to-$n
  ip -n $n link set eth0 up; ip -n $n address add fd00::${a%:*}/64 dev eth0 nodad
done
sleep 1.5
"""
)
THIRD = """
ip netns add third
ip -n mid link add port-third up master lan type veth peer name eth0 netns third
ip -n third link set eth0 up
"""
RULES = """
(echo 'table ip filter { chain c { type filter hook %s priority 0;'
 for i in $(seq 400); do echo "ip saddr 192.0.2.$((i %% 250)) tcp dport $i counter accept"; done
 echo '}'; echo '}') | ip netns exec %s nft -f -
"""
MACVLAN = (
    ENDS
    + """
ip -n mid link add nic up type veth peer name far; ip -n mid link set far up
for n in client server; do
  ip -n mid link add mv-$n link nic type macvlan mode %s
  ip -n mid link set mv-$n netns $n name eth0; ip -n $n link set eth0 up
done
ip -n client address add 10.1.0.1/24 dev eth0; ip -n server address add 10.1.0.2/24 dev eth0
"""
)
SIX = """
ip -n client address add fd00::1/64 dev eth0 nodad; ip -n server address add fd00::2/64 dev eth0 nodad
"""
ASYMMETRIC = (
    ROUTED
    + """
ip -n mid link add other up type veth peer name eth1 netns server; ip -n server link set eth1 up
ip -n server address add 10.3.0.1/24 dev eth1; ip -n mid address add 10.3.0.254/24 dev other
ip -n server route add 10.1.0.0/24 via 10.3.0.254
"""
)
MAC_OF = "M=$(ip -n server -o link show %s | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'); "
# A switch in user space, for which the ends leave nothing to offloads.
SWITCH = (
    ENDS
    + """
for n in client server; do
  ip -n mid link add port-$n up type veth peer name eth0 netns $n
  ip -n $n link set eth0 up; ip netns exec $n ethtool -K eth0 tx off >/dev/null
done
ip -n client address add 10.1.0.1/24 dev eth0; ip -n server address add 10.1.0.2/24 dev eth0
export OVS_RUNDIR=/run/ovs; mkdir /run/ovs; db=unix:/run/ovs/db.sock
ovsdb-tool create /run/ovs/conf.db /usr/share/openvswitch/vswitch.ovsschema
ip netns exec mid ovsdb-server /run/ovs/conf.db --remote=p$db --detach --pidfile -vconsole:off
ip netns exec mid ovs-vswitchd $db --detach --pidfile -vconsole:off
ovs-vsctl --db=$db add-br lan -- set bridge lan datapath_type=netdev
for n in client server; do ovs-vsctl --db=$db add-port lan port-$n; done
"""
)
PACKET_SOCKET = "import socket,time; s=socket.socket(17,3,768); s.bind(('eth0',3)); time.sleep(600)"
# As dhclient's: for all protocols, with a filter.
FILTERED_SOCKET = PACKET_SOCKET.replace("socket,time;", "socket,time,ctypes,struct;").replace(
    "s.bind",
    "b=ctypes.create_string_buffer(struct.pack('HBBIHBBI',40,0,0,12,6,0,0,0));"
    " s.setsockopt(1,26,struct.pack('HL',2,ctypes.addressof(b))); s.bind",
)
PYTHON = f"ip netns exec server {sys.executable} -P -c"
SLEEPS = "ip netns exec server sleep 600 >/dev/null 2>&1 & sleep 0.3;"
# A server whose rules take connections to its one port, and nothing else.
# As a server that has sockets of IPv6 only, also for IPv4.
LISTENS = (
    "import socket,time; s=socket.socket(10); s.bind(('::ffff:10.2.0.1', 80)); s.listen(); time.sleep(600)"
)
ONE_PORT = (
    ROUTED
    + f'{PYTHON} "{LISTENS}" >/dev/null 2>&1 & sleep 0.5\n'
    + nft("server", "input", "ct state established,related accept", "tcp dport 80 accept", policy="drop")
)
UNREAD = (
    "import socket; r=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); r.bind(('127.0.0.1',9)); "
    "[socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(bytes(900),('127.0.0.1',9)) for _ in range(1500)]"
)
UNREADING = "import socket,time; s=socket.create_server(('10.1.0.2',80)); c=s.accept(); time.sleep(600)"
WRITING = "import socket; s=socket.create_connection(('10.1.0.2',80)); s.sendall(bytes(1<<28))"
TAKING = (
    "import socket,time; l=[socket.socket(2,k) for k in (1,1,2,2)]; "
    "[s.bind(('10.1.0.1',50000+i%2)) for i,s in enumerate(l)]; time.sleep(600)"
)
# name: the beginning of the right answer, and the commands
BROKEN = {
    "a port with a smaller MTU": ("MTU black hole", BRIDGE + "ip -n mid link set port-server mtu 1400"),
    "a path as narrow as its routes": (
        "route limits",
        BRIDGE + "for d in lan port-client port-server; do ip -n mid link set $d mtu 1400; done;"
        " for n in client server; do ip -n $n route replace 10.1.0.0/24 dev eth0 mtu 1400; done",
    ),
    "a link with a smaller MTU": (
        "MTU does not fit", ROUTED + "ip -n mid link set to-server mtu 1300; ip -n server link set eth0 mtu 1300",
    ),
    "ICMP errors filtered": (
        ("MTU black hole", "drop rule"),
        ROUTED + "ip -n mid link set to-server mtu 1300; ip -n server link set eth0 mtu 1300; "
        + nft("mid", "output", "icmp type destination-unreachable drop"),
    ),
    "an address twice": ("duplicate address", BRIDGE + THIRD + "ip -n third address add 10.1.0.2/24 dev eth0"),
    "a MAC twice": (
        "duplicate MAC address",
        BRIDGE + "ip -n client link set eth0 address 02:00:00:00:00:05;"
        " ip -n server link set eth0 address 02:00:00:00:00:05",
    ),
    "asymmetric routes": ("asymmetric routes", ASYMMETRIC),
    "asymmetric routes and a filter": (
        "reverse path filter", ASYMMETRIC + "ip netns exec server sysctl -qw net.ipv4.conf.all.rp_filter=1",
    ),
    "a drop rule": (
        "drop rule", ROUTED + nft("mid", "forward", "ip saddr 192.0.2.0/24 drop", "ip daddr 10.2.0.0/24 drop"),
    ),
    "a rule that drops some": ("drop rule", BRIDGE + nft("server", "input", "numgen random mod 10 < 2 counter drop")),
    "a shaper": ("shaper", BRIDGE + "tc -n mid qdisc add dev port-server root tbf rate 5mbit burst 10kb latency 50ms"),
    "many rules": ("long rule set", BRIDGE + RULES % ("input", "server")),
    "thousands of rules": ("long rule set", BRIDGE + (RULES % ("input", "server")).replace("seq 400", "seq 3000")),
    "many rules at a bridge": (
        "bridge calls long rule sets",
        BRIDGE + RULES % ("forward", "mid") + "ip netns exec mid sysctl -qw net.bridge.bridge-nf-call-iptables=1",
    ),
    "many filters": (
        "many tc filters",
        BRIDGE + "tc -n mid qdisc add dev port-client ingress;"
        " for i in $(seq 100); do tc -n mid filter add dev port-client ingress protocol ip prio $i"
        " u32 match ip dst 192.0.2.$i flowid 1:1; done",
    ),
    "no offloads": ("offload off", BRIDGE + "ip netns exec client ethtool -K eth0 tso off gso off"),
    "small buffers": (
        "small TCP buffers", BRIDGE + "ip netns exec server sysctl -qw net.ipv4.tcp_rmem='4096 8192 16384'",
    ),
    "no fragments": (
        "small reassembly buffer: netns:server keeps no fragments",
        BRIDGE + "ip netns exec server sysctl -qw net.ipv4.ipfrag_low_thresh=0 net.ipv4.ipfrag_high_thresh=0",
    ),
    "no fragments of IPv6": (
        "small reassembly buffer: netns:client keeps at most 9,000 bytes of fragments",
        BRIDGE + "for n in client server; do ip -n $n address flush dev eth0; done;" + SIX
        + "ip netns exec client sysctl -qw net.ipv6.ip6frag_low_thresh=9000 net.ipv6.ip6frag_high_thresh=9000",
    ),
    "no forwarding": ("forwarding off", ROUTED + "ip netns exec mid sysctl -qw net.ipv4.ip_forward=0"),
    "no way back": ("missing route", ROUTED + "ip -n server route del default"),
    "a wrong neighbour": (
        "wrong neighbour entry",
        BRIDGE + "ip -n client neigh add 10.1.0.2 lladdr 02:00:00:00:00:99 nud permanent dev eth0",
    ),
    "a blocked port": ("bridge port", BRIDGE + "sleep 0.2; ip netns exec mid bridge link set dev port-server state 0"),
    "an entry for another port": (
        "forwarding entry",
        BRIDGE + MAC_OF % "eth0" + "ip netns exec mid bridge fdb replace $M dev port-client master static sticky",
    ),
    "isolated ports": (
        "isolated ports",
        BRIDGE + "ip netns exec mid bridge link set dev port-server isolated on;"
        " ip netns exec mid bridge link set dev port-client isolated on",
    ),
    "ARP off": ("ARP off", BRIDGE + "ip -n server link set eth0 arp off"),
    "an end down": ("interface down", BRIDGE + "ip -n mid link set port-server down"),
    "tunnels that differ": (
        "tunnel ends differ",
        OVERLAY + "ip -n server link del vx; ip -n server link add vx up type vxlan id 8 dstport 4789"
        " local 10.1.0.2 remote 10.1.0.1 dev eth0; ip -n server address add 10.9.0.2/24 dev vx",
    ),
    "a tunnel with a large MTU": (
        "tunnel fragments",
        OVERLAY + "for n in client server; do ip -n $n link del vx; done;"
        " ip -n client link add vx mtu 1500 up type vxlan id 7 dstport 4789 local 10.1.0.1 remote 10.1.0.2;"
        " ip -n server link add vx mtu 1500 up type vxlan id 7 dstport 4789 local 10.1.0.2 remote 10.1.0.1;"
        " ip -n client address add 10.9.0.1/24 dev vx; ip -n server address add 10.9.0.2/24 dev vx",
    ),
    "macvlans apart": ("macvlan mode", MACVLAN % "private"),
    "a capture": ("capture", BRIDGE + f'{PYTHON} "{PACKET_SOCKET}" >/dev/null 2>&1 & sleep 0.5'),
    "an unread socket": ("full socket buffer", BRIDGE + f'ip -n server link set lo up; {PYTHON} "{UNREAD}"'),
    "a failed detection": (
        "duplicate address detection",
        BRIDGE + "ip -n client address flush dev eth0; ip -n server address flush dev eth0;"
        + THIRD
        + "ip -n third address add fd00::2/64 dev eth0 nodad; ip -n client address add fd00::1/64 dev eth0 nodad;"
        " sleep 2; ip -n server address add fd00::2/64 dev eth0; sleep 2",
    ),
    "addresses translated to nowhere": (
        "address translation",
        ROUTED + nft("mid", "prerouting", "ip daddr 10.2.0.1 dnat to 10.9.9.9", kind="nat", priority=-100),
    ),
    "a policy of IPsec": (
        "IPsec policy", BRIDGE + "ip -n client xfrm policy add dir out src 10.1.0.1/32 dst 10.1.0.2/32 action block",
    ),
    "a verdict map": (
        "drop rule", ROUTED + nft("mid", "forward", "ip saddr vmap { 10.5.0.0/16 : accept, 10.1.0.0/24 : drop }"),
    ),
    "a chain that only others reach": (
        "forwarding off",
        ROUTED + "ip netns exec mid nft 'add table ip f; add chain ip f bad { reject; }'; "
        + nft("mid", "forward", "ip saddr 10.77.0.0/16 goto bad")
        + "; ip netns exec mid sysctl -qw net.ipv4.ip_forward=0",
    ),
    "a policy behind a map of states": (
        "drop policy",
        ROUTED + nft(
            "mid", "forward", "ct state vmap { established : accept, related : accept, invalid : drop }",
            "ip daddr 10.2.0.0/24 meta l4proto icmp accept", policy="drop",
        ),
    ),
    "a rule that ends the hops": ("hop limit", ROUTED + nft("mid", "prerouting", "ip ttl set 1", priority=-300)),
    "a queue that drops all": ("queue drops", BRIDGE + "tc -n mid qdisc add dev port-server root blackhole"),
    "a shaper of the bandwidth plugin of CNI": (
        "shaper",
        BRIDGE + "ip -n mid link add ifb0 up type ifb; tc -n mid qdisc add dev port-client ingress;"
        " tc -n mid filter add dev port-client ingress protocol all u32 match u32 0 0 action mirred egress redirect"
        " dev ifb0; tc -n mid qdisc add dev ifb0 root tbf rate 5mbit burst 10kb latency 50ms",
    ),
    "a short queue": ("short queue", BRIDGE + "tc -n client qdisc add dev eth0 root pfifo limit 2"),
    "a burst smaller than a packet": (
        "shaper", BRIDGE + "tc -n mid qdisc add dev port-server root tbf rate 5gbit burst 1000 limit 100000",
    ),
    "a redirect instead of a mirror": (
        "tc filter",
        BRIDGE + THIRD + "tc -n mid qdisc add dev port-client clsact; tc -n mid filter add dev port-client ingress"
        " protocol all u32 match u32 0 0 action mirred egress redirect dev port-third",
    ),
    "buffers that do not grow": (
        "TCP option off", BRIDGE + "ip netns exec server sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0",
    ),
    "a program that does not read": (
        "slow reader",
        BRIDGE + f'{PYTHON} "{UNREADING}" >/dev/null 2>&1 & sleep 0.5\n{PYTHON.replace("server", "client")}'
        f' "{WRITING}" >/dev/null 2>&1 & sleep 0.5',
    ),
    "an address of nobody": ("address translation: a rule replaces", ROUTED + snat("snat to 10.2.0.77")),
    "a mark for a blackhole": (
        "marked packets",
        ROUTED + "ip -n mid rule add fwmark 7 table 100; ip -n mid route add blackhole default table 100; "
        + nft("mid", "prerouting", "ip daddr 10.2.0.0/24 meta mark set 7", priority=-150),
    ),
    "dead next hops": (
        "dead next hop",
        ROUTED + "ip netns exec client sysctl -qw net.ipv4.fib_multipath_hash_policy=1; ip -n client route replace"
        " default nexthop via 10.1.0.254 $(for n in $(seq 11 17); do echo nexthop via 10.1.0.$n; done)",
    ),
    "a bridge that forgets": ("bridge floods", BRIDGE + THIRD + "ip -n mid link set lan type bridge ageing_time 0"),
    "no local port": (
        "few local ports",
        BRIDGE + "ip netns exec client sysctl -qw net.ipv4.ip_local_port_range='50000 50001'\n"
        + f'{PYTHON.replace("server", "client")} "{TAKING}" >/dev/null 2>&1 & sleep 0.5',
    ),
    "a port of no bridge": (
        "missing neighbour: nobody that netns:client eth0 reaches on its link has the address 10.1.0.2: netns:mid"
        " port-server leads to it",
        BRIDGE + "ip -n mid link set port-server nomaster",
    ),
    "a tunnel that ends at a router": (
        "hop limit",
        ROUTED + "ip -n client link add vx up type vxlan id 7 dstport 4789 local 10.1.0.1 remote 10.2.0.1 ttl 1;"
        " ip -n server link add vx up type vxlan id 7 dstport 4789 local 10.2.0.1 remote 10.1.0.1 ttl 1;"
        " ip -n client address add 10.9.0.1/24 dev vx; ip -n server address add 10.9.0.2/24 dev vx",
    ),
    "a rule of routing for TCP": ("rule of routing", ROUTED + "ip -n mid rule add blackhole ipproto tcp"),
    "a router that takes packets for its own": (
        "local route", ROUTED + "ip -n mid link set lo up; ip -n mid route add local 10.2.0.1 dev lo",
    ),
    "macvlans that name no source": ("macvlan mode", MACVLAN % "source"),
    "a redirect to an interface that is down": (
        "tc filter",
        BRIDGE + "ip -n mid link add ifb0 type ifb; tc -n mid qdisc add dev port-client ingress;"
        " tc -n mid filter add dev port-client ingress protocol all u32 match u32 0 0 action mirred egress redirect"
        " dev ifb0",
    ),
    "a program that is stopped": (
        "stopped program: a program", BRIDGE + f"{SLEEPS} kill -STOP $!",
    ),
    "a server that is stopped": (
        "stopped program: the program", ROUTED + f'{SLEEPS}\n{PYTHON} "{LISTENS}" >/dev/null 2>&1 &\n'
        "until ip netns exec server ss -Hltn | grep -q :80; do sleep 0.1; done; kill -STOP $!",
    ),
    "no answer to ping": (
        "no answer to ping", BRIDGE + "ip netns exec server sysctl -qw net.ipv4.icmp_echo_ignore_all=1",
    ),
    "a rule that sends elsewhere": (
        "drop rule",
        BRIDGE + THIRD + "ip netns exec mid nft 'add table netdev f;"
        " add chain netdev f a { type filter hook ingress device port-client priority 0; };"
        " add rule netdev f a fwd to port-third'",
    ),
    "a policy for ARP": (
        "drop policy: the chain arp f i",
        BRIDGE + "ip netns exec server nft 'add table arp f;"
        " add chain arp f i { type filter hook input priority 0; policy drop; }'",
    ),
}  # fmt: skip
# Ways to a cause that no other network and no unit test has.
ALONE = (
    "a rule that sends elsewhere", "a policy for ARP", "a tunnel that ends at a router", "macvlans that name no source",
    "a redirect to an interface that is down",
    "a server that is stopped",
)  # fmt: skip
# Networks of a cause that CI sees otherwise: by another test here, a notebook or a unit test, or by a network in which
# the same is read from the kernel.
ELSEWHERE = (
    "ICMP errors filtered", "a MAC twice", "asymmetric routes", "a shaper", "many rules at a bridge", "no offloads",
    "small buffers", "no fragments of IPv6", "no forwarding", "an entry for another port", "macvlans apart",
    "a rule that ends the hops", "a queue that drops all", "a redirect instead of a mirror",
    "buffers that do not grow", "an address of nobody", "a mark for a blackhole", "dead next hops",
    "a bridge that forgets", "a rule of routing for TCP", "a program that is stopped",
    "small segments of iptables-nft", "a queue of nobody of iptables-nft",
)  # fmt: skip
assert not {*ALONE} - BROKEN.keys()
# Rules of iptables in the router, which may be iptables-legacy's or iptables-nft's.
IPTABLES = ("iptables-legacy", "iptables-nft")
BROKEN |= {
    f"{name} of {program}": (cause, ROUTED + "".join(f"ip netns exec mid {program} -t {rule}\n" for rule in rules))
    for program in IPTABLES
    for name, cause, *rules in (
        ("a rule", "drop rule", "filter -A FORWARD -s 10.1.0.0/24 -p udp -j ACCEPT",
         "filter -A FORWARD -d 10.2.0.0/24 -j DROP"),
        ("small segments", "segments clamped",
         "mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 500"),
        ("a queue of nobody", "queue to a program", "filter -A FORWARD -j NFQUEUE --queue-num 7"),
    )
}  # fmt: skip
SOUND = {
    "a stopped program beside the server": ROUTED + f'{SLEEPS} kill -STOP $!\n{PYTHON} "{LISTENS}" >/dev/null 2>&1'
    " & sleep 0.5",
    "a switch in user space": SWITCH,
    "a bridge": BRIDGE,
    "a cable": ENDS + "ip -n client link add eth0 up type veth peer name eth0 netns server;"
    " ip -n server link set eth0 up; ip -n client address add 10.1.0.1/24 dev eth0;"
    " ip -n server address add 10.1.0.2/24 dev eth0",
    "a router": ROUTED + "ip netns exec mid sysctl -qw net.ipv4.conf.all.rp_filter=1",
    "macvlan": MACVLAN % "bridge",
    "VXLAN": OVERLAY,
    "IPv6 only": BRIDGE + "ip -n client address flush dev eth0; ip -n server address flush dev eth0;" + SIX,
    "both families": BRIDGE + SIX,
    "MTU 9000": BRIDGE + "for d in lan port-client port-server; do ip -n mid link set $d mtu 9000; done;"
    " for n in client server; do ip -n $n link set eth0 mtu 9000; done",
    "macvlan on a bridge": BRIDGE + "ip -n mid link add mv link lan type macvlan mode bridge;"
    " ip -n mid link set mv netns server; ip -n server address flush dev eth0; ip -n server link set eth0 down;"
    " ip -n server link set mv up; ip -n server address add 10.1.0.2/24 dev mv",
    "harmless rules": ROUTED + "ip netns exec mid nft 'add table inet f;"
    " add chain inet f w { type filter hook forward priority 0; policy accept; };"
    " add rule inet f w ct state established,related counter accept; add rule inet f w ct state invalid drop;"
    " add rule inet f w ip saddr 192.0.2.0/24 drop; add rule inet f w tcp dport 23 counter reject'",
    "a server that takes one port": ONE_PORT,
    "a gateway of nobody": CALICO,
    # As that of pods in AWS
    "a gateway of nobody with an entry": CALICO.replace("proxy_arp=1", "proxy_arp=0")
    + "for n in client server; do M=$(ip -n mid -o link show to-$n | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/');"
    " ip -n $n neigh add 169.254.1.1 lladdr $M dev eth0 nud permanent; done",
    "a tunnel of entries": FLANNEL,
    "a router that answers for neighbours": NEIGHBOURS,
    "a client of DHCP": BRIDGE + f'{PYTHON} "{FILTERED_SOCKET}" >/dev/null 2>&1 & sleep 0.5',
    "a tunnel that no router ends": OVERLAY.replace(" remote 10", " ttl 1 remote 10"),
    "a table that sleeps": ROUTED + "ip netns exec mid nft 'add table ip f { flags dormant; };"
    " add chain ip f w { type filter hook forward priority 0; policy drop; }; add rule ip f w drop'",
    "a shaper of another host's packets": BRIDGE + "ip -n mid link add ifb0 up type ifb;"
    " tc -n mid qdisc add dev port-client ingress; tc -n mid filter add dev port-client ingress protocol ip u32"
    " match ip src 192.0.2.9/32 action mirred egress redirect dev ifb0;"
    " tc -n mid qdisc add dev ifb0 root tbf rate 5mbit burst 10kb latency 50ms",
    "two bridges": BRIDGE + "ip -n mid link add name far up type bridge; ip -n mid link set port-server master far;"
    " ip -n mid link add left up master lan type veth peer name right; ip -n mid link set right up master far",
    "gateways of no subnet": ROUTED.replace("/24 dev", "/32 dev")
    .replace(".254; ip -n s", ".254 dev eth0 onlink; ip -n s")
    .replace("via 10.2.0.254", "via 10.2.0.254 dev eth0 onlink")
    + "ip -n mid route add 10.1.0.1 dev to-client; ip -n mid route add 10.2.0.1 dev to-server",
    "rules that frames of a bridge do not pass": BRIDGE + RULES % ("input", "mid")
    + (RULES % ("postrouting", "mid")).replace("filter", "nat")
    + "ip netns exec mid sysctl -qw net.bridge.bridge-nf-call-iptables=1",
    "translated addresses": ROUTED + snat("oifname to-server masquerade"),
    "the bridge's own address": ENDS + "ip -n server link add name lan up type bridge;"
    " ip -n server link add port up master lan type veth peer name eth0 netns client; ip -n client link set eth0 up;"
    " ip -n client address add 10.1.0.1/24 dev eth0; ip -n server address add 10.1.0.2/24 dev lan",
}  # fmt: skip
# Sound networks that differ little from others, or from those of podman (test_existing.py).
ALIKE = (
    "a bridge", "a cable", "macvlan", "VXLAN", "IPv6 only", "both families", "MTU 9000", "macvlan on a bridge",
    "two bridges", "the bridge's own address",
)  # fmt: skip
# What a check, a clone and a drawing must leave as it was.
STATE = """
for n in client server mid; do
  ip -n $n -d address | sed -E '/fe80/,+1d; s/(timer|fdb_n_learned|state) +[0-9.A-Z]+|NO-CARRIER,| tentative//g'
  ip -n $n route; ip -n $n neighbour show nud permanent; ip netns exec $n nft -s list ruleset
  tc -n $n qdisc | sed -E 's/direct_packets_stat [0-9]+//'
  ip netns exec $n sysctl -a --pattern '^net' 2>&1 | grep -v nf_conntrack_count
  for d in $(ip -n $n -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\\1/'); do
    for side in ingress egress root; do tc -n $n filter show dev $d $side 2>&1; done
  done
done
"""


@contextmanager
def network(script: str) -> Iterator[list[str]]:
    """Make a network; yield the words that run a program in its namespaces."""
    makes = ["unshare", "--mount", "--net", "--", "sh", "-c", "mount -t tmpfs tmpfs /run && echo && exec cat"]
    with subprocess.Popen(makes, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdin is not None
        assert keeper.stdout.readline() == "\n"
        words = ["nsenter", f"--target={keeper.pid}", "--mount", "--net", "--"]
        try:
            run([*words, "sh", "-ec", script])
            yield words
        finally:
            inside = "for n in $(ip netns list | cut -d' ' -f1); do ip netns pids $n | xargs -r kill -9; done"
            run([*words, "sh", "-c", inside])
            keeper.stdin.close()


def run(argv: list[str], timeout: float = 120) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
    assert done.returncode == 0, (argv[-1][-300:], done.stderr)
    return done.stdout


Report = dict[str, list[dict[str, str]]]
CHECK = ["check", "netns:client", "netns:server", "--json"]
# Runs commands in forks of itself, each in the namespaces of a process: importing labkit takes half of a check.
FORKS = """
import contextlib, ctypes, io, json, os, signal, sys, traceback
import labkit.commands.clone, labkit.commands.draw, labkit.measure.existing.checks.check
import labkit.measure.existing.clone, labkit.measure.existing.questions
from labkit import cli
for line in sys.stdin:
    pid, words = json.loads(line)
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{words} did not end")
        continue
    code = 1
    try:
        signal.alarm(120)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for space in [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "net")]:
            assert ctypes.CDLL(None).setns(space, 0) == 0
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = cli.main(words)
        print(json.dumps([ended, out.getvalue(), err.getvalue()]), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
"""
IDLE: list[subprocess.Popen[str]] = []  # programs that run FORKS


@pytest.fixture(scope="module", autouse=True)
def _no_fork_is_left() -> Iterator[None]:
    yield
    while IDLE:
        IDLE.pop().communicate(timeout=20)


def labkit(words: list[str], *command: str) -> str:
    """Return what a command of labkit prints in the namespaces that these words enter."""
    try:
        program = IDLE.pop()
    except IndexError:
        argv, pipe = [sys.executable, "-P", "-c", FORKS], subprocess.PIPE
        program = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(json.dumps([words[1].partition("=")[2], command]) + "\n")
    program.stdin.flush()
    code, out, err = json.loads(program.stdout.readline())
    IDLE.append(program)
    assert code == 0, (command, err)
    return str(out)


@contextmanager
def untouched(script: str) -> Iterator[list[str]]:
    """Make a network, which must be the same afterwards; yield the words that run a program in its namespaces."""
    with network(script) as words:
        before = run([*words, "sh", "-c", STATE])
        yield words
        assert run([*words, "sh", "-c", STATE]) == before


def checked(script: str, *options: str, made: Any = untouched) -> Report:
    """Return the report of a check of a network; it must not change one that is made `untouched`."""
    with made(script) as words:
        report: Report = json.loads(labkit(words, *CHECK, *options))
    return report


def sentences(report: Report) -> list[str]:
    return [f"{one['cause']}: {one['what']}" for one in report["findings"]]


# Networks of the zoo that a copy repeats in full, each with what it has otherwise than a network that labkit builds.
CLONED = (
    "asymmetric routes", "many rules at a bridge", "a port with a smaller MTU", "addresses translated to nowhere",
    "a link with a smaller MTU", "a drop rule", "no offloads", "small buffers", "a shaper", "a short queue",
    "isolated ports", "thousands of rules",
)  # fmt: skip


# What a copy of ROUTED lacks, or only then lists, and the commands that make it so.
LACKED = {
    "further addresses of eth0 of netns:server: 10.2.0.77/24": "ip -n server address add 10.2.0.77/24 dev eth0",
    "interfaces of netns:client that are not on the path: spare; own 10.55.0.1/24":
        "ip -n client link add own up type veth peer name spare; ip -n client address add 10.55.0.1/24 dev own",
    "tc's filters (u32) at egress of eth0 of netns:client":
        "tc -n client qdisc add dev eth0 clsact;"
        " tc -n client filter add dev eth0 egress protocol ip u32 match ip dst 192.0.2.1/32 flowid 1:1",
    "the qdisc htb of to-client of netns:mid: tc qdisc show dev to-client has its options":
        "tc -n mid qdisc add dev to-client root handle 1: htb",
    "routes of netns:client: blackhole 10.7.0.0/16; unreachable 10.8.0.0/16;"
    " 10.13.0.0/16 via 10.1.0.254 dev eth0 mtu lock 1300; 10.55.9.0/24 via 10.55.0.9 dev own":
        "ip -n client route add blackhole 10.7.0.0/16; ip -n client route add unreachable 10.8.0.0/16;"
        " ip -n client route add 10.13.0.0/16 via 10.1.0.254 mtu lock 1300;"
        " ip -n client route add 10.55.9.0/24 via 10.55.0.9",
    "routes of netns:mid: 10.15.0.0/16 via 10.2.0.1 dev to-server table 100;"
    " 10.1.0.0/24 dev to-server scope link src 10.1.0.253 metric 50;"
    " 10.2.0.0/24 dev to-server scope link src 10.2.0.254 rto_min lock 5ms; prohibit 10.9.0.0/16":
        "ip -n mid route add 10.15.0.0/16 via 10.2.0.1 table 100; ip -n mid route add prohibit 10.9.0.0/16;"
        " ip -n mid route change 10.2.0.0/24 dev to-server proto kernel scope link src 10.2.0.254 rto_min 5ms",
    "further addresses of to-server of netns:mid: 10.1.0.253/24":
        "ip -n mid address add 10.1.0.253/24 dev to-server metric 50",
    "rules of routing of netns:mid: 32765: from 10.1.0.0/24 lookup 100":
        "ip -n mid rule add from 10.1.0.0/24 table 100",
    "settings of eth0 of netns:server: txqlen 50; flags NOARP": "ip -n server link set eth0 arp off txqueuelen 50",
    "policies of IPsec of netns:server: src 10.2.0.1/32 dst 10.4.0.2/32 dir out priority 0 ptype main"
    " tmpl src 10.2.0.1 dst 10.4.0.2 proto esp mode tunnel":
        "ip -n server xfrm policy add dir out src 10.2.0.1/32 dst 10.4.0.2/32"
        " tmpl src 10.2.0.1 dst 10.4.0.2 proto esp reqid 7 mode tunnel",
}  # fmt: skip
COPIED = """
tc -n server qdisc add dev eth0 root tbf rate 5mbit burst 10kb latency 50ms; tc -n server qdisc add dev eth0 ingress
ip -n mid neigh add 10.2.0.7 lladdr 02:00:00:00:00:99 nud permanent dev to-server
ip -n client route add 10.12.0.0/16 via 10.1.0.254 mtu 1300 advmss 1200 window 9000 initcwnd 4 initrwnd 5 quickack 1
ip -n client route replace 10.1.0.0/24 dev eth0 src 10.1.0.1 window 2000
ip -n server route change 10.2.0.0/24 dev eth0 proto kernel scope link src 10.2.0.1 mtu 1400
ip -n client link set eth0 gso_max_size 20000 gso_max_segs 9 gro_max_size 30000
ip netns exec server sysctl -qw net.ipv4.ipfrag_low_thresh=0 net.ipv4.ipfrag_high_thresh=9000 net.ipv4.ipfrag_time=7
ip netns exec mid sysctl -qw net.ipv6.ip6frag_high_thresh=90000000 net.ipv6.ip6frag_low_thresh=80000000
"""


@pytest.mark.long
@pytest.mark.needs("clsact")
def test_a_clone_lists_what_it_lacks(tmp_path: Path) -> None:
    """What a copy does not carry is listed; the limits of a route, a neighbour and a queue beside a filter are kept."""
    with untouched("\n".join((ROUTED, COPIED, *LACKED.values()))) as words:
        (file := tmp_path / "copy.yaml").write_text(text := clone(words))
    found = [line.removeprefix("# It lacks ") for line in text.splitlines() if line.startswith("# It lacks ")]
    assert sorted(found) == sorted(f"{one}." for one in LACKED)
    assert "{type: neighbour, at: mid, out: to-server, address: 10.2.0.7, mac: '02:00:00:00:00:99'}" in text
    assert "rate_bps: 5000000.0" in text
    assert "gso_max_size: 20000, gso_max_segs: 9, gro_max_size: 30000}" in text
    lower, upper = (f"{{type: sysctl, at: server, name: net.ipv4.ipfrag_{name}" for name in ("low", "high"))
    assert text.index(f"{lower}_thresh, value: 0}}") < text.index(f"{upper}_thresh, value: 9000}}")
    assert "{type: sysctl, at: mid, name: net.ipv6.ip6frag_low_thresh, value: 80000000}" in text
    [client, *_, server] = json.loads(run([*LABKIT, "draw", str(file), "--json"]))["namespaces"]
    limits = {"mtu": 1300, "advmss": 1200, "window": 9000, "initcwnd": 4, "initrwnd": 5, "quickack": 1}
    assert limits in [route["limits"] for route in client["routes"]]
    for n, end, limits in ((1, client, {"window": 2000}), (2, server, {"mtu": 1400})):
        of = {"to": f"10.{n}.0.0/24", "source": f"10.{n}.0.1"}
        assert [one["limits"] for one in end["routes"] if of.items() <= one.items()] == [limits]
    with untouched(SOUND["gateways of no subnet"]) as words:
        file.write_text(text := clone(words))
    assert "# It lacks" not in text
    [client, *_] = json.loads(run([*LABKIT, "draw", str(file), "--json"]))["namespaces"]
    assert [route["hops"][0]["via"] for route in client["routes"]] == ["10.1.0.254"]
    with untouched(BRIDGE + "ip -n mid link set lan gso_max_size 20000") as words:
        assert "{type: offloads, at: mid, interface: lan, gso_max_size: 20000}" in clone(words)
    with untouched(FLANNEL) as words:
        file.write_text(text := clone(words, "--address", "10.9.0.2"))
    assert text.count(", another end of vx of netns:") == 8
    made = json.loads(run([*LABKIT, "draw", str(file), "--json"]))["namespaces"]
    macs = [one["mac"] for space in made for one in space["interfaces"] if one["name"] == "vx"]
    assert macs == ["02:00:00:00:09:01", "02:00:00:00:09:02"]


def clone(words: list[str], *options: str) -> str:
    return labkit(words, "clone", "netns:client", "netns:server", *options)


def of_original_and_clone(name: str, file: Path) -> list[list[tuple[str, str]]]:
    """Return cause and place of what a check finds in a network and in its clone, and write the clone's file."""
    with untouched(BROKEN[name][1]) as words:
        reports = [labkit(words, *CHECK)]
        file.write_text(clone(words))
    in_shell = subprocess.run(  # the check is in the namespace of the shell's parent, which is none of the ends
        [*LABKIT, "shell", str(file)], input=f"nsenter --net=/proc/1/ns/net -- {' '.join([*LABKIT, *CHECK])}", cwd=ROOT,
        env=os.environ | {"SHELL": "/bin/sh"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert in_shell.returncode == 0, in_shell.stderr
    reports.append(in_shell.stdout)
    return [[(one["cause"], one["where"]) for one in json.loads(each)["findings"]] for each in reports]


def one_of_each(names: Iterable[str]) -> Any:
    """Give a test one network of each cause, with and without iptables-nft, and those that no other test has; and the
    others where all cases are run."""
    names = [name for name in names if all(shutil.which(one) or one not in name for one in IPTABLES)]
    of_cause = {(BROKEN[name][0], IPTABLES[1] in name): name for name in reversed(names)}
    first = [name for name in names if name in {*of_cause.values()} - {*ELSEWHERE} or name in ALONE]
    others = [name for name in names if name not in first]
    return pytest.mark.parametrize("names", [[*first], *also("exhaustive", others)])


@pytest.mark.long
@one_of_each(BROKEN)
def test_the_first_line_names_the_true_cause(names: list[str], need: Need) -> None:
    need("macvlan", "vxlan", "ifb")
    with ThreadPoolExecutor(3) as pool:
        # The sound networks below are looked at before and after their checks.
        reports = pool.map(functools.partial(checked, made=network), (BROKEN[name][1] for name in names))
        found = dict(zip(names, map(sentences, reports), strict=True))
    wrong = {
        name: lines[:2] for name, lines in found.items() if not (lines or [""])[0].startswith(BROKEN[name][0])
    }
    assert not wrong, json.dumps(wrong, indent=1)
    if "many filters" in names:
        many = found["many filters"]
        assert sum(line.startswith("many tc filters") for line in many) == 1, many


@pytest.mark.long
@pytest.mark.parametrize("names", [CLONED[:2], *also("exhaustive", (CLONED[2:],))])
def test_a_clone_has_the_same_causes(names: tuple[str, ...], tmp_path: Path, need: Need) -> None:
    need("vxlan")
    files = [tmp_path / f"{number}.yaml" for number in range(len(names))]
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(names, pool.map(of_original_and_clone, names, files), strict=True))
    differ = {name: both for name, both in found.items() if not both[0] or both[0] != both[1]}
    assert not differ, json.dumps(differ, indent=1)
    lacks = [line for file in files for line in file.read_text().splitlines() if "# It lacks" in line]
    assert not lacks


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_a_killed_command_leaves_nothing() -> None:
    """Neither a check with its load nor a clone nor a drawing leaves anything when it is killed, early or late."""
    ends, mark, killed_count = ("netns:client", "netns:server"), uuid.uuid4().hex, 0
    with untouched(BROKEN["a shaper of the bandwidth plugin of CNI"][1]) as words:
        for command in (
            ("check", *ends, "--load", "--seconds", "1", "--yes"),
            ("clone", *ends),
            ("draw", *ends, "--json"),
        ):
            begun_s = time.monotonic()
            run([*words, *LABKIT, *command])
            whole_s = time.monotonic() - begun_s
            for share in (0.3, 0.6):
                with subprocess.Popen(
                    [*words, *LABKIT, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
                    env=os.environ | {MARK: mark},
                ) as program:  # fmt: skip
                    time.sleep(share * whole_s)
                    killed_count += program.poll() is None
                    program.kill()
                assert until(lambda: not marked(mark), 20), marked(mark)
    assert killed_count > 3  # a busy machine may be slower at first


@pytest.mark.long
@pytest.mark.parametrize("names", [sorted(SOUND.keys() - {*ALIKE}), *also("exhaustive", [*ALIKE])])
def test_sound_networks_are_left_alone(names: list[str], need: Need) -> None:
    need("macvlan", "vxlan", "ifb", "openvswitch")
    with ThreadPoolExecutor(3) as pool:
        reports = pool.map(checked, (SOUND[name] for name in names))
        found = dict(zip(names, map(sentences, reports), strict=True))
    assert not any(found.values()), json.dumps(found, indent=1)


@pytest.mark.long
@pytest.mark.needs("perf")
def test_a_port_that_is_asked_for() -> None:
    """What keeps packets from the port is named, although the server takes others, and where the kernel drops them."""
    script = ONE_PORT + "; ip netns exec server nft insert rule ip f c tcp dport 443 drop"
    report = checked(script, "--port", "443")
    [first, *_] = report["findings"]
    assert first["cause"] == "drop rule"
    assert "dport 443" in first["what"]
    assert any(
        name.startswith("NETFILTER_DROP in ") and name.endswith(" at eth0") for name in report["drops"]
    )
    both = LISTENS.replace("; time", "; t=socket.create_server(('', 443)); time")
    [first, *_] = checked(script.replace(LISTENS, both))["findings"]
    assert (first["cause"], first["certainty"]) == ("port without answer", "possible")
    [only] = checked(ROUTED + snat("masquerade"), "--port", "81")["findings"]
    assert only["cause"] == "nothing listens"


# This machine publishes port 9090 of the server by rules as those of CNI: answers to a client of the same network come
# back to its own address.
PUBLISHED = """
for n in client:2 server:3; do
  ip netns add ${n%:*}; ip link add v-${n%:*} up type veth peer name eth0 netns ${n%:*}
  ip -n ${n%:*} link set lo up; ip -n ${n%:*} link set eth0 up; ip -n ${n%:*} address add 10.1.0.${n#*:}/24 dev eth0
  ip -n ${n%:*} route add default via 10.1.0.1
done
ip link add br0 up type bridge; ip link set v-client master br0; ip link set v-server master br0
ip address add 10.1.0.1/24 dev br0; echo 1 >/proc/sys/net/ipv4/ip_forward
iptables-nft-restore <<'END'
*nat
:PORT -
:MARKED -
:MASQUERADED -
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "a comment" -j PORT
-A OUTPUT -m addrtype --dst-type LOCAL -j PORT
-A PORT -s 10.1.0.0/24 -p tcp -m tcp --dport 9090 -j MARKED
-A PORT -p tcp -m tcp --dport 9090 -j DNAT --to-destination 10.1.0.3:90
-A MARKED -j MARK --set-xmark 0x2000/0x2000
-A POSTROUTING -m comment --comment "a comment" -j MASQUERADED
-A POSTROUTING -s 10.1.0.2/32 -d 10.1.0.0/24 -j ACCEPT
-A POSTROUTING -s 10.1.0.2/32 -j MASQUERADE
-A MASQUERADED -m mark ! --mark 0x2000/0x2000 -j RETURN
-A MASQUERADED -j MASQUERADE
COMMIT
END
"""


def listening(at: str) -> str:
    return f'{PYTHON} "{LISTENS.replace("::ffff:10.2.0.1", at)}" >/dev/null 2>&1 & sleep 0.5\n'


@pytest.mark.long
@pytest.mark.needs("iptables")
def test_nothing_listens_where_rules_lead_a_connection() -> None:
    """The port behind a rule is the one that counts, and a program that listens at another address is named."""
    script = PUBLISHED + listening("::ffff:127.0.0.1").replace("80", "90")
    with untouched(script) as words:
        end = ("netns:server", "--json", "--port", "9090")
        reports = [json.loads(labkit(words, "check", one, *end)) for one in ("host", "netns:client")]
    for [only] in (report["findings"] for report in reports):
        what = r"nothing listens at port 90 of 10\.1\.0\.3; python\S* \(pid \d+\) listens at \S*127\.0\.0\.1\]?:90"
        assert re.match(f"{what} only; a rule of host leads port 9090 there: PORT .*DNAT", only["what"]), only
        assert (only["cause"], only["certainty"]) == ("nothing listens", "seen")
        assert only["undo"] == "let the program listen at 10.1.0.3"
    redirected = nft(
        "server", "prerouting", "tcp dport 80 counter redirect to :9999", kind="nat", priority=-100
    )
    [only] = checked(ROUTED + listening("::ffff:10.2.0.1") + redirected, "--port", "80")["findings"]
    assert only["what"].startswith(
        "nothing listens at port 9999 of 10.2.0.1; a rule of netns:server leads port 80 there"
    )
    assert only["undo"].startswith("ip netns exec server nft delete rule ip f c handle ")


UNDONE = {
    "a shaper": "qdisc: qdisc noqueue at mid:port-server",
    "small buffers": "sysctl: sysctl net.ipv4.tcp_rmem=4096 131072 6291456 at server:eth0",
    "no forwarding": "sysctl: sysctl net.ipv4.ip_forward=1 at mid:to-client",
}


@pytest.mark.long
def test_what_undoes_a_cause_is_a_change_of_the_copy(tmp_path: Path) -> None:
    """Applied to a copy of the network, each change that a finding names has an effect."""
    for number, name in enumerate(UNDONE):
        with untouched(BROKEN[name][1]) as words:
            [first, *_] = json.loads(labkit(words, *CHECK))["findings"]
            (file := tmp_path / f"{number}.yaml").write_text(clone(words))
        assert first["change"] == UNDONE[name]
        with topologies.build_network(yaml_files.network(file)) as built:
            assert changes.apply(*changes.parse(first["change"]), built)


@pytest.mark.long
@pytest.mark.needs("iptables")
def test_answers_come_back_to_the_address_that_rules_put_into_packets() -> None:
    """Both directions of a published port pass this machine where a mark makes it replace the client's address."""
    client, server, ends = (
        "netns:client/eth0",
        "netns:server/eth0",
        ["netns:client", "netns:server", "--port", "9090"],
    )
    script, drawn = PUBLISHED + listening("::").replace("80", "90"), list[str]()
    for made in (script, script.replace("-s 10.1.0.0/24 -p", "-s 192.0.2.0/24 -p")):
        with untouched(made) as words:
            drawn += labkit(words, "draw", *ends).splitlines()[-3::2]
            if made == script:
                assert not json.loads(labkit(words, "check", *ends, "--json"))["findings"]
    rule = "host/br0 > host/nftables dnat 9090 to 10.1.0.3"
    assert drawn == [
        f"forward: {client} > host/v-client > {rule}, from 10.1.0.1 > host/br0 > host/v-server > {server}",
        f"back: {server} > host/v-server > {rule}, from 10.1.0.1 > host/br0 > host/v-client > {client}",
        f"forward: {client} > host/v-client > {rule} > host/br0 > host/v-server > {server}",
        f"back: {server} > host/v-server > host/v-client > {client}",
    ]


@pytest.mark.long
def test_marks_that_nobody_sees_are_said_once() -> None:
    """Programs of an end may mark their packets (SO_MARK) and tc those of others, where routes ask for marks."""
    said = checked(BRIDGE + "for n in client server; do ip -n $n rule add fwmark 7 table 100; done")[
        "not_seen"
    ]
    by = "marks that programs (SO_MARK) or filters of tc give to packets, for which rules of routing of netns:%s ask"
    assert [one for one in map(str, said) if "SO_MARK" in one] == [by % "client", by % "server"]


@pytest.mark.long
@pytest.mark.needs("cpu cgroup")
def test_the_quota_of_an_end() -> None:
    """A quota that stops the programs of an end is seen where a process is in it."""
    with fifth_of_a_cpu("labkit-check") as pids:
        spin = f"nsenter --net=/run/netns/server sh -c 'echo $$ > {pids}; while :; do :; done'"
        with network(f"{BRIDGE}{spin} > /dev/null 2>&1 &\nsleep 1\n") as words:
            [first, *_] = json.loads(labkit(words, *CHECK))["findings"]
            copy = clone(words)
    assert first["cause"] == "CPU quota"
    assert "0.2 CPUs" in first["what"]
    assert "# It lacks the CPU quota of the programs of netns:server: 0.2 CPUs." in copy.splitlines()


# Of cgroup v1, and of v2 beside it or alone: the file that pauses, and what it takes.
FREEZERS = {
    "freezer": ("freezer.state", "FROZEN", "THAWED"), "unified": ("cgroup.freeze", "1", "0"),
    "": ("cgroup.freeze", "1", "0"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.needs("cpu cgroup")
def test_a_paused_program_is_stopped() -> None:
    """The freezer of cgroup v1 leaves a program that sleeps where it waits in the kernel."""
    found = dict[str, list[str]]()
    for top, (switch, on, off) in FREEZERS.items():
        own = Path("/sys/fs/cgroup", top, "labkit-paused")
        if not (own.parent / "cgroup.procs").exists():
            continue
        own.mkdir()
        try:
            with network(
                f"{BRIDGE}{SLEEPS} echo $! > {own}/cgroup.procs; echo {on} > {own}/{switch}"
            ) as words:
                found[top] = sentences(json.loads(labkit(words, *CHECK)))
                (own / switch).write_text(off)
        finally:
            (own / switch).write_text(off)
            assert until(lambda own=own: not (own / "cgroup.procs").read_text(), 10)
            own.rmdir()
    causes = {"stopped program: a program of netns:server"}
    assert found
    assert all({one.partition(" (")[0] for one in each} == causes for each in found.values()), found


def test_what_cannot_be_checked_is_one_sentence() -> None:
    with network(ENDS) as words:
        server = "netns:client netns:server"
        others = ("netns:client netns:client", "netns:client netns:none", "--x;id host", f"{server} --port 0")
        lines = [*others, server, f"{server} --seconds 3", f"{server} --load --seconds 99"]
        argvs = json.dumps([["check", *line.split()] for line in lines])
        argv = [*words, sys.executable, "-P", "-c", TOGETHER, argvs]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    for line, ended in zip(lines, ended_together(done, lines), strict=True):
        assert ended.returncode == 2, line
        assert "Traceback" not in ended.stderr, line


@pytest.mark.needs("iperf3")
def test_a_load_is_agreed_to_and_counted() -> None:
    """Without an agreement nothing is sent. With it, the shaper's drops are in the first line."""
    script = BRIDGE + "tc -n mid qdisc add dev port-server root tbf rate 5mbit burst 10kb latency 5ms"
    with network(script) as words:
        check = [*LABKIT, "check", "netns:client", "netns:server", "--load"]
        argv = [*words, *check]
        refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert refused.returncode == 2
        assert "5201" in refused.stderr
        lines = run([*argv, "--seconds", "1", "--yes"]).splitlines()
    assert lines[0].startswith("shaper: the queueing discipline tbf of port-server limits the rate to 5 Mbit")
    assert "dropped" in lines[0]
    assert [line for line in lines if line.startswith("load: TCP, ")]
