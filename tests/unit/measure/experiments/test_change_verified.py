"""A change that the kernel or driver clamps is an error; other forms of the same value are not."""

from collections.abc import Mapping
from typing import cast

import pytest

from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Kernel
from labkit.measure.experiments.change_kinds.base import Place
from labkit.measure.experiments.change_kinds.registry import KINDS

PLACE = Place("server", cast("Kernel", type("Space", (), {"name": "server0"})()), "eth0")
TBF = "tbf root rate 1Gbit burst 256Kb lat 10ms"


@pytest.mark.parametrize(
    ("kind", "options", "after"),
    [
        ("sysctl", {"net.core.x": "100"}, {"net.core.x": "4096"}),
        ("sysctl", {"net.ipv4.tcp_rmem": "1 2 3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}),
        ("ring", {"rx": "9000"}, {"ring rx": "4096", "ring tx": "64"}),
        ("channels", {"rx-mini": "2"}, {"channels rx mini": "1"}),
        ("qdisc", {"words": "fq_codel limit 100000000"}, {"qdisc": "fq_codel root limit 10240p flows 1024"}),
    ],
)
def test_clamped_value_is_an_error(kind: str, options: Mapping[str, str], after: dict[str, str]) -> None:
    with pytest.raises(Failed, match="instead of"):
        KINDS[kind].verify(after, options, PLACE)


@pytest.mark.parametrize(
    ("kind", "options", "after"),
    [
        ("sysctl", {"net.ipv4.tcp_rmem": "4096\t2  3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}),
        ("sysctl", {"net.ipv4.ip_local_reserved_ports": "1,2"}, {"net.ipv4.ip_local_reserved_ports": "1-2"}),
        ("ring", {"rx": "4096"}, {"ring rx": "4096"}),
        ("qdisc", {"words": "fq_codel limit 500"}, {"qdisc": "fq_codel root limit 500p flows 1024"}),
        ("qdisc", {"words": "tbf rate 1gbit burst 262144 latency 10ms"}, {"qdisc": TBF}),
        ("qdisc", {"words": "noqueue"}, {"qdisc": ""}),
    ],
)
def test_other_form_of_the_value_is_no_error(
    kind: str, options: Mapping[str, str], after: dict[str, str]
) -> None:
    KINDS[kind].verify(after, options, PLACE)


@pytest.mark.parametrize("name", ["tx-udp_tnl-segmentation", "tx-checksum-ip-generic", "gro"])
def test_every_feature_name_is_accepted(name: str) -> None:
    KINDS["offload"].check({name: "off"})


@pytest.mark.parametrize("name", ["-K", "Tx", "tx;ls", "tx on"])
def test_other_feature_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        KINDS["offload"].check({name: "off"})
