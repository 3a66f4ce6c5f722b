"""Netlink attributes of tunnels (linux/if_link.h, linux/if_tunnel.h)."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

GRE_KEY = 0x2000  # linux/if_tunnel.h, in network order


def tunnel_data(
    kind: str,
    *,
    local: str | None = None,
    remote: str | None = None,
    number: int | None = None,
    port: int | None = None,
    link: int | None = None,
    learning: bool = True,
    ttl: int | None = None,
) -> dict[str, Any]:
    """Return the attributes (IFLA_INFO_DATA) of a vxlan, geneve, gre, gretap or ipip interface.

    `number` is the VNI, or the GRE key. `link` is the index of the interface that it is bound to. The `remote` of a
    vxlan may be a multicast group. `ttl` None: the namespace's default for vxlan and geneve, the inner packet's for
    the others. Only vxlan and geneve accept IPv6 outer addresses; the kernel has other kinds for IPv6 GRE and IPIP.
    """
    own: dict[str, Any]
    if kind == "vxlan":
        own = {
            "ID": number, **_addresses(LOCAL=local, GROUP=remote), "LINK": link, "PORT": port, "LEARNING": int(learning)
        }  # fmt: skip
    elif kind == "geneve":
        own = {"ID": number, **_addresses(REMOTE=remote), "PORT": port}
    else:
        own = {"LOCAL": local, "REMOTE": remote, "LINK": link}
        if number is not None:
            own |= {"IFLAGS": GRE_KEY, "OFLAGS": GRE_KEY, "IKEY": number, "OKEY": number}
    own["TTL"] = ttl
    prefix = "GRE" if kind in ("gre", "gretap") else kind.upper()
    return {f"IFLA_{prefix}_{name}": value for name, value in own.items() if value is not None}


def _addresses(**given: str | None) -> dict[str, str]:
    """Return the addresses by attribute name; IPv6 names end in 6."""
    return {
        name if ip_address(address).version == 4 else f"{name}6": address
        for name, address in given.items()
        if address is not None
    }
