"""The kinds of changes. `KINDS` is the one place to add a new one."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.common import packages
from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.measure.experiments import bpf_object
from labkit.measure.experiments.change_kind import (
    Files,
    Kind,
    Place,
    State,
    digest,
    no_guest,
    refused,
    run_checked,
    text_options,
)
from labkit.system import machine, netlink, process
from labkit.system.machine import sysctl_journal

# A word for tc, neither an option nor a path. A prefix such as 10.0.0.0/8 may have one slash.
WORD = r"(?!-)[A-Za-z0-9_.:%+=-]{1,40}|[0-9a-fA-F.:]{2,39}/\d{1,3}"
# tc reads files by these.
FILE_WORDS = {
    "bpf", "obj", "object", "object-file", "object-pinned", "pinned", "bytecode", "bytecode-file", "bc", "bcf",
    "export", "exp", "run", "exec", "import", "distribution", "stab", "uds_file",
}  # fmt: skip
SYSCTL = r"[a-z0-9_-]+([./][A-Za-z0-9_-][A-Za-z0-9_.-]*)+"
SYSCTL_VALUE = r"[A-Za-z0-9_ \t.,:-]{1,200}"
SECTION = r"[A-Za-z0-9_./-]{1,64}"
SHORT_DIGEST = r"sha256:[0-9a-f]{12,64}"
CPUS = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"
# The parameters that an arm may set itself; MTU and family belong to the whole path.
PARAMETERS = (
    "length_bytes", "streams", "mss_bytes", "zerocopy", "congestion", "affinity", "rate_bps", "mtu_bytes",
)  # fmt: skip
OFFLOAD_NAMES = {
    "rx": "rx-checksumming", "tx": "tx-checksumming", "sg": "scatter-gather", "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload", "gro": "generic-receive-offload", "lro": "large-receive-offload",
    "rxvlan": "rx-vlan-offload", "txvlan": "tx-vlan-offload", "ntuple": "ntuple-filters", "rxhash": "receive-hashing",
}  # fmt: skip


def _pairs(kind: str, text: str) -> dict[str, Any]:
    """Parse `gro off tso off` into a mapping."""
    words = text.split()
    if not words or len(words) % 2:
        raise BadInput(f"{kind} {text!r}: write names, each followed by its value")
    return dict(zip(words[::2], words[1::2], strict=True))


def _number(kind: str, value: Any, least: int, most: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise BadInput(f"{kind}={value}: a whole number is needed") from None
    if not least <= number <= most:
        raise BadInput(f"{kind}={value} is outside {least} to {most}")
    return number


class Sysctl(Kind):
    """A sysctl of the network namespace; in a guest, of the guest's kernel."""

    per_interface = False
    example = "sysctl net.ipv4.conf.all.rp_filter=1 at server"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"sysctl {text!r}: write NAME=VALUE")
        return {name.strip(): value.strip()}

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {
            name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in given.items()
        }

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("sysctl needs NAME=VALUE")
        for name, value in options.items():
            if (
                not re.fullmatch(SYSCTL, name)
                or any(set(part) <= {"."} for part in name.split("/"))
                or ".." in name
            ):
                raise BadInput(
                    f"sysctl {name!r}: a name is like net.ipv4.ip_forward, or net/ipv4/conf/eth0.1/rp_filter"
                )
            if not isinstance(value, str) or not re.fullmatch(SYSCTL_VALUE, value):
                raise BadInput(f"sysctl {name}={value!r}: a value has letters, digits, spaces and . , : _ -")
            if not name.startswith(("net.", "net/")):
                raise BadInput(
                    f"sysctl {name}: only net.* belongs to a namespace; use machine_sysctl for others"
                )

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {name: _sysctl(place, name) for name in options}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            outside = _outside(name)
            _write_sysctl(place, name, value)
            if place.kernel is None and (now := _outside(name)) != outside and outside is not None:
                _sysctl_path(name).write_text(outside)
                raise Failed(
                    f"sysctl {name} is the machine's, not the namespace's: it was put back from {now!r} to {outside!r};"
                    " machine_sysctl changes such settings"
                )


def _sysctl_path(name: str) -> Path:
    """Return the file of a sysctl, in the caller's network namespace."""
    return Path("/proc/sys", *(name.split("/") if "/" in name else name.split(".")))


def _outside(name: str) -> str | None:
    """Return the value in the experiment's own network namespace, None if it does not exist there."""
    try:
        return " ".join(_sysctl_path(name).read_text().split())
    except OSError:
        return None


def _sysctl(place: Place, name: str) -> str:
    path = _sysctl_path(name)
    try:
        if place.kernel is not None:
            with place.kernel.open(str(path)) as file:
                return " ".join(file.read().split())
        with netlink.inside(place.namespace.fd):
            return " ".join(path.read_text().split())
    except (OSError, LabkitError) as error:
        words = getattr(error, "strerror", None) or error
        raise Unsupported(
            f"this kernel has no sysctl {name} in a network namespace of its own ({words})"
        ) from None


def _write_sysctl(place: Place, name: str, value: str) -> None:
    path = _sysctl_path(name)
    if place.kernel is not None:
        place.kernel.sysctl("/".join(path.parts[4:]), value)
        return
    try:
        with netlink.inside(place.namespace.fd):
            path.write_text(value)
    except OSError as error:
        raise refused(error, f"sysctl {name}={value}") from None


class Nftables(Kind):
    """nftables rules for the namespace. The change contains the rules; they may not include other files."""

    per_interface = False
    example = "nftables rules.nft at server"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        content = files.read(text)
        try:
            return {"file": Path(text).name, "rules": content.decode(), "digest": digest(content)}
        except UnicodeDecodeError:
            raise BadInput(f"{text} is not a text file") from None

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        if given.keys() != {"rules"}:
            return dict(given)
        rules = str(given["rules"])
        return {"file": "rules", "rules": rules, "digest": digest(rules.encode())}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options("nftables", options, "file", "rules", "digest")
        if digest(options["rules"].encode()) != options["digest"]:
            raise BadInput("nftables: the rules do not match the digest beside them")
        # nft would read any file that the user can read, and quote it in its messages.
        if re.search(r"\binclude\b", options["rules"]):
            raise BadInput(
                f"nftables {options['file']}: include is not allowed, not even in a comment:"
                " write all rules into one file"
            )

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("nftables", place)
        listed = run_checked(place.program("nft", "list", "ruleset"), "nftables")
        rules = sum(bool(re.match(r"\t\t(?!type |\})\S", line)) for line in listed.splitlines())
        return {
            "nftables ruleset": f"{rules} lines of rules, {digest(listed.encode())[:19]}"
            if listed.strip()
            else "none"
        }

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        run_checked(place.program("nft", "-f", "-", text=options["rules"]), f"nftables {options['file']}")


class Conntrack(Nftables):
    """Connection tracking of every packet in the namespace, enabled by a rule that checks the state."""

    example = "conntrack on at server"
    RULES = (
        "table inet labkit_conntrack {\n"
        "  chain in { type filter hook prerouting priority -150; policy accept; ct state new; }\n"
        "  chain out { type filter hook output priority -150; policy accept; ct state new; }\n"
        "}\n"
    )

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"state": text}

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return dict(given)

    def check(self, options: Mapping[str, Any]) -> None:
        if dict(options) != {"state": "on"}:
            raise BadInput("conntrack takes on: without it the namespaces of a topology track no connections")

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        run_checked(
            place.program("nft", "-f", "-", text=self.RULES),
            "connection tracking by nftables",
            ("no such file",),
        )


class Rules(Nftables):
    """N nftables rules that every arriving packet is compared with and that none matches."""

    example = "rules 100 at server"
    MOST = 10_000

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"count": _number("rules", text, 1, self.MOST)}

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return dict(given)

    def check(self, options: Mapping[str, Any]) -> None:
        if options.keys() != {"count"}:
            raise BadInput("rules takes a number of rules")
        _number("rules", options["count"], 1, self.MOST)

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        # 192.0.2.0/24 is for documentation (RFC 5737), so no packet comes from there.
        numbers = range(int(options["count"]))
        lines = [
            f"    ip saddr 192.0.2.{number % 254 + 1} th dport {20000 + number} drop" for number in numbers
        ]
        chain = ["  chain in {", "    type filter hook input priority 0; policy accept;", *lines, "  }"]
        text = "\n".join(["table inet labkit_rules {", *chain, "}", ""])
        run_checked(
            place.program("nft", "-f", "-", text=text),
            f"{options['count']} nftables rules",
            ("no such file",),
        )


class Offload(Kind):
    """Features of an interface, by their full or short names in ethtool -k."""

    example = "offload gro off tso off at server"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return _pairs("offload", text)

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("offload needs a feature, and on or off")
        for name, value in options.items():
            if not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", name) or value not in ("on", "off"):
                raise BadInput(f"offload {name} {value}: give a feature of ethtool -k, then on or off")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("offload", place)
        result = machine.offloads(place.namespace.prefix, place.interface)
        if not result:
            raise Unsupported(packages.missing("ethtool"))
        for name in options:
            if OFFLOAD_NAMES.get(name, name) not in result:
                raise Unsupported(f"{place} has no offload {name}; it has {', '.join(sorted(result))}")
        return {name: "on" if on else "off" for name, on in result.items()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [word for pair in options.items() for word in pair]
        report = ", ".join(f"{name} {value}" for name, value in options.items())
        run_checked(
            place.program("ethtool", "-K", place.interface, *words),
            f"offload {report} of {place}",
            ("could not change",),
        )

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            if after[OFFLOAD_NAMES.get(name, name)] != value:
                raise Unsupported(f"{place} cannot set its offload {name} to {value}")


class Counts(Kind):
    """Rings (ethtool -G) or channels (ethtool -L): numbers by name."""

    def __init__(self, name: str, get: str, put: str) -> None:
        self._name, self._get, self._put = name, get, put
        self.example = f"{name} rx 2 tx 2 at both"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return _pairs(self._name, text)

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {name: str(value) for name, value in given.items()}

    def check(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in ("rx", "tx", "combined", "other", "rx-mini", "rx-jumbo"):
                raise BadInput(f"{self._name} {name}: choose rx, tx, combined, other, rx-mini, rx-jumbo")
            _number(f"{self._name} {name}", value, 0, 1 << 20)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest(self._name, place)
        text = run_checked(place.program("ethtool", self._get, place.interface), f"{self._name} of {place}")
        current = text.partition("Current hardware settings:")[2]
        return {
            f"{self._name} {name.strip().lower()}": value.strip()
            for name, _, value in (line.partition(":") for line in current.splitlines())
            if value.strip()
        }

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [word for pair in options.items() for word in pair]
        report = f"{self._name} {' '.join(words)} of {place}"
        run_checked(place.program("ethtool", self._put, place.interface, *words), report)


class Mtu(Kind):
    """The MTU of an interface. The MTU of a whole path is the parameter mtu_bytes."""

    example = "mtu 9000 at both"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"bytes": _number("mtu", text, 68, 65535)}

    def check(self, options: Mapping[str, Any]) -> None:
        if options.keys() != {"bytes"}:
            raise BadInput("mtu takes a number of bytes")
        _number("mtu", options["bytes"], 68, 65535)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("mtu", place)
        return {"mtu_bytes": str(_link(place).mtu_bytes)}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        try:
            place.namespace.netlink.do(
                netlink.set_link(_link(place).index, up=False, mtu_bytes=int(options["bytes"]))
            )
        except netlink.LinkError as error:
            raise Failed(f"{place} does not accept an MTU of {options['bytes']} bytes: {error}") from None


def _link(place: Place) -> netlink.Link:
    result = [one for one in netlink.links(place.namespace.netlink) if one.name == place.interface]
    if not result:
        raise Unsupported(f"there is no interface {place}")
    return result[0]


class Qdisc(Kind):
    """The root queueing discipline of an interface, in tc's syntax."""

    example = "qdisc fq_codel limit 1000 at client"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"words": text}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options("qdisc", options, "words")
        _tc_words("qdisc", options["words"])

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("qdisc", place)
        shown = run_checked(
            place.program("tc", "qdisc", "show", "dev", place.interface), f"queueing disciplines of {place}"
        )
        lines = [line for line in shown.splitlines() if " clsact " not in line and " ingress " not in line]
        result = re.sub(r"(?m)^qdisc (\S+) [0-9a-f]+: ", r"\1 ", "\n".join(lines))
        return {"qdisc": re.sub(r" refcnt \d+", "", result).strip()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = options["words"].split()
        run_checked(
            place.program("tc", "qdisc", "replace", "dev", place.interface, "root", *words),
            f"qdisc {options['words']}",
            ("qdisc not found", "no such file"),
        )


def _tc_words(kind: str, text: str) -> None:
    words = text.split()
    if not words:
        raise BadInput(f"{kind} needs the words of tc")
    for word in words:
        if not re.fullmatch(WORD, word) or word in FILE_WORDS:
            raise BadInput(f"{kind} {text}: {word!r} is not allowed (no options, paths, files or programs)")


class Filter(Kind):
    """A tc classifier with actions, for arriving or leaving packets."""

    example = "tc_filter ingress protocol ip prio 1 u32 match ip dport 9 0xffff flowid 1:1 at server"
    HOOKS = ("ingress", "egress", "root")

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        hook, _, words = text.partition(" ")
        return {"way": hook, "words": words.strip()}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options("tc_filter", options, "way", "words")
        if options["way"] not in self.HOOKS:
            raise BadInput(f"tc_filter {options['way']}: choose {', '.join(self.HOOKS)}")
        _tc_words("tc_filter", options["words"])

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("tc_filter", place)
        return {f"filters {options['way']}": _filters(place, options["way"])}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        _clsact(place, options["way"])
        run_checked(
            place.program(
                "tc", "filter", "add", "dev", place.interface, options["way"], *options["words"].split()
            ),
            f"tc_filter {options['words']}",
            ("no such file", "failed to load tc action", "failed to load tc classifier"),
        )


def _clsact(place: Place, hook: str) -> None:
    if hook == "root":
        return
    ended = place.program("tc", "qdisc", "add", "dev", place.interface, "clsact")
    if "exclusivity flag on" not in ended.stderr.lower() and "file exists" not in ended.stderr.lower():
        run_checked(ended, "clsact, the place for filters", ("no such file",))


def _filters(place: Place, hook: str) -> str:
    ended = place.program("tc", "filter", "show", "dev", place.interface, hook)
    text = ended.stdout if ended.returncode == 0 else ""
    return (
        " | ".join(" ".join(re.sub(r"\bid \d+\b", "", line).split()) for line in text.splitlines()) or "none"
    )


class Bpf(Kind):
    """A BPF program from an object file, which the change contains; its name includes the start of the file's digest.

    `pass` is labkit's own program, which lets every packet pass.
    """

    def __init__(self, name: str, section: str) -> None:
        self._name, self._own = name, section

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        words = text.split()
        if words == ["pass"]:
            content = bpf_object.passing(self._own)
            return self._options("pass", self._own, content)
        if len(words) not in (2, 3):
            raise BadInput(f"{self._name} {text!r}: write pass, or FILE SECTION sha256:DIGEST")
        return self._read(words[0], words[1], words[2] if words[2:] else None, files)

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        if "object" in given:
            return dict(given)
        if not {"file", "section"} <= given.keys() <= {"file", "section", "digest"}:
            raise BadInput(f"{self._name} takes file, section, digest; it was given {', '.join(given)}")
        return self._read(str(given["file"]), str(given["section"]), given.get("digest"), files)

    def _read(self, name: str, section: str, parameters: Any, files: Files) -> dict[str, Any]:
        content = files.read(name)
        own = digest(content)
        if parameters is None:
            raise BadInput(f"{self._name} {name}: add the digest of the file, {own[:19]}")
        if not re.fullmatch(SHORT_DIGEST, str(parameters)) or not own.startswith(str(parameters)):
            raise BadInput(f"{self._name} {name}: its digest is {own[:19]}, not {parameters}")
        return self._options(Path(name).name, section, content)

    @staticmethod
    def _options(file: str, section: str, content: bytes) -> dict[str, Any]:
        text = base64.b64encode(content).decode()
        return {"file": file, "section": section, "object": text, "digest": digest(content)}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options(self._name, options, "file", "section", "object", "digest")
        if not re.fullmatch(SECTION, options["section"]):
            raise BadInput(f"{self._name}: {options['section']!r} is not the name of a section")
        if digest(self._object(options)) != options["digest"]:
            raise BadInput(f"{self._name}: the object does not match the digest beside it")

    def _object(self, options: Mapping[str, Any]) -> bytes:
        try:
            return base64.b64decode(options["object"], validate=True)
        except binascii.Error:
            raise BadInput(f"{self._name}: the object is not base64") from None

    @contextmanager
    def _file(self, options: Mapping[str, Any]) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.o"  # the kernel shows this name
            path.write_bytes(self._object(options))
            yield str(path)


class Xdp(Bpf):
    """A BPF program at XDP of an interface."""

    example = "xdp pass.o xdp sha256:0123456789ab at server"

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("xdp", place)
        [link] = json.loads(
            run_checked(place.program("ip", "-j", "-d", "link", "show", "dev", place.interface), "XDP")
        )
        program = link.get("xdp", {}).get("prog", {})
        return {"xdp": f"program of tag {program['tag']}" if program.get("tag") else "none"}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        with self._file(options) as path:
            run_checked(
                place.program(
                    "ip", "link", "set", "dev", place.interface, "xdp", "obj", path, "sec", options["section"]
                ),
                f"XDP program {options['file']} {options['section']}",
            )


class TcBpf(Bpf):
    """A BPF program at tc in direct-action mode, for packets that arrive at an interface."""

    example = "tc_bpf pass.o tc sha256:0123456789ab at server"

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("tc_bpf", place)
        return {"filters ingress": _filters(place, "ingress")}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        _clsact(place, "ingress")
        words = ("bpf", "direct-action", "object-file")
        with self._file(options) as path:
            run_checked(
                place.program(
                    "tc",
                    "filter",
                    "add",
                    "dev",
                    place.interface,
                    "ingress",
                    *words,
                    path,
                    "section",
                    options["section"],
                ),
                f"tc program {options['file']} {options['section']}",
                ("no such file",),
            )


class Route(Kind):
    """An additional route of the namespace, over the interface of the place."""

    example = "route 192.0.2.0/24 via 10.2.0.1 at client"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        to, *rest = text.split() or [""]
        return {"to": to, **(_pairs("route", " ".join(rest)) if rest else {})}

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {name: str(value) for name, value in given.items()}

    def check(self, options: Mapping[str, Any]) -> None:
        if not {"to"} <= options.keys() <= {"to", "via", "metric", "mtu"}:
            raise BadInput("route takes a prefix, and via, metric, mtu")
        _address("route", options["to"], prefix=True)
        if "via" in options:
            _address("route via", options["via"])
        for name in ("metric", "mtu"):
            if name in options:
                _number(f"route {name}", options[name], 1, 1 << 30)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("route", place)
        version = "-6" if ":" in options["to"] else "-4"
        listed = run_checked(place.program("ip", version, "route", "show", "table", "main"), "routes")
        return {"routes": " | ".join(line.strip() for line in listed.splitlines())}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [
            word
            for name in ("via", "metric", "mtu")
            if name in options
            for word in (name, str(options[name]))
        ]
        run_checked(
            place.program("ip", "route", "add", options["to"], *words, "dev", place.interface),
            f"route to {options['to']}",
        )


class Neighbour(Kind):
    """A permanent neighbour entry of an interface."""

    example = "neighbour 10.2.0.9 02:00:00:00:00:09 at client"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        words = text.split()
        if len(words) != 2:
            raise BadInput(f"neighbour {text!r}: write ADDRESS MAC")
        return {"address": words[0], "mac": words[1]}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options("neighbour", options, "address", "mac")
        _address("neighbour", options["address"])
        if not re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", options["mac"]):
            raise BadInput(f"neighbour {options['mac']}: a MAC address is like 02:00:00:00:00:09")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest("neighbour", place)
        shown = run_checked(place.program("ip", "neighbour", "show", "dev", place.interface), "neighbours")
        own = [line for line in shown.splitlines() if line.split()[:1] == [options["address"]]]
        return {f"neighbour {options['address']}": " ".join(own).strip() or "none"}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [options["address"], "lladdr", options["mac"], "nud", "permanent", "dev", place.interface]
        run_checked(place.program("ip", "neighbour", "replace", *words), f"neighbour {options['address']}")


def _address(kind: str, text: Any, prefix: bool = False) -> None:
    if prefix and text == "default":
        return
    try:
        (ipaddress.ip_network if prefix else ipaddress.ip_address)(str(text))
    except ValueError:
        raise BadInput(
            f"{kind} {text}: write for example {'10.9.0.0/16' if prefix else '10.9.0.1'}"
        ) from None


class Steering(Kind):
    """RPS or XPS: the CPUs that process received (RPS) or sent (XPS) packets of every queue of an interface."""

    def __init__(self, name: str, queues: str) -> None:
        self._name, self._queues = name, queues
        self.example = f"{name} 0,1 at server"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"cpus": text}

    def check(self, options: Mapping[str, Any]) -> None:
        text_options(self._name, options, "cpus")
        if not re.fullmatch(CPUS, options["cpus"]):
            raise BadInput(f"{self._name} {options['cpus']}: CPUs are like 0 or 0,2-3")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        no_guest(self._name, place)
        with self._files(place) as files:
            return {f"{self._name} {path.parent.name}": self._read(path) for path in files}

    def _read(self, path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError as error:
            raise Unsupported(
                f"{self._name} cannot be set for an interface of one queue ({error.strerror})"
            ) from None

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        mask = 0
        for part in options["cpus"].split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        groups = f"{mask:x}"
        # A mask is written in groups of 32 bits (Documentation/core-api/cpu_hotplug, bitmap_parse).
        text = ",".join(groups[max(0, end - 8) : end] for end in range(len(groups), 0, -8)[::-1])
        with self._files(place) as files:
            for path in files:
                try:
                    path.write_text(text)
                except OSError as error:
                    raise refused(error, f"{self._name} {options['cpus']}") from None

    @contextmanager
    def _files(self, place: Place) -> Iterator[list[Path]]:
        """Yield the files of the queues.

        sysfs shows the network namespace in which it was mounted, so it is mounted again in the experiment's mount
        namespace.
        """
        with tempfile.TemporaryDirectory() as folder:
            argv = [*place.namespace.prefix, "mount", "-t", "sysfs", "labkit", folder]
            process.output(argv)
            try:
                result = sorted(Path(folder, "class/net", place.interface, "queues").glob(self._queues))
                if not result:
                    raise Unsupported(f"this kernel has no {self._name} for {place}")
                yield result
            finally:
                process.output(["umount", "--lazy", folder])


class Parameter(Kind):
    """A parameter of the load or the path with its own value in this arm."""

    placed = False
    example = "parameter streams=4"

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        if only:
            self.example = f"{only} VALUE"

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        if self._only:
            return {self._only: text}
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"parameter {text!r}: write NAME=VALUE")
        return {name.strip(): value.strip()}

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("parameter needs NAME=VALUE")
        for name, value in options.items():
            if name not in PARAMETERS:
                raise BadInput(f"parameter {name} cannot be a change: choose {', '.join(PARAMETERS)}")
            if not isinstance(value, (str, int, float)):
                raise BadInput(f"parameter {name}: one value is needed")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


class MachineSysctl(Sysctl):
    """A sysctl of the whole machine, changed only while the arm is measured (`machine.sysctl_journal`)."""

    placed = False
    example = "machine_sysctl net.core.high_order_alloc_disable=1"

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("machine_sysctl needs NAME=VALUE")
        for name, value in options.items():
            if not re.fullmatch(sysctl_journal.ALLOWED, name):
                raise BadInput(
                    f"machine_sysctl {name}: only net.* and the scheduler's (kernel.sched_*) may be changed"
                )
            if not isinstance(value, str) or not re.fullmatch(SYSCTL_VALUE, value):
                raise BadInput(
                    f"machine_sysctl {name}={value!r}: a value has letters, digits, spaces and . , : _ -"
                )

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


class Function(Kind):
    """A Python function that changes the built topology; only the user's own program can name it.

    The request carries the function's source beside the parameters. Parameters from others name only a digest, and
    cannot bring source code.
    """

    placed = False

    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        raise BadInput("function: a function is given in Python, as change=[function]")

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return self.of_text("", files)

    def check(self, options: Mapping[str, Any]) -> None:
        text_options("function", options, "name", "digest")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


KINDS: dict[str, Kind] = {
    "sysctl": Sysctl(),
    "machine_sysctl": MachineSysctl(),
    "nftables": Nftables(),
    "rules": Rules(),
    "conntrack": Conntrack(),
    "offload": Offload(),
    "ring": Counts("ring", "-g", "-G"),
    "channels": Counts("channels", "-l", "-L"),
    "mtu": Mtu(),
    "qdisc": Qdisc(),
    "tc_filter": Filter(),
    "xdp": Xdp("xdp", "xdp"),
    "tc_bpf": TcBpf("tc_bpf", "tc"),
    "route": Route(),
    "neighbour": Neighbour(),
    "rps": Steering("rps", "rx-*/rps_cpus"),
    "xps": Steering("xps", "tx-*/xps_cpus"),
    "parameter": Parameter(),
    "affinity": Parameter("affinity"),
    "congestion": Parameter("congestion"),
    "function": Function(),
}


def find(name: str) -> Kind:
    """Return the kind `name`. Raises BadInput with the known kinds."""
    if name not in KINDS:
        raise BadInput(f"there is no kind of change {name!r}: choose {', '.join(KINDS)}")
    return KINDS[name]
