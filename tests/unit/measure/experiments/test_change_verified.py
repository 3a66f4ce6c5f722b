"""A change that the kernel or driver clamps is an error; other forms of the same value are not."""

from contextlib import nullcontext
from typing import cast

import pytest

from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Kernel
from labkit.measure.experiments.change_kinds.base import Place
from labkit.measure.experiments.change_kinds.registry import KINDS
from labkit.system import process

PLACE = Place("server", cast("Kernel", type("Space", (), {"name": "server0"})()), "eth0")
TBF = "tbf root rate 1Gbit burst 256Kb lat 10ms"


def test_clamped_value_is_an_error_and_another_form_of_the_value_is_none() -> None:
    for kind, options, after, is_clamped in (
        ("sysctl", {"net.core.x": "100"}, {"net.core.x": "4096"}, True),
        ("sysctl", {"net.ipv4.tcp_rmem": "1 2 3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}, True),
        ("ring", {"rx": "9000"}, {"ring rx": "4096", "ring tx": "64"}, True),
        ("channels", {"rx-mini": "2"}, {"channels rx mini": "1"}, True),
        ("qdisc", {"words": "fq_codel limit 100000000"}, {"qdisc": "fq_codel root limit 10240p flows 1024"}, True),
        ("sysctl", {"net.ipv4.tcp_rmem": "4096\t2  3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}, False),
        ("sysctl", {"net.ipv4.ip_local_reserved_ports": "1,2"}, {"net.ipv4.ip_local_reserved_ports": "1-2"}, False),
        ("ring", {"rx": "4096"}, {"ring rx": "4096"}, False),
        ("qdisc", {"words": "fq_codel limit 500"}, {"qdisc": "fq_codel root limit 500p flows 1024"}, False),
        ("qdisc", {"words": "tbf rate 1gbit burst 262144 latency 10ms"}, {"qdisc": TBF}, False),
        ("qdisc", {"words": "noqueue"}, {"qdisc": ""}, False),
    ):  # fmt: skip
        with pytest.raises(Failed, match="instead of") if is_clamped else nullcontext():
            KINDS[kind].verify(after, options, PLACE)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [*((name, True) for name in ("tx-udp_tnl-segmentation", "tx-checksum-ip-generic", "gro")),
     *((name, False) for name in ("-K", "Tx", "tx;ls", "tx on"))],
)  # fmt: skip
def test_names_of_features(name: str, is_one: bool) -> None:
    with nullcontext() if is_one else pytest.raises(BadInput):
        KINDS["offload"].check({name: "off"})


def test_route_of_ipv6_is_looked_for_among_those_of_ipv6() -> None:
    """A default route has its version in its gateway alone. Else it would have no effect."""
    asked: list[tuple[str, ...]] = []
    run = lambda _self, *argv: asked.append(argv) or process.Ended(argv, 0, "", "", 0.0)  # noqa: E731
    place = Place("client", cast("Kernel", type("Space", (), {"name": "client0", "run": run})()), "eth0")
    for via in ("10.2.0.1", "fd00::1"):
        KINDS["route"].state(place, {"to": "default", "via": via})
    assert [argv[1] for argv in asked] == ["-4", "-6"]
