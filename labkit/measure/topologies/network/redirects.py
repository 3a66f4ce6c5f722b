"""Redirect packets from one interface to another by BPF programs that labkit assembles itself."""

import os
from collections.abc import Mapping
from contextlib import ExitStack

from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.network.model import Key, NetworkIndex
from labkit.measure.topologies.network.parts import Cable
from labkit.system import bpf, netlink
from labkit.system.netlink.ethtool import complete_packets

# Numbers and further arguments of the helpers, linux/bpf.h (__BPF_FUNC_MAPPER): flags; parameters, length, flags.
HELPERS = {
    "bpf_redirect": (23, (0,)),
    "bpf_redirect_peer": (155, (0,)),
    "bpf_redirect_neigh": (152, (0, 0, 0)),
}
XDP_PASS = 2


def attach(
    described: NetworkIndex, index: Mapping[Key, int], space: Mapping[str, Namespace], stack: ExitStack
) -> None:
    """Attach the program of each redirect until the stack is closed. Raises Unsupported if this kernel cannot."""
    filters: dict[str, list[tuple[int, str, int]]] = {}
    passing: int | None = None
    with ExitStack() as programs:
        for redirect in described.redirects:
            here, to = (described.interfaces[redirect.at, name] for name in (redirect.interface, redirect.to))
            assert here.far is not None, "it was checked"
            assert to.far is not None, "it was checked"
            helper, more = HELPERS[redirect.helper]
            # A BPF program's name has no "-" (bpf_obj_name_cpy, kernel/bpf/syscall.c).
            name, hook = f"to_{to.name}".replace("-", "_")[:15], redirect.hook.partition("_")[0]
            program = bpf.load(name, hook, bpf.helper_call(helper, index[to.key], *more))
            programs.callback(os.close, program)
            if redirect.hook == "tc":
                filters.setdefault(here.at, []).append((index[here.key], name, program))
                continue
            if redirect.hook == "netkit":
                # Only the primary end takes programs: for what it transmits, and for what its peer does.
                assert isinstance(here.part, Cable), "it was checked"
                primary = here.part.one.at, here.part.one.name
                end = "peer" if here.key == primary else "primary"
                _attach(program, index[primary], space[primary[0]], f"netkit ({end})", stack)
                continue
            # A frame of XDP has no place for "the checksum is still to be computed" (drivers/net/veth.c,
            # veth_convert_skb_to_xdp_buff), and generic XDP drops what is larger than the MTU (xdp_ok_fwd_dev). So the
            # ends send complete packets.
            complete_packets(space[here.far[0]].fd, here.far[1])
            if redirect.hook == "xdp":
                # A veth transmits frames only to a peer that polls, which one with a program does (veth_xdp_xmit). The
                # kernel's own tests give it one that passes everything, too.
                if passing is None:
                    passing = bpf.load("pass", "xdp", bpf.returning(XDP_PASS))
                    programs.callback(os.close, passing)
                _attach(passing, index[to.far], space[to.far[0]], "native XDP", stack)
            mode = "generic" if redirect.hook == "xdp_generic" else "native"
            _attach(program, index[here.key], space[here.at], f"{mode} XDP", stack)
        for at, own in filters.items():
            _attach_tc(own, space[at])


def _attach(program: int, index: int, space: Namespace, place: str, stack: ExitStack) -> None:
    with netlink.inside(space.fd):
        stack.callback(os.close, bpf.attach(program, index, place))


def _attach_tc(filters: list[tuple[int, str, int]], space: Namespace) -> None:
    """Attach programs by cls_bpf.

    A link at tcx (Linux 6.6) waits for a grace period of RCU at each interface (tcx_entry_sync), 20 ms on a busy
    machine: 128 pairs then took six times as long as those of a bridge.
    """
    try:
        space.netlink.do(*(netlink.new_ingress(index, "clsact") for index, _name, _program in filters))
        space.netlink.do(*(netlink.new_bpf_filter(*one) for one in filters))
    except netlink.LinkError as error:
        raise Unsupported(
            f"the kernel does not run a BPF program at tc ({error}): it needs CONFIG_NET_CLS_BPF and"
            " CONFIG_NET_SCH_INGRESS"
        ) from None
