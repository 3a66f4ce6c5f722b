"""Kernel functions and settings get the names of their code paths.

The stacks are those of Linux 6.1 to 6.12 with the named cause, outermost first, from the new function on.
"""

from labkit.analysis.why import code_paths
from labkit.analysis.why.environment import Setting

GRO = "merging received segments (GRO)"
PROBE = "a probe on a function (kprobe or fentry)"
SCHEDULER = "waking programs and switching between them"
VETH = "veth's own receive queue (of GRO or XDP)"


def test_path_of_functions() -> None:
    for functions, path in (
        ("nf_hook_slow nft_do_chain_inet nft_do_chain", "packet filter rules (nftables)"),
        ("nf_hook_slow ipt_do_table", "packet filter rules (iptables)"),
        ("nf_hook_slow ebt_do_table", "packet filter rules (ebtables and arptables)"),
        ("nf_hook_slow br_nf_pre_routing setup_pre_routing", "netfilter on bridged packets"),
        ("nf_hook_slow nf_conntrack_in", "connection tracking"),
        ("nf_hook_slow hook_of_some_module", "netfilter hooks"),
        ("perf_trace_net_dev_template perf_trace_run_bpf_submit perf_tp_event", "recording of tracepoints (perf)"),
        ("perf_trace_net_dev_template trace_call_bpf bpf_prog_1_a", "a BPF program on a tracepoint"),
        ("ftrace_call function_trace_call trace_function ring_buffer_lock_reserve", "a function tracer"),
        ("kprobe_ftrace_handler kprobe_dispatcher kprobe_trace_func trace_event_buffer_reserve", PROBE),
        ("bpf_trampoline_123 bpf_prog_1_a", PROBE),
        ("veth_poll veth_xdp_rcv veth_xdp_rcv_skb", VETH),
        ("veth_poll veth_xdp_rcv veth_xdp_rcv_skb veth_convert_skb_to_xdp_buff", "an XDP program"),
        ("do_xdp_generic netif_receive_generic_xdp bpf_prog_run_generic_xdp", "an XDP program"),
        ("sch_handle_ingress tcx_run bpf_prog_1_to_port1 bpf_redirect_peer skb_do_redirect", "redirecting by BPF"),
        ("fib_validate_source", "the reverse path check"),
        ("br_handle_frame", "the bridge"),
        ("get_rps_cpu", "receive packet steering (RPS) to another CPU"),
        ("throttle_cfs_rq", SCHEDULER),
        ("uprobe_notify_resume handle_swbp uprobe_dispatcher uprobe_perf_func trace_call_bpf",
         "a probe in a program (uprobe)"),

        ("macsec_start_xmit macsec_encrypt crypto_aead_encrypt gcmaes_crypt_by_sg", "MACsec"),
        ("net_timestamp_check __net_timestamp", "timestamps of packets"),
        ("wg_xmit wg_packet_encrypt_worker chacha20poly1305_encrypt", "a tunnel"),
        ("nf_hook_slow nft_do_chain nft_queue_eval nf_queue nfqnl_enqueue_packet", "the queue to a program (NFQUEUE)"),
        ("nf_hook_slow nf_flow_offload_inet_hook nf_flow_offload_ip_hook flow_offload_lookup",
         "a flow table (nftables)"),
        ("sch_handle_ingress tcf_classify mall_classify tcf_police_act", "a filter of traffic control (tc)"),
        ("__cgroup_bpf_run_filter_skb bpf_prog_run_array_cg bpf_prog_1_a", "a socket or cgroup BPF program"),
        ("lwtunnel_xmit bpf_xmit bpf_prog_1_a", "a tunnel of a route (lightweight tunnel)"),
        ("vlan_dev_hard_start_xmit", "a VLAN interface"),
        ("fib_rules_lookup fib4_rule_match fib4_rule_action", "routing"),
        ("kasan_check_range", "kernel debugging (KASAN, KCSAN, lockdep)"),
        ("ktime_get read_hpet", "reading the clock"),
        ("___bpf_prog_run", "the BPF interpreter"),
        ("schedule __schedule perf_trace_sched_switch", "recording of tracepoints (perf)"),
        ("enqueue_task_scx do_enqueue_task", "a scheduler of BPF (sched_ext)"),
        ("release_sock __release_sock tcp_v4_do_rcv", "the backlog of a socket"),
        ("udp_mt", "packet filter rules (iptables)"),

        ("pipapo_refill", "packet filter rules (nftables)"),
        ("init_conntrack.constprop.0", "connection tracking"),
        ("tcp_collapse_one", "a full receive buffer of TCP"),
        ("tcp_rcv_established", "TCP's acknowledgements and segments"),
    ):  # fmt: skip
        result = code_paths.path_of_functions(functions.split())
        assert result.name == path


def test_ipv6_has_the_paths_of_ipv4() -> None:
    for functions in (
        "__udp4_lib_lookup __udp6_lib_lookup udp4_lib_lookup2 udp6_lib_lookup2", "udp_ehashfn udp6_ehashfn",
        "udp_v4_early_demux udp_v6_early_demux", "tcp_v4_early_demux tcp_v6_early_demux",
        "__inet_lookup_established __inet6_lookup_established", "inet_ehashfn inet6_ehashfn",
        "ip_rcv_finish_core ip6_rcv_finish_core", "__ip_append_data __ip6_append_data", "__ip_make_skb __ip6_make_skb",
        "__ip_local_out __ip6_local_out", "ip_defrag ipv6_defrag", "inet_gso_segment ipv6_gso_segment",
        "udp4_ufo_fragment udp6_ufo_fragment", "udp_unicast_rcv_skb udp6_unicast_rcv_skb",
        "rt_cache_route rt6_score_route", "udp4_csum_init udp6_csum_init", "ipip_tunnel_xmit ip6_tnl_xmit",
        "gre_rcv ip6gre_tunnel_xmit", "udp_tunnel_xmit_skb udp_tunnel6_xmit_skb",
    ):  # fmt: skip
        paths = {code_paths.path_of_function(name) for name in functions.split()}
        assert len(paths) == 1, functions
        assert None not in paths, functions


def test_paths_of_setting() -> None:
    for setting, paths in (
        ("tracer: nop function", {"a function tracer"}),
        ("trace events: absent net:netif_receive_skb", {"recording of trace events (tracefs)"}),
        ("cgroup level 2 cpu.max: max 100000 50000 100000", {SCHEDULER}),
        ("CPUs online: 0-3 0-1", {SCHEDULER}), ("veth offload generic-receive-offload: off on", {GRO, VETH}),
        ("veth gro_flush_timeout: 0 20000", {GRO, "busy polling"}), ("veth group: default 7", set()),
        ("nftables inet t chain: absent 3 rules, digest 12", {"packet filter rules (nftables)"}),
        ("xdp: none program of tag 12", {"an XDP program", VETH}),
        ("br promiscuity: 1 2", {"a packet capture"}), ("clocksource: kvm-clock tsc", {"reading the clock"}),
        ("sysctl net.core.bpf_jit_enable: 1 0", {"the BPF interpreter"}),
        ("number of rules: 60 2003", {"routing"}),
        ("BPF program struct_ops scx_simple: absent tag 12", {"a scheduler of BPF (sched_ext)"}),
        ("server linkinfo info_kind: vlan vxlan", {"a VLAN interface", "a tunnel"}),
    ):  # fmt: skip
        assert {path.name for path in code_paths.paths_of_setting(setting)} == paths


def test_relevant_settings() -> None:
    for name, relevant in (
        ("veth group", False),
        ("cgroup level 1 cpu.max", True),
        ("BPF program cgroup_device sd_devices", False),
        ("BPF program cgroup_skb sd_fw_ingress", True),
    ):
        assert Setting(name, "a", "b", ()).relevant == relevant
