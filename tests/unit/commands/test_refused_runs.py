"""What cannot be is refused in one sentence before anything is built: a command, and what it says."""

import shlex
from pathlib import Path

import pytest

from labkit import cli
from labkit.common import run_folder

CABLE = "nodes=two peer=here parent=nic0,nic1"
VMS = "nodes=two where=vm:debian"
SECOND_HOST = f"{VMS} output=gre mirrors=0,1 readers=count loads=udp:64@1e6"

# Each kind of limit that stands at a field, once
VALUES = """
datapaths topologyy=veth -> no parameter topologyy (did you mean topology?); there are: affinity, change, congestion,
datapaths topology=slirp4netns family=6 -> slirp4netns has IPv6 as an experiment only
datapaths topology=pasta mtu_bytes=65535 -> the largest MTU of pasta is 65521
datapaths xyz=1 -> there is no parameter xyz; there are: affinity
datapaths duration_s=0.5 -> duration_s=0.5: write a whole number of seconds, for example 1
datapaths rounds=2.5 -> rounds=2.5: write a whole number, for example 1
datapaths rounds=x -> rounds=x: a whole number is needed, not a text
datapaths pairs=10000 -> pairs=10000 is outside 1 to 500: a Linux bridge has 1,023 ports
datapaths pairs=none -> pairs needs at least one value, each once
datapaths topology=veth,veth -> topology needs at least one value, each once: labkit itself measures the baseline twice
datapaths observe=counters,counters -> observe names a value twice
datapaths protocol=sctp -> protocol=sctp: choose tcp, udp, ping, udp_rr, tcp_rr, tcp_crr, tcp_cc, http
datapaths congestion=cubic,bbr -> for example cubic; a run takes one, and the grid of a sweep takes several
datapaths 'congestion=cubic; ls' -> is not valid: write an algorithm of the kernel
datapaths rate_bps=nan -> rate_bps=nan
datapaths rate_bps=50M -> rate_bps=50M: a number or none is needed, not a text: write 50e6
datapaths seed=2147483648 -> seed=2147483648 is outside
datapaths zerocopy=perhaps -> zerocopy=perhaps
datapaths topology=existing:ssh:a/host+ssh:b/host observe=counters slices=4 -> leave observe and slices out
datapaths topology=existing:ssh:a/host+ssh:b/host protocol=udp_rr -> whole runs of iperf3 or ping
datapaths topology=existing:ssh:a/host+ssh:b/host where=here -> decides where, nodes, peer: leave these out
datapaths topology=existing:ssh:a/host+ssh:b/host,ovs+mirrors=1+output=gre -> second host, so no mirror can send copies
datapaths topology=existing:netns:a+netns:b nodes=two peer=here parent=nic0,nic1 -> name the other's as ssh:NAME/END
latency_under_load topology=existing:ssh:a/host+ssh:b/host -> takes two ends of one machine
packet_size length_bytes=64 -> there is no parameter length_bytes (use size_bytes instead)
throughput slices=4 -> there is no parameter slices
"""
DATAPATHS = f"""
datapaths topology=vethh -> vethh is not a topology: choose one of
datapaths topology=sr_iov -> labkit has no topology for SR-IOV: it needs a NIC with virtual functions
datapaths mtu_bytes=1279 family=6 -> mtu_bytes=1279 is outside 1280 to 65535: what IPv6 allows
datapaths mtu_bytes=65512 topology=veth,gre -> mtu_bytes=65512 does not fit into gre: with its 24 bytes
datapaths family=6 topology=ipip -> ipip carries IPv4 only
datapaths family=6 topology=overlay -> family=6: overlay has IPv4 addresses only
datapaths mtu_bytes=65500 topology=overlay -> does not fit into overlay: 65535 (a veth) - 20 (IPv4) - 4 (GRE)
datapaths whole_runs=2 -> whole_runs=2 is outside 0 to 1
datapaths slices=0 whole_runs=0 -> leave nothing to measure
datapaths slices=5 rate_bps=1e6 -> slices=0
datapaths affinity=4099 -> there is no CPU 4099; there are
datapaths 'parent=eth0; rm -rf' topology=macvlan_bridge -> parent='eth0; rm -rf' is not valid
datapaths parent=eth0 -> veth_bridge has no parent: only macvlan and ipvlan have one
datapaths socket=nagle=on -> socket=nagle: there is no such option: choose sndbuf, rcvbuf,
datapaths socket=nodelay=off -> iperf3 has it off anyway
datapaths socket=sndbuf=65536 -> iperf3 sets both buffers alike
datapaths protocol=tcp_rr socket=nodelay=off -> of the options of sockets sockperf can set none
datapaths protocol=udp_rr generator=sockets socket=nodelay=off -> socket=nodelay: UDP has no such option
datapaths protocol=tcp_cc socket=quickack=on -> socket=quickack: tcp_cc has no data to acknowledge
datapaths protocol=tcp_cc socket=writes=2 -> socket=writes=2: a request of tcp_cc has 0 bytes
datapaths link_rate_bps=1e8 -> link_rate_bps=100000000.0: it needs nodes=two
datapaths nodes=two where=ssh:there -> nodes=two with where=ssh:there needs the servers' host
datapaths {CABLE} topology=veth -> veth cannot connect two hosts: with nodes=two choose veth_bridge, macvlan_bridge,
datapaths {CABLE} slices=5 -> with nodes=two use slices=0
datapaths {CABLE} direction=both -> direction=both needs both ends on one host: use nodes=one
throughput {CABLE} direction=reverse -> direction=reverse needs both ends on one host: use nodes=one
datapaths {CABLE} 'change=gro: offload gro on at server' -> half of the path is another host's
datapaths {CABLE} observe=perf_stat -> observe needs nodes=one: an observer sees one kernel
datapaths {CABLE} endpoint=container -> nodes=two runs programs in namespaces only: leave endpoint out
datapaths nodes=two peer=there parent=nic0,nic1 -> where=there is not a host: choose here
datapaths nodes=two peer=here parent=nic0 -> parent='nic0' is not valid
datapaths nodes=two peer=ssh:there -> needs parent=NIC,NIC
datapaths nodes=two peer=here parent=nic0,nic0 -> cannot share a NIC
datapaths {CABLE} link_delay_s=0.01 -> labkit limits only the cable that it makes itself
datapaths {CABLE} where=vm:debian -> labkit cannot connect a lab VM with another machine
datapaths {VMS} parent=nic0,nic1 -> leave parent out
datapaths topology=ovs_afxdp mtu_bytes=3699 -> a port of AF_XDP takes an MTU of at most 3698
datapaths events_of=cpu -> events_of=cpu: choose machine, switch
datapaths endpoint=guest observe=guest_function_times functions= -> observe=guest_function_times needs functions=NAME
datapaths observe=switch -> observe=switch needs topology=ovs or ovs_netdev or ovs_afxdp or ovs_dpdk
datapaths observe=guest_function_times -> observe=guest_function_times needs endpoint=guest
datapaths 'graph_functions=f;g' -> is not valid: write names of kernel functions, no patterns
datapaths observe=function_times 'functions=ip_*' -> is not valid: write names of kernel functions, no patterns
datapaths 'probe=ip_rcv;reboot' -> is not valid: write NAME or NAME:return
datapaths probe=-F -> is not valid: write NAME or NAME:return
datapaths observe=perf_stat events= -> events is empty, but observe=perf_stat needs events
datapaths {VMS} topology=veth_bridge,ovs+mirrors=1+output=gre -> large TCP packets are divided
datapaths 'change=x: parameter streams=4000' -> change x: streams=4000 is outside
datapaths 'change=x: offload grro off at both' -> tso off at server` (did you mean gro?)
datapaths 'change=x: offload gro off at bth' -> shows them (did you mean both?)
"""
GENERATORS = """
datapaths generator=hping3 -> generator=hping3 is unknown: choose iperf3, ping, sockperf, sockets, connections, wrk
datapaths generator=packets -> generator=packets works with `labkit run throughput` and load tests only
datapaths generator=ping protocol=tcp -> protocol=tcp: the generator ping supports ping
datapaths generator=ping slices=4 -> slices need senders
datapaths generator=ping rate_bps=1e6 -> rate_bps=1000000: ping has no rate_bps; leave it out
datapaths protocol=udp length_bytes=8 -> length_bytes=8 is outside 16 to 65507: the range of udp with iperf3
datapaths protocol=udp_rr direction=reverse -> direction=reverse: with sockperf only clients send; leave it out
datapaths protocol=udp direction=both slices=2 -> direction=both: iperf3 without a rate reads one datagram for ten
datapaths protocol=udp direction=both slices=0 -> for ten that it sends: use rate_bps, slices=0
throughput generator=trex direction=both -> direction=both: with trex only clients send; leave it out
latency_under_load load=udp -> load=udp needs rate_bps
latency_under_load protocol=udp_rr load=udp rate_bps=1000000 topology=veth,veth_published_nat -> publishes one port
latency_under_load baseline=tbf -> baseline=tbf: name one of the changes, or none
latency_under_load protocol=udp_rr observe=counters -> would count as that of requests: use protocol=ping, or both
datapaths rate_rps=9 -> rate_rps=9: iperf3 keeps no rate of requests; leave it out
datapaths protocol=udp_rr affinity=0 -> affinity=0: udp_rr with sockperf has no affinity; leave it out
datapaths protocol=ping affinity=0 -> affinity=0: ping with ping has no affinity; leave it out
datapaths protocol=udp 'change=reno: congestion reno' -> change reno: congestion=reno: udp with iperf3 has no congestion
datapaths protocol=tcp_cc length_bytes=64 -> length_bytes=64: tcp_cc with connections has no length_bytes
datapaths protocol=udp_rr duration_s=61 -> duration_s=62 is outside 1 to 60: sockperf keeps each message in memory
datapaths protocol=udp_rr omit_s=60 duration_s=1 -> omit_s + duration_s=61 is outside 1 to 60: sockperf keeps
datapaths protocol=tcp_rr family=6 -> family=6: sockperf 3.7 has no IPv6; use generator=sockets
datapaths protocol=http mss_bytes=900 -> mss_bytes=900: http with wrk has no mss_bytes; leave it out
datapaths protocol=tcp_crr rate_rps=9 -> rate_rps=9: connections keeps no rate of requests
datapaths protocol=udp_rr generator=sockets rate_rps=9 streams=2 -> rate_rps=9: sockets keeps a rate on one connection
datapaths protocol=udp_rr generator=sockets rate_rps=9 length_bytes=3 -> length_bytes=3 is outside 4 to 65507
datapaths outstanding=8 -> outstanding=8: tcp with iperf3 has no outstanding; leave it out
datapaths protocol=udp_rr outstanding=8 -> outstanding=8: udp_rr with sockperf has no outstanding; leave it out
datapaths protocol=udp_rr generator=sockets outstanding=1 -> outstanding=1 is outside 2 to 128
datapaths protocol=udp_rr generator=sockets outstanding=8 length_bytes=3 -> length_bytes=3 is outside 4 to 65507
datapaths protocol=tcp_rr generator=sockets outstanding=8 rate_rps=9 -> outstanding=8 needs a closed loop
datapaths protocol=udp_rr response_bytes=9 -> response_bytes=9: udp_rr with sockperf has no length for responses
datapaths protocol=http response_bytes=9 -> response_bytes=9: http with wrk has no length for responses
datapaths protocol=tcp_rr generator=sockets response_bytes=0 -> response_bytes=0 is outside 1 to 1048576
datapaths protocol=udp_rr generator=sockets rate_rps=9 response_bytes=3 -> response_bytes=3 is outside 4 to 65507
datapaths protocol=tcp_rr endpoint=guest -> endpoint=guest: sockperf does not run in guests; use generator=sockets
datapaths protocol=http endpoint=guest -> endpoint=guest: wrk does not run in guests; use endpoint=namespace
datapaths topology=veth_published_proxy protocol=ping -> veth_published_proxy takes the load of iperf3, sockperf
throughput topology=veth_published_proxy -> veth_published_proxy takes the load of iperf3, sockperf
throughput 'change=more: parameter streams=2' -> change more: there is no parameter streams
throughput 'change=slow: qdisc fq_codel at client' -> qdisc at client has no effect: frames of generator=packets pass it
throughput 'change=few: rules 10 at server0:eth0' -> rules at server0:eth0 has no effect
throughput 'change=out: tc_bpf egress pass at both' -> tc_bpf at both has no effect
load_test 'change=seen: conntrack on at server' -> conntrack at server has no effect
datapaths 'change=fq: machine_sysctl net.core.default_qdisc=fq' -> that are up, as those of an arm: use `qdisc fq
throughput generator=iperf3 -> generator=iperf3 cannot run trials at a frame rate
"""
ENDPOINTS = """
datapaths endpoint=guest topology=veth -> veth does not support endpoint=guest
datapaths guest=debian -> guest=debian needs guests: add endpoint=guest
datapaths endpoint=guest guest=debian,queues=2 -> choose cpus=2 or more
datapaths endpoint=guest guest=debian,offloads=maybe -> offloads=maybe: choose on, off
datapaths endpoint=guest guest=debian,fresh -> 'fresh' is not a valid option
datapaths endpoint=guest guest=debian,programs=../x -> programs='../x' is not valid: write NAME+NAME
datapaths endpoint=guest guest=debian,cpus=1,cpus=1 -> cpus is given twice
datapaths endpoint=shared_guest guest=debian,cpus=2 pairs=17 -> one guest for 34 endpoints needs cpus=68
datapaths endpoint=shared_guest guest=debian,memory_mib=5000 pairs=32 -> memory_mib=320000
datapaths endpoint=shared_guest affinity=0,2 -> with guest=debian a guest has CPUs 0 to 1; cpus=N gives it more
datapaths 'where=vm:$(reboot)' -> a lab VM has the form vm:KERNEL
datapaths where=vm:x,cpus=0 -> cpus=0 is outside 1 to 64
datapaths where=vm:x,cpus=two -> cpus=two: a whole number is needed
datapaths where=vm:x,profile=fast -> profile=fast: choose traffic, tracing
datapaths 'where=vm:x,append=a;reboot' -> append='a;reboot' is not valid
datapaths where=vm:x,modules=../evil -> modules='../evil' is not valid
datapaths where=vm:x,speed=1 -> 'speed=1' is not a valid option (cpus
throughput endpoint=guest generator=trex -> generator=trex cannot run in a guest (endpoint=guest)
throughput endpoint=shared_guest -> generator=packets cannot run in a guest that several endpoints share
monitor_cost topology=veth_bridge endpoint=guest -> the packet generator cannot run in a guest
load_test endpoint=guest -> a load test cannot run in a guest
"""
SEARCHES = f"""
throughput frame_bytes=1519 -> a frame of 1519 bytes is outside 64 to 1518
throughput family=6 -> with headers of IPv6 and UDP 66
throughput max_rate=2Mpps line_rate_bps=1e9 -> max_rate=2Mpps is more than the link carries: 64 + 20 = 84 bytes
throughput max_rate=50% -> give line_rate_bps as well
throughput max_rate=1kpps -> max_rate=1kpps is not above min_rate=1kpps
throughput min_rate=1500 -> min_rate=1500: write for example
throughput min_rate=-5kpps -> write for example 100kpps
throughput min_rate=0pps -> above 0
throughput frame_bytes=63 -> a frame of 63 bytes is outside 64 to 1518
throughput vary= -> vary needs at least one
throughput vary=ttl -> vary=ttl is not a field: choose source_mac
throughput flows=100000 -> flows=100000: source_port can distinguish 64512 flows
throughput vary=target_mac pairs=2 -> vary=target_mac needs pairs=1
throughput sum_s=0.1 -> sum_s=0.1 is less than one trial
throughput preset=rfc2544 limit_s=60 -> limit_s=60 is too short
throughput {VMS} generator=trex -> generator=trex needs both ends on one host: leave out nodes=two
throughput generator=packets server=host -> server=host is a TRex server: leave generator out
throughput server=host pairs=2 -> a device that labkit does not build
throughput server=host where=vm:debian -> a TRex server is reached from this machine
throughput server=host ports=0 -> name pairs of different ones
throughput server=host:x -> server=host:x: write HOST or HOST:PORT
throughput ports=2,3 -> labkit's own server has the ports 0 and 1
throughput vlan=7 topology=veth_bridge,veth_routed -> vlan=7: veth_routed drops frames with a VLAN tag, because its
throughput vlan=7 topology=ipvlan_l3s -> vlan=7: ipvlan_l3s drops frames with a VLAN tag
throughput vlan=7 topology=ovs_netdev+vlans=2 -> because vlans=2 makes the ends' ports access ports
throughput vlan=7 topology=ovs+case=net_to_vm+tunnel=vlan -> because its rules match the tag of tunnel=vlan alone
throughput vlan=7 topology=ovs+mirrors=1+output=vlan -> because output=vlan makes the ends' ports
throughput trial_frames=9 trial_s=1 -> trial_frames=9 and trial_s=1: give one of them
throughput trial_frames=1000000 -> trial_frames=1000000 takes 1000 s at min_rate=1kpps
throughput trial_frames=9 generator=trex -> generator=trex cannot send an exact number of frames
load_test mtu_bytes=1400 -> a frame of 1518 bytes is outside 64 to 1418
load_test server=host trex=/opt/trex/v3.08 -> a device that labkit does not build
load_test server=-x -> server=-x: write HOST or HOST:PORT
load_test server=host:99999 -> with the port of TRex's RPC
load_test generator=iperf3 -> generator=iperf3 cannot run trials at a frame rate
load_test server=host profile=imixx -> there are imix, 64b, or the name of a file
load_test server=host loss_limit=1 -> a ratio, not per cent
trex_stateful server=host mult=1,1 -> mult needs at least one value
"""
CHANGES = """
offload gro off at server -> form
x: magic 1 at server -> no kind of change 'magic'
x: mtu 1400 at nowhere -> at='nowhere'
x: mtu 1400 -> at=''
x: parameter streams=4 at server -> is not applied at a place
x: parameter pairs=4 -> pairs cannot be a change
x y: mtu 1400 at both -> a name has
x: sysctl net/../kernel/core_pattern=1 at server -> is not valid: write for example `sysctl net
x: sysctl kernel.core_pattern=1 at server -> belongs to a namespace; use machine_sysctl
x: machine_sysctl kernel.core_pattern=1 -> may be changed
x: machine_sysctl fs.suid_dumpable=1 -> may be changed
x: machine_sysctl net.ipv4.ip_forward=1 -> (not forwarding, not disable_ipv6)
x: machine_sysctl net.ipv6.conf.all.disable_ipv6=1 -> (not forwarding, not disable_ipv6)
x: machine_sysctl net.core=1 -> may be changed
x: machine_sysctl net/core/somaxconn=1 -> may be changed
x: sysctl net.ipv4.ip_forward=1|sh at server -> '1|sh' is not valid
x: qdisc netem distribution /etc/passwd at client -> 'distribution' is not allowed
x: tc_filter ingress bpf obj x.o at client -> 'bpf' is not allowed
x: tc_filter ingress u32 match u32 0 0 action bpf object-file x.o at client -> 'bpf' is not allowed
x: neighbour 10.0.0.1 here at client -> neighbour mac 'here' is not valid
x: offload gro maybe at client -> choose on, off
x: rps all at client -> write for example `rps 0,1
x: rules many at client -> rules=many is not a whole number from 1 to 10000
x: neighbour 10.0.0.1 at client -> neighbour lacks mac
x: monitor some at client -> sample='some' is no way to sample: choose all
x: program sh=/bin/sh -> program name 'sh' is not valid: write for example `program iperf3=
x: program iperf3=/none/iperf3 -> is not started, because /none cannot be read
"""
STUDIES = f"""
container_vs_vm loads=sctp -> loads=sctp is not a load: write tcp, udp, ping
container_vs_vm loads=udp: -> loads=udp: is not a load: write
container_vs_vm loads=udp:99999 -> length_bytes=99999 is outside
container_vs_vm topology=veth_bridge,macvlan_bridge -> on one topology; name one
monitor_cost loads=fast -> loads=fast: write for example 100kpps
monitor_cost topology=veth,gre -> topology and endpoint need one value each
monitor_cost 'sample=$(id)' -> sample='$(id)' is no way to sample
monitor_cost frame_bytes=20 -> a frame of 20 bytes is outside 64
ovs_test_plan case=vm_to_vm tunnel=vxlan -> vm_to_vm has no network behind a tunnel: add tunnel=off
ovs_test_plan vlan=7 -> there is no parameter vlan (use tunnel instead)
ovs_test_plan rules_count=15 -> rules_count=15 is too few for pairs=4: 16 rules are the minimum
ovs_test_plan endpoint=shared_guest -> does not support endpoint=shared_guest
overlay payload_bytes=1399 -> payload_bytes=1399 is outside 16 to 1398: the range of a ping within the MTU
overlay parent=eth0 -> there is no parameter parent
packet_size size_bytes=400,65508 -> size_bytes=65508 is outside 16 to 65507: the range of iperf3's UDP datagrams, and of
packet_size observe_bytes=15 -> observe_bytes=15 is outside 16 to 65507
packet_size protocol=ping -> slices need senders without a rate limit
packet_size protocol=tcp -> TCP chooses the sizes of its segments itself
virtual_tap loads=sctp -> loads=sctp: a load is tcp or udp
virtual_tap loads=udp:8 -> length_bytes=8 is outside 16 to 65507
virtual_tap select=port7 -> select='port7' is not valid: write for example all, client0
virtual_tap also=nothing -> nothing is not a topology
virtual_tap uplink_bps=1e8 -> uplink_bps needs a tunnel
virtual_tap cores=thesis affinity=0,1 -> affinity=0,1: cores=thesis already binds the ends
virtual_tap {SECOND_HOST} output=veth -> nodes=two needs mirrors whose copies leave the host
virtual_tap {SECOND_HOST} loads=udp:64 -> reading a second host's counters takes too long for slices: use udp:64@
virtual_tap {SECOND_HOST} loads=tcp@1e6 -> on the way to a second host large TCP packets are divided
virtual_tap {SECOND_HOST} mirrors=0,1,2 -> nodes=two has one cable, so one switch only can send copies through it
virtual_tap {SECOND_HOST} mirrors=1 also=ovs_netdev -> comes first, so it is measured twice at the same time
"""
SWITCHES = """
ovs+mirrors=33 -> mirrors=33 is outside 0 to 32
ovs+mirrors=1.5 -> mirrors=1.5: a whole number is needed
ovs+mirror=1 -> ovs has no option 'mirror=1': choose mirrors=, select=
ovs+mirrors=1+mirrors=2 -> mirrors is given twice
ovs+readers=count -> readers needs mirrors: add mirrors=1
ovs+mirrors=1+select=mirror0 -> select=mirror0: a mirror cannot select the output of a mirror
ovs+mirrors=1+output=vlan+select=trunk -> select=trunk: a mirror cannot select the output of a mirror
ovs+mirrors=1+select=vlan:3+vlans=2 -> select=vlan:3, but there are VLANs 1 to 2
ovs+mirrors=1+select=vlan:1 -> select=vlan:1, but there are no VLANs: add vlans=N
ovs+mirrors=1+uplink_bps=1e9 -> uplink_bps needs a tunnel: add output=gre|erspan|vxlan
ovs+mirrors=1+output=gre+uplink_bps=fast -> uplink_bps=fast: a number is needed
ovs+sampling=sflow -> sampling='sflow' is not valid: write for example sflow:100 or ipfix:100
veth+mirrors=1 -> veth takes no options; ovs, ovs_netdev, ovs_afxdp, ovs_dpdk do
ovs+rules=l3 -> rules needs a case: add case=net_to_vm|vm_to_net|vm_to_vm
ovs+case=vm_to_net+rules=l4 -> rules=l4: choose l2, l3
ovs+case=vm_to_vm+tunnel=vxlan -> vm_to_vm has no network behind a tunnel
ovs+case=vm_to_net+tunnel=vlan -> takes the load of packets only, not that of iperf3
ovs+case=vm_to_net+mirrors=1 -> a case does not use mirrors
ovs_netdev+mirrors=1+select=client7 -> there is no client7; the last one is client0
ovs_netdev endpoint=shared_guest -> ovs_netdev does not support endpoint=shared_guest: choose veth_bridge
ovs_netdev endpoint=guest guest=debian -> which need complete packets: use guest=debian,offloads=off
"""
RUNS = [*(VALUES + DATAPATHS + GENERATORS + ENDPOINTS + SEARCHES + STUDIES).split("\n")]
RUNS += [f"datapaths topology={line}" for line in SWITCHES.strip().split("\n")]
RUNS += ["datapaths 'change={}' -> {}".format(*line.split(" -> ")) for line in CHANGES.strip().split("\n")]


def test_runs_are_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    faults = []
    for line in filter(None, RUNS):
        command, _, words = line.partition(" -> ")
        given = dict(word.split("=", 1) for word in shlex.split(command)[1:])  # the last of a name counts
        code = cli.main(["run", command.split()[0], *(f"{name}={value}" for name, value in given.items())])
        out, err = capsys.readouterr()
        if (code, out, len(err.splitlines())) != (2, "", 1) or words not in err:
            faults.append(f"{line}: {code}, {out}{err}")
    assert not faults, "\n".join(faults)


# Options that would do nothing, folders that are none, typos, and what a bisect cannot search
COMMANDS = """
monitor veth --serve --seconds 1 -> labkit: --seconds does nothing with --serve: leave it out
monitor veth --port 8866 -> labkit: --port does nothing without --serve: leave it out
monitor veth --serve --port 99999999 -> labkit: --port=99999999 is outside 1024 to 65535
rows --columns --csv x -> labkit: --csv does nothing with --columns: leave it out
rows run --columns -> labkit: RUN does nothing with --columns: leave it out
kernels --json install -> labkit: --json does nothing with install: leave it out
run datapaths --keep-failed -> labkit: --keep-failed does nothing without --folder: leave it out
publish run '' -> labkit: '' names no folder: write FOLDER, for example results
run datapaths nonesuch=1 --folder '' -> labkit: --folder '' names no folder: write --folder FOLDER
run datapaths nonesuch=1 --folder= -> labkit: --folder '' names no folder
run datapaths nonesuch=1 --folder a --folder b -> labkit: --folder is given twice: keep one of them
repot data -> (did you mean report?)
report data --percentle p99 -> (did you mean --percentile?)
run datapath -> (did you mean datapaths?)
run datapaths topology=VXLAM -> (did you mean vxlan?)
run datapaths placement=balancd -> (did you mean balanced?)
report labkit/comands -> (did you mean commands?)
compare labkit/comands labkit -> (did you mean commands?)
sweep params/overlai.yaml -> (did you mean overlay.yaml?)
monitor veth_brige -> (did you mean veth_bridge?)
bisect datapaths topology=veth --over pairs=1 -> at least two values
bisect datapaths topology=veth --over pairs=1,2 --most-pairs 1 -> --most-pairs 1: choose 2 to 30
bisect datapaths pairs=1 --over pairs=1,2 -> leave out pairs=
bisect datapaths --over pairs=1,none_such -> pairs=none_such
bisect datapaths --over protocol=tcp,udp -> no common metric
bisect datapaths --over pairs=1,2 --fail-if 'loss>1%' -> counts no packets: choose a load of UDP
run datapaths_of_today loads=tcp --fail-if 'loss>1%' -> choose a load of UDP
bisect datapaths --over pairs=1,2 --good 3 -> is none of the values
bisect datapaths --over kernels 6.1.0-none 6.1.0-other -> labkit kernels get
run datapaths topology=veth --fail-if 'loss>3%' -> choose a load of UDP
run datapaths topology=veth --fail-if 'slower>3%' -> and this run has one: name another topology, endpoint or change
run packet_size --fail-if 'slower>3%' -> or an earlier run with --against
run datapaths topology=veth --junit a.xml -> --junit does nothing without --fail-if
run datapaths topology=veth --against data/results/mtu --fail-if 'slow>3%' -> write 'slower>3%'
run datapaths topology=veth --against nowhere -> there is no file
compare data/results/mtu data/results/uplink --fail-if 'slower>3' -> write 'slower>3%'
compare data/results/mtu data/results/uplink --junit a.xml -> without --fail-if
rows data/results/mtu -> no output is named: write --parquet FILE, --csv FILE, --json FILE
rows data/results/mtu --parquet - -> name a file
draw nothing -> nothing is not a topology: choose loopback, veth
draw veth pairs=1,2 -> pairs=1,2: one topology has one number of pairs: name one
draw veth where=moon -> where=moon is not a host: choose here
draw veth parent=eth9 -> parent=eth9: veth has no parent
draw veth_bridge nodes=two where=vm:debian -> nodes=two is for measuring only
draw existing:ssh:a/netns:x+ssh:b/netns:y -> `labkit draw ssh:a/netns:x ssh:b/netns:y` draws the path
"""


def test_commands_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_folder.project_root())
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    faults = []
    for line in COMMANDS.strip().split("\n"):
        command, _, words = line.partition(" -> ")
        try:
            code: object = cli.main(shlex.split(command))
        except SystemExit as ended:  # of argparse, after its usage
            code = ended.code
        out, err = capsys.readouterr()
        is_whole = "usage: " in err or len(err.splitlines()) == 1
        if (code, out) != (2, "") or words not in err or not is_whole:
            faults.append(f"{line}: {code}, {out}{err}")
    assert not faults, "\n".join(faults)
