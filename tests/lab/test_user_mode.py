"""User-mode networks with the real programs: payload arrives, packets do not, and nothing remains."""

import functools
import json

import pytest
from sandbox import also, names_in_run, until

from labkit import live
from labkit.analysis import drawing
from labkit.measure.topologies.base import CLIENTS, SERVERS, address
from labkit.measure.topologies.state import packet_path
from labkit.measure.topologies.user_mode import PROGRAMS

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("namespaces", "ip", "ping", "veth", "iperf3", "user-mode networks"),
]


def listens(server: live.Endpoint) -> bool:
    return ":5201" in server.run("ss", "-ltnH")


# rootlesskit starts slirp4netns, and its other drivers publish ports.
ALONE = ("slirp4netns", "rootlesskit")


@pytest.mark.parametrize(
    "name", [*(name for name in PROGRAMS if name not in ALONE), *also("exhaustive", *ALONE)]
)
def test_payload_arrives_by_the_program(name: str) -> None:
    before = names_in_run()
    with live.build(name, pairs=2, mtu_bytes=9000) as net:
        for number in range(2):
            client, server = net.endpoints[f"client{number}"], net.endpoints[f"server{number}"]
            published = PROGRAMS[name].side == SERVERS
            [tap] = json.loads((server if published else client).run("ip", "-j", "link", "show", "eth0"))
            assert (tap["mtu"], tap["link_type"]) == (9000, "ether")
            to = str(address(4, CLIENTS, 2 * number + 1).ip) if published else server.address or ""
            assert " 0% packet loss" in client.run("ping", "-n", "-c3", "-i0.2", to)
            serving = server.start("iperf3", "--server", "--one-off", "--json")
            assert until(functools.partial(listens, server), 10)
            report = json.loads(client.run("iperf3", "-c", to, "-t1", "--json"))
            assert report["end"]["sum_received"]["bytes"] > 0
            peer = json.loads(serving.wait())["start"]["accepted_connection"]["host"]
            # The program's own socket, not the client's packets. Those that send frames to a server take its address.
            assert (peer == client.address) == (name in ("pasta_published", "rootlesskit_slirp4netns"))
        state = net.state
    paths = [[one.interface for one in path] for path in packet_path.packet_paths(state)]
    for number, path in enumerate(paths):
        program, tap = f"{name.partition('_')[0]}{number}", PROGRAMS[name].interface
        way = ["eth0", f"port{number}", program, tap]
        assert path == (way if published else way[::-1])
    assert (
        f"forward: {' > '.join(f'{one.namespace}/{one.interface}' for one in state.forward)}\n"
        in drawing.tree(state)
    )
    assert drawing.mermaid(state).count("-. through .-") == 4
    assert names_in_run() == before


@pytest.mark.long
def test_ipv6() -> None:
    with live.build("pasta", family=6) as net:
        address = net.endpoints["server0"].address or ""
        assert ":" in address
        assert " 0% packet loss" in net.endpoints["client0"].run("ping", "-n", "-c3", "-i0.2", address)
