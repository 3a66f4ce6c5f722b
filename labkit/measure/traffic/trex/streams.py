"""What TRex sends, as objects of its own client: streams of packets, and stateful connections.

Only the client's process uses these functions, because they import the client (lbr-trex-client).
"""

import base64
import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.common.packets import FCS_BYTES
from labkit.common.safe_files import read_regular

# Of TRex's stl/imix.py: bytes without FCS, packets, start in s.
MIX = ((60, 28, 0.0), (590, 16, 0.1), (1514, 4, 0.2))
SMALL = ((60, 1, 0.0),)  # of TRex's stl/udp_1pkt_simple_bdir.py
PROFILES = {"imix": MIX, "64b": SMALL}
STATEFUL = ("http_simple",)
HTTP_CPS = 2.776  # of TRex's astf/http_simple.py: connections a second at mult=1
HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: server\r\nUser-Agent: labkit\r\n\r\n"
HTTP_BYTES = 32768
HTTP_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 32768\r\n\r\n"
PROBE_BYTES = 60  # without FCS
# From each sending port beside the load: about 1,000, but no fraction of a usual rate, as probes that keep their place
# between the frames of the load meet a device that drops regularly always or never.
PROBES_PPS = 997.0
FIRST_PROBES = 1000  # the identifiers of latency probes are this number plus the port's
PROBE_FRAME_BYTES = PROBE_BYTES + FCS_BYTES
WIRE_BYTES = 20  # preamble and gap

OUTSIDE = [("16.0.0.1", "48.0.0.1"), ("48.0.0.1", "16.0.0.1")]  # of the two sides of TRex's own profiles

Ends = Sequence[str]  # the source and the destination address of a port's frames


def error_text(error: BaseException | str) -> str:
    """Return an error of the client in one line, without its frame, stars and colours."""
    text = str(getattr(error, "brief", lambda: error)())
    if "Traceback" in text:  # of a profile's own code: its last line says what is wrong
        text = text.strip().splitlines()[-1]
    # of the client's function, not of labkit's parameter
    text = text.replace("*** ", "").replace(" or specify 'force'", "")
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())[:500]


def profile_streams(profile: str, side: int, ends: Ends | None) -> list[Any]:
    """Return the streams of a named profile; without ends, addresses go through 16.0.0.1-254 and 48.0.0.1-254."""
    from trex.stl import api

    result = []
    for size, pps, delay_s in PROFILES[profile]:
        program = None
        if ends is None and profile == "imix":
            first = [("16.0.0.1", "16.0.0.254"), ("48.0.0.1", "48.0.0.254")]
            (source, source_end), (target, target_end) = first if side == 0 else first[::-1]
            program = api.STLScVmRaw(
                [
                    api.STLVmFlowVar("src", min_value=source, max_value=source_end, size=4, op="inc"),
                    api.STLVmFlowVar("dst", min_value=target, max_value=target_end, size=4, op="inc"),
                    api.STLVmWrFlowVar(fv_name="src", pkt_offset="IP.src"),
                    api.STLVmWrFlowVar(fv_name="dst", pkt_offset="IP.dst"),
                    api.STLVmFixIpv4(offset="IP"),
                ]
            )
        packet = api.STLPktBuilder(pkt=_packet(side, ends, size), vm=program)
        result.append(api.STLStream(isg=delay_s, packet=packet, mode=api.STLTXCont(pps=pps)))
    return result


def file_streams(path: str, source: str, side: int, port: int) -> list[Any]:
    """Return the streams of a profile that is Python: code, which runs here with the user's rights. Raises BadInput."""
    from trex.stl import api

    def load(path: str) -> Any:
        return api.STLProfile.load_py(path, direction=side, port_id=port)

    return list(_load_from_file(path, source, "stateless", load).get_streams())


def mix_streams(
    frames: Sequence[Sequence[int]], flows: int, field: str, ends: Ends, udp_ports: Sequence[int]
) -> list[Any]:
    """Return a stream for each frame size. `frames`: sizes in bytes with FCS, and their weights. `field`: what differs
    between the flows."""
    from trex.stl import api

    program = _flows(field, flows, ends, udp_ports)
    return [
        api.STLStream(
            packet=api.STLPktBuilder(pkt=_packet(0, ends, size - FCS_BYTES, udp_ports), vm=program),
            mode=api.STLTXCont(pps=weight),
        )
        for size, weight in frames
    ]


def probes(port: int, side: int, ends: Ends | None, rate_pps: float, udp_ports: Sequence[int] = ()) -> Any:
    """Return the stream of latency probes from a port."""
    from trex.stl import api

    packet = api.STLPktBuilder(pkt=_packet(side, ends, PROBE_BYTES, udp_ports))
    statistics = api.STLFlowLatencyStats(pg_id=FIRST_PROBES + port)
    return api.STLStream(packet=packet, mode=api.STLTXCont(pps=rate_pps), flow_stats=statistics)


def _packet(side: int, ends: Ends | None, size: int, udp_ports: Sequence[int] = ()) -> Any:
    """Return a UDP packet of `size` bytes without FCS from this side; without ends, from 16.0.0.1 to 48.0.0.1 or back.

    With UDP ports it has no UDP checksum (RFC 768), because flows may change what it covers.
    """
    from trex.stl import api  # the client's own scapy

    source, target = ends or OUTSIDE[side]
    udp = api.UDP(dport=12, sport=1025)
    if udp_ports:
        udp = api.UDP(sport=udp_ports[0], dport=udp_ports[1], chksum=0)
    head = api.Ether() / api.IP(src=source, dst=target) / udp
    return head / (b"x" * max(0, size - len(head)))


def _flows(field: str, flows: int, ends: Ends, udp_ports: Sequence[int]) -> Any:
    """Return the program that makes so many flows, which differ in this field; None for one flow."""
    from trex.stl import api

    if flows == 1:
        return None
    place, size, first = {
        "source_port": ("UDP.sport", 2, udp_ports[0]),
        "target_port": ("UDP.dport", 2, udp_ports[1]),
        "source_ip": ("IP.src", 4, int(ipaddress.ip_address(ends[0]))),
        "target_ip": ("IP.dst", 4, int(ipaddress.ip_address(ends[1]))),
    }[field]
    steps = [
        api.STLVmFlowVar("flow", min_value=first, max_value=first + flows - 1, size=size, op="inc"),
        api.STLVmWrFlowVar(fv_name="flow", pkt_offset=place),
    ]
    return api.STLScVmRaw([*steps, *([api.STLVmFixIpv4(offset="IP")] if size == 4 else [])])


def connections(ends: Ends | None) -> Any:
    """Return connections like those of TRex's astf/http_simple.py: a GET, and an answer of 32 KiB.

    `ends`: the addresses of the client and the server; None: the ranges of that file."""
    from trex.astf import api

    answer = HTTP_ANSWER + b"*" * HTTP_BYTES
    client, server = api.ASTFProgram(), api.ASTFProgram()
    client.send(HTTP_REQUEST)
    client.recv(len(answer))
    server.recv(len(HTTP_REQUEST))
    server.send(answer)
    clients, servers = ["16.0.0.0", "16.0.0.255"], ["48.0.0.0", "48.0.255.255"]
    if ends:
        clients, servers = [ends[0]] * 2, [ends[1]] * 2
    addresses = api.ASTFIPGen(
        glob=api.ASTFIPGenGlobal(ip_offset="1.0.0.0"),
        dist_client=api.ASTFIPGenDist(ip_range=clients, distribution="seq"),
        dist_server=api.ASTFIPGenDist(ip_range=servers, distribution="seq"),
    )
    template = api.ASTFTemplate(
        client_template=api.ASTFTCPClientTemplate(program=client, ip_gen=addresses, cps=HTTP_CPS),
        server_template=api.ASTFTCPServerTemplate(program=server),
    )
    return api.ASTFProfile(default_ip_gen=addresses, templates=template)


def connections_of_file(path: str, source: str) -> Any:
    """Return a stateful profile that is Python: code, which runs here with the user's rights. Raises BadInput."""
    from trex.astf import api

    return _load_from_file(path, source, "stateful", api.ASTFProfile.load_py)


def connection_rate(profile: Any) -> float | None:
    """Return how many TCP connections a profile begins per second at mult=1; None if it limits their number."""
    content = profile.to_json()
    clients = [one["client_template"] for one in content["templates"]]
    if any("limit" in one for one in clients):
        return None
    programs = content["program_list"]
    return float(sum(one["cps"] for one in clients if programs[one["program_index"]].get("stream", True)))


def _load_from_file(path: str, source: str, kind: str, load: Callable[[str], Any]) -> Any:
    """Load a profile where it lies, because it may name captures beside it. `source`: the text that labkit recorded."""
    if read_regular(Path(path)).decode() != source:
        raise BadInput(f"profile={path} has changed since labkit read it: repeat the command")
    result, why = None, "it ends Python (sys.exit) instead of returning a profile"
    try:
        result = load(path)  # or None, the client's answer to a stateful one that ends Python
    except SystemExit:
        pass
    except BaseException as error:  # also KeyboardInterrupt: the code is a stranger's
        why = f"{type(error).__name__}: {error_text(error)}"
    if result is None:
        raise BadInput(f"profile={path}: TRex cannot take it as a {kind} profile: {why}")
    return result


def frame_bytes(stream: Any) -> int:
    """Return the length of a stream's frame in bytes, with FCS."""
    return len(base64.b64decode(stream.to_json()["packet"]["binary"])) + FCS_BYTES


def weight(stream: Any) -> float:
    """Return the weight of a stream among the others: its rate in packets per second, or what replaces it."""
    rate = stream.to_json()["mode"]["rate"]
    value, length = float(rate["value"]), frame_bytes(stream)
    if rate["type"] == "pps":
        return value
    return value / (length if rate["type"] == "bps_L2" else length + WIRE_BYTES)
