"""Programs of a switch: a reader of copies that has ended, and an Open vSwitch that is too old."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.open_vswitch import readers, switch
from labkit.measure.topologies.open_vswitch.switch_options import Datapath
from labkit.system import netlink, process

SPACE = cast(Namespace, SimpleNamespace(fd=-1, prefix=[]))
SOCKETS = SimpleNamespace(drops=lambda: {7: 0}, close=lambda: None)


def test_reader_that_has_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent holds the recorder's ring, which therefore exists whether or not the recorder still runs."""
    recording = Recording()
    monkeypatch.setattr(netlink, "PacketSockets", lambda _fd: SOCKETS)
    monkeypatch.setattr(
        readers, "Ring", lambda *_: SimpleNamespace(close=lambda: None, counts=lambda: (9, 4))
    )
    monkeypatch.setattr(readers, "Recorder", lambda *_: SimpleNamespace(record=time.sleep, descriptors=list))
    monkeypatch.setattr(process, "Forked", recording.begin)
    with readers.reading("record", SPACE, [("mirror0", 7)]) as unread:
        assert unread() == 4
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
        made.start(datapath=Datapath.DPDK)
