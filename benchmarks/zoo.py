"""Check that `labkit why` names a known cause, and claims none where there is none.

Causes are planted as changes of arms in one run, and in the machine itself between two runs (a BPF program, a sysctl,
another program that takes a CPU). Only the first sentence of `labkit why` counts. Then equal runs are compared, half of
them while another program takes a CPU.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, note, output
from labkit.analysis.why import conclusion, selection
from labkit.common import run_folder

TOPOLOGY = "veth_bridge"
NAMED, NULLS, FALSE_CLAIMS = 11 / 12, 20, 1
ROUNDS = 5
COMMON = (f"topology={TOPOLOGY}", "rounds=1", "slices=0", "whole_runs=1", "duration_s=1")
UDP, TCP = ("protocol=udp", "length_bytes=512"), ("protocol=tcp",)
RULES = "table inet zoo { chain in { type filter hook input priority 0; policy accept; %s } }"
RULES_COUNT = 200
TRACEPOINT = "tracepoint:net:netif_receive_skb { @a[cpu] = count(); @b[args->len] = count(); }"
KPROBE = "kprobe:ip_rcv { @a[cpu] = count(); @b[comm] = count(); }"


@dataclass(frozen=True)
class Plant:
    """A planted cause.

    It has a name, the load that shows it, a regular expression for the first sentence, and either the change of an arm
    or a context that puts the cause into the machine.
    """

    name: str
    load: tuple[str, ...]
    truth: str
    change: str = ""
    held: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def _program(argv: list[str], until_s: float) -> Iterator[None]:
    """Run a program during the block."""
    if shutil.which(argv[0]) is None:
        raise NotMeasuredError(f"there is no {argv[0]}")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        try:
            time.sleep(until_s)
            if running.poll() is not None:
                lines = (running.stderr.read() if running.stderr else b"").decode(errors="replace")
                raise NotMeasuredError(f"{argv[0]} ended at once: {lines.strip()[-200:]}")
            yield
        finally:
            running.kill()


def _bpf(program: str) -> Callable[[], AbstractContextManager[None]]:
    """Attach a BPF program with bpftrace, in a mount namespace with tracefs."""
    mounted = 'mount -t tracefs none /sys/kernel/tracing 2>/dev/null; exec "$@"'
    argv = ["unshare", "--mount", "--", "sh", "-c", mounted, "sh", "bpftrace", "-e", program]
    return lambda: _program(argv, 5.0)


def _busy() -> AbstractContextManager[None]:
    """Run a program that takes one CPU."""
    return _program([sys.executable, "-P", "-c", "while True: pass"], 0.5)


@contextmanager
def _machine_sysctl(name: str, value: str) -> Iterator[None]:
    path = Path("/proc/sys", *name.split("."))
    try:
        before = path.read_text()
        path.write_text(value)
    except OSError as error:
        raise NotMeasuredError(f"{name} cannot be set here ({error.strerror})") from None
    try:
        yield
    finally:
        path.write_text(before)


PLANTS = (
    Plant("200 nftables rules", UDP, r"nftables|packet filter", "rules: nftables zoo.nft at server"),
    Plant("connection tracking", UDP, r"conntrack|onnection tracking", "tracked: conntrack on at both"),
    Plant("RPS to the other CPU", UDP, r"rps|RPS", "rps: rps 0 at server"),
    Plant("fragments", UDP, r"\bmtu|fragmentation", "fragments: mtu 300 at both"),
    Plant("a rate limit", UDP, r"tbf", "limit: qdisc tbf rate 40mbit burst 32k latency 5ms at client"),
    Plant("no TSO", TCP, r"segmentation", "tso: offload tso off at client"),
    Plant("checksums in software", TCP, r"hecksum", "checksums: offload tx off at client"),
    Plant("a small receive window", TCP, r"tcp_rmem", "window: sysctl net.ipv4.tcp_rmem=4096 8192 16384 at server"),
    Plant("small writes", TCP, r"length_bytes", "writes: parameter length_bytes=600"),
    Plant("no scatter-gather", TCP, r"scatter-gather", "sg: offload sg off at client"),
    Plant("both ends on one CPU", TCP, r"affinity", "pinned: parameter affinity=0,0"),
    Plant("a BPF program on a tracepoint", UDP, r"BPF program on a tracepoint", held=_bpf(TRACEPOINT)),
    Plant("a BPF program on a function", UDP, r"probe on a function", held=_bpf(KPROBE)),
    Plant("no large pages for sockets", TCP, r"high_order_alloc_disable",
          held=lambda: _machine_sysctl("net.core.high_order_alloc_disable", "1")),
    Plant("another program", UDP, r"^Other processes", held=_busy),
)  # fmt: skip
QUICK = ("200 nftables rules", "no TSO", "a BPF program on a tracepoint", "another program")


def promises(quick: bool) -> Iterator[Promise]:
    """Yield how often the true cause was named first, and how often there was a claim without a cause."""
    plants = [one for one in PLANTS if not quick or one.name in QUICK]
    with tempfile.TemporaryDirectory() as scratch:
        zoo = Zoo(Path(scratch))
        answers = list(zoo.planted(plants))
        for plant, sentence, named in answers:
            yield Promise(f"planted: {plant.name}", "named" if named else "NOT NAMED", more=sentence)
        judged = [named for _, _, named in answers if named is not None]
        if judged:
            share = sum(judged) / len(judged)
            report = f"{sum(judged)} of {len(judged)}"
            yield Promise(
                "the true cause is named first", report, "", share, f">= {NAMED:.2f}", share >= NAMED
            )
        claims = list(zoo.nothing(NULLS // 5 if quick else NULLS))
        for sentence in filter(None, claims):
            yield Promise("a claim about nothing", "claimed", more=sentence)
        wrong = sum(one is not None for one in claims)
        yield Promise(
            "nothing compared with nothing, half of it with foreign load",
            f"{wrong} of {len(claims)} claimed", "", wrong / len(claims), f"<= {FALSE_CLAIMS} of {NULLS}",
            wrong <= FALSE_CLAIMS * max(1.0, len(claims) / NULLS),
        )  # fmt: skip


class Zoo:
    """The runs below a folder. `omit_s`: the warm-up of each run in seconds, which TCP needs more than UDP.

    `rounds`: of profiles, in each run.
    """

    def __init__(self, folder: Path, omit_s: int = 1, rounds: int = ROUNDS) -> None:
        self._folder, self._usual = folder, dict[tuple[str, ...], Path]()
        self._common = (
            *COMMON, f"omit_s={omit_s}", "observe=perf_record,counters", f"profile_rounds={rounds}",
        )  # fmt: skip
        rules = " ".join(f"udp dport {20_000 + number} counter drop;" for number in range(RULES_COUNT))
        (folder / "zoo.nft").write_text(
            (RULES % rules).replace(";", "\n").replace("{", "{\n").replace("}", "\n}\n")
        )

    def planted(self, plants: list[Plant]) -> Iterator[tuple[Plant, str, bool | None]]:
        """Yield each plant with the first sentence about it, and whether that names it, or None if it could not be
        planted."""
        for load in (UDP, TCP):
            changes = [one for one in plants if one.load == load and one.change]
            if changes:
                folder = self._run(
                    f"changes-{load[0][9:]}", load, f"change={'; '.join(one.change for one in changes)}"
                )
            for one in changes:
                arm = one.change.partition(":")[0]
                yield self._answer(one, f"{folder}:{TOPOLOGY}", arm)
        for one in plants:
            if not one.change:
                left = self._usual.get(one.load) or self._run(f"usual-{len(self._usual)}", one.load)
                self._usual[one.load] = left
                try:
                    with one.held():
                        right = self._run(f"held-{one.name.replace(' ', '-')}", one.load)
                except NotMeasuredError as error:
                    yield one, str(error), None
                    continue
                yield self._answer(one, str(left), str(right))

    def nothing(self, count: int) -> Iterator[str | None]:
        """Yield the sentence of each comparison of equal runs that claims a cause, else None. Every other right side
        has foreign load."""
        left = self._usual.get(UDP) or self._run("usual-null", UDP)
        for number in range(count):
            with _busy() if number % 2 else nullcontext():
                right = self._run(f"null-{number}", UDP)
            result = self._conclude(str(left), str(right))
            yield result.sentence if result.claims else None
            if not number % 2:
                left = right

    def _answer(self, plant: Plant, left: str, right: str) -> tuple[Plant, str, bool | None]:
        try:
            result = self._conclude(left, right)
        except Exception as error:  # this kernel does not support the arm
            return plant, f"not measured: {error}", None
        first = result.sentence.partition(". ")[0]
        named = result.claims or result.cause == "foreign load"
        return plant, result.sentence, bool(named and re.search(plant.truth, first))

    @staticmethod
    def _conclude(left: str, right: str) -> conclusion.Conclusion:
        [point] = selection.points(selection.select_sides(left, right))
        return conclusion.conclude(point)

    def _run(self, name: str, load: tuple[str, ...], *more: str) -> Path:
        note(f"zoo: {name}")
        folder = self._folder / name
        argv = [*LABKIT, "run", "datapaths", *self._common, *load, *more, "--json", "--folder", str(folder)]
        try:
            output(argv, cwd=self._folder)
        except NotMeasuredError:  # also if this machine does not support a single arm
            if not run_folder.read_json(folder / "run.json").get("finished"):
                raise
        return folder
