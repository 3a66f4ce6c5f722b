"""Map kernel functions to code paths with names from the field.

A cause in a profile gets its name from here, and settings that differ are matched with the code that they change.
Function names are those of Linux 5.10 to 6.18. A function belongs to the first entry of PATHS that matches it, so
special entries stand before general ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

DROPPING = "dropping packets"


@dataclass(frozen=True)
class Path:
    """A code path of the kernel.

    name: what the code does. functions: matches the names of its functions. settings: matches the names and values of
    the settings that change it (labkit.system.machine.settings). depends_on_timing: whether how
    often the code runs depends on when and on which CPUs the scheduler runs the programs; then its appearance says
    nothing about a cause. interface: whether it is the code of a kind of interface, whose callees count as part of it.
    observes: whether the code runs only where a program observes packets or functions. Packets of other programs do not
    bring such code with them. Any program can switch it on for the whole machine, as a static key (netstamp_needed_key
    for timestamps, net/core/dev.c), which the kernel shows nobody.
    """

    name: str
    functions: re.Pattern[str]
    settings: re.Pattern[str]
    depends_on_timing: bool = False
    interface: bool = False
    observes: bool = False

    @property
    def plural(self) -> bool:
        """Return whether the name is a plural, so that a sentence has the right verb."""
        head = self.name.partition(" (")[0]
        last = ("s in software", "rules", "sockets", "hooks", "timestamps of packets")
        return " and " in head or head.endswith(last)


def _path(
    name: str,
    functions: str,
    settings: str = r"(?!)",
    depends_on_timing: bool = False,
    interface: bool = False,
    observes: bool = False,
) -> Path:
    pattern = re.compile(rf"(?:{functions})(?:\..*)?")
    return Path(name, pattern, re.compile(settings), depends_on_timing, interface, observes)


# Code that runs only where somebody set it up. The work of other programs does not make the experiment call it.
SET_UP = (
    _path("a probe in a program (uprobe)", r"uprobe_.*|uretprobe_.*|__uprobe_.*|handle_swbp|.*_uprobe(_.*)?"
          r"|arch_uretprobe_.*|pre_ssout", r"uprobe events|\bu(ret)?probe\b", observes=True),
    # A kprobe of perf or tracefs and a BPF program on a function or LSM hook share this code; the settings tell them
    # apart.
    _path("a probe on a function (kprobe or fentry)", r"kprobe_.*|kretprobe_.*|.*_kprobe|aggr_pre_handler"
          r"|opt_pre_handler|optimized_callback|bpf_trampoline.*|__bpf_prog_enter.*|__bpf_prog_exit.*|arch_rethook.*"
          r"|rethook_.*|bpf_fprobe_.*|fprobe_.*", r"BPF program (kprobe|tracing|lsm)|kprobe events", observes=True),
    _path("a BPF program on a tracepoint", r"trace_call_bpf|bpf_trace_run\d+|__bpf_trace_.*",
          r"BPF program (tracepoint|raw_tracepoint)", observes=True),
    # Every perf event on a tracepoint runs perf_trace_run_bpf_submit, with a BPF program or without one.
    _path("recording of tracepoints (perf)", r"perf_tp_event.*|perf_swevent_(event|overflow)|perf_trace_.*"
          r"|perf_syscall_(enter|exit)", observes=True),
    _path("recording of trace events (tracefs)", r"trace_event_raw_event_.*|trace_event_buffer_.*|ftrace_syscall_.*",
          r"trace events", observes=True),
    # Each sample of a profile runs it, so only another profile beside labkit's own makes a difference.
    _path("sampling (perf)", r"perf_swevent_hrtimer|__perf_event_overflow|perf_event_(overflow|output).*"
          r"|perf_prepare_sample|perf_callchain.*|get_perf_callchain|perf_output_.*",
          r"perf_event_max_(stack|contexts)|perf events of", observes=True),
    _path("kernel debugging (KASAN, KCSAN, lockdep)", r"_?_?kasan_.*|__asan_.*|_?_?kcsan_.*|__tsan_.*"
          r"|lock_(acquire|release)|__lock_(acquire|release)|lockdep_.*|debug_object_.*|debug_lock.*"),
    _path("a function tracer", r"ftrace_(?!regs_).*|function_trace_call|function_graph_.*|trace_function"
          r"|trace_graph_.*|prepare_ftrace_return|return_to_handler|ring_buffer_.*", r"^tracer:", observes=True),
    # veth calls veth_xdp_rcv* for GRO as well, so these functions do not show an XDP program.
    _path("an XDP program", r"bpf_prog_run_generic_xdp|do_xdp_generic|netif_receive_generic_xdp|xdp_do_.*"
          r"|generic_xdp_.*|bpf_prog_run_xdp|bpf_xdp_redirect|bpf_dispatcher_xdp.*|veth_convert_skb_to_xdp_buff"
          r"|veth_xdp_(tx|flush).*|skb_pp_cow_data|skb_cow_data_for_xdp", r"\bxdp\b"),
    _path("the BPF interpreter", r"___bpf_prog_run|__bpf_prog_run\d+", r"bpf_jit_enable"),
    _path("redirecting by BPF", r"skb_do_redirect|_*bpf_redirect\w*|bpf_out_neigh_v[46]|__bpf_tx_skb"),
    _path("a filter of traffic control (tc)", r"ifb_.*|tcf_.*|cls_bpf_.*|tcx_run|sch_handle_(in|e)gress|u32_classify"
          r"|fl_classify|basic_classify|mall_classify|__tcf_.*",
          r"\bfilters? (ingress|egress|root)|clsact|ingress ffff|BPF program sched_(cls|act)"),
    _path("a socket or cgroup BPF program", r"__cgroup_bpf_.*|sk_filter_trim_cap|bpf_prog_run_save_cb|cgroup_bpf_.*"
          r"|bpf_prog_run_array_cg|bpf_sk_lookup_.*|bpf_flow_dissect.*|tcp_bpf_.*|sk_psock_.*|bpf_skops_.*",
          r"BPF program (cgroup|socket_filter|sock_ops|sk_|flow_dissector)"),
    _path("connection tracking", r"nf_conntrack_.*|nf_ct_.*|__nf_conntrack_.*|__nf_ct_.*|resolve_normal_ct"
          r"|ipv4_conntrack_.*|ipv6_conntrack_.*|nf_confirm|ipv4_confirm|nf_conncount_.*|nf_synproxy_.*|synproxy_.*"
          r"|(hash|init|early_drop)_conntrack.*|early_drop(_list)?|get_l4proto|gc_worker",
          r"conntrack|\bct state|nf_ct"),
    _path("address translation (NAT)", r"nf_nat_.*|__nf_nat_.*|nft_nat_.*", r"nftables .*nat\b|\bip6?tables nat"),
    _path("logging of packets (netfilter)", r"nf_log_.*|nft_log_.*|nfulnl_.*|__nfulnl_.*"),
    _path("the queue to a program (NFQUEUE)", r"nfqnl_.*|__nfqnl_.*|nf_reinject|nf_queue.*|nft_queue_.*",
          r"module nfnetlink_queue"),
    _path("a flow table (nftables)", r"nf_flow_.*|flow_offload_.*|nft_flow_offload_.*", r"flow_?table|flow_offload"),
    _path("packet filter rules (nftables)", r"nft_.*|nf_tables_.*|__nft_.*|pipapo_.*", r"nftables"),
    _path("packet filter rules (iptables)", r"ipt_.*|ip6t_.*|xt_.*|iptable_.*|ip6table_.*|ip_set_.*"
          r"|hash_(ip|net|mac)\w*|set_match_.*|\w+_(mt|tg)\d?(_v\d+)?", r"module ip_set|\bip6?tables"),
    _path("packet filter rules (ebtables and arptables)", r"ebt_.*|ebtable_.*|arpt_.*|arptable_.*",
          r"\b(arp|eb)tables|module (eb|arp)t"),
    _path("load balancing (IPVS)", r"ip_vs_.*|__ip_vs_.*", r"ip_vs|\bvs\."),
    _path("netfilter on bridged packets", r"br_nf_.*|br_netfilter.*", r"bridge-nf|nf_call_|module br_netfilter"),
    # Any module registers netfilter hooks: alone they do not show which.
    _path("netfilter hooks", r"nf_hook.*|nf_tproxy_.*|nf_socket_.*",
          r"BPF program netfilter|module ((nf|nft|xt|ipt|ip6t)_|ip6?_?tables)"),
    _path("a packet capture", r"packet_rcv.*|tpacket_.*|dev_queue_xmit_nit|prb_.*|packet_recvmsg|run_filter"
          r"|skb_clone_tx_timestamp", r"packet sockets|promiscuity", observes=True),
    _path("the reverse path check", r"__?fib_validate_source|fib_validate_source|l3mdev_update_flow.*",
          r"rp_filter|src_valid_mark|accept_local"),
    _path("fragmentation", r"ip_do_fragment|ip_fragment.*|ip(v?6)?_(frag_.*|defrag)|inet_frag_.*|ip6_fragment"
          r"|ip_finish_output_gso", r"\bmtu\b|ip6?frag|length_bytes|mtu_bytes"),
    _path("segmentation in software", r"skb_segment.*|__skb_gso_segment|skb_gso_segment|skb_mac_gso_segment"
          r"|(inet|ipv6)_gso_segment|tcp[46]?_gso_segment|__udp_gso_segment|udp[46]_ufo_fragment|validate_xmit_skb.*"
          r"|skb_udp_segment|__udp(v[46])?_gso_segment_list_csum",
          r"segmentation-offload|offload .*(segmentation|scatter-gather)|gso_max|tso_max|gso_min"),
    _path("polling in a thread (threaded NAPI)", r"napi_thread.*", r"\bthreaded\b"),
    _path("merging received segments (GRO)", r".*_gro_receive|napi_gro_.*|dev_gro_.*|gro_.*|skb_gro_.*"
          r"|.*_gro_complete|inet_gro_.*", r"receive-offload|(?<![a-z])gro(?!up)"),
    _path("veth's own receive queue (of GRO or XDP)", r"veth_poll|veth_xdp_rcv.*", r"offload generic-receive|\bxdp\b"),
    _path("checksums in software", r"csum_partial.*|skb_checksum.*|__skb_checksum.*|do_csum|csum_and_copy.*"
          r"|skb_copy_and_csum.*|ip_compute_csum|udp[46]?_csum.*|csum_.*_copy.*", r"offload .*checksum|udp_csum"),
    _path("receive packet steering (RPS) to another CPU", r"get_rps_cpu|net_rps_.*|rps_.*", r"rps_|xps_|rfs"),
    _path("an IPsec policy", r"xfrm_.*|esp_.*|esp6_.*|ah_.*|__xfrm.*", r"XFRM|xfrm"),
    _path("MACsec", r"macsec_.*", r"info_kind:.*\bmacsec\b|module macsec", interface=True),
    _path("a tunnel", r"vxlan_.*|geneve_.*|(ip6)?gre_.*|gretap_.*|ip6?ip6?_.*|ip4ip6_.*|sit_.*|iptunnel_.*"
          r"|ip6?_(tunnel|tnl)_.*|udp_tunnel6?_.*|wg_.*|gue_.*|fou_.*",
          r"info_kind:.*\b(vxlan|geneve|(ip6)?gre(tap)?|ipip|ip6tnl|sit|wireguard)\b", interface=True),
    _path("a tunnel of a route (lightweight tunnel)", r"lwtunnel_.*|bpf_lwt_.*|bpf_(xmit|output)|seg6_.*|mpls_.*",
          r"\bencap |BPF program lwt|seg6|mpls"),
    # Only the tunnel that calls it shows what is encrypted.
    _path("encryption", r"crypto_.*|aead_.*|gcm.*|aesni?_.*|chacha.*|poly1305.*|ghash.*|_?aes_.*"),
    _path("an emulated link (netem)", r"netem_.*", r"netem"),
    _path("a rate limit (traffic shaping)", r"tbf_.*|htb_.*|hfsc_.*|cake_.*|police_.*|tcf_police.*|qfq_.*|cbs_.*",
          r"qdisc.*(tbf|htb|hfsc|cake|police)|maxrate|traffic classes"),
    _path("a queueing discipline", r"fq_.*|pfifo_.*|sfq_.*|codel_.*|prio_.*|drr_.*|red_.*|pie_.*|mq_.*|noop_.*"
          r"|(mqprio|taprio|etf|ets|hhf|choke|sfb|plug|skbprio|multiq|gred|dualpi2)_.*|sch_direct_xmit|__qdisc_run"
          r"|qdisc_.*|__dev_xmit_skb|dev_qdisc_.*|dequeue_skb|bfifo_.*|tfifo_.*|net_tx_action|__netif_schedule",
          r"qdisc|txqlen|tx_queue_len"),
    _path("the bridge", r"br_.*|__br_.*|nbp_.*", r"bridge|info_data|stp|vlan_filtering|VLANs", interface=True),
    _path("a VLAN interface", r"vlan_dev_.*|vlan_do_receive|vlan_skb_.*", r"info_kind:.*\bvlan\b", interface=True),
    _path("a bond of interfaces", r"bond_.*|__bond_.*|team_.*", r"info_kind:.*\b(bond|team)\b", interface=True),
    _path("a VRF", r"vrf_.*|l3mdev_l3_.*", r"info_kind:.*\bvrf\b|l3mdev_accept", interface=True),
    _path("macvlan", r"macvlan_.*|macvtap_.*", interface=True),
    _path("ipvlan", r"ipvlan_.*|ipvl_.*", interface=True),
    _path("Open vSwitch", r"ovs_.*|do_execute_actions|masked_flow_lookup", interface=True),
    _path("a TAP device", r"tun_.*|tap_.*|vhost_.*|virtnet_.*|virtqueue_.*", interface=True),
    _path("an audit, security or system call filter", r"security_.*|apparmor_.*|selinux_.*|aa_.*|smack_.*|seccomp_.*"
          r"|__seccomp_.*|audit_.*|__audit_.*|syscall_trace_enter|syscall_exit_work|ptrace_.*|bpf_lsm_.*",
          r"[sS]eccomp|audit|lsm"),
    _path("timestamps of packets", r"net_enable_timestamp|__net_timestamp|skb_tstamp_tx|__skb_tstamp_tx"
          r"|sock_recv_timestamp|__sock_recv_timestamp|sock_.*timestamp.*", r"tstamp|timestamp", observes=True),
)  # fmt: skip
PATHS = (
    *SET_UP,
    _path("page allocation", r"__?alloc_pages.*|alloc_pages_.*|__alloc_frozen_pages.*|get_page_from_freelist"
          r"|rmqueue.*|__rmqueue.*|skb_page_frag_refill|sk_page_frag_refill|page_frag_.*|__page_frag_.*|free_unref_.*"
          r"|__free_pages.*|free_frozen_.*|free_pcppages_.*|__free_frozen.*|prep_new_page|page_pool_.*"
          r"|alloc_skb_with_frags|__alloc_skb|alloc_frozen_pages.*|clear_page.*|__folio_put|put_page|skb_release_.*"
          r"|___free_pages.*", r"high_order_alloc|min_free_kbytes|transparent huge|zone_reclaim|percpu_pagelist"
          r"|optmem|memory\.(max|high|limit)|watermark|page_lock|compaction"),
    _path(DROPPING, r"kfree_skb(_reason|_list.*)?|(__)?sk_skb_reason_drop|.*_skb_drop|drop_monitor.*|net_dm_.*"
          r"|trace_kfree_skb_hit|trace_drop_common",
          r"core\.[rw]mem|udp_[rw]?mem|max_backlog|qdisc|police|txqlen|tx_queue_len", depends_on_timing=True),
    _path("the slab allocator", r"kmem_cache_.*|__kmem_.*|kmalloc_.*|__kmalloc.*|kfree|___slab_.*|__slab_.*|slab_.*"
          r"|build_skb.*|skb_free_head|kfree_skbmem|kfree_skb_partial|consume_skb|napi_alloc_.*",
          r"slab|mem_pcpu_rsv|skb_defer"),
    _path("copying data", r"copy_.*|_copy_.*|rep_movs.*|memcpy.*|__memcpy.*|__pi_memcpy|skb_copy_.*"
          r"|__skb_datagram_iter|csum_and_copy.*|pskb_copy.*|skb_copy|__pskb_.*|pskb_expand_head|simple_copy_to_iter"
          r"|ip_generic_getfrag|raw_copy_.*|zerocopy_.*|skb_splice.*|memmove.*", r"zerocopy|length_bytes|copybreak"),
    _path("TCP congestion control and pacing", r"bictcp_.*|cubictcp_.*|bbr_.*|tcp_reno_.*|dctcp_.*|tcp_cong_.*"
          r"|tcp_pace_.*|tcp_update_pacing_rate|tcp_vegas_.*|tcp_cdg_.*|htcp_.*|hybla_.*|westwood_.*",
          r"congestion|pacing|tcp_.*cubic|BPF program struct_ops (?!scx)"),
    # Which segments are lost depends on when programs run, so this is what another cause has done.
    _path("retransmission and loss recovery", r"tcp_retransmit.*|__tcp_retransmit.*|tcp_fastretrans.*|tcp_sacktag_.*"
          r"|tcp_rack_.*|tcp_enter_.*|tcp_xmit_retransmit.*|tcp_rearm_rto|tcp_send_loss_probe|tcp_ofo_queue"
          r"|tcp_data_queue_ofo|tcp_write_timer.*", r"tcp_(sack|dsack|recovery|early_retrans|retries)",
          depends_on_timing=True),
    # A receiver that reads too slowly fills its buffer as well, so only a setting says more.
    _path("a full receive buffer of TCP", r"tcp_collapse.*|tcp_prune.*|tcp_clamp_window|tcp_try_rmem_schedule"
          r"|tcp_can_ingest", r"tcp_r?mem|core\.rmem|adv_win_scale|moderate_rcvbuf", depends_on_timing=True),
    _path("the search for a socket", r"(__)?udp[46]_lib_lookup.*|(__)?inet6?_lookup.*|(inet|udp)6?_ehashfn"
          r"|(udp|tcp)_v[46]_early_demux|reuseport_.*|ip6?_rcv_finish_core",
          r"early_demux|reuseport|hash_entries"),
    _path("routing", r"(__)?fib[46]?_.*|ip6?_route_.*|rt6?_.*|(__)?find_rr_leaf|ip6_pol_.*|__mkroute_.*"
          r"|inet_lookup.*route", r"routes|number of rules|^rules\b|rules \d|route"),
    _path("neighbour resolution", r"neigh_.*|__neigh_.*|arp_.*|ndisc_.*", r"neigh|arp_"),
    _path("memory accounting of sockets", r"__sk_mem_.*|sk_mem_.*|__udp_enqueue_schedule_skb|udp_rmem_.*"
          r"|mem_cgroup_.*|__mem_cgroup_.*|try_charge.*|refill_stock|sock_rfree|sock_wfree|tcp_mem.*|sk_forced_mem.*",
          r"(tcp|udp)_mem|memory\.(max|high|(kmem\.tcp\.)?limit)|rmem|wmem"),
    _path("busy polling", r"napi_busy_loop.*|sk_busy_loop.*|__napi_busy_loop|busy_poll.*",
          r"busy_(poll|read)|napi_defer|gro_flush"),
    _path("a scheduler of BPF (sched_ext)", r"scx_.*|bpf_scx_.*|.*_scx", r"BPF program struct_ops"),
    _path("waking programs and switching between them", r"try_to_wake_up|ttwu_.*|wake_up_.*|__wake_up.*"
          r"|default_wake_function|schedule|__schedule|pick_next_.*|enqueue_task.*|dequeue_task.*|sock_def_readable"
          r"|sock_def_write_space|ep_poll.*|autoremove_wake_function|woken_wake_function|pollwake|schedule_.*"
          r"|select_task_rq.*|sched_.*|update_curr.*|enqueue_entity|dequeue_entit.*|do_sched_.*|place_entity|psi_.*"
          r"|context_switch|switch_.*|reweight_entity|load_balance.*|newidle_balance|preempt_schedule.*"
          r"|poll_schedule_timeout|prepare_to_wait.*|finish_wait|(add|remove)_wait_queue.*"
          r"|__skb_wait_for_more_packets|sk_wait_data|wait_woken|sk_stream_wait_.*|sock_wait_for_wmem|yield_.*"
          r"|(un)?throttle_cfs.*|.*_cfs_rq_runtime|.*_cfs_bandwidth.*", r"kernel\.sched|scheduler "
          r"|CPUs (allowed|online|isolated)|\bnice\b|scheduling|affinity|preemption|numa|cgroup .*cpu(\.|set)",
          depends_on_timing=True),
    _path("waiting for events (select, poll, epoll)", r"do_select|core_sys_select|do_pselect.*|__x64_sys_pselect6"
          r"|do_sys_poll|poll_freewait|sock_poll|(tcp|udp|datagram)_poll|do_epoll.*|ep_.*|__pollwait", r"rmem"
          r"|streams", depends_on_timing=True),
    _path("reading the clock", r"read_hpet|acpi_pm_read|pvclock_.*|clock_gettime.*|__vdso_.*|posix_get_.*"
          r"|__x64_sys_clock_gettime|do_hres.*", r"clocksource"),
    _path("interrupts and idle CPUs", r"asm_sysvec_.*|sysvec_.*|irq_.*|__irq_.*|hrtimer_.*|tick_.*|do_idle|cpuidle_.*"
          r"|haltpoll.*|__sysvec_.*|default_idle.*|cpu_startup_entry|timer_.*|run_timer.*|native_apic_.*|pv_.*|kvm_.*"
          r"|enter_from_.*|x2apic_.*|.*smp_call_function.*|csd_.*|generic_exec_single|.*call_function_single_ipi"
          r"|.*send_IPI.*",
          r"idle driver|haltpoll|cpuidle|timer_migration|nohz|governor|turbo|boost|SMT|perf_pct|energy_",
          depends_on_timing=True),
    # Packets wait there while a program has the socket locked.
    _path("the backlog of a socket", r"(__)?release_sock|(__)?sk_backlog_rcv|(__)?lock_sock.*|tcp_add_backlog",
          depends_on_timing=True),
    _path("Multipath TCP", r"mptcp_.*|__mptcp_.*", r"mptcp"),
    _path("TCP's acknowledgements and segments", r"tcp_.*|__tcp_.*",
          r"tcp_|mss_bytes|streams|\bmtu\b|mtu_bytes|^(parameter )?family"),
    _path("UDP", r"udpv?6?_.*|__udp.*", r"^(parameter )?family"),
    _path("IP", r"(__)?ip(v?6)?_.*|inet6?_.*", r"net\.ipv[46]\.ip_|^(parameter )?family"),
    _path("the virtual cable (netkit)", r"netkit_.*", r"info_kind:.*\bnetkit\b"),
    _path("the virtual cable (veth)", r"veth_.*", r"info_kind:.*\bveth\b"),
    _path("the backlog of received packets", r"process_backlog|enqueue_to_backlog|__?netif_rx.*|__napi_poll"
          r"|net_rx_action|napi_.*|flush_backlog|__netif_receive_skb.*|netif_receive_skb.*",
          r"netdev_max_backlog|netdev_budget|dev_weight|flow_limit|threaded|backlog_threaded"),
    _path("sending to an interface", r"__?dev_queue_xmit.*|xmit_one.*|dev_.*|netdev_.*"),
    _path("sockets", r"sock_.*|__sock_.*|sk_.*|__sk_.*|__sys_(send|recv).*|___sys_.*|skb_.*|__skb_.*"),
)  # fmt: skip
# Helpers that code calls everywhere. They do not identify a cause; their callers do.
HELPERS = re.compile(
    r"_?_?_?raw_.*(lock|unlock).*|native_queued_spin_.*|queued_spin_.*|mutex_.*|__?rcu_.*|rcu_.*|__local_bh_.*"
    r"|local_bh_.*|do_softirq.*|__do_softirq|handle_softirqs|irq_exit.*|exit_to_user_mode.*|syscall_.*"
    r"|entry_SYSCALL.*|do_syscall_64|finish_task_switch.*|__x64_sys_.*|x64_sys_call|asm_.*|read_tsc|ktime_.*"
    r"|kvm_clock_.*|memset.*|__memset.*|all|invoke_syscall|ksys_.*|vfs_.*|el0.*|__pi_.*|srso_.*|__x86_.*|retbleed.*"
    r"|list_.*|strlen|memcmp|__fentry__|\[.*\]|migrate_.*able|__cond_resched|preempt_count_.*|__preempt_.*"
    r"|ret_from_fork.*|kthread|worker_thread|process_one_work|process_scheduled_works|kthread_worker_fn"
    r"|smpboot_thread_fn|common_startup_64|secondary_startup_64.*|start_secondary|x86_64_start_\w+|start_kernel"
    r"|rest_init|__pfx_\w+"
)


def path_of_function(name: str) -> Path | None:
    """Return the path that a function belongs to, or None if it is unknown."""
    return next((path for path in PATHS if path.functions.fullmatch(name)), None)


def path_of_functions(names: Iterable[str]) -> Path | None:
    """Return the most specific path that any of the functions belongs to, or None."""
    result = {path.name for path in map(path_of_function, names) if path is not None}
    return next((path for path in PATHS if path.name in result), None)


def paths_of_setting(text: str) -> list[Path]:
    """Return the paths that a setting changes. `text` has the setting's name and values."""
    return [path for path in PATHS if path.settings.search(text)]
