"""Pages share captures over a hub, and a page may only request what the hub serves.

tests/notebooks/test_monitor_page.py clears a page, and leaves captures without a viewer.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from monitored_frames import mutants
from sandbox import until
from traitlets.config import Config

from labkit.common.errors import BadInput, Failed
from labkit.common.packets import ETHERNET, RAW_IP
from labkit.jupyter import monitor_page, monitor_panel
from labkit.jupyter.monitor_hub import Hub, HubClient
from labkit.live import LiveTopology
from labkit.measure.observers.monitor.live_monitor import MonitorCounts, MonitoredPacket, MonitorReport

FRAME = bytes(12) + b"\x08\x00<script>alert(1)</script>"
INTERFACES = ["client0:eth0", "server0:eth0"]


class Fake:
    """A fake monitor, and the fake topology that it watches, without packets."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, dict[str, Any]]] = []
        self.closed = self.cleared = 0
        self.slow: threading.Event | None = None

    def monitor(self, interface: str, **parameters: Any) -> Fake:
        if parameters.get("source") == "wrong":
            raise BadInput("source='wrong' is not an address")
        if self.slow is not None:
            self.slow.wait(20)
        self.begun.append((interface, parameters))
        return self

    def read(self, since: int = -1, limit: int = 100) -> MonitorReport:
        packet = MonitoredPacket(since + 1, 0, "in", len(FRAME), FRAME, 1)
        counts = MonitorCounts(1, 1, 0, 0, 0, 1, 0, 0, 0)
        return MonitorReport(counts, {"ip": (1, 40)}, [("ip", "a", "b", 1, 40)], [packet], False, 1)

    def pcapng(self) -> bytes:
        return b"file"

    def clear(self) -> None:
        self.cleared += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def hub(fake: Fake, tmp_path: Path) -> Iterator[Hub]:
    with Hub(fake, INTERFACES, str(tmp_path / "hub")) as made:
        yield made


def test_viewers_share_one_capture_which_ends_with_the_last(hub: Hub, fake: Fake, tmp_path: Path) -> None:
    client = HubClient(str(tmp_path / "hub"))
    one, other = (client.monitor("client0:eth0", source="10.0.0.1") for _ in range(2))
    third = client.monitor("client0:eth0")
    assert fake.begun == [("client0:eth0", {"source": "10.0.0.1"}), ("client0:eth0", {})]
    assert one.read(4).packets[0].number == 5
    assert other.read().packets[0].data == FRAME
    assert other.pcapng() == b"file"
    one.close()
    assert other.read().counts.seen_count == 1
    assert fake.closed == 0
    other.close()
    third.close()
    assert until(lambda: fake.closed == 2 and not hub.captures_count, 20)


def test_a_slow_start_keeps_no_other_page_waiting(hub: Hub, fake: Fake, tmp_path: Path) -> None:
    """tshark checks a display filter for seconds. Two pages that request the same meanwhile share one monitor."""
    client = HubClient(str(tmp_path / "hub"))
    there = client.monitor("server0:eth0")
    fake.slow = threading.Event()
    begun: list[Any] = []
    pages = [
        threading.Thread(target=lambda: begun.append(client.monitor("client0:eth0", display="ip")))
        for _ in range(2)
    ]
    for page in pages:
        page.start()
    assert there.read(4).packets[0].number == 5
    assert not begun
    fake.slow.set()
    for page in pages:
        page.join(20)
    assert (len(begun), hub.captures_count) == (2, 2)
    assert begun[0].read(4).packets[0].number == begun[1].read(4).packets[0].number == 5
    for each in (there, *begun):
        each.close()


def test_clear_is_of_one_page(hub: Hub, fake: Fake, tmp_path: Path) -> None:
    """A page that shares its capture gets an empty one of its own, and the other one goes on."""
    client = HubClient(str(tmp_path / "hub"))
    one, other = (client.monitor("client0:eth0", vlan=7) for _ in range(2))
    one.clear()
    assert (len(fake.begun), fake.cleared, hub.captures_count) == (2, 0, 2)
    assert fake.begun[0] == fake.begun[1] == ("client0:eth0", {"vlan": 7})
    one.clear()
    other.clear()
    assert (len(fake.begun), fake.cleared, hub.captures_count) == (2, 2, 2), "nobody shares any more"
    assert one.read(4).packets[0].number == other.read(4).packets[0].number == 5
    third = client.monitor("client0:eth0", vlan=7)
    assert hub.captures_count == 2, "it shares the one that is nobody's own"
    for each in (one, other, third):
        each.close()
    assert until(lambda: fake.closed == 2 and not hub.captures_count, 20)


def test_page_reaches_what_the_hub_was_started_for_only(hub: Hub, fake: Fake, tmp_path: Path) -> None:
    client = HubClient(str(tmp_path / "hub"))
    for interface, parameters in (
        ("machine:eth0", {}),
        ("client0:eth0", {"keep_count": "many"}),
        ("client0:eth0", {"where": "ssh:other"}),
        ("client0:eth0", {"source": "x" * 100_000}),
        ("client0:eth0", {"source": "wrong"}),
        ("client0:eth0", {"source": ["10.0.0.1"]}),
    ):
        with pytest.raises(BadInput):
            client.monitor(interface, **parameters)
    assert fake.begun == []
    assert (tmp_path / "hub").stat().st_mode & 0o777 == 0o600


GIVEN = {
    "source": "10.0.0.1", "destination": "10.0.0.2", "port": "53", "protocol": "udp", "inside": "vxlan",
    "expression": "ip", "sample": "all", "display": "dns", "vlan": "7", "keep_count": "20", "snap_bytes": "64",
    "fields": "ip.ttl",
}  # fmt: skip
TYPED = GIVEN | {"vlan": 7, "keep_count": 20, "snap_bytes": 64}


def test_pages_and_panels_take_every_parameter_of_a_monitor(hub: Hub, fake: Fake, tmp_path: Path) -> None:
    """They are texts on a command line and in a page, and typed where the monitor starts."""
    assert GIVEN.keys() == inspect.signature(LiveTopology.monitor).parameters.keys() - {"self", "interface"}
    choice = {"interface": "client0:eth0", **GIVEN}
    assert monitor_panel.check_choice(choice, INTERFACES) == choice
    HubClient(str(tmp_path / "hub")).monitor("client0:eth0", **TYPED).close()
    panel = monitor_panel.MonitorPanel(fake, INTERFACES, choice)
    panel._start()
    panel.close()
    assert fake.begun == [("client0:eth0", TYPED), ("client0:eth0", TYPED)]
    with pytest.raises(BadInput, match="a monitor has no parameter 'rounds': choose interface, source"):
        monitor_panel.check_choice({**choice, "rounds": "3"}, INTERFACES)


@pytest.mark.parametrize(
    ("interfaces", "choice"),
    [
        (INTERFACES, {"source": "10.0.0.1"}),
        (INTERFACES, {"interface": "client0:eth0", "where": "ssh:other"}),
        (["machine:eth0"], {"interface": "machine:eth0"}),
    ],
)
def test_page_may_set_what_it_shows_but_not_what_is_watched(
    interfaces: list[str],
    choice: dict[str, str],
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interfaces and choice are a page's own, too: it can set them without `apply`."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(
        monitor_panel.MonitorPanel, "send", lambda _panel, content, **_more: sent.append(content)
    )
    monkeypatch.setattr(monitor_panel.MonitorPanel, "_run", lambda self: None)
    panel = monitor_panel.MonitorPanel(fake, INTERFACES)
    panel.interfaces, panel.choice = interfaces, choice
    panel._start()
    assert (fake.begun, panel._monitor) == ([], None)
    [problem] = sent
    assert problem["do"] == "problem"
    assert re.match("this panel watches client0:eth0|a monitor has no parameter 'where'", problem["text"])
    panel._hear(None, {"do": "apply", "choice": {"interface": "server0:eth0"}}, [])
    assert fake.begun == [("server0:eth0", {})]
    panel.close()


def test_mutants_of_frames_are_plain_text_in_the_page() -> None:
    frames = mutants(10_000, seed=19)
    counts = MonitorCounts(1, 1, 0, 0, 0, 1, 0, 0, 0)
    rows = [
        MonitoredPacket(number, 0, "in", len(data), data, (ETHERNET, RAW_IP)[number % 2])
        for number, data in enumerate(frames)
    ]
    made = monitor_panel.message(MonitorReport(counts, {}, [], rows, False, 1))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for data, shown in zip(frames, made["packets"], strict=True):
        texts = [shown["time"], shown["stack"], *shown["layers"]]
        assert all(text.isprintable() for text in texts)
        lines = shown["hex"].splitlines()
        assert bytes.fromhex("".join(line[6 : 6 + 3 * monitor_panel.HEX_BYTES] for line in lines)) == data
        assert all(line.isprintable() and line.isascii() for line in lines)


def test_page_says_why_nothing_is_selected() -> None:
    nothing = MonitorCounts(9, 0, 0, 0, 0, 0, 0, 0, 0)
    made = monitor_panel.message(MonitorReport(nothing, {}, [], [], False, 1))
    assert made["hint"].startswith("9 packets passed and none was selected: leave a condition out")
    failed = MonitorReport(nothing, {}, [], [], False, 1, "tshark was killed")
    assert monitor_panel.message(failed)["problem"] == "tshark was killed"


def test_hub_that_has_gone(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot be reached"):
        HubClient(str(tmp_path / "none")).monitor("client0:eth0")


def test_the_pages_server_drops_no_large_file(tmp_path: Path) -> None:
    """A server of notebooks drops what exceeds a megabyte a second, and a file of 10,000 packets does."""
    from voila.app import Voila

    monitor_page.prepared(tmp_path, "hub", INTERFACES, {}, 8866)
    settings = json.loads((tmp_path / "voila.json").read_text())
    connection = Voila.kernel_websocket_connection_class.default_value
    assert connection().limit_rate
    assert not connection(config=Config(settings)).limit_rate


def test_page_puts_no_packet_into_html() -> None:
    source = Path(monitor_panel.__file__).with_suffix(".js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", source
    )
    assert not re.search(r"https?://", source)
