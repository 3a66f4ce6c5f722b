"""The record of the machine's settings, and of other programs, in a run."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.analysis.why import code_paths
from labkit.system.machine import background, bpf, netfilter, settings


def test_sysctl_names_and_values(tmp_path: Path) -> None:
    for name, text in {"net/core/rmem_max": "212992\n", "kernel/random/boot_id": "x", "kernel/ns_last_pid": "7",
                       "net/ipv4/tcp_mem": "1\t2\t3\n"}.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = dict(settings.sysctls(tmp_path, ("kernel", "net")))
    assert result == {"net.core.rmem_max": "212992", "net.ipv4.tcp_mem": "1 2 3"}


def test_settings_are_stable() -> None:
    """Every comparison would report a setting that changes by itself."""
    first, second = settings.machine_settings(), settings.machine_settings()
    differ = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    assert not {name for name in differ if not name.startswith(("BPF", "perf events"))}  # of other tests
    assert first["CPUs allowed"]
    assert any(name.startswith("sysctl net.ipv4.") for name in first)
    assert gzip.compress(str(first).encode())


def test_flat_objects() -> None:
    report = {"ifname": "eth0", "mtu": 1500, "linkinfo": {"info_data": {"stp": 0}}, "flags": ["UP"]}
    assert dict(settings.flat(report, settings.STATES)) == {"mtu": "1500", "linkinfo info_data stp": "0"}
    assert dict(settings.flat({"a": [1, 2]}, frozenset())) == {"a": "1 2"}


def test_packet_sockets() -> None:
    """Sockets of one interface and protocol count together; one whose interface is gone is left out."""
    head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"
    lines = [f"000000007e6b8b3f 3      3    {protocol}   {at}     1 0      0      12345\n"
             for protocol, at in (("0003", 0), ("0800", 1), ("0003", 0), ("0003", 99999))]  # fmt: skip
    words = "2 times on any interface of protocol 0x0003; on lo of protocol 0x0800"
    assert settings.packet_sockets(head + "".join(lines)) == {"packet sockets": words}
    assert settings.packet_sockets(head) == {}


@pytest.mark.needs("root", "perf")
def test_profiler_of_another_program_is_a_setting() -> None:
    """Its interrupts cost CPU time that no sample shows, and the program itself uses little."""
    own = settings.machine_settings().get("perf events of perf", "0 open")
    command = ["perf", "record", "--all-cpus", "--output", "/dev/null", "--", "sleep", "30"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as perf:
        try:
            end = time.monotonic() + 20
            while (count := settings.machine_settings().get("perf events of perf", "0 open")) == own:
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            perf.terminate()
    assert int(count.split()[0]) >= 1
    assert code_paths.paths_of_setting(f"perf events of perf: absent {count}")[0].name == "sampling (perf)"


def test_netfilter_attributes() -> None:
    body = struct.pack("=HH4s", 8, 1, b"tab\0") + struct.pack("=HH2s2x", 6, 3, b"c\0") + b"\0\0"
    assert dict(netfilter._attributes(body)) == {1: b"tab\0", 3: b"c\0"}
    assert netfilter._without_counters(b"head counter\0" + bytes(16)) == b"head counter"


def test_unknown_programs_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(bpf, "_call", refused)
    assert bpf.programs() == []


def test_own_programs_are_left_out() -> None:
    """The other program counts as somebody else's because its parent is not this process."""
    orphan = "import os, time; os.fork() and os._exit(0); os.setsid(); end = time.time() + 2"
    named = "open('/proc/self/comm', 'w').write('a-busy-program')"
    code = f"{orphan}; {named}\nwhile time.time() < end: pass"
    watch = background.Background()
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    watch.look(0.5)  # the other program ends before the report
    time.sleep(2.2)
    report = watch.report()
    shares = {one["name"]: one["cpu_share"] for one in report}
    assert "a-busy-program" in shares
    assert all(0 < share <= 1.1 for share in shares.values())
    assert os.getpid() not in shares
