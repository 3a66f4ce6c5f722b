"""Faults of a switch: readers that end, an Open vSwitch that is missing or too old, mirrors that copy late or never."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common import packages
from labkit.common.errors import Failed, Unsupported
from labkit.common.switch_options import SwitchOptions
from labkit.measure.endpoints import Namespace, Pair
from labkit.measure.topologies import Copies, Spec
from labkit.measure.topologies.base import BETWEEN, MONITOR
from labkit.measure.topologies.network.build import BuiltNetwork
from labkit.measure.topologies.open_vswitch import copies, mirrors, switch
from labkit.measure.topologies.open_vswitch.mirrors import Counts, Mirrors
from labkit.system import machine, process

SPACE = cast(Namespace, SimpleNamespace(fd=-1, prefix=[]))
SOCKETS = SimpleNamespace(drops=lambda: {7: 0}, close=lambda: None)


def test_reader_that_has_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent holds the recorder's ring, which therefore exists whether or not the recorder still runs."""
    recording = Recording()
    monkeypatch.setattr(copies, "PacketSockets", lambda _fd: SOCKETS)
    monkeypatch.setattr(copies, "Ring", lambda *_: SimpleNamespace(close=lambda: None, counts=lambda: (9, 4)))
    monkeypatch.setattr(copies, "Recorder", lambda *_: SimpleNamespace(record=time.sleep, descriptors=list))
    monkeypatch.setattr(process, "Forked", recording.begin)
    with copies.reading("record", SPACE, [("mirror0", 7)]) as unread:
        assert unread() == (4,)
        os.kill(recording.pid, signal.SIGKILL)
        os.waitid(os.P_PID, recording.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(Failed, match=r"^a reader of copies has ended: was killed by signal 9$"):
            unread()


class Recording:
    """Starts a process that sleeps instead of the recorder."""

    forked = process.Forked

    def begin(self, _work: Callable[..., object], keep: Any) -> process.Forked:
        result = self.forked(lambda _connection: time.sleep(60), keep)
        self.pid = result.pid
        return result


def test_version_of_the_program_with_dpdk_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "SCHEMA", tmp_path)
    program = tmp_path / "ovs-vswitchd-dpdk"
    program.write_text("#!/bin/sh\necho 'ovs-vswitchd (Open vSwitch) 2.9.8'; echo 'DPDK 17.11.0'\n")
    program.chmod(0o755)
    monkeypatch.setattr(switch.dpdk, "program", lambda: str(program))
    made = switch.Switch(SPACE, tmp_path, [])
    with pytest.raises(Unsupported, match=r"Open vSwitch 2.9.8 \(.*ovs-vswitchd-dpdk\) is too old"):
        made.start([], SwitchOptions("ovs_dpdk"))


def test_missing_open_vswitch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "versions", lambda names: dict.fromkeys(names))
    with pytest.raises(Unsupported) as caught, switch.switch(SPACE):
        pass
    how = packages.install("ovs-vswitchd")
    assert (
        str(caught.value) == f"Open vSwitch is not installed (ovs-vswitchd): {how}; its service need not run"
    )


def test_kernel_datapath_waits_for_handler_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the kernel drops the first packets of every flow."""
    made = switch.Switch(SPACE, tmp_path, [])
    seen = iter([[], ["ovs-vswitchd", "revalidator8"], ["ovs-vswitchd", "handler1"]])
    monkeypatch.setattr(made, "_threads", lambda: next(seen))
    made._wait_for_datapath()
    assert list(seen) == []
    monkeypatch.setattr(made, "_threads", lambda: ["ovs-vswitchd"])
    monkeypatch.setattr(switch, "START_S", 0.02)
    with pytest.raises(Failed, match=r"^ovs-vswitchd started no handler thread"):
        made._wait_for_datapath()


class CopyingSwitch:
    """A switch whose two mirrors apply to new flows only, after as many purges as `needed`.

    `separate`: whether the copies of each mirror are counted one by one.
    """

    def __init__(self, needed: int, separate: bool = True) -> None:
        self.purges: list[str] = []
        self._needed, self._sent, self._copied, self._separate = needed, 0, 0, separate

    def send(self, *_: object) -> None:
        self._sent += 1
        self._copied += len(self.purges) >= self._needed

    def counts(self, _switch: object) -> Counts:
        copies = Copies(2 * self._copied, (self._copied, self._copied) if self._separate else None)
        return Counts(self._sent, self._sent, copies, None, None, 0.0)

    def command(self, *words: str) -> str:
        self.purges += words
        return ""

    def warnings(self) -> str:
        return ""


def prove(copying: CopyingSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    built = cast(BuiltNetwork, SimpleNamespace(space={BETWEEN: SPACE, MONITOR: SPACE}, index={}))
    made = Mirrors(SwitchOptions("ovs_netdev", mirrors=2), Spec(), built, {0: 7, 1: 8})
    monkeypatch.setattr(made, "counts", copying.counts)
    monkeypatch.setattr(mirrors, "_send", copying.send)
    monkeypatch.setattr(mirrors, "TRY_S", 0.01)
    monkeypatch.setattr(mirrors, "PROOF_S", 0.05)
    made.prove(cast(switch.Switch, copying), [cast(Pair, SimpleNamespace(client=None, server=None))])


@pytest.mark.parametrize(("snaplen", "fits"), [(None, False), (473, False), (472, True)])
def test_copies_that_are_cut_fit_the_uplink(snaplen: int | None, fits: bool) -> None:
    """500 bytes are 20 of IPv4, 8 of GRE with its key, and the copy with its Ethernet header of 14."""
    options = SwitchOptions("ovs", mirrors=1, output="gre", uplink_mtu=500, snaplen=snaplen)
    built = cast(BuiltNetwork, SimpleNamespace(space={BETWEEN: SPACE}, index={}))
    assert (Mirrors(options, Spec(), built, {0: 7, 1: 8}).doubts() == ()) == fits


@pytest.mark.parametrize("separate", [True, False])
def test_mirrors_prove_that_they_copy(separate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows from before a mirror are removed, so that it applies to them, too."""
    copying = CopyingSwitch(needed=1, separate=separate)
    prove(copying, monkeypatch)
    assert copying.purges == ["revalidator/purge"]


def test_mirrors_that_never_copy_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for separate, sentence in (
        (False, "2 mirrors should have made 4 copies, and 0 arrived"),
        (True, "each mirror should have made 2 copies, and 0 of mirror0, 0 of mirror1 arrived"),
    ):
        with pytest.raises(Failed, match=f"^{sentence}: Open vSwitch gives no reason$"):
            prove(CopyingSwitch(1_000_000, separate), monkeypatch)
