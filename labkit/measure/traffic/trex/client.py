"""TRex's client as labkit uses it: a connection to the process that has it (`client_process`), with deadlines."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.common.errors import BadInput, Failed
from labkit.measure.traffic.packet_sender import FIRST_PORT, PORT, Mix
from labkit.measure.traffic.trex import readings
from labkit.measure.traffic.trex.readings import Direction
from labkit.system import process

PROGRAM = "labkit.measure.traffic.trex.client_process"
RPC_PORT = 4501  # TRex's own; labkit expects its publisher at the port below, as TRex has it
USER = "labkit"
KERNEL_DRIVER = "net_af_packet"  # DPDK's, of kernel interfaces
ENDING_S = 15.0  # longer than the client process allows itself to leave the server in order
PATIENCE_S = 30.0  # of a request beyond its traffic; longer than the client process allows itself
GRACE_S = 0.1  # beyond the scheduled duration, before traffic that is late is stopped
FIELDS = ("source_port", "target_port", "source_ip", "target_ip")  # in which the flows of a stream can differ
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True)
class Address:
    """Where a TRex server listens."""

    host: str
    rpc_port: int = RPC_PORT

    def __str__(self) -> str:
        return f"{self.host}:{self.rpc_port}"


def address(text: str) -> Address:
    """Parse `HOST` or `HOST:PORT`. Raises BadInput."""
    host, colon, port = text.partition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not _HOST.fullmatch(host) or host.startswith("-") or (colon and not 1024 <= number <= 65535):
        raise BadInput(
            f"server={text}: write HOST or HOST:PORT, with the port of TRex's RPC, 1024 to 65535"
            f" ({RPC_PORT} if none is given)"
        )
    return Address(host, number or RPC_PORT)


def ports(numbers: Sequence[int]) -> None:
    """Raise BadInput unless these are pairs of different ports."""
    if not numbers or len(numbers) % 2 or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        text = ",".join(map(str, numbers)) or "none"
        raise BadInput(
            f"ports={text}: TRex sends between two ports: name pairs of different ones, such as 0,1"
        )


def argv(prefix: Sequence[str] = ()) -> list[str]:
    """Return the command line of the client process. `prefix` starts it in a network namespace."""
    return [*prefix, *process.python("-B", "-W", "ignore", "-m", PROGRAM)]


@contextmanager
def companion(prefix: Sequence[str] = ()) -> Iterator[process.Companion]:
    """Start the client process. When all have ended that hold its connection, it leaves the server stopped and
    released; at the latest when the block ends, and then that is waited for."""
    made = process.Companion(argv(prefix))
    try:
        yield made
    finally:
        made.ended(ENDING_S)


@dataclass(frozen=True)
class Server:
    """What a server reports about itself. `line_bps`: the line rate of each port. `on_kernel`: whether they are kernel
    interfaces. `doubts`: what weakens a result."""

    version: str
    line_bps: tuple[float, ...]
    on_kernel: bool
    doubts: tuple[str, ...] = ()


class Client:
    """The ports of a TRex server, ours until `close` or the end of this process. `name`: of the server, in messages;
    None: where it listens."""

    def __init__(self, descriptor: int, at: Address, numbers: Sequence[int], name: str | None = None) -> None:
        self._companion = process.CompanionClient(descriptor, "TRex's client")
        self._at = at
        self._name = name or str(at)
        self.ports = tuple(numbers)
        self.senders: tuple[int, ...] = ()

    def connect(self, mode: str, *, force: bool) -> Server:
        """Connect and acquire the ports. `mode`: STL or ASTF. Raises Unsupported without the client's package, BadInput
        for ports that are not there, Failed for a server that does not answer, has another version or mode, or whose
        ports somebody else owns."""
        report = self._ask(
            "connect", mode=mode, host=self._at.host, rpc_port=self._at.rpc_port, name=self._name, ports=self.ports,
            force=force, user=USER,
        )  # fmt: skip
        silent = (
            f"nothing listens at port {self._at.rpc_port - 1} of {self._at.host}, the publisher of the TRex server:"
            " TRex's client hears of events up to half a second later, so let that port pass"
        )
        doubts = () if report["publisher"] else (silent,)
        return Server(
            str(report["version"]), tuple(report["line_bps"]), report["driver"] == KERNEL_DRIVER, doubts
        )

    def load(
        self,
        profile: str,
        *,
        source: str | None = None,
        ends: Sequence[tuple[str, str]] | None = None,
        latency_pps: float = 0.0,
        both: bool = True,
    ) -> float:
        """Give the ports their streams; return the mean length of their frames in bytes, with FCS.

        `source`: the text of a profile that is a file. `ends`: source and destination address of each port. `both`: the
        ports of a pair send to each other; else only the first sends. Raises BadInput for a file that is not a profile.
        """
        report = self._ask(
            "load", profile=profile, source=source, ends=ends, latency_pps=latency_pps, both=both
        )
        self.senders = tuple(report["senders"])
        return float(report["frame_bytes"])

    def load_frames(self, mix: Mix, ends: Sequence[tuple[str, str]], latency_pps: float) -> None:
        """Give the first port of each pair the frames of a mix, instead of what it had.

        `ends`: source and destination address of each port. The flows differ in the first field of the mix alone.
        """
        counts = {size: mix.frame_bytes.count(size) for size in dict.fromkeys(mix.frame_bytes)}
        report = self._ask(
            "load_frames", frames=list(counts.items()), flows=mix.flows, field=mix.vary[0], ends=ends,
            udp_ports=(FIRST_PORT, PORT), latency_pps=latency_pps,
        )  # fmt: skip
        self.senders = tuple(report["senders"])

    def trial(
        self, rate_pps: float, duration_s: float, grace_s: float = GRACE_S
    ) -> tuple[list[Direction], dict[str, Any]]:
        """Send `rate_pps` frames a second from each sending port for `duration_s` seconds.

        Return what happened in each direction, and the readings. Traffic that is late is stopped after `grace_s` more.
        Raises BadInput for a rate that the line cannot carry, Failed for a server that is gone.
        """
        raw = self._ask("trial", rate_pps=rate_pps, duration_s=duration_s, grace_s=grace_s)
        return readings.directions(raw, self.ports, self.senders), raw

    def load_stateful(
        self, profile: str, source: str | None = None, ends: tuple[str, str] | None = None
    ) -> float | None:
        """Load connections (ASTF): a name, or a file whose text is `source`. Raises BadInput for one that is none.

        `ends`: the addresses of the client and the server of a named profile; None: those of TRex's own profiles.
        Return how many TCP connections begin per second at mult=1; None if the profile limits their number.
        """
        report: float | None = self._ask("load_stateful", profile=profile, source=source, ends=ends)
        return report

    def stateful(self, mult: float, duration_s: float, latency_pps: int) -> dict[str, Any]:
        """Run `mult` times the profile's connections beside `latency_pps` probes; return the readings."""
        report: dict[str, Any] = self._ask(
            "stateful", mult=mult, duration_s=duration_s, latency_pps=latency_pps
        )
        return report

    def _ask(self, do: str, **given: Any) -> Any:
        return self._companion.ask({"do": do, **given}, PATIENCE_S + given.get("duration_s", 0.0))

    def close(self) -> None:
        """Close the connection; when its last holder closes it, the client process stops and releases the ports."""
        self._companion.close()


@contextmanager
def connected(
    descriptor: int | None, at: Address, numbers: Sequence[int], mode: str, *, force: bool
) -> Iterator[tuple[Client, Server]]:
    """Take ports of a server that runs elsewhere, until the block ends; `descriptor` is that of the run's companion.

    Raises the errors of `Client.connect`.
    """
    if descriptor is None:
        raise Failed(
            "labkit has not started TRex's client. This is a fault of labkit: report it with the command that you ran"
        )
    with closing(Client(descriptor, at, numbers)) as client:
        yield client, client.connect(mode, force=force)
