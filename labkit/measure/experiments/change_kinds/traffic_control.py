"""Changes by tc: queueing disciplines, filters, and BPF programs, also at XDP."""

import base64
import binascii
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from labkit.common.errors import BadInput, Failed
from labkit.measure.experiments.change_kinds import bpf_object
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State, digest, output_or_raise

# A word for tc, neither an option nor a path. A prefix such as 10.0.0.0/8 may have one slash.
WORD = r"(?!-)[A-Za-z0-9_.:%+=-]{1,40}|[0-9a-fA-F.:]{2,39}/\d{1,3}"
# tc reads files by these.
FILE_WORDS = {
    "bpf", "obj", "object", "object-file", "object-pinned", "pinned", "bytecode", "bytecode-file", "bc", "bcf",
    "export", "exp", "run", "exec", "import", "distribution", "stab", "uds_file",
}  # fmt: skip
SHORT_DIGEST = r"sha256:[0-9a-f]{12,64}"
# linux/if_link.h: the driver has no XDP, so the program runs after it made an skb.
XDP_ATTACHED_SKB = 2


class _Words(Kind):
    """A kind whose option `words` is in tc's syntax."""

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        text = options["words"]
        for word in text.split():
            if not re.fullmatch(WORD, word) or word in FILE_WORDS:
                raise BadInput(
                    f"{self.name} {text}: {word!r} is not allowed (no options, paths, files or programs)"
                )


class Qdisc(_Words):
    """The root queueing discipline of an interface, in tc's syntax; with `parent` first, one below the root."""

    example = "qdisc fq_codel limit 1000 at client"
    takes: ClassVar = {"words": ".+"}

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        shown = place.run(f"queueing disciplines of {place}", "tc", "qdisc", "show", "dev", place.interface)
        lines = [line for line in shown.splitlines() if " clsact " not in line and " ingress " not in line]
        result = re.sub(r"(?m)^qdisc (\S+) [0-9a-f]+: ", r"\1 ", "\n".join(lines))
        return {"qdisc": re.sub(r" refcnt \d+", "", result).strip()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = options["words"].split()
        argv = ("tc", "qdisc", "replace", "dev", place.interface, *self._root(words), *words)
        place.run(f"qdisc {options['words']}", *argv, lacking=("qdisc not found", "no such file"))

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        words, shown = options["words"].split(), after["qdisc"].splitlines()
        if not self._root(words):
            shown = [line for line in shown if f" parent {words[1]} " in f"{line} "]
        for name, value in itertools.pairwise(words) if shown else ():
            # tc shows numbers of packets as they are, and converts the units of sizes, rates and times.
            now = re.search(rf" {re.escape(name)} (\d+)p?(?= |$)", shown[0]) if value.isdigit() else None
            if now is not None and int(now[1]) != int(value):
                raise Failed(f"{place}: the kernel set {name} of the qdisc to {now[1]} instead of {value}")

    @staticmethod
    def _root(words: list[str]) -> list[str]:
        return [] if words[0] == "parent" else ["root"]


class Filter(_Words):
    """A tc classifier with actions, for arriving or leaving packets."""

    example = "tc_filter ingress protocol ip prio 1 u32 match ip dport 9 0xffff flowid 1:1 at server"
    takes: ClassVar = {"hook": "ingress|egress|root", "words": ".+"}
    needs = ("hook", "words")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {f"filters {options['hook']}": _filters(place, options["hook"])}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        lacking = ("no such file", "failed to load tc action", "failed to load tc classifier")
        _add_filter(
            place, options["hook"], f"tc_filter {options['words']}", options["words"].split(), lacking
        )


def _add_filter(place: Place, hook: str, what: str, words: list[str], lacking: tuple[str, ...]) -> None:
    """Add a filter at a hook; all hooks but `root` need the qdisc clsact."""
    if hook != "root":
        ended = place.kernel.run("tc", "qdisc", "add", "dev", place.interface, "clsact")
        if "exclusivity flag on" not in ended.stderr.lower() and "file exists" not in ended.stderr.lower():
            output_or_raise(ended, "clsact, the place for filters", ("no such file",))
    place.run(what, "tc", "filter", "add", "dev", place.interface, hook, *words, lacking=lacking)


def _filters(place: Place, hook: str) -> str:
    ended = place.kernel.run("tc", "filter", "show", "dev", place.interface, hook)
    lines = ended.stdout.splitlines() if ended.returncode == 0 else []
    return " | ".join(" ".join(re.sub(r"\bid \d+\b", "", line).split()) for line in lines) or "none"


class Bpf(Kind):
    """A BPF program from an object file, which the change contains; its name includes the start of the file's digest.

    `pass` is labkit's own program, which lets every packet pass; `section` is where it is.
    """

    section = ""
    takes: ClassVar = {"file|digest|object": r"(?s).*", "section": r"[A-Za-z0-9_./-]{1,64}"}
    needs = ("file", "section", "object", "digest")

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        words = text.split()
        if words == ["pass"]:
            return self._options("pass", self.section, bpf_object.pass_program(self.section))
        if len(words) not in (2, 3):
            raise BadInput(f"{self.name} {text!r}: write pass, or FILE SECTION sha256:DIGEST")
        return self._read(files, *words)

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        if "object" in given:
            return dict(given)
        if not {"file", "section"} <= given.keys() <= {"file", "section", "digest", "hook"}:
            raise BadInput(f"{self.name} takes file, section, digest; it was given {', '.join(given)}")
        read = self._read(files, str(given["file"]), str(given["section"]), given.get("digest"))
        return read | {name: value for name, value in given.items() if name == "hook"}

    def _read(self, files: Files, name: str, section: str, wanted_digest: Any = None) -> dict[str, Any]:
        content = files.read(name)
        own = digest(content)
        if wanted_digest is None:
            raise BadInput(f"{self.name} {name}: add the digest of the file, {own[:19]}")
        if not re.fullmatch(SHORT_DIGEST, str(wanted_digest)) or not own.startswith(str(wanted_digest)):
            raise BadInput(
                f"{self.name} {name}: the file has the digest {own[:19]}, but the change gives {wanted_digest}:"
                " correct the digest, or use the other file"
            )
        return self._options(Path(name).name, section, content)

    @staticmethod
    def _options(file: str, section: str, content: bytes) -> dict[str, Any]:
        text = base64.b64encode(content).decode()
        return {"file": file, "section": section, "object": text, "digest": digest(content)}

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        if digest(self._object(options)) != options["digest"]:
            raise BadInput(f"{self.name}: the object does not match the digest beside it")

    def _object(self, options: Mapping[str, Any]) -> bytes:
        try:
            return base64.b64decode(options["object"], validate=True)
        except binascii.Error:
            raise BadInput(f"{self.name}: the object is not valid base64 text") from None


class Xdp(Bpf):
    """A BPF program at XDP of an interface."""

    example = "xdp pass.o xdp sha256:0123456789ab at server"
    section = "xdp"

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        attached = place.link("XDP").get("xdp", {})
        program = attached.get("prog", {})
        generic = ", generic" if attached.get("mode") == XDP_ATTACHED_SKB else ""
        return {"xdp": f"program of tag {program['tag']}{generic}" if program.get("tag") else "none"}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        with place.kernel.file("program.o", self._object(options)) as path:
            words = ("dev", place.interface, "xdp", "obj", path, "sec", options["section"])
            place.run(f"XDP program {options['file']} {options['section']}", "ip", "link", "set", *words)


class TcBpf(Bpf):
    """A BPF program at tc in direct-action mode, for packets that arrive at an interface or leave it."""

    example = "tc_bpf egress pass.o tc sha256:0123456789ab at server"
    section = "tc"
    takes: ClassVar = {**Bpf.takes, "hook": "ingress|egress"}

    @staticmethod
    def _hook(options: Mapping[str, Any]) -> str:
        return str(options.get("hook", "ingress"))

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        hook, _, rest = text.partition(" ")
        if hook not in ("ingress", "egress"):
            return super().parse_text(text, files)
        return {**super().parse_text(rest.strip(), files), "hook": hook}

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        hook = self._hook(options)
        return {f"filters {hook}": _filters(place, hook)}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        what = f"tc program {options['file']} {options['section']}"
        with place.kernel.file("program.o", self._object(options)) as path:
            words = ["bpf", "direct-action", "object-file", path, "section", options["section"]]
            _add_filter(place, self._hook(options), what, words, ("no such file",))


QDISC, TC_FILTER, XDP, TC_BPF = Qdisc(), Filter(), Xdp(), TcBpf()
