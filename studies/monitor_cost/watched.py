"""The live part of the notebook: three pairs whose traffic two monitors of one interface watch."""

import dataclasses
import time

import msgspec
import pandas as pd
from IPython.display import display

from labkit import live
from labkit.analysis import displays
from labkit.common.errors import Failed, Unsupported
from labkit.measure.observers.monitor.live_monitor import MonitoredPacket, MonitorReport
from studies.monitor_cost import figure, finding

LISTEN_S, READ_S = 30.0, 0.1


@dataclasses.dataclass(frozen=True)
class Watched:
    """What two monitors of one interface saw: one selected the packets of one pair, the other took samples of all.

    `times_s` and `counts` are readings while traffic ran; `filtered` and `samples` are the last reports; `last` has the
    newest packets of the pair.
    """

    times_s: list[float]
    counts: dict[str, list[int]]
    filtered: MonitorReport
    samples: MonitorReport
    last: list[MonitoredPacket]

    def show(self) -> None:
        """Show how much less the monitors handed on than they saw, what became of each packet (a column for each
        monitor), the counts over time, the conversations that the filter let through, and the pair's last packets."""
        both = {"filter": self.filtered.counts, "samples": self.samples.counts}
        columns = {name: pd.Series(msgspec.to_builtins(counts)) for name, counts in both.items()}
        exact = pd.DataFrame(columns).rename_axis("packets").reset_index()
        seen = [(one.direction, one.length_bytes, one.stack) for one in self.last]
        displays.show(
            finding.reductions(self.filtered.counts, self.samples.counts),
            exact.assign(packets=exact["packets"].str.removesuffix("_count")),
            figure.selected(self.times_s, self.counts),
            pd.DataFrame(
                self.filtered.conversations, columns=["class", "source", "destination", "packets", "bytes"]
            ),
            pd.DataFrame(seen, columns=["direction", "bytes", "headers"]),
        )


def build_three_pairs(topology: str, endpoint: str, interface: str) -> tuple[live.LiveTopology, str]:
    """Build three pairs and let each client send UDP at 20 Mbit/s to its server. Returns them, and what to watch.

    What this machine lacks is displayed in a sentence, and replaced: containers by namespaces, then the switch by a
    bridge, where a port of the first pair is watched. Raises Failed if iperf3 does not start.
    """
    choices = ((topology, endpoint, interface), (topology, "namespace", interface))
    for name, kind, place in (*choices, ("veth_bridge", "namespace", "port0")):
        try:
            net = live.build(name, pairs=3, endpoint=kind)
        except (Unsupported, Failed) as error:
            display(displays.markdown(f"*{name} with endpoint={kind} cannot be built here: {error}.*"))
            continue
        for client, server in net.state.pairs:
            listening = net.endpoints[server.name].start("iperf3", "-s", "-1", "--forceflush")
            deadline = time.monotonic() + LISTEN_S
            while "listening" not in listening.output:
                if not listening.is_running or time.monotonic() > deadline:
                    net.close()
                    raise Failed(f"iperf3 does not listen at {server.name}")
                time.sleep(0.05)
            words = ["-u", "-b", "20M", "-l", "1024", "-t", "600"]
            net.endpoints[client.name].start("iperf3", "-c", str(server.address), *words)
        return net, place
    raise Unsupported("no topology with three pairs can be built here: `labkit doctor` says why")


def watch(net: live.LiveTopology, interface: str, seconds: float, sample: str) -> Watched:
    """Watch an interface for a while with two monitors: the traffic of one pair, and samples of everything.

    The pair is the last one, or the first one if the interface is its port.
    """
    client, server = net.state.pairs[0 if interface == "port0" else -1]
    times_s: list[float] = []
    counts: dict[str, list[int]] = {"seen": [], "selected": []}
    with (
        net.monitor(interface, source=client.address, destination=server.address) as chosen,
        net.monitor(interface, sample=sample) as sampled,
    ):
        begun = time.monotonic()
        while not times_s or times_s[-1] < seconds:
            now = chosen.counts
            times_s.append(time.monotonic() - begun)
            counts["seen"].append(now.seen_count)
            counts["selected"].append(now.selected_count)
            time.sleep(READ_S)
        return Watched(times_s, counts, chosen.stop(), sampled.stop(), chosen.packets[-10:])
