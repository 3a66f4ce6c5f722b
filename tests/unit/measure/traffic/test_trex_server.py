"""The TRex server that labkit starts: where its program is looked for, its configuration and its command line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from labkit.common.errors import Unsupported
from labkit.measure.capabilities import tools
from labkit.measure.traffic.packet_sender import FrameAddresses, Mix
from labkit.measure.traffic.rates import Line
from labkit.measure.traffic.trex import client_process, generator, server
from labkit.measure.traffic.trex.readings import Direction

PORTS = [
    FrameAddresses("trex0", "02:00:00:00:00:01", "02:00:00:00:00:02", "10.1.0.1", "10.2.0.1"),
    FrameAddresses("trex1", "02:00:00:00:00:02", "02:00:00:00:00:01", "10.2.0.1", "10.1.0.1"),
]


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(server.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    folder = tmp_path / "v3.08"
    folder.mkdir()
    (folder / server.BINARY).write_text("")
    (folder / server.BINARY).chmod(0o755)
    return folder


def test_parameter_comes_before_the_environment(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(server.FOLDER_VARIABLE, "/nowhere/at/all")
    assert server.find(str(release)) == release
    with pytest.raises(
        Unsupported, match="/nowhere/at/all has no program _t-rex-64, so it is not a TRex release: unpack"
    ):
        server.find()
    monkeypatch.setenv(server.FOLDER_VARIABLE, str(release))
    assert server.find() == release
    scripts = release.rename(tmp_path / "scripts")  # of a source tree
    assert server.find(str(tmp_path)) == scripts
    (scripts / server.BINARY).chmod(0o644)
    with pytest.raises(Unsupported, match=r"LABKIT_TREX=/path/of/v3\.08"):
        server.find(str(scripts))


def test_configuration_is_that_of_a_measured_server() -> None:
    [config] = yaml.safe_load(server.config(PORTS, 1500, "labkit-1"))
    ring = "blocksz=1048576,framesz=2048,framecnt=16384"
    assert config == {
        "version": 2,
        "port_limit": 2,
        "interfaces": [f"--vdev=net_af_packet{n},iface=trex{n},{ring}" for n in (0, 1)],
        "low_end": True,
        "prefix": "labkit-1",
        "port_info": [{"dest_mac": port.target_mac, "src_mac": port.source_mac} for port in PORTS],
    }


def test_places_of_the_ring_hold_the_largest_frame() -> None:
    """What the kernel asks of a ring, and TRex's largest packet buffer, of 9 · 1024 + 64 bytes."""
    for mtu, frame in (
        (1500, 2048), (1906, 2048), (1907, 4096), (8050, 8192), (8051, 9216), (9000, 9216), (65535, 9216),
    ):  # fmt: skip
        [config] = yaml.safe_load(server.config(PORTS, mtu, "x"))
        ring = dict(
            part.split("=") for part in config["interfaces"][0].removeprefix("--vdev=").split(",")[1:]
        )
        block, size, count = (int(ring[name]) for name in ("blocksz", "framesz", "framecnt"))
        assert size == frame < 9 * 1024 + 64
        assert (block % 4096, block % size, count % (block // size)) == (0, 0, 0)
        assert 31 << 20 <= count * size <= 32 << 20


def test_command_line_of_each_mode() -> None:
    """test_trex_own_server.py has the whole of it."""
    for stateful, own, other in ((False, "--hdrh", "--astf"), (True, "--astf", "--hdrh")):
        words = server.argv(Path("/opt"), Path("/run/x/trex_cfg.yaml"), stateful=stateful)
        assert {own, "RUNTIME_DIRECTORY=/run/x"} <= {*words}
        assert other not in words


def test_flows_that_a_stream_cannot_have() -> None:
    for mix, words in (
        (Mix(vary=("source_mac",), flows=2), "vary=source_mac: TRex varies source_port"),
        (Mix(flows=100_000, vary=("source_port", "target_ip")), "source_port has 64512 values"),
        (Mix(flows=4000, block=2000, repeats=10), "use generator=packets"),
        (Mix(burst_frames=16), "burst_frames=16: TRex decides its bursts"),
    ):
        with pytest.raises(Unsupported, match=words):
            generator.check_mix(mix)


def test_load_of_a_search_leaves_room_for_the_probes() -> None:
    line, mix = Line(84 * 8 * 10_000.0), Mix(frame_bytes=(64,))
    assert generator.max_load_pps(line, mix, None, 0) == pytest.approx(10_000)
    assert generator.max_load_pps(line, mix, None, 1000) == pytest.approx(9000)
    assert generator.max_load_pps(line, mix, 5000, 1000) == pytest.approx(4000)


@pytest.mark.parametrize(
    ("rate_pps", "probes_pps"), [(None, 997), (50_000, 997), (4000, 997), (1000, 249.25)]
)
def test_a_slow_trial_is_no_faster_for_its_probes(rate_pps: float | None, probes_pps: float) -> None:
    """Its two ports send what was asked for, and about half of little of it is probes."""
    loaded, sent = list[float](), list[float]()

    class Ports:
        ports = (0, 1, 2, 3)

        def load_frames(self, _mix: Mix, _ends: object, probes_pps: float) -> None:
            loaded.append(probes_pps)

        def trial(self, load_pps: float, *_words: float) -> tuple[list[Direction], None]:
            sent.append(2 * (load_pps + loaded[-1]))
            shared = {"sent_count": 9, "received_count": 9, "ring_drops_count": 0, "refused_count": 0}
            seen = {"received_bytes": 576, "sent_pps": 9.0, "received_pps": 9.0, "window_s": 1.0}
            return [Direction(source=0, target=1, **shared, **seen)], None

    ports: Any = Ports()
    trials = generator.TrexTrials(ports, [("10.1.0.1", "10.2.0.1")], Mix(frame_bytes=(64,)), 1e9)
    trials.trial(rate_pps, 1, latency=True)
    assert loaded == [pytest.approx(probes_pps)]
    assert rate_pps is None or sent == [pytest.approx(rate_pps)]


def test_frames_on_their_way_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They arrive for as long as a queue is deep, here for 1.9 s; without more of them 0.3 s are enough."""
    now_s = [100.0]
    monkeypatch.setattr(client_process, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    channel: Any = SimpleNamespace(wait=lambda until: now_s.__setitem__(0, until))
    session = client_process.Session(channel)

    def counters(arrived: int) -> dict[str, dict[str, int]]:
        return {"0": {"opackets": 2000, "ipackets": 0, "ierrors": 0},
                "1": {"opackets": 0, "ipackets": arrived, "ierrors": 0}}  # fmt: skip

    rest = {port: dict.fromkeys(("opackets", "ipackets", "ierrors"), 0) for port in "01"}
    for most, waited_s in ((2000, 1.9), (500, 0.7), (10**9, 0.0)):
        begun_s = now_s[0] = 100.0
        early = 100 if most <= 2000 else most

        def read() -> dict[str, dict[str, int]]:
            return counters(min(most, early + int(1000 * (now_s[0] - begun_s))))  # noqa: B023

        monkeypatch.setattr(session, "_port_counters", read)
        session._drained(rest)
        assert now_s[0] - begun_s == pytest.approx(waited_s, abs=0.02)


def test_doctor(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, detail in (
        ("", "not installed"),
        ("/nowhere", "/nowhere has no program _t-rex-64, so it is not a TRex release"),
        (str(release), str(release)),
    ):
        monkeypatch.setenv(server.FOLDER_VARIABLE, folder)
        [tool] = [one for one in tools.tools(dict.fromkeys(tools.TOOLS)) if one.name == "trex"]
        assert (tool.available, tool.detail) == (folder == str(release), detail)
        assert tool.available or tool.remedy.startswith("unpack a TRex release")


def test_count_that_is_off_by_one_is_no_loss_of_a_search() -> None:
    """Nor are frames that TRex's own ring dropped, and frames of others do not hide a loss of more than they are."""
    shared = {"source": 0, "target": 1, "sent_count": 1000, "refused_count": 0}
    shared |= {"received_bytes": 0, "sent_pps": 0, "received_pps": 0, "window_s": 1}
    for received, ring, delivered in ((999, 0, 1000), (600, 399, 1000), (1002, 0, 1000), (990, 0, 990)):
        one = Direction(**shared, received_count=received, ring_drops_count=ring)
        assert generator._delivered_count(one) == delivered
