"""Packet loss per hop, computed from counters, adds up to the total."""

from typing import Any

import pytest

from labkit.common import loss_places
from labkit.measure.experiments import whole_runs
from labkit.measure.observers.counters import packet_loss

WAY = [
    ("client0", "eth0", "out"),
    ("between", "port0", "in"),
    ("between", "port1", "out"),
    ("server0", "eth0", "in"),
]
LOST = {"IP": 1, "sends": 2, "cable": 4, "bridge": 8, "port": 16, "last": 32, "to IP": 64, "in IP": 128, "socket": 256,
        "unread": 512}  # fmt: skip


def lossy(sent: int = 10_000, others: int = 13) -> dict[str, Any]:
    """Return the counters of a pair that lost this many datagrams in each hop, beside a few frames of iperf3's TCP."""
    left, report = sent + others, iter(LOST.values())
    eth0 = left - next(report) - (drop := next(report))
    port0 = eth0 - next(report)
    bridged = port0 - next(report)
    port1 = bridged - (refused := next(report))
    arrived = port1 - next(report)
    received = arrived - next(report)
    delivered = received - next(report)
    errors, unread = next(report), next(report)
    client = {
        "interfaces": {"eth0": {"tx_packets": eth0, "tx_dropped": drop}},
        "qdiscs": {"eth0": {"tbf 1:": {"drop": 1}}},
        # as ip_send_skb and udp_send_skb count what a queue refuses
        "mibs": {
            "Ip": {"OutRequests": left, "OutDiscards": 1},
            "Udp": {"OutDatagrams": sent - 1, "SndbufErrors": 1},
        },
    }
    ports = {"port0": {"rx_packets": port0}, "port1": {"tx_packets": port1, "tx_dropped": refused}}
    udp = {"InErrors": errors, "RcvbufErrors": errors}
    udp["InDatagrams"] = delivered - others - errors - unread
    ip = {"InReceives": received, "InDelivers": delivered, "InDiscards": 128}
    server = {
        "interfaces": {"eth0": {"rx_packets": arrived}},
        "mibs": {"Ip": ip, "Tcp": {"InSegs": others}, "Udp": udp},
    }
    return {"namespaces": {"client0": client, "between": {"interfaces": ports}, "server0": server}}


def losses(counted: dict[str, Any], protocol: str = "udp", **more: Any) -> dict[str, Any]:
    [result] = packet_loss.losses(counted, [("client0", "server0", WAY)], protocol, 4, **more)
    return result


def lost_copies(metered: dict[str, Any]) -> dict[str, Any]:
    return packet_loss.lost_copies({"namespaces": {"between": {}}}, {}, metered, "between", set())


def test_losses_by_hop_add_up() -> None:
    result = losses(lossy())
    assert [hop["lost_count"] for hop in result["hops"]] == list(LOST.values())
    assert result["lost_count"] == result["sent_count"] - result["received_count"] == sum(LOST.values())
    assert (result["unit"], result["unexplained_count"]) == ("datagrams", 0)
    why = {hop["at"]: hop["why"] for hop in result["hops"] if hop["why"]}
    assert why == {
        "client0: IP to eth0": {"qdisc tbf 1: dropped": 1, "Ip OutDiscards": 1},
        "client0:eth0 sends": {"tx_dropped": 2},
        "between:port1 sends": {"tx_dropped": 16},
        "server0: IP": {"Ip InDiscards": 128},
        "server0: UDP socket": {"Udp RcvbufErrors": 256, "Udp InErrors": 256},
    }
    result = losses(lossy(), "tcp")
    assert result["unit"] == "frames"
    assert [hop["lost_count"] for hop in result["hops"]] == [1, 2, 4, 8, 16, 32]
    assert result["hops"][0]["why"] == {"qdisc tbf 1: dropped": 1}
    assert (result["lost_count"], result["unexplained_count"]) == (63, 0)
    result = losses(lossy(), switched=SWITCHED)
    why = {hop["at"]: hop["why"] for hop in result["hops"]}
    assert why["between:port0 to port1"] == {
        "port0: packet socket dropped": 3, "port1: Open vSwitch tx_dropped": 5, "upcalls lost": 4,
    }  # fmt: skip
    assert why["client0:eth0 to between:port0"] == {}
    assert [hop["lost_count"] for hop in result["hops"]] == list(LOST.values())


def test_frames_of_a_packet_generator_are_followed_between_interfaces() -> None:
    """No socket sends them, and what counts them at the receiver drops them before IP."""
    counted = lossy()
    for name in ("client0", "server0"):
        counted["namespaces"][name]["mibs"] = {}
    assert losses(counted) == losses(lossy(), "tcp")


def test_the_place_of_most_loss_is_named() -> None:
    for place, where in (
        ("IP to eth0", "67 % of these at client: IP to eth0 (qdisc tbf dropped)"),
        ("server0: IP", "67 % of these at server: IP (TcpExt IPReversePathFilter)"),
    ):
        changed = lossy()
        changed["namespaces"]["server0"]["mibs"]["TcpExt"] = {"IPReversePathFilter": 129}
        result = losses(changed)
        rest = sum(hop["lost_count"] for hop in result["hops"] if place not in hop["at"])
        for hop in result["hops"]:
            hop["lost_count"] = 2 * rest if place in hop["at"] else hop["lost_count"]
        assert loss_places.where([result]) == where
    assert loss_places.where([{"hops": []}]) is None


def test_esp_in_transport_mode_is_one_hop() -> None:
    """IP counts a packet before and after ESP, on both sides: that is neither loss nor a duplicate."""
    changed = lossy()
    for space, name in (("client0", "OutRequests"), ("server0", "InDelivers")):
        changed["namespaces"][space]["mibs"]["Ip"][name] += 9000
    result = losses(changed, protected=[("server0", "eth0")])
    hops = {hop["at"].partition(": ")[2]: hop["lost_count"] for hop in result["hops"]}
    rest = sum(LOST.values()) - 256
    assert hops == {"lost on the way, or left unread in the socket": rest, "UDP socket": 256}
    assert loss_places.duplicated([result]) is None


def test_duplicates_are_located() -> None:
    """The client's queue (netem duplicate) sends 2,000 of 10,000 datagrams twice."""
    changed = lossy()
    for space in ("client0", "between", "server0"):
        for counts in changed["namespaces"][space]["interfaces"].values():
            for name in counts.keys() & {"tx_packets", "rx_packets"}:
                counts[name] += 2000
    changed["namespaces"]["server0"]["mibs"]["Ip"]["InReceives"] += 2000
    changed["namespaces"]["server0"]["mibs"]["Ip"]["InDelivers"] += 2000
    result = losses(changed)
    share, place = loss_places.duplicated([result]) or (0.0, "")
    assert (share, place) == (pytest.approx(0.2, abs=0.001), "client: IP to eth0")
    [doubt] = whole_runs._duplicates([result])
    assert doubt.startswith("datagrams were duplicated at client: IP to eth0: 20 % more left it than came")
    usual = losses(lossy())
    assert whole_runs._duplicates([usual]) == []


def test_a_hop_that_a_redirect_skips_is_named() -> None:
    way, skips = [WAY[0], WAY[1], WAY[3]], {WAY[3]: "between:port1"}
    [result] = packet_loss.losses(lossy(), [("client0", "server0", way)], "udp", 4, skips=skips)
    lost = {hop["at"]: hop["lost_count"] for hop in result["hops"]}
    assert lost["between:port0 to server0:eth0 (skips between:port1)"] == 8 + 16 + 32
    assert result["unexplained_count"] == 0


def test_losses_between_guests() -> None:
    """The client's tap receives what leaves the client. The server's tap sends what the server receives."""
    answers = {"port0": {"tx_packets": 10}, "port1": {"rx_packets": 10}}
    counted = {"port0": {"rx_packets": 1000}, "port1": {"tx_packets": 900, "tx_dropped": 8}}
    ports = {name: {**counted[name], **answers[name]} for name in counted}
    changed = {"namespaces": {"between": {"interfaces": ports, "mibs": {"Udp": {"InDatagrams": 7}}}}}
    for protocol in ("udp", "tcp"):
        [result] = packet_loss.losses(changed, [("client0", "server0", WAY[1:3])], protocol, 4)
        assert (result["unit"], result["sent_count"], result["received_count"]) == ("frames", 1000, 900)
        hops = {hop["at"]: hop["lost_count"] for hop in result["hops"]}
        assert hops == {"between:port0 to port1": 92, "between:port1 sends": 8}
        assert (result["lost_count"], result["unexplained_count"]) == (100, 0)


def test_shared_hops() -> None:
    shared = (("parent", "out"), ("far", "in"), ("far", "out"), ("parent", "in"))
    parent = [("between", *one) for one in shared]
    paths = [
        (f"client{number}", f"server{number}",
         [(f"client{number}", "eth0", "out"), *parent, (f"server{number}", "eth0", "in")])
        for number in range(2)
    ]  # fmt: skip
    first, second = packet_loss.losses(lossy(), paths, "udp", 4)
    assert first["through"] == ["between:parent", "between:far", "between:far", "between:parent"]
    assert "client0:eth0 to server0:eth0" in [hop["at"] for hop in first["hops"]]
    assert (first["unexplained_count"], second["sent_count"]) == (0, 0)


SWITCHED = {
    "ports": {"port0": {"rx_packets": 9}, "port1": {"tx_dropped": 5}, "mirror0": {"tx_dropped": 2}},
    "sockets_dropped": {"port0": 3, "mirror0": 1},
    "datapath": {"lost": 4},
}


def test_copies_of_mirrors_are_followed() -> None:
    queue = {"uplink": {"tbf 1:": {"drop": 6}}}
    ports = {"port1": {"tx_dropped": 9}, "uplink": {"tx_packets": 5}}
    changed = {"namespaces": {"between": {"interfaces": ports, "qdiscs": queue}}}
    metered = {"copies_expected_count": 100, "copies_count": 90, "copies_unread_count": 7}
    result = packet_loss.lost_copies(changed, SWITCHED, metered, "between", {"port0", "port1"})
    assert (result["unit"], result["sent_count"], result["received_count"]) == ("copies", 100, 83)
    assert result["unexplained_count"] == 0
    assert [(hop["at"], hop["lost_count"]) for hop in result["hops"]] == [
        ("mirrors to the monitor", 10), ("the readers' sockets", 7),
    ]  # fmt: skip
    assert result["hops"][0]["why"] == {
        "uplink: qdisc tbf 1: dropped": 6, "mirror0: Open vSwitch tx_dropped": 2,
    }  # fmt: skip
    # The second mirror lost 10, and the reader of the first one missed 7.
    metered = {
        "copies_expected_count": 100, "copies_count": 90, "copies_of_mirrors": [50, 40], "copies_unread_count": 7,
        "unread_of_mirrors": [7, 0],
    }  # fmt: skip
    result = lost_copies(metered)
    assert result["mirrors"] == {
        "mirror0": {"sent_count": 50, "arrived_count": 50, "unread_count": 7},
        "mirror1": {"sent_count": 50, "arrived_count": 40, "unread_count": 0},
    }
    del metered["copies_unread_count"], metered["unread_of_mirrors"]
    result = lost_copies(metered)
    assert result["mirrors"]["mirror0"] == {"sent_count": 50, "arrived_count": 50, "unread_count": None}
    # The queue of the uplink counts fewer drops than copies were lost there.
    changed = {"namespaces": {"between": {"interfaces": {"uplink": {"tx_packets": 85}}, "qdiscs": queue}}}
    metered = {"copies_expected_count": 100, "copies_count": 84, "copies_unread_count": 7}
    result = packet_loss.lost_copies(changed, SWITCHED, metered, "between", {"port0", "port1"}, "uplink")
    why = {"uplink: qdisc tbf 1: dropped": 6, "mirror0: Open vSwitch tx_dropped": 2}
    assert [(hop["at"], hop["lost_count"], hop["why"]) for hop in result["hops"]] == [
        ("mirrors to between:uplink", 15, why),
        ("between:uplink to the monitor", 1, {}),
        ("the readers' sockets", 7, {}),
    ]
    assert (result["lost_count"], result["unexplained_count"]) == (23, 0)
    # tcpdump does not tell how many copies it lost.
    metered = {"copies_expected_count": 100, "copies_count": 90}
    result = lost_copies(metered)
    assert (result["sent_count"], result["received_count"], result["lost_count"]) == (100, None, None)
    assert result["unexplained_count"] is None
    assert [(hop["at"], hop["lost_count"]) for hop in result["hops"]] == [("mirrors to the monitor", 10)]
