"""The machine's properties, capabilities and doctor: parsers on saved output of the real tools."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Need, sample
from sandbox import output, shell_program

from labkit.commands import doctor_text
from labkit.common import privileges
from labkit.measure.capabilities import Capability, base
from labkit.system import machine, process
from labkit.system.machine import cpu_time, interfaces, programs, provenance

HEX = re.compile(r"[0-9a-f]{12}")


class TestCpuTime:
    def test_times_and_steal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = cpu_time.cpu_times_of("cpu  100 20 300 4000 50 6 70 8 90 9\n")
        hz = cpu_time.TICKS_PER_S
        # The user time includes the guest time (90).
        assert result == machine.CpuTimes(496 / hz, 70 / hz, 8 / hz, 4050 / hz)
        monkeypatch.setattr(cpu_time.os, "cpu_count", lambda: 2)
        assert machine.stolen(0.9, 10) == []
        [doubt] = machine.stolen(2.0, 10)
        assert "10 %" in doubt
        assert machine.stolen(2 / cpu_time.TICKS_PER_S, 0.07) == []


class TestInterfaces:
    def test_features_and_qdisc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = interfaces.features(sample("ethtool-k-6.1.txt"))
        assert result["tcp-segmentation-offload"] is True
        assert result["generic-receive-offload"] is False
        assert result["large-receive-offload"] is False  # "off [fixed]"
        assert result["tx-checksum-ip-generic"] is True  # indented below tx-checksumming
        assert len(result) == sample("ethtool-k-6.1.txt").count(": o")
        assert interfaces.qdisc_in(sample("ip-link-6.1.0.json")) == "noqueue"
        monkeypatch.setattr(interfaces, "program", lambda name: name)
        assert interfaces.offloads([], "lo") == {}
        assert interfaces.qdisc([], "lo") == "unknown"


class TestPrograms:
    @pytest.mark.parametrize(
        ("argv", "code", "text"),
        [
            (["nsenter", "--net", "--", "ping", "-c1"], 1, "ping ended with 1"),
            (["nsenter", "--net", "--", "grep", "--"], 2, "grep ended with 2"),
            (["sleep"], -9, "sleep was ended by SIGKILL"),
            (["sleep"], -40, "sleep was ended by signal 40"),  # a real-time signal
        ],
    )
    def test_how_a_program_ended(self, argv: list[str], code: int, text: str) -> None:
        assert process.Ended(argv, code, "", "", 0.0).message() == text

    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.18.44\n", "3.12"),
            ("ping from iputils 20221126\n", "20221126"),
            ("tcpdump version 4.99.3\nlibpcap version 1.10.3 (with TPACKET_V3)\nOpenSSL 3.0.19\n", "4.99.3"),
            ("TShark (Wireshark) 4.0.17 (Git v4.0.17 packaged as 4.0.17-0+deb12u3).\n", "4.0.17"),
            (
                "Chromium 156.0.8078.79 built on Debian\n/usr/bin/chromium: 9: [: 12638248960: unex",
                "156.0.8078.79",
            ),
            ("no version at all\n", None),
        ],
    )
    def test_version_in(self, text: str, version: str | None) -> None:
        assert programs.version_in(text) == version

    @pytest.mark.parametrize(
        ("sleep_s", "deadline", "version"),
        [
            pytest.param(2.1, {}, "1.2", marks=pytest.mark.long),
            (60, {"deadline_s": 0.2}, "?"),
        ],
    )
    def test_slow_tool_has_a_version_and_a_hanging_one_none(
        self, sleep_s: float, deadline: Any, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy machine, a browser takes seconds to print it."""
        monkeypatch.setenv("PATH", shell_program(tmp_path, "slow", f"sleep {sleep_s}\necho slow 1.2"))
        found = programs.versions(["slow", "no-such-program"], **deadline)
        assert found == {"slow": version, "no-such-program": None}


class TestAccelerator:
    def test_samples(self) -> None:
        kvm, tcg = (provenance.lscpu_fields(sample(f"lscpu-2.38.1-{of}.json")) for of in ("kvm", "tcg"))
        assert kvm["CPU(s)"] == "2"
        assert provenance.accelerator(kvm, None) == "kvm"
        assert provenance.accelerator(tcg, "QEMU") == "tcg"

    @pytest.mark.parametrize(
        ("fields", "maker", "word"),
        [
            ({"Model name": "AMD EPYC 9654"}, "Supermicro", "none"),
            # Under TCG, lscpu queries VMware's port, and QEMU answers.
            ({"Model name": "Intel Core Processor (Skylake)", "Hypervisor vendor": "VMware"}, "QEMU", "tcg"),
            ({"Model name": "Intel Xeon", "Hypervisor vendor": "Microsoft"}, "Microsoft", "hyperv"),
            ({"Model name": "UML", "Vendor ID": "User Mode Linux"}, None, "uml"),
            ({"Model name": "Intel Xeon", "Flags": "fpu hypervisor sse"}, None, "unknown"),
        ],
    )
    def test_accelerator_words(self, fields: dict[str, str], maker: str | None, word: str) -> None:
        assert provenance.accelerator({"Architecture": "x86_64", **fields}, maker) == word


class TestProvenance:
    def test_what_a_run_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = machine.describe()
        assert result["kernel"] == Path("/proc/sys/kernel/osrelease").read_text().strip()
        assert result["kernel_build"] == Path("/proc/sys/kernel/version").read_text().strip()
        assert result["cpus_count"] >= 1
        assert isinstance(result["cpu"], str)
        for name in ("sysctl_digest", "machine", "kernel_config_digest"):
            assert result[name] is None or HEX.fullmatch(result[name])
        assert result == machine.describe()
        identity = Path("/etc/machine-id")
        if identity.exists() and identity.read_text().strip():
            assert identity.read_text().strip()[:12] not in json.dumps(machine.describe())
        result = machine.details()
        assert result["memory_bytes"] > 1e6
        assert result["tools"]["python"]
        assert result["sysctls"]["net.ipv4.tcp_rmem"]
        assert "net.core.default_qdisc" in result["sysctls"]
        assert msgspec.json.decode(msgspec.json.encode(result)) == result
        monkeypatch.setattr(provenance, "SYSCTLS", {"net.ipv4": ("no_such_thing", "tcp_sac*")})
        result = machine.sysctls()
        assert result["net.ipv4.no_such_thing"] is None
        assert result["net.ipv4.tcp_sack"] in ("0", "1")

    def test_git_revision(self, tmp_path: Path, need: Need) -> None:
        need("git")

        def git(*words: str) -> str:
            who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
            return output(["git", *who, *words], 60, cwd=tmp_path)

        assert provenance.revision_of(tmp_path) is None
        git("init", "--quiet")
        assert provenance.revision_of(tmp_path) is None
        (tmp_path / "labkit").mkdir()
        source = tmp_path / "labkit/a.py"
        source.write_text("1\n")
        git("add", ".")
        git("commit", "--quiet", "-m", "one")
        commit = git("rev-parse", "HEAD").strip()[:12]
        assert provenance.revision_of(tmp_path) == commit
        (tmp_path / "notes").write_text("beside the package\n")
        assert provenance.revision_of(tmp_path) == commit
        source.write_text("2\n")
        assert provenance.revision_of(tmp_path) == f"{commit}+dirty"


class TestModules:
    def test_module_that_is_missing_loaded_or_unknown(self, tmp_path: Path) -> None:
        aliases = "# a comment\nalias rtnl-link-gre ip_gre\nalias rtnl-link-ipip ipip\n"
        (tmp_path / "modules.alias").write_text(aliases)
        (tmp_path / "modules").write_text("ip_gre 24576 0 - Live 0x0000000000000000\n")
        places = {"folder": tmp_path, "loaded": tmp_path / "modules"}
        assert base.unloaded_module("rtnl-link-ipip", **places) == "ipip"
        assert base.unloaded_module("rtnl-link-gre", **places) is None
        assert base.unloaded_module("rtnl-link-sit", **places) is None
        assert base.unloaded_module("rtnl-link-gre", tmp_path / "nowhere") is None

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ("# CONFIG_IPVLAN is not set\n", "boot a kernel with CONFIG_IPVLAN;"),
            ("CONFIG_IPVLAN=m\n", "install the modules of this kernel"),
            ("CONFIG_IPVLAN=y\n", "boot another kernel"),
            (None, "boot a kernel with CONFIG_IPVLAN;"),
        ],
    )
    def test_kernel_remedies(self, monkeypatch: pytest.MonkeyPatch, config: str | None, words: str) -> None:
        monkeypatch.setattr(base.machine, "kernel_config", lambda: config)
        base._config.cache_clear()
        assert base.kernel_with("IPVLAN").startswith(words)
        base._config.cache_clear()


class TestDoctor:
    FOUND = (
        Capability("privilege", "root", False, "an ordinary user", "no profiles", "run as root"),
        Capability("link kinds", "veth", True),
        Capability(
            "link kinds", "ipvlan", False, "this kernel does not support it", "no ipvlan", "boot another"
        ),
        Capability("link kinds", "gre", None, "not tried", None, "modprobe ip_gre"),
        Capability("tools", "iperf3", True, "3.12"),
    )

    @staticmethod
    def text(answer: dict[str, Any], encoding: str = "utf-8", every: bool = True) -> str:
        return doctor_text.as_text(answer, io.TextIOWrapper(io.BytesIO(), encoding=encoding), every=every)

    @pytest.fixture
    def answer(self) -> dict[str, Any]:
        report = {"kernel": "6.1.0", "cpu": "A CPU", "cpus_count": 2, "accelerator": "tcg"}
        return {"machine": report, "details": {}, "capabilities": msgspec.to_builtins(list(self.FOUND))}

    def test_text(self, answer: dict[str, Any]) -> None:
        lines = self.text(answer).splitlines()
        assert lines[0] == "Linux 6.1.0, A CPU, 2 CPUs, an emulated CPU (tcg), without root"
        assert "  ✓ veth" in lines
        assert (
            "  ✗ ipvlan  this kernel does not support it — without it: no ipvlan — to get it: boot another"
            in lines
        )
        assert "  ? gre     not tried — to get it: modprobe ip_gre" in lines
        assert "  ✓ iperf3  3.12" in lines
        assert lines[-1] == "2 of 5 capabilities are available here; 1 not tested"

    def test_summary(self, answer: dict[str, Any]) -> None:
        boot, hardware = "boot a kernel with CONFIG_IPVLAN", "measure on bare metal"
        found = [
            Capability("link kinds", "veth", True),
            Capability("link kinds", "ipvlan", False, "unknown", "no ipvlan", boot),
            Capability("tunnels", "gre", None, "not tried", None, boot),
            Capability("perf events", "cycles", False, "no counter", "no cycles", hardware),
            Capability("tools", "crun", False, "not installed", "no containers", "apt install crun"),
            Capability("tools", "tc", False, "not installed", "no qdisc", "apt install iproute2"),
            Capability("tools", "ip", False, "not installed", "no shell", "apt install iproute2; restart"),
        ]
        answer["capabilities"] = msgspec.to_builtins(found)
        _, works, kernel, other, programs = self.text(answer, every=False).splitlines()
        assert works.startswith("✓ 1 of 7 capabilities work (labkit doctor --all shows each): link kinds 1/2")
        assert kernel.endswith(": link kinds ipvlan; tunnels gre (not tested)")
        assert other.endswith(": perf events cycles")
        assert programs == ("✗ apt install crun iproute2: crun (no containers); tc (no qdisc); ip (no shell)")

    def test_lines_stay_whole_and_plain(self, answer: dict[str, Any]) -> None:
        answer["capabilities"][2]["lost"] = "very " * 200 + "long"
        text = self.text(answer)
        assert len([line for line in text.splitlines() if "very" in line]) == 1
        assert "\x1b" not in text
        answer["machine"]["cpu"] = "Ω"
        text = self.text(answer, "ascii")
        assert text.isascii()
        assert "  x ipvlan" in text
        assert "  + veth" in text


@pytest.mark.parametrize(("uid", "mapped", "is_root"), [(0, "0 0 4294967295", True), (0, "0 1000 1", False),
                                                        (1000, "0 0 4294967295", False)])  # fmt: skip
def test_user_namespace_root_is_not_root(
    uid: int, mapped: str, is_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uid_map").write_text(mapped)
    monkeypatch.setattr(privileges, "UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert machine.is_root() == is_root
