"""The columns of a row: name, unit, type, meaning, writer and role, each defined once.

`labkit.measure` writes rows and `labkit.analysis` reads them with these definitions. `labkit rows --columns`
prints them. A new column is one line here; its writer fills it: a generator, an observer, or `row_of` in
`labkit.measure.experiments.rows`. Packages add columns by entry points (`added`).
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from labkit.common import extensions
from labkit.common.errors import Failed
from labkit.common.switch_options import OPTIONS
from labkit.common.units import exact_percent, si

TARGET_HELD = "the target was held"  # in the column `ended`: the load test reached no limit
# Values of the column ends_on, in words
ENDS_ON = {"one_cpu": "ends on one CPU", "two_cpus": "ends on two CPUs"}

Type = Literal["text", "number", "integer", "flag", "list", "object"]
Role = Literal["identifies", "parametrises", "measures", "describes"]
Use = Literal["", "host", "group", "equal"]

ROLES: dict[Role, str] = {
    "identifies": "which experiment, run, arm and measurement the row is of",
    "parametrises": "a parameter of the run or of the point",
    "measures": "what was measured",
    "describes": "the machine, the programs, and how the measurement went",
}
USES: dict[Use, str] = {
    "host": "rows that differ in it ran on different hosts: only their ratios are compared",
    "group": "rows that differ in it are not compared with each other",
    "equal": "rows of one group must not differ in it: labkit refuses to pool them",
}
WRITERS = {
    "rows": "every experiment",
    "traffic": "the traffic generator and the kernel's counters",
    "profile": "runs beside an observer",
    "publish": "`labkit publish`",
    "endpoint": "guests and containers",
    "peer": "the servers' host, with two nodes",
    "switch": "Open vSwitch",
    "options": "topologies with a switch: the options in their names",
    "machine": "the host that measures",
    "runner": "the command that started the run",
    "vm": "the host of a lab VM",
    "throughput": "experiments that send frames at a rate (`part` also by others that have parts)",
    "trex": "load tests",
    "reader": "experiments with programs that watch an interface",
    "load": "experiments that time round trips beside a load",
    "observation": "captures that follow packets",
}


@dataclass(frozen=True)
class Column:
    """A column. `unit` is "" for columns without unit, `writer` is a key of WRITERS (of a package's column also words
    like those), `use` says how comparisons use it.

    Of a parameter: `words` says a value as sentences and figures do, and `null` is what figures call null. Sentences
    and commands leave out null and the values of `usual`, which are texts; the first is the default.
    """

    name: str
    unit: str
    type: Type
    meaning: str
    writer: str
    role: Role
    use: Use = ""
    words: Callable[[Any], str] | None = None
    null: str = ""
    usual: tuple[str, ...] = ()


def columns(
    writer: str, role: Role, *columns: tuple[str, str, Type, str, *tuple[Any, ...]], use: Use = ""
) -> tuple[Column, ...]:
    """Return columns: the name, unit, type and meaning of each, and then its words, null and usual values."""
    return tuple(
        Column(name, unit, kind, text, writer, role, use, *words)
        for name, unit, kind, text, *words in columns
    )


# The judged percentiles of latencies, by the name in their columns: the share of round trips that are not slower, and
# what sentences call them. The environment variable chooses one, so the notebooks that a command executes inherit it.
LATENCIES = {
    "p50": (0.5, "median round-trip time"),
    "p90": (0.9, "90th percentile of the round-trip time"),
    "p99": (0.99, "99th percentile of the round-trip time"),
    "p999": (0.999, "99.9th percentile of the round-trip time"),
    "max": (1.0, "longest round-trip time"),
}
PERCENTILE = "LABKIT_PERCENTILE"
_HOST_COLUMNS = columns("machine", "describes",
    ("kernel", "", "text", "the kernel's release, as uname -r prints it"),
    ("kernel_build", "", "text", "the kernel's build, as uname -v prints it"),
    ("accelerator", "", "text", "what runs the CPUs: none (bare metal), kvm, tcg (emulated), or a hypervisor's name"),
    ("machine", "", "text", "a digest of the machine's identity"),
    ("cpu", "", "text", "the CPU's model"),
    use="host",
)  # fmt: skip
_BUILD_COLUMNS = columns("machine", "describes",
    ("kernel_config_digest", "", "text", "a digest of the kernel's configuration"),
    ("sysctl_digest", "", "text", "a digest of the sysctls that are known to change a throughput"),
    ("iperf3", "", "text", "the version of this machine's iperf3; that of an arm with another one is in `changed`"),
    use="equal",
)  # fmt: skip
_MACHINE_COLUMNS = columns("machine", "describes",
    ("microcode", "", "text", "the CPU's microcode revision"),
    ("cpus_count", "1", "integer", "CPUs of the host"),
    ("labkit", "", "text", "the version of labkit"),
    ("git_revision", "", "text", "labkit's commit, with +dirty when its files were changed"),
)  # fmt: skip
_MACHINE = (*_HOST_COLUMNS, *_BUILD_COLUMNS, *_MACHINE_COLUMNS)

COLUMNS: tuple[Column, ...] = (
    *columns("rows", "identifies",
        ("experiment", "", "text", "the experiment's name"),
        ("run", "", "text", "the run folder's name"),
        ("point", "", "text", "the point of the run, which is also the name of the file of rows"),
        ("round", "1", "integer", "the round, from 0; every round builds all arms again"),
        ("slice", "1", "integer", "the slice within the round, from 0; null for a whole run"),
        ("method", "", "text", "slice, whole, profile (beside an observer), search, ramp or trial"),
        ("arm", "", "text", "topology/endpoint+change, and (again) for an arm that is measured a second time"),
        ("again", "", "flag", "whether the arm is measured a second time"),
        ("role", "", "text", "the arm's part in the comparison: baseline, control (the baseline again) or variant"),
        ("topology", "", "text", "the topology"),
        ("network", "", "text", "a digest of the YAML file's network; null: a topology of labkit's"),
        ("endpoint", "", "text", "what programs run in: namespace, container, guest or shared_guest",
         str, "", ("namespace",)),
        ("change", "", "text", "the change of this arm; null for the unchanged topology"),
        ("time", "", "text", "when it was measured, in UTC (ISO 8601)"),
        ("status", "", "text", "ok, unsupported, isolated by design, equal (no effect of its change), failed, invalid"),
        ("reason", "", "text", "why the status is not ok, in a sentence"),
        ("doubts", "", "text", "what weakens the measurement, in sentences separated by '; '"),
    ),
    *columns("rows", "parametrises",
        ("where", "", "text", "the kernel it ran on, as requested: here, vm:KERNEL or ssh:NAME",
         "in {}".format, "", ("here",)),
        ("peer", "", "text", "the servers' host as requested, with two nodes"),
        use="host",
    ),
    *columns("rows", "parametrises",
        ("protocol", "", "text", "tcp, udp, ping, udp_rr, tcp_rr, tcp_crr, tcp_cc, http or http_close"),
        ("generator", "", "text", "the traffic generator", "by {}".format),
        ("nodes", "", "text", "one, or two: clients on one host, servers on another",
         lambda count: f"{count} node{'s' * (count != 'one')}", "", ("one",)),
        ("link_rate_bps", "bit/s", "number", "the rate of labkit's cable between two nodes; null: no limit",
         lambda rate: f"link {si(rate, 'bit/s')}", "unshaped link"),
        ("link_delay_s", "s", "number", "the delay of labkit's cable between two nodes, each way",
         lambda delay: f"delay {si(delay, 's')}", "no delay"),
        ("mtu_bytes", "byte", "integer", "the MTU of every endpoint's interface", "MTU {:g}".format, "", ("1500",)),
        ("family", "", "integer", "the version of IP: 4 or 6", "IPv{:g}".format, "", ("4",)),
        ("pairs", "1", "integer", "pairs of endpoints that are loaded at the same time",
         lambda count: f"{count:g} pair{'s' * (count != 1)}", "", ("1",)),
        ("length_bytes", "byte", "integer", "a write (TCP), datagram (UDP), request or ping payload; path: the packet",
         "{:g} bytes each".format, "default length"),
        ("response_bytes", "byte", "integer", "a response of labkit's own sockets; null: as long as its request",
         "responses of {:g} bytes".format),
        ("rate_bps", "bit/s", "number", "the rate of each stream as requested; null: as fast as possible",
         lambda rate: f"{rate / 1e6:g} Mbit/s", "unlimited"),
        ("rate_rps", "1/s", "integer", "requests per second of each pair; null: a closed loop",
         "{:,.0f} requests/s".format, "closed loop"),
        ("outstanding", "1", "integer", "requests in flight on each connection of a closed loop; null: one",
         "{:g} outstanding".format, "1 outstanding"),
        ("streams", "1", "integer", "parallel streams of each pair",
         lambda count: f"{count:g} stream{'s' * (count != 1)}", "", ("1",)),
        ("direction", "", "text", "forward (data goes to servers), reverse, both; path: in, out; load test: all, 0→1",
         "direction {}".format, "", ("forward", "all")),
        ("mss_bytes", "byte", "integer", "the TCP maximum segment size as requested; null: the path's",
         "MSS {:g}".format, "default MSS"),
        ("congestion", "", "text", "the TCP congestion control as requested; null: the kernel's default",
         str, "default congestion control"),
        ("socket", "", "text", "options of the load's sockets as requested; null: the generator's usual ones",
         str, "usual sockets"),
        ("zerocopy", "", "flag", "whether the generator sends without copying",
         lambda on: "zero copy" if str(on) == "True" else "copied", "copied", ("False",)),
        ("affinity", "", "text", "the client's CPU and the server's CPU; null: not bound", "CPUs {}".format, "any CPU"),
        ("parent", "", "text", "the NIC under macvlan and ipvlan; null: a veth", "on {}".format, "veth parent"),
        ("guest", "", "text", "kernel and options of the guests, as requested",
         "guests of {}".format, "no guests", ("debian",)),
        use="group",
    ),
    *columns("throughput", "identifies",
        ("part", "", "text", "the part of an experiment that has several"),
    ),
    *columns("throughput", "parametrises",
        ("frame", "", "text", "the frame size, or the name of a mix of sizes", "frames {}".format),
        ("flows_count", "1", "integer", "flows that the generator's frames belong to", "{:g} flows".format),
        ("vlan", "", "integer", "the VLAN of every frame's 802.1Q tag, which frame_bytes leaves out; null: none",
         "VLAN {:g}".format),
        ("burst_frames", "1", "integer", "frames that a sender was to send back to back; null: what is due in 0.15 ms",
         "bursts of {:g}".format),
        ("loss_goal_ratio", "1", "number", "the share of frames that may be lost at the rate that is searched for",
         lambda goal: f"PDR {exact_percent(goal)}" if goal else "NDR"),
        use="group",
    ),
    *columns("reader", "parametrises",
        ("load_pps", "1/s", "number", "the parameter loads, in frames per second; null: as many as possible",
         lambda rate: f"{si(rate, 'pps')} offered"),
        use="group",
    ),
    *columns("load", "parametrises",
        ("load", "", "text", "the protocol of the traffic beside which round trips are timed: tcp or udp",
         "beside {}".format),
        use="group",
    ),
    *columns("rows", "parametrises",
        ("duration_s", "s", "number", "the length of a whole run, without the warm-up"),
        ("omit_s", "s", "number", "the warm-up that a whole run leaves out"),
        ("seed", "", "integer", "the seed of every random order"),
    ),
    *columns("traffic", "parametrises",
        ("ends_on", "", "text",
         "of requests: one_cpu (the ends of each pair share one) or two_cpus; null: the scheduler chose",
         ENDS_ON.__getitem__, "placed by the scheduler"),
        use="group",
    ),
    *columns("traffic", "measures",
        ("throughput_bps", "bit/s", "number",
         "payload that arrived in the window, by the kernel; with rate_bps, iperf3's own over its whole time; in a"
         " search, the result"),
        ("throughput_pps", "1/s", "number", "packets (in a search, frames) that arrived per second"),
        ("iperf3_bps", "bit/s", "number", "the throughput that iperf3 reports over its whole time"),
        ("window_s", "s", "number", "the time in which all flows ran and the kernel counted"),
        ("received_bytes", "byte", "number", "bytes of payload that arrived in the window"),
        ("received_count", "1", "integer", "packets that arrived in the window; of pings and requests, answers"),
        ("forward_bps", "bit/s", "number", "throughput from clients to servers; in a whole run, by iperf3"),
        ("reverse_bps", "bit/s", "number", "throughput from servers to clients; in a whole run, by iperf3"),
        ("sent_bps", "bit/s", "number", "the rate that the senders report"),
        ("sent_count", "1", "integer", "datagrams, requests or frames that the generator sent"),
        ("reported_received_count", "1", "integer", "datagrams that arrived, by the generator's count"),
        ("fragments_count", "1", "integer", "IP fragments that the senders made in the window"),
        ("lost_count", "1", "integer", "datagrams, frames or requests that the generator lost (http: late ones)"),
        ("out_of_order_count", "1", "integer", "datagrams or frames that arrived out of order"),
        ("jitter_s", "s", "number", "the jitter that iperf3 reports (RFC 3550), mean of the flows; that of probes"),
        ("retransmits_count", "1", "integer", "TCP segments that were sent again"),
        ("rtt_s", "s", "number", "TCP's smoothed round-trip time, mean of the streams"),
        ("sender_congestion", "", "text", "the congestion control that the first sender used"),
        ("loop", "", "text", "closed: a new request waits for an answer; open: it does not"),
        ("transaction_rate", "1/s", "number", "requests (tcp_cc: connections) answered per second, of all pairs"),
        ("cpu_per_transaction_s", "s", "number",
         "CPU time of the whole host (of two: the clients') for each request or connection"),
        ("connection_sysctls", "", "text", "what keeps ports and conntrack from ending a test, at the first client"),
        ("latency_p50_s", "s", "number", "the median latency: of pings and requests round-trip, of probes one-way"),
        ("latency_p90_s", "s", "number", "the 90th percentile of the latency"),
        ("latency_p99_s", "s", "number", "the 99th percentile of the latency"),
        ("latency_p999_s", "s", "number", "the 99.9th percentile of the latency"),
        ("latency_max_s", "s", "number", "the greatest latency"),
        ("latency_histogram", "", "object", "round trips in buckets 2.9 % wide, by upper edge in ns; not histogram"),
        ("cpu_s", "s", "number", "CPU time of the whole host in the window"),
        ("softirq_s", "s", "number", "the part of cpu_s in soft interrupts"),
        ("client_cpu_s", "s", "number", "CPU time of the clients, by iperf3; of connections and wrk, by the kernel"),
        ("server_cpu_s", "s", "number", "CPU time of the servers, by iperf3"),
        ("steal_s", "s", "number", "CPU time that the hypervisor took away in the window"),
        ("cpu_wait_s", "s", "number", "of requests: how long the experiment's programs waited for a CPU"),
    ),
    *columns("profile", "describes",
        ("observer", "", "text", "the observer beside which it was measured; null: none"),
        ("observed", "", "object", "the observer's results; each observer has its own form"),
        ("artefact", "", "text", "a file with more, relative to the run folder"),
        ("settings", "", "text", "a file with the network settings of the arm, relative to the run folder"),
        ("lost_samples_count", "1", "integer", "samples or events that the observer missed; null: it cannot tell"),
        ("overhead_ratio", "1", "number", "the speed with the observer, relative to the speed without one"),
    ),
    *columns("publish", "describes",
        ("folded_stacks", "", "text", "the stacks of perf_record, read from `artefact`: in each line `a;b;c 42`"),
    ),
    *columns("rows", "describes",
        ("changed", "", "list", "the effects of the arm's change: at, kind, setting, before, after, count"),
        ("qdisc", "", "text", "the queueing discipline of the first client's interface"),
        ("offloads", "", "text", "the offloads that are on at the first client's interface, separated by spaces"),
        ("placement", "", "text",
         "the CPUs that a slice, or the round trips of a round, bound the first pair's client and server to;"
         " balanced: a profiled run moved them from placement to placement; null: the scheduler chose"),
    ),
    *columns("endpoint", "describes",
        ("guest_kernel", "", "text", "the guests' kernel release"),
        ("guest_accelerator", "", "text", "what runs the guests' CPUs: kvm or tcg"),
        use="equal",
    ),
    *columns("endpoint", "describes",
        ("guest_cpus_count", "1", "integer", "CPUs of each guest"),
        ("guest_threads_count", "1", "integer", "threads of the host that run each guest's CPUs"),
        ("guest_queues_count", "1", "integer", "queues of each guest's network device"),
        ("guest_vhost", "", "flag", "whether the host's kernel serves the guests' network devices (vhost-net)"),
        ("container_runtime", "", "text", "the OCI runtime of containers"),
    ),
    *columns("endpoint", "measures",
        ("guest_cpu_s", "s", "number", "CPU time in the window that the guests' kernels count"),
        ("guest_softirq_s", "s", "number", "the part of guest_cpu_s in soft interrupts"),
    ),
    *columns("peer", "measures",
        ("peer_cpu_s", "s", "number", "CPU time of the servers' host in the window"),
        ("peer_softirq_s", "s", "number", "the part of peer_cpu_s in soft interrupts"),
        ("peer_steal_s", "s", "number", "CPU time that the hypervisor took away from the servers' host"),
    ),
    *columns("switch", "measures",
        ("switch_cpu_s", "s", "number", "CPU time of the switch's own processes in the window"),
        ("switched_count", "1", "integer", "packets that the switch got from the endpoints in the window"),
        ("switch_lost_count", "1", "integer", "packets that the kernel could not hand to the switch's process"),
        ("copies_expected_count", "1", "integer", "copies that the mirrors should have made"),
        ("copies_count", "1", "integer", "copies of all mirrors that arrived where they are monitored"),
        ("copies_of_mirrors", "", "list", "copies of each mirror that arrived, in the order of their numbers; each"
         " should have made copies_expected_count / mirrors; null: not told apart"),
        ("copies_dropped_count", "1", "integer", "copies that the link out of the host lost (tbf: its drops)"),
        ("copies_unread_count", "1", "integer", "copies that arrived and that no reader took"),
        ("unread_of_mirrors", "", "list", "copies of each mirror that arrived and that its reader did not take;"
         " null: mirrors share a reader, or nobody can know"),
    ),
    *columns("machine", "describes",
        ("load1", "1", "number", "the load average over one minute"),
        ("busy_before_share", "1", "number", "the busy share of all CPUs in the half second before the run"),
        ("python", "", "text", "the version of Python"),
    ),
    *_MACHINE,
    *(
        Column(f"peer_{one.name}", one.unit, one.type, f"of the servers' host: {one.meaning}", "peer", one.role,
               "host" if one.use == "host" else "")
        for one in _MACHINE
    ),
    *columns("runner", "describes",
        ("throttled_s", "s", "number", "time for which a CPU quota (cgroup) stopped the run, since the rows before"),
        ("throttled_share", "1", "number", "throttled_s as a share of that time, at most 1 (several CPUs add up)"),
        ("host_foreign_share", "1", "number", "the share of all CPU time that other programs took since then"),
    ),
    *columns("vm", "describes",
        ("host_load1", "1", "number", "the load average of the lab VM's host"),
        ("host_waiting_share", "1", "number", "the share of its time that the lab VM waited for a CPU of the host"),
    ),
    *columns("throughput", "describes",
        ("phase", "", "text", "what a trial is for: delay, calibration, search, cost, latency …; warm-up, ramp, hold"),
        ("exceed_ratio", "1", "number", "the share of trials that may exceed the loss goal"),
        ("trial_s", "s", "number", "the length of a trial"),
        ("trial_frames_count", "1", "integer", "frames of a trial of the search; null: as many as its time gives"),
        ("sum_s", "s", "number", "the total trial time that decides whether a load passes"),
        ("line", "", "text", "the arithmetic of the line's greatest frame rate"),
        ("datapath_scheduling", "", "text", "how the datapath runs: fifo (polling threads: nice -20) or normal"),
        ("latency_clock", "", "text", "where a probe's send time was taken: kernel, sender or trex"),
    ),
    *columns("throughput", "measures",
        ("frame_bytes", "byte", "number", "the mean frame length; headers: the frame without the tunnel"),
        ("requested_pps", "1/s", "number", "frames per second that the generator was to send; null: as many as it can"),
        ("offered_pps", "1/s", "number", "frames per second that it really offered: offered_count divided by the time"),
        ("sent_burst_frames", "1", "number", "frames that left a sender back to back, on average; null: unknown"),
        ("offered_count", "1", "integer", "frames that the generator offered to the first hop"),
        ("received_frames_count", "1", "integer", "frames of the trial that arrived"),
        ("received_by", "", "object", "frames of the trial that arrived, by receiver"),
        ("hops", "", "object", "frames that the ends' interfaces counted meanwhile, which includes other traffic"),
        ("loss_ratio", "1", "number", "the share of the offered frames that did not arrive"),
        ("passes", "", "list", "the rate of each pass in 1/s: the result is their geometric mean, or the middle one"),
        ("lower_bound_pps", "1/s", "number", "the search's lower bound of the throughput; of passes: their mean"),
        ("upper_bound_pps", "1/s", "number", "the search's upper bound of the throughput; of passes: their mean"),
        ("constant_loss_ratio", "1", "number", "the share lost on average, if even the lowest loads lose more"
         " than the goal; else null"),
        ("max_pps", "1/s", "number", "the greatest rate that the search tried"),
        ("trials_count", "1", "integer", "trials of the search"),
        ("repeated_count", "1", "integer", "trials that were repeated because the machine disturbed them"),
        ("disturbed_count", "1", "integer", "trials that stayed disturbed"),
        ("search_s", "s", "number", "how long the search took"),
        ("slip_s", "s", "number", "how far the generator's schedule fell behind"),
        ("datapath_wait_s", "s", "number", "how long the busiest waiting thread of the datapath waited for a CPU"),
        ("datapath_cpu_s", "s", "number", "CPU time of the datapath's processes"),
        ("generator_cpu_s", "s", "number", "CPU time of the generator"),
        ("cpu_per_packet_s", "s", "number", "CPU time of the whole host (of two: the clients') per frame that arrived"),
        ("softnet_drops_count", "1", "integer", "packets dropped because the backlog of a CPU was full"),
        ("socket_drops_count", "1", "integer", "packets dropped at packet sockets"),
        ("drops", "", "object", "drops by interface or place"),
        ("upcalls_count", "1", "integer", "packets without a datapath flow, in the trial and its repeats"),
        ("megaflows_count", "1", "integer", "flows in the switch's datapath after the trial"),
        ("masks_count", "1", "integer", "different masks of these flows; null: more than 5,000 flows"),
        ("probes_sent_count", "1", "integer", "latency probes that were sent"),
        ("probes_lost_count", "1", "integer", "latency probes that did not arrive"),
        ("latency_mean_s", "s", "number", "the mean latency of probes; TRex's: exponentially weighted (1/2)"),
        ("duplicated_count", "1", "integer", "latency probes that arrived more than once"),
        ("histogram", "", "text", "one-way latencies in ns: HDR histogram V2, zlib, base64; not latency_histogram"),
    ),
    *columns("trex", "parametrises",
        ("mult", "1", "number", "connections per second in multiples of the profile's own", "mult {:g}".format),
        use="group",
    ),
    *columns("trex", "describes",
        ("trex", "", "text", "the version of the TRex server"),
        ("trex_server", "", "text", "where the TRex server listens"),
        ("ended", "", "text", "why the load test ended"),
        ("senders_count", "1", "integer", "ports, or ends, that send"),
        ("line_pps", "1/s", "number", "frames of this length per second that fill the line, in one direction"),
    ),
    *columns("trex", "measures",
        ("connections_count", "1", "integer", "connections that were established"),
        ("connection_rate", "1/s", "number", "connections that were established per second of wall time"),
        ("active_connections_count", "1", "number", "connections that were open at the last reading"),
        ("connection_errors_count", "1", "integer", "dropped connections, and packets that belong to no connection"),
        ("ring_drops_count", "1", "integer", "frames that arrived and that TRex's own receive ring dropped (ierrors)"),
        ("refused_count", "1", "integer", "frames that TRex's interface did not take (oerrors)"),
        ("trex_cpu_share", "1", "number", "how many CPUs the process of labkit's own TRex server used"),
        ("latency_buckets", "", "object", "probes by the lower edge of their latency's bucket in microseconds"),
    ),
    *columns("reader", "measures",
        ("cpu_per_sent_s", "s", "number", "CPU time of the whole host per frame sent, until the reader is done"),
        ("reader_cpu_s", "s", "number", "CPU time of the reader's processes; null: no reader"),
        ("reader_start_s", "s", "number", "how long the reader took until it captured"),
        ("reader_late_s", "s", "number", "how long the reader was still busy, counted from 1.2 s after the last frame"),
        ("reader_taken_count", "1", "integer", "packets that the reader took, by its own count"),
        ("reader_dropped_count", "1", "integer", "packets that the reader knows it lost"),
        ("wanted_count", "1", "integer", "frames of the flow that the reader looks for"),
        ("wanted_found_count", "1", "integer", "frames of that flow that the reader found; null: it does not look"),
        ("wanted_received_count", "1", "integer", "frames of that flow that arrived, counted at the receiving end"),
        ("wanted_throughput_pps", "1/s", "number", "frames of that flow that arrived per second"),
    ),
    *columns("options", "parametrises",
        ("datapath", "", "text", "the switch's datapath: system (the kernel), netdev (ovs-vswitchd) or dpdk"),
        *((one.column or name, one.unit, one.type, one.help) for name, one in OPTIONS.items()),
    ),
    *columns("observation", "identifies",
        ("packet", "1", "integer", "path: the packet's number, from 0"),
        ("position", "1", "integer", "path: the number of this sighting of the packet, from 0"),
        ("hop", "", "text", "path: where the packet was seen, namespace:interface"),
        ("namespace", "", "text", "path: the network namespace of the hop"),
        ("interface", "", "text", "path: the interface of the hop"),
    ),
    *columns("observation", "measures",
        ("layers", "", "list", "headers: the tunnel's headers; path: the packet's headers, from the outside in"),
        ("what", "", "text", "path: what the packet is, in words"),
        ("time_s", "s", "number", "path: the time since the packet's first sighting; load test: when the step began"),
        ("time_ns", "ns", "integer", "path: the kernel's time of the sighting, since 1970"),
        ("stack", "", "text", "path: the packet's headers in one line"),
        ("dropped_count", "1", "integer", "path: packets that the capture dropped at the hop"),
        ("skipped_count", "1", "integer", "path: packets at the hop that were beyond the limits of the capture"),
    ),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}


@functools.cache
def added(experiment: str | None = None) -> dict[str, Column]:
    """Return the columns that packages add, by name: each entry point of `labkit.columns` is a tuple of them.

    `experiment`: only those of the entry point with its name, which are in all tables of the experiment. Raises Failed
    for a column that is there already, or that would change what is compared.
    """
    result: dict[str, Column] = {}
    for point, entry in extensions.names("labkit.columns", ()).items():
        if experiment not in (None, point):
            continue
        for one in extensions.load(entry, tuple):
            if not isinstance(one, Column) or one.use or one.name in BY_NAME or one.name in result:
                what = "is no Column, has a `use`, or has the name of another column: repair or remove the package"
                raise Failed(f"{getattr(one, 'name', one)} of {point} (labkit.columns) {what}")
            result[one.name] = one
    return result


def described(names: Iterable[str]) -> dict[str, Column]:
    """Return those of these columns that are known, in the order of the schema, by name.

    Packages are asked only for what labkit itself does not know.
    """
    there = set(names)
    known = BY_NAME if there <= BY_NAME.keys() else BY_NAME | added()
    return {name: column for name, column in known.items() if name in there}


def latency_text(name: str) -> str:
    """Return the name of a percentile as a person writes it: p99.9 for p999, any other one as it is."""
    return name.replace("p999", "p99.9")


def names(
    *, writer: tuple[str, ...] = (), role: tuple[Role, ...] = (), use: Use | None = None, type: tuple[Type, ...] = ()
) -> list[str]:  # fmt: skip
    """Return the names of the columns that match all given criteria, in the order of COLUMNS."""
    return [
        one.name
        for one in COLUMNS
        if (not writer or one.writer in writer)
        and (not role or one.role in role)
        and (use is None or one.use == use)
        and (not type or one.type in type)
    ]


def with_doubts(row: Mapping[str, Any], *doubts: str | None) -> dict[str, Any]:
    """Return the row with these doubts added to its own; None is none."""
    return {**row, "doubts": "; ".join(filter(None, [row.get("doubts"), *doubts])) or None}
