"""`labkit why` names what mirrors of a switch cost, on made-up profiles of both datapaths."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic_rows
from synthetic_arms import MadeArm, concluded, within

from labkit.analysis import flame, load, why
from labkit.analysis.flame import processes
from labkit.analysis.why import environment, page, switch_work, work

PERIOD_S, ARRIVED = 1 / 997, 60_000
SENDING = "iperf3;do_syscall_64_[k];__sys_sendto_[k];udp_sendmsg_[k]"
SWITCH = "ovs-vswitchd;[ovs-vswitchd];entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k]"
RELAY = "passt.avx2;[unknown];entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k]"
SENDMMSG = f"{SWITCH};__sys_sendmmsg_[k];packet_snd_[k]"
SOFTIRQ = "ksoftirqd/0;net_rx_action_[k];process_backlog_[k]"
DATAPATH = f"{SOFTIRQ};ovs_dp_process_packet_[k];do_execute_actions_[k]"
USUAL = {
    SENDING: 3e-6,
    f"{SENDING};ip_output_[k];net_rx_action_[k];process_backlog_[k];packet_rcv_[k]": 2e-6,
    f"{SWITCH};__sys_recvmmsg_[k];packet_recvmsg_[k]": 1e-6,
    SENDMMSG: 2e-6,
    "ovs-vswitchd;[ovs-vswitchd]": 1e-6,
    "elsewhere;main": 1e-6,
    "swapper;do_idle_[k];pv_native_safe_halt_[k]": 1e-6,
}
FLOW = {"packets": 60_000, "match": "in_port(port0)", "actions": "mirror0,port1"}


def run(
    folder: Path,
    more: Mapping[str, float],
    options: str = "+mirrors=4",
    copies: int = 4,
    sending: Sequence[float] = (1, 1, 1, 1, 1),
    topology: str = "ovs_netdev",
) -> Path:
    """Write a run of a switch and of one with these options.

    more: additional seconds per packet of the second. sending: by how much each round multiplies what sending costs the
    endpoints of the second; the first has the reverse order.
    """
    rows = []
    for arm, extra, each in ((topology, {}, 0), (f"{topology}{options}", more, copies)):
        for number in range(5):
            noise = 1 + 0.01 * (number - 2)
            at_ends = {SENDING: (sending if each else sending[::-1])[number]}
            stacks = {
                stack: round(seconds * noise * at_ends.get(stack, 1) * ARRIVED / PERIOD_S)
                for stack, seconds in [*USUAL.items(), *extra.items()]
            }
            path = f"artefacts/1-p{number}/{arm}.folded.gz"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(gzip.compress(flame.text(stacks).encode()))
            common = synthetic_rows.ROW | {
                "arm": arm, "topology": arm, "built_topology": arm, "role": "variant" if each else "baseline",
                "round": number, "point": f"1-p{number}", "method": "profile", "protocol": "udp", "length_bytes": 512,
                "window_s": 1.0, "received_count": ARRIVED, "received_bytes": 512 * ARRIVED, "cpu_s": 1.0,
                "sent_count": ARRIVED, "lost_count": 0, "throughput_pps": ARRIVED, "throughput_bps": 8 * 512 * ARRIVED,
                "copies_count": each * ARRIVED if each else None, "switched_count": ARRIVED,
            }  # fmt: skip
            profile = {"event": "cpu-clock", "frequency_hz": 997}
            switch = {
                "flows": [FLOW],
                "datapath": {"hit": ARRIVED},
                "coverage": {"netdev_sent": (1 + each) * ARRIVED},
            }
            rows += [
                common | {"observer": "perf_record", "artefact": path, "observed": profile},
                common | {"observer": "switch", "artefact": None, "observed": switch},
            ]
    return synthetic_rows.save(folder, rows)


def test_time_of_the_switch_alone_is_in_the_conclusion_as_well(tmp_path: Path) -> None:
    """`switch` is a name for its threads, and no process has that name."""
    folder = run(tmp_path / "run", {SENDMMSG: 3e-6})
    named, matched = (
        why.explain(f"{folder}:ovs_netdev", "ovs_netdev+mirrors=4", processes).conclusions[0]
        for processes in ("switch", "ovs-vswitchd|handler.*")
    )
    assert named.sentence == matched.sentence
    assert named.split == matched.split
    assert named.split.stages[work.SEND].left == pytest.approx(2e-6, rel=0.02)


def test_kinds_of_work() -> None:
    for stack, name in (
        (SENDMMSG, "sending packets through packet sockets"),
        (f"{SENDMMSG};skb_copy_datagram_from_iter_[k];_copy_from_iter_[k]", "copying the data of packets"),
        (f"{SENDMMSG};veth_xmit_[k];net_rx_action_[k];ip_rcv_[k]", "delivering packets to the other ends of the ports"),
        ("mirror_reader;[python3.11];do_syscall_64_[k];packet_recvmsg_[k]", "reading the copies"),
        (f"{SWITCH};__sys_recvmmsg_[k];packet_recvmsg_[k]", "receiving packets from packet sockets"),
        ("ovs-vswitchd;[ovs-vswitchd]", "running the switch's own code"),
        ("revalidator3;[ovs-vswitchd]", "handling upcalls and checking flows"),
        (f"{DATAPATH};skb_clone_[k];kmem_cache_alloc_[k]", "cloning packets"),
        (f"{DATAPATH};ovs_vport_send_[k];validate_xmit_skb_[k];skb_segment_[k]", "segmenting packets in software"),
        (f"{SOFTIRQ};ovs_dp_process_packet_[k];ovs_dp_upcall_[k]", "handing packets to ovs-vswitchd (upcalls)"),
        (f"{SOFTIRQ};ovs_vport_receive_[k];ovs_flow_tbl_lookup_stats_[k]", "looking up flows in the kernel's datapath"),
        ("iperf3;do_syscall_64_[k];udp_sendmsg_[k];skb_segment_[k]", switch_work.ENDPOINTS),
        ("elsewhere;main", None),
        (f"{RELAY};__sys_recvmmsg_[k];udp_recvmsg_[k]", "receiving from the relay's sockets"),
        (f"{RELAY};__sys_sendto_[k];tcp_sendmsg_[k];_copy_from_iter_[k]", "copying data in the relay"),
        (f"{RELAY};__sys_sendto_[k];net_rx_action_[k]", "delivering packets to the other ends of the ports"),
        (f"{RELAY};ksys_write_[k];tun_chr_write_iter_[k];netif_receive_skb_[k]", "reading and writing the relay's tap"),
        (f"{RELAY};do_epoll_wait_[k];ep_poll_[k];schedule_[k]", "waiting for data in the relay"),
        ("slirp4netns;[libslirp.so.0.4.0]", "running the relay's own code"),
    ):  # fmt: skip
        assert switch_work.kind_of(stack) == name


RELAYED = {
    f"{RELAY};__sys_recvmmsg_[k];udp_recvmsg_[k]": 2e-6,
    f"{RELAY};ksys_write_[k];tun_chr_write_iter_[k];tun_get_user_[k]": 2e-6,
    "passt.avx2;[passt.avx2]": 1e-6,
}
OTHER = {"arm": "other", "topology": "other"}


@pytest.mark.parametrize(
    ("left", "right", "cause"),
    [
        ({}, RELAYED, "passt.avx2 costs 6"),
        (RELAYED, {}, "the lack of passt.avx2 saves 6"),
        (RELAYED, {"slirp4netns;[libslirp.so.0.4.0]": 2e-5}, "slirp4netns instead of passt.avx2 costs 1"),
    ],
)
def test_a_program_that_relays_all_data_is_the_cause(
    tmp_path: Path, left: dict[str, float], right: dict[str, float], cause: str
) -> None:
    result = within(tmp_path, MadeArm(right, columns=OTHER), base=MadeArm(left))
    assert result.sentence.startswith(f"Relaying all data in user space: {cause}"), result.sentence
    assert "% of the difference" in result.sentence
    assert (result.claims, result.cause) == (True, "relaying all data in user space")
    first = result.candidates[0]
    kinds = [text for _source, text in first.evidence[1:]]
    assert any("the relay's own code" in text for text in kinds), kinds
    assert not any("observe the switch" in step for step in result.next)
    parts = sum(part.size.difference for part in result.parts)
    assert parts == pytest.approx(result.split.total.difference, rel=0.05)


def test_what_a_relay_takes_is_said_without_certainty(tmp_path: Path) -> None:
    result = within(tmp_path, MadeArm(RELAYED, columns=OTHER), rounds=2, noise=0.8)
    assert result.cause is None
    assert "In the profile, passt.avx2 costs " in result.sentence
    assert result.sentence.endswith(", which so few rounds do not make certain")


def test_sending_copies_is_the_cause(tmp_path: Path) -> None:
    more = {SENDMMSG + ";packet_xmit_[k]": 6e-6, f"{SOFTIRQ};ip_rcv_[k]": 1e-6}
    folder = run(tmp_path / "run", more)
    result = concluded(f"{folder}:ovs_netdev", "ovs_netdev+mirrors=4")
    assert result.claims
    assert result.cause == "mirrors"
    cause = (
        "The cause is the change of mirrors from 0 to 4: sending packets through packet sockets costs 6 µs"
    )
    assert result.sentence.startswith(cause)
    assert "In all, ovs_netdev+mirrors=4 takes 7" in result.sentence
    assert "86 % of the difference, 1.5 µs for each copy" in result.sentence
    _title, _words, table = page.switch_table(result)
    assert table.index[0] == "sending packets through packet sockets"
    parts = sum(part.size.difference for part in result.parts)
    assert parts == pytest.approx(result.split.total.difference, rel=1e-9)


def test_sending_copies_is_the_cause_though_the_endpoints_vary(tmp_path: Path) -> None:
    """The total varies by more than the copies cost. What the switch spends on them does not."""
    varies = (0.1, 4, 0.3, 5, 2)
    folder = run(tmp_path / "run", {SENDMMSG: 4e-6}, sending=varies)
    result = concluded(f"{folder}:ovs_netdev", "ovs_netdev+mirrors=4")
    assert not result.split.total.certain
    assert (result.claims, result.cause) == (True, "mirrors")
    assert result.sentence == (
        "The cause is the change of mirrors from 0 to 4: sending packets through packet sockets costs 2 µs"
        " [1.67 µs, 2.33 µs] more per packet that arrived, 500 ns for each copy"
    )
    assert result.p < 0.05


def test_code_that_stands_out_is_an_effect_of_the_change(tmp_path: Path) -> None:
    """The function alone would be named without the change, though the rounds of both arms are interleaved."""
    receiving = {"iperf3;do_syscall_64_[k];__sys_recvfrom_[k];udp_recvmsg_[k]": 3e-6}
    folder = run(tmp_path / "run", receiving, sending=(0.1, 4, 0.3, 5, 2))
    result = concluded(f"{folder}:ovs_netdev", "ovs_netdev+mirrors=4")
    assert (result.claims, result.cause) == (True, "mirrors")
    assert result.sentence.startswith("The cause is the change of mirrors from 0 to 4: UDP costs 3")


@pytest.mark.parametrize(
    ("options", "stack", "words"),
    [
        ("+mirrors=1+readers=count", "mirror_reader;[python3.11]", "reading the copies costs"),
        ("+mirrors=1+output=gre", f"{DATAPATH};skb_segment_[k]", "segmenting packets in software costs"),
        ("+mirrors=1", "handler2;[ovs-vswitchd]", "handling upcalls and checking flows costs"),
    ],
)
def test_planted_cause_is_named(tmp_path: Path, options: str, stack: str, words: str) -> None:
    folder = run(tmp_path / "run", {stack: 3e-6}, options, copies=1)
    sentence = concluded(f"{folder}:ovs_netdev", f"ovs_netdev{options}").sentence
    assert f"{words} 3" in sentence
    assert "3 µs for each copy" in sentence


def test_page_has_the_parts_and_the_actions(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", {SENDMMSG: 6e-6})
    explained = why.explain(f"{folder}:ovs_netdev", "ovs_netdev+mirrors=4")
    assert len(explained.flames) == 1
    text = explained.write().read_text()
    for words in ("Work between the ends", "sending packets through packet sockets", "mirror0,port1"):
        assert words in text.replace("\\", ""), words


def test_options_of_a_topology_are_settings() -> None:
    for left, right, settings in (
        ("ovs", "ovs+mirrors=2", [("mirrors", "0", "2")]),
        ("ovs+mirrors=1", "ovs+mirrors=1+readers=count", [("readers", "none", "count")]),
        ("ovs+mirrors=4+snaplen=96", "ovs", [("mirrors", "4", "0"), ("snaplen", "96", "default")]),
        ("ovs", "ovs_netdev", [("topology", "ovs", "ovs_netdev")]),
        ("veth_bridge", "veth_bridge+gro", [("topology", "veth_bridge", "veth_bridge+gro")]),
    ):
        rows = [
            load.complete(pd.DataFrame([synthetic_rows.ROW | {"topology": one}])) for one in (left, right)
        ]
        point = SimpleNamespace(rows=(*rows, None))
        made = environment._topology(point, left, right)  # type: ignore[arg-type]
        assert [(one.name, one.left, one.right) for one in made] == settings


def test_what_carries_packets_belongs_to_the_load() -> None:
    """Kernel threads encrypt for WireGuard, and programs in user space are the path of rootless containers."""
    names = [
        "iperf3", "mirror_reader", "tcpdump", "kernel", "pasta.avx2", "slirp4netns", "rootlesskit", "port_proxy",
        "sockperf", "nginx", "wrk", "CPU_0/KVM", "Trex_DP_core_1", "cc1",
    ]  # fmt: skip
    assert processes.foreign(names) == [name == "cc1" for name in names]


@pytest.mark.parametrize(
    ("more", "sending", "switch", "words"),
    [
        ({}, (1, 1, 1, 1, 1), "ovs_netdev", "no effect was seen"),
        ({}, (0.1, 4, 0.3, 5, 2), "ovs_netdev", ""),
        # DPDK's thread takes a whole CPU, so CPU time per packet is only the inverse of the packet rate.
        ({SENDMMSG: 6e-6, f"{SENDING};more_[k]": 3e-6}, (1, 1, 1, 1, 1), "ovs_dpdk", "polls without a pause"),
    ],
    ids=["no effect", "endpoints that vary", "a thread that polls"],
)
def test_mirrors_are_no_cause(
    tmp_path: Path, more: dict[str, float], sending: tuple[float, ...], switch: str, words: str
) -> None:
    folder = run(tmp_path / "run", more, sending=sending, topology=switch)
    result = concluded(f"{folder}:{switch}", f"{switch}+mirrors=4")
    assert not result.claims
    assert words in " ".join([result.sentence, *result.notes])
    assert switch == "ovs_netdev" or result.parts == []
