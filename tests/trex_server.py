"""Run a TRex server for tests: it answers on loopback as a recorded one did, and counts packets as a test plans them.

Every answer without a method here comes from a transcript of a real v3.08 server (tests/samples/trex-3.08-*.jsonl.gz):
the recorded answer to the same method and port, with the id of the request. This server generates owners, states,
events and packet counters itself. It runs as a process of its own, and as `_t-rex-64` of a fake release.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import itertools
import json
import os
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

SAMPLES = Path(__file__).with_name("samples")
MAGIC = 0xABE85CEA
STARTED, STOPPED, JOB_DONE, ACQUIRED, RELEASED = 0, 1, 4, 5, 6
PROFILE_EVENT = 10  # added to the number of the same event of a port's profile
# ASTF: events, and states of a profile
ASTF_STATE, PROFILE_STATE, PROFILE_CLEARED = 50, 60, 61
IDLE, LOADED, PARSING, BUILDING, TRANSMITTING, CLEANING = 0, 1, 2, 3, 4, 5


def transcript(name: str) -> list[dict[str, Any]]:
    """Return the recorded messages of a session, each with chan, dir, t and msg."""
    with gzip.open(SAMPLES / f"trex-3.08-{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def calls(name: str) -> Iterator[tuple[float, str, dict[str, Any], Any]]:
    """Return each call of a session with its answer: time of the answer, method, parameters, the result or the
    error."""
    requests: dict[str, Any] = {}
    for record in transcript(name):
        if record["chan"] != "rpc":
            continue
        for one in record["msg"] if isinstance(record["msg"], list) else [record["msg"]]:
            if record["dir"] == "req":
                requests[one["id"]] = one
            elif one.get("id") in requests:
                request = requests[one["id"]]
                yield record["t"], request["method"], request.get("params", {}), one.get("result", one)


@dataclass
class Plan:
    """What the server and the device behind it do. Rates are packets per second of each port.

    `capacity_pps`: the device drops packets above this rate. `loss_ratio`: the device drops this share of all packets.
    `max_pps`: TRex sends no faster. `swallows`: frames exceed the MTU, so only `oerrors` rise. `dies_after`: the
    process ends at the n-th start of traffic; `dies_at`: at this method, after traffic was started. `silent`: it never
    answers. `silent_at`: it is stopped (SIGSTOP) at this method, after traffic was started unless that starts it.
    `publishes`: it has a publisher. `wires`: the ports' interfaces and MAC addresses; the first start of a port sends
    real frames, and if they do not arrive at the other one, none does.
    """

    recorded: str = "stl_errors"
    mode: str = "STL"
    api: tuple[int, int] = (5, 1)
    owner: str = ""
    line_bps: float = 10e9
    capacity_pps: float = 1e12
    loss_ratio: float = 0.0
    max_pps: float = 1e12
    swallows: bool = False
    silent: bool = False
    silent_at: str = ""
    dies_after: int = 0
    dies_at: str = ""
    publishes: bool = True
    log: str = ""
    rpc_port: int = 0
    wires: tuple[dict[str, Any], ...] = ()


@dataclass
class Port:
    owner: str = ""
    handler: str = ""
    session: int = 0
    streams: dict[int, Any] = field(default_factory=dict)
    rate_pps: float = 0.0
    since: float = 0.0
    duration: float = 0.0
    running: bool = False
    sent: float = 0.0  # totals of traffic that has ended
    received: float = 0.0
    refused: float = 0.0
    # Of its latency stream, since that was added: totals sent, and received by the other port, of traffic that has
    # ended, and the number of starts.
    probes: tuple[float, float] = (0.0, 0.0)
    probes_starts: int = 0


class Rejected(Exception):
    """An error that the server answers with."""


class Server:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.woken = False
        self.answers: dict[tuple[str, Any], list[Any]] = {}
        for _t, method, parameters, result in calls(plan.recorded):
            if not (isinstance(result, dict) and "error" in result):
                self.answers.setdefault((method, parameters.get("port_id")), []).append(result)
        self.ports = {0: Port(owner=plan.owner), 1: Port(owner=plan.owner)}
        self.events: dict[int, list[dict[str, Any]]] = {}
        self.seen: dict[int, int] = {}
        self.handlers = itertools.count()
        self.starts = 0
        self.tried: set[int] = set()
        self.astf_owner = plan.owner
        self.astf_runs = False
        self.epoch = 0

    # packets sent, and where they are lost

    def _flow(self, port: Port, now: float) -> tuple[float, float, float]:
        """Return totals of the running traffic: sent, received by the other port, refused by the interface."""
        if not port.running:
            return 0, 0, 0
        wanted = port.rate_pps + self._probes_pps(port)
        rate = min(wanted, self.plan.max_pps)
        whole = wanted * port.duration if port.duration > 0 else 1e18
        count = min(rate * (now - port.since), whole)
        if self.plan.swallows:
            return 0, 0, count
        passed = count * min(1, self.plan.capacity_pps / rate if rate else 1) * (1 - self.plan.loss_ratio)
        return count, passed, 0

    def _probes_pps(self, port: Port) -> float:
        """Return the rate of the latency streams, which the multiplier does not scale."""
        return self._streams(port, probes=True)[0]

    def _probes(self, port: Port, now: float) -> tuple[float, float]:
        """Return totals of a port's latency stream since it was added: sent, and received by the other port."""
        sent, received, _refused = self._flow(port, now)
        pps = self._probes_pps(port)
        share = pps / (pps + port.rate_pps) if pps else 0.0
        return port.probes[0] + share * sent, port.probes[1] + share * received

    def _streams(self, port: Port, *, probes: bool) -> tuple[float, float]:
        """Return the rate of the latency streams of a port, or of its others, in packets and in bits on the line."""
        chosen = [
            (one["mode"]["rate"]["value"], len(base64.b64decode(one["packet"]["binary"])) + 24)
            for one in port.streams.values()
            if (one["flow_stats"].get("rule_type") == "latency") == probes
        ]
        return sum(pps for pps, _ in chosen), sum(8 * pps * length for pps, length in chosen)

    def _factor(self, port: Port, multiplier: dict[str, Any]) -> float:
        """Return by how much TRex multiplies the streams that are not of latency, so that all of the port reach a rate.

        Raises Rejected, with the words of a real server, for a rate that the port cannot have.
        """
        assert multiplier["type"] == "pps", "rates are in packets a second"
        fixed_pps, fixed_bps = self._streams(port, probes=True)
        variable_pps, variable_bps = self._streams(port, probes=False)
        if multiplier["value"] <= fixed_pps:
            raise Rejected(f"current stream configuration enforces a minimum rate of '{fixed_pps:.0f}' pps")
        factor: float = (multiplier["value"] - fixed_pps) / variable_pps
        if (wanted := fixed_bps + factor * variable_bps) > self.plan.line_bps * 1.0001:
            raise Rejected(
                f"Expected L1 B/W: '{wanted / 1e9:.0f} Gbps' exceeds port line rate:"
                f" '{self.plan.line_bps / 1e9:.0f} Gbps'"
            )
        return factor

    def _settle(self, number: int, now: float) -> None:
        port, peer = self.ports[number], self.ports[number ^ 1]
        sent, received, refused = self._flow(port, now)
        port.probes = self._probes(port, now)
        port.running = False
        port.sent += sent
        port.refused += refused
        peer.received += received

    def _ended(self, now: float) -> None:
        """End traffic whose scheduled packets are all sent."""
        for number, port in self.ports.items():
            wanted = port.rate_pps + self._probes_pps(port)
            if port.running and port.duration > 0 and wanted:
                rate = min(wanted, self.plan.max_pps)
                if (now - port.since) * rate >= wanted * port.duration:
                    self._settle(number, now)
                    self._of_port(JOB_DONE, number)

    def _astf(self, *states: int) -> None:
        for state in states:
            self._publish(PROFILE_STATE, {"epoch": self.epoch, "profile_id": "_", "state": state})
            self._publish(ASTF_STATE, {"epoch": self.epoch, "state": state})

    def _astf_ended(self) -> None:
        self.astf_runs = False
        self._astf(CLEANING, LOADED)

    def counters(self, number: int) -> dict[str, Any]:
        now = time.monotonic()
        port, peer = self.ports[number], self.ports[number ^ 1]
        sent, _received, refused = self._flow(port, now)
        _sent, received, _refused = self._flow(peer, now)
        out, arrived = int(port.sent + sent), int(port.received + received)
        return {
            "opackets": out, "ipackets": arrived, "obytes": 64 * out, "ibytes": 64 * arrived,
            "oerrors": int(port.refused + refused), "ierrors": 0, "m_cpu_util": 0.0,
            "m_total_tx_pps": 0.0, "m_total_tx_bps": 0.0, "m_total_rx_pps": 0.0, "m_total_rx_bps": 0.0,
        }  # fmt: skip

    # --- the protocol ---

    def _publish(self, kind: int, data: dict[str, Any], name: str = "trex-event") -> None:
        for session in self.events:
            self.events[session].append({"name": name, "type": kind, "data": data, "seq": self.seen[session]})
            self.seen[session] += 1
        self.woken = True

    def _of_port(self, kind: int, number: int) -> None:
        self._publish(kind + PROFILE_EVENT, {"port_id": number, "profile_id": "_"})
        self._publish(kind, {"port_id": number})

    def answer(self, method: str, parameters: dict[str, Any]) -> Any:
        now = time.monotonic()
        self._ended(now)
        number = parameters.get("port_id")
        own = getattr(self, f"do_{method}", None)
        if own is not None:
            return own(parameters, number, now)
        recorded = self.answers.get((method, number)) or self.answers.get((method, None))
        if recorded is None:
            return {}
        return recorded.pop(0) if len(recorded) > 1 else recorded[0]

    def do_api_sync_v2(self, parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        if parameters["name"] != self.plan.mode:
            raise Rejected(
                f"RPC configuration mismatch - server RPC configuration: '{self.plan.mode}', client RPC"
                f" configuration: '{parameters['name']}'"
            )
        major, minor = self.plan.api
        if (given := parameters["major"]) != major:
            words = "Version mismatch: your client version is too new to be supported by the server"
            if given < major:
                words = "RPC version mismatch: a newer client version is required"
            raise Rejected(
                f"{words}\n(API type '{self.plan.mode}':  - server:"
                f" '{major}.{minor}', client: '{parameters['major']}.{parameters['minor']}')"
            )
        return {"api_h": "69StCeNr"}

    def do_get_async_events(self, parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        session = parameters["session_id"]
        self.seen.setdefault(session, 0)
        waiting, self.events[session] = self.events.get(session, []), []
        return {"data": waiting}

    def do_publish_now(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        self.woken = True
        return {}

    def do_get_port_status(self, _parameters: dict[str, Any], number: Any, _now: float) -> Any:
        port = self.ports[number]
        state = "TX" if port.running else "STREAMS" if port.streams else "IDLE"
        recorded: dict[str, Any] = self.answers[("get_port_status", number)][0]
        attributes = {**recorded["attr"], "speed": self.plan.line_bps / 1e9}
        return {
            **recorded, "attr": attributes, "owner": port.owner, "state": state, "state_profile": {"_": state},
        }  # fmt: skip

    def do_acquire(self, parameters: dict[str, Any], number: Any, _now: float) -> Any:
        numbers = [number] if number is not None else list(self.ports)
        for one in numbers:
            if self.ports[one].owner and not parameters.get("force"):
                raise Rejected(f"port is already taken by '{self.ports[one].owner}'")
        for one in numbers:
            port = self.ports[one]
            port.owner, port.session = parameters["user"], parameters["session_id"]
            port.handler = f"handler{next(self.handlers)}"
            if number is not None:  # ASTF has no such events for the owner
                self._publish(ACQUIRED, {"port_id": one, "who": port.owner, "session_id": port.session,
                                         "force": bool(parameters.get("force"))})  # fmt: skip
        if number is None:
            return {"handler": "astf", "ports": {str(one): self.ports[one].handler for one in numbers}}
        return self.ports[number].handler

    def do_release(self, parameters: dict[str, Any], number: Any, _now: float) -> Any:
        for one in [number] if number is not None else list(self.ports):
            port = self.ports[one]
            if number is not None and parameters.get("handler") != port.handler:
                raise Rejected("port is not owned by you or your current executing session")
            if number is not None:
                self._publish(RELEASED, {"port_id": one, "who": port.owner, "session_id": port.session})
            port.owner = port.handler = ""
        return None if number is None else {}

    def do_add_stream(self, parameters: dict[str, Any], number: Any, _now: float) -> Any:
        port = self.ports[number]
        port.streams[parameters["stream_id"]] = parameters["stream"]
        if parameters["stream"]["flow_stats"].get("rule_type") == "latency":
            port.probes, port.probes_starts = (0.0, 0.0), 0
        return {}

    def do_remove_all_streams(self, _parameters: dict[str, Any], number: Any, _now: float) -> Any:
        self.ports[number].streams.clear()
        return {}

    def do_get_all_streams(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        return {"profiles": {}}

    def do_start_traffic(self, parameters: dict[str, Any], number: Any, now: float) -> Any:
        self.starts += 1
        if self.plan.dies_after and self.starts >= self.plan.dies_after:
            os._exit(1)
        port = self.ports[number]
        factor = self._factor(port, parameters["mul"])
        port.rate_pps = parameters["mul"]["value"] - self._probes_pps(port)
        if self.plan.wires and number not in self.tried:
            self.tried.add(number)
            if not self._arrives(number):
                self.plan.loss_ratio = 1.0
        now = time.monotonic()
        port.since, port.duration, port.running = now, parameters["duration"], True
        port.probes_starts += 1
        self._of_port(STARTED, number)
        return {"multiplier": factor, "ts": now}

    def _arrives(self, number: int) -> bool:
        """Return whether real frames of each stream of this port arrive at the other one."""
        wires = self.plan.wires
        with (
            packet_socket(wires[number]["iface"]) as sender,
            packet_socket(wires[number ^ 1]["iface"]) as receiver,
        ):
            for stream in self.ports[number].streams.values():
                packet = base64.b64decode(stream["packet"]["binary"])
                macs = [wires[number][name] for name in ("dest_mac", "src_mac")]
                frame = b"".join(bytes.fromhex(mac.replace(":", "")) for mac in macs) + packet[12:]
                sender.send(frame)
                deadline = time.monotonic() + 2
                # a router changes MAC addresses, TTL and checksum; addresses, ports and payload stay
                while not (got := received(receiver)) or got[26:38] != frame[26:38]:
                    if time.monotonic() > deadline:
                        return False
        return True

    def do_stop_traffic(self, _parameters: dict[str, Any], number: Any, now: float) -> Any:
        if self.ports[number].running:
            self._settle(number, now)
            self._of_port(STOPPED, number)
        return {}

    def do_get_port_stats(self, _parameters: dict[str, Any], number: Any, _now: float) -> Any:
        return self._replayed("get_port_stats", number) if self.plan.mode == "ASTF" else self.counters(number)

    def do_get_counter_values(self, _parameters: dict[str, Any], number: Any, _now: float) -> Any:
        return self._replayed("get_counter_values", number)

    def _replayed(self, method: str, number: Any) -> Any:
        """Return the recorded counters: the next ones while connections run, before that the first, and after that the
        last."""
        recorded = self.answers[(method, number)]
        if not self.starts:
            return recorded[0]
        while recorded[0] == recorded[1] if len(recorded) > 1 else False:
            recorded.pop(0)
        if len(recorded) > 1 and self.astf_runs:
            recorded.pop(0)
        return recorded[0] if self.astf_runs else recorded[-1]

    def do_get_latency_stats(self, _parameters: dict[str, Any], number: Any, _now: float) -> Any:
        return self._replayed("get_latency_stats", number)

    def do_get_active_pgids(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        return {"ids": {"flow_stats": [], "latency": []}}

    def do_get_pgid_stats(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        """Return the recorded latencies of stream 5 for each start since the stream was added, with its own counts."""
        flows, latency = {}, {}
        for number, port in self.ports.items():
            for stream in port.streams.values():
                if stream["flow_stats"].get("rule_type") == "latency":
                    name = str(stream["flow_stats"]["stream_id"])
                    sent, arrived = self._probes(port, time.monotonic())
                    buckets = {"0": 300, "10": 195, "300": 359, "1000": 232}  # 300: of earlier traffic
                    flows[name] = {
                        **{key: {"0": 0, "1": 0} for key in ("rb", "rbs", "rps", "tb", "tbs", "tps")},
                        "tp": {str(number): int(sent), str(number ^ 1): 0},
                        "rp": {str(number): 0, str(number ^ 1): int(arrived)},
                    }
                    latency[name] = {"lat": {"average": 484.0, "histogram": {
                                                 edge: port.probes_starts * count for edge, count in buckets.items()},
                                             "jit": 476, "last_max": 0, "total_max": 0, "total_min": 8}}  # fmt: skip
        versions = dict.fromkeys(flows, 1) or None
        return {"flow_stats": flows or None, "latency": {**latency, "g": None}, "ver_id": versions}

    def do_profile_clear(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        self._publish(PROFILE_CLEARED, {"epoch": self.epoch, "profile_id": "_"})
        self._publish(PROFILE_STATE, {"epoch": self.epoch, "profile_id": "_", "state": IDLE})

    def do_profile_fragment(self, parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        if parameters.get("frag_last"):
            self._astf(LOADED)

    def do_start(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        """Start ASTF traffic: the transcript's counters are replayed while it runs, until it is stopped."""
        self.starts += 1
        if self.plan.dies_after and self.starts >= self.plan.dies_after:
            os._exit(1)
        self.astf_runs = True
        self._astf(*((PARSING, BUILDING) if self.starts == 1 else (BUILDING,)))
        self.epoch += 1
        self._astf(TRANSMITTING)

    def do_stop(self, _parameters: dict[str, Any], _number: Any, _now: float) -> Any:
        if self.astf_runs:
            self._astf_ended()


def packet_socket(interface: str) -> socket.socket:
    """Return a socket for all frames of an interface."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    made.bind((interface, 0))
    made.settimeout(0.1)
    return made


def received(sock: socket.socket) -> bytes:
    """Return a frame that has arrived, or nothing."""
    try:
        frame, sender = sock.recvfrom(65536)
    except TimeoutError:
        return b""
    return b"" if sender[2] == socket.PACKET_OUTGOING else frame


def _free_ports() -> int:
    """Return a free port for the RPC whose lower neighbour, the publisher's port, is also free."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port - 1))
                return port


def serve(plan: Plan) -> None:
    """Answer until SIGTERM, or until the parent process has ended."""
    import zmq

    server = Server(plan)
    log = open(plan.log, "a", buffering=1) if plan.log else None
    context = zmq.Context()
    rpc, publisher = context.socket(zmq.REP), context.socket(zmq.PUB)
    port = plan.rpc_port or _free_ports()
    rpc.bind(f"tcp://127.0.0.1:{port}")
    if plan.publishes:
        publisher.bind(f"tcp://127.0.0.1:{port - 1}")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print(port, flush=True)
    while True:
        server.woken = False
        if rpc.poll(50):
            raw = rpc.recv()
            if plan.silent:
                time.sleep(3600)
            if struct.unpack(">I", raw[:4])[0] == MAGIC:
                raw = zlib.decompress(raw[8:])
            request = json.loads(raw)
            replies = []
            for one in request if isinstance(request, list) else [request]:
                if log:
                    log.write(json.dumps([one["method"], one["params"]]) + "\n")
                if one["method"] == plan.silent_at and (server.starts or "start" in plan.silent_at):
                    plan.silent_at = ""
                    os.kill(os.getpid(), signal.SIGSTOP)
                if one["method"] == plan.dies_at and server.starts:
                    os._exit(1)
                reply = {"jsonrpc": "2.0", "id": one["id"]}
                try:
                    reply["result"] = server.answer(one["method"], one["params"])
                except Rejected as error:
                    reply["error"] = {
                        "code": -32000, "message": "Failed To Execute Method", "specific_err": str(error),
                    }  # fmt: skip
                replies.append(reply)
            rpc.send(json.dumps(replies if isinstance(request, list) else replies[0]).encode())
        server._ended(time.monotonic())
        if server.woken:
            publisher.send(b"{}")


def argv(plan: Plan) -> list[str]:
    """Return the command line that serves a plan. Its first line of output is the RPC port."""
    return [sys.executable, "-P", __file__, "--plan", json.dumps(asdict(plan))]


def release(folder: Path) -> Path:
    """Make a fake release of TRex whose program is this server; FAKE_TREX in its environment is a plan."""
    folder.mkdir()
    (folder / "so").mkdir()
    program = folder / "_t-rex-64"
    program.write_text(
        f"#!{sys.executable} -P\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n"
    )
    program.chmod(0o755)
    return folder


def released_plan() -> Plan:
    """Return the plan of the program of a fake release. It refuses what a real one refuses, and logs how it runs."""
    words = argparse.ArgumentParser()
    words.add_argument("-i", action="store_true", required=True)
    mode_words = words.add_mutually_exclusive_group(required=True)
    mode_words.add_argument("--astf", action="store_true")
    mode_words.add_argument("--hdrh", action="store_true")  # of stateless traffic alone
    words.add_argument("--cfg", required=True)
    for name in ("--no-key", "--no-scapy-server", "--no-ofed-check"):
        words.add_argument(name, action="store_true", required=True)
    words.add_argument("--iom", choices=["0"], required=True)
    given = words.parse_args()
    [config] = yaml.safe_load(Path(given.cfg).read_text())
    fields = json.loads(os.environ.get("FAKE_TREX", "{}"))
    if words_of_end := fields.pop("ends", None):
        sys.exit(words_of_end)
    mode = {"mode": "ASTF", "recorded": "astf_http_own", "api": (2, 3)} if given.astf else {}
    plan = Plan(**mode, **fields)
    if plan.log:
        with open(plan.log, "a") as log:
            words_of_all = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")
            own = words_of_all[words_of_all.index("./_t-rex-64") :]  # behind the interpreter
            how = {"argv": own, "cwd": str(Path.cwd()), "libraries": os.environ.get("LD_LIBRARY_PATH")}
            log.write(json.dumps(["started", how | {"config": config}]) + "\n")
    if not config["low_end"]:
        sys.exit("ERROR: You don't have enough physical cores")
    devices = [dict(part.split("=") for part in one.split(",")) for one in config["interfaces"]]
    macs = config["port_info"]
    plan.wires = tuple(one | two for one, two in zip(devices, macs, strict=True))
    for wire in plan.wires:
        packet_socket(wire["iface"]).close()
    os.makedirs(f"/var/run/dpdk/{config['prefix']}", exist_ok=True)  # as DPDK does
    plan.rpc_port = 4501
    return plan


def main() -> None:
    if "--plan" in sys.argv:
        fields = json.loads(sys.argv[sys.argv.index("--plan") + 1])
        plan = Plan(**{**fields, "api": tuple(fields["api"])})
    else:  # run as _t-rex-64 of a fake release
        plan = released_plan()
    serve(plan)


if __name__ == "__main__":
    main()
