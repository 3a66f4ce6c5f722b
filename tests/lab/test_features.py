"""What an arm reports about its interfaces by netlink equals what ethtool and ip print."""

import pytest

from labkit.measure import topologies
from labkit.system import machine, process

pytestmark = pytest.mark.needs("root", "ip", "ethtool", "veth")


def test_features_and_qdisc_are_those_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    with topologies.build("veth", topologies.Spec()) as built:
        client, server = built.pairs[0].client, built.pairs[0].server
        seen = []
        for change in ((), ("ethtool -K {} tso off", "tc qdisc add dev {} root pfifo")):
            for line in change:
                process.output([*client.prefix, *line.format(client.interface).split()])
            for end in (client, server):
                features = end.kernel.offloads(end.interface)
                assert features == machine.offloads(end.prefix, end.interface)
                qdisc = end.kernel.qdisc(end.interface, end.index)
                assert qdisc == machine.qdisc(end.prefix, end.interface)
                seen.append((features["tcp-segmentation-offload"], qdisc))
        assert seen == [(True, "noqueue"), (True, "noqueue"), (False, "pfifo"), (True, "noqueue")]
        monkeypatch.delattr(machine.interfaces, "program")  # they are read without starting one
        assert client.kernel.offloads(client.interface)
        assert client.kernel.qdisc(client.interface, client.index) == "pfifo"
