"""Compare the CPU time of folding 100 MB of `perf script` text with another program's.

The reference is inferno-collapse-perf or stackcollapse-perf.pl if one of them is in PATH, else twelve lines of Perl
that do the same (no Debian package has either).

The text is a real one (tests/samples), repeated with another offset in its innermost function each time. CPU time is
compared because each program runs on one CPU, which others may use as well.

A second promise bounds the memory for folding a perf.data of 1 GB or more, recorded in 8 s on one CPU, with 64 KB of
stack per sample. The memory is labkit's and that of the perf script that it reads from. Pages of the file itself, which
perf maps, do not count, because the kernel can drop them.
"""

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.promise import ROOT, NotMeasuredError, Promise, at_most, median, note, output, python

SAMPLE = ROOT / "tests/samples/perf-script-6.1.txt"
BOUND, MAX_MB = 4, 200
REFERENCES = {
    "inferno-collapse-perf": ["inferno-collapse-perf", "--all", "--nthreads=1"],
    "stackcollapse-perf.pl": ["stackcollapse-perf.pl", "--kernel"],
}
PERL = r"""
my ($process, @stack, %counts);
sub done { $counts{join ";", $process, reverse @stack}++ if defined $process; undef $process; @stack = () }
while (<>) {
  chomp;
  if ($_ eq "") { done() }
  elsif (/^\s*[0-9a-f]+ (.+) \((.*)\)$/) {
    my ($name, $place) = ($1, $2);
    $name =~ s/\+0x[0-9a-f]+$//; $name =~ tr/;/:/; $name .= "_[k]" if $place =~ /^\[kernel/; push @stack, $name
  }
  elsif (/^(\S.+?)\s+(-?\d+)/) { $process = $1; $process =~ tr/ /_/ }
}
done(); print "$_ $counts{$_}\n" for sort keys %counts;
"""
OURS = """
import json, re, sys
from labkit.measure.observers.perf.fold_stacks import StackCounter, blocks
with StackCounter() as found, open(sys.argv[1], "rb") as text:
    found.read(blocks(text))
    stacks_count = sum(1 for _ in found.lines())
    counts = {"samples_count": found.samples_count, "stacks_count": stacks_count, "unread_count": found.unread_count}
    # not getrusage's, which begins with what whoever started us had
    print(json.dumps({**counts, "kB": int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])}))
"""
LARGE = """
import json, os, re, sys, threading, time
from pathlib import Path
from labkit.measure.observers.perf import record as perf_record
from labkit.measure.observers.perf.fold_stacks import StackCounter

def kilobytes(pid, name):
    return int((re.search(name + r":\\s*(\\d+)", Path(f"/proc/{pid}/status").read_text()) or [0, 0])[1])

def watch(own=os.getpid()):
    global script_kB
    while True:
        for pid in Path(f"/proc/self/task/{own}/children").read_text().split():
            try:
                script_kB = max(script_kB, kilobytes(pid, "RssAnon"))
            except OSError:
                pass  # it has ended
        time.sleep(0.005)

script_kB = 0
threading.Thread(target=watch, daemon=True).start()
begin = time.monotonic()
with StackCounter() as found:
    perf_record.fold(sys.argv[1], found)
    counts = {"samples_count": found.samples_count, "stacks_count": sum(1 for _ in found.lines())}
print(json.dumps({**counts, "s": time.monotonic() - begin, "kB": kilobytes("self", "VmHWM"), "script_kB": script_kB}))
"""
LARGE_S, ROOM_BYTES = 8, 4_000_000_000  # recording takes 330 MB per second on one CPU


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the ratio to the reference, and the memory."""
    megabytes = 10 if quick else 100
    note(f"folding {megabytes} MB of perf script text")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "perf.txt"
        text(path, megabytes)
        name, argv = reference()
        own, theirs = [], []
        for _ in range(3):
            report, seconds = _taken(python("-c", OURS, str(path)))
            own.append(seconds)
            theirs.append(_taken([*argv, str(path)])[1])
    seen = json.loads(report)
    more = f"CPU time; {seen['samples_count']:,} samples, {seen['stacks_count']} stacks, {seen['unread_count']} unread"
    yield at_most(f"folding {megabytes} MB of perf script", median(own), median(theirs), name, BOUND, more)
    memory = seen["kB"] / 1000
    yield Promise("its memory", f"{memory:.0f} MB", bound=f"< {MAX_MB} MB", kept=memory < MAX_MB)
    yield _large(1 if quick else LARGE_S)


def _large(seconds: int) -> Promise:
    """Fold a perf.data of a busy loop of this length. Where perf cannot record one, the line is for information
    only."""
    what = "memory for a large perf.data"
    with tempfile.TemporaryDirectory() as scratch:
        if shutil.disk_usage(scratch).free < ROOM_BYTES:
            return Promise(what, "not measured", more=f"{scratch} has no room for {ROOM_BYTES / 1e9:.0f} GB")
        data = Path(scratch) / "perf.data"
        options = [
            "-e", "cpu-clock", "--call-graph", "dwarf,65528", "-F", "5000", "--no-buildid", "-o", str(data),
        ]  # fmt: skip
        loop = ["timeout", str(seconds), "sh", "-c", "while :; do :; done"]
        try:  # perf exits with the status of the loop, which timeout ends
            output(["sh", "-c", '"$@" || [ $? = 124 ]', "sh", "perf", "record", *options, "--", *loop])
            size = data.stat().st_size
            note(f"folding a perf.data of {size / 1e6:.0f} MB")
            report = json.loads(output(python("-c", LARGE, str(data))))
        except (NotMeasuredError, FileNotFoundError) as error:
            return Promise(what, "not measured", more=str(error))
    own, script = report["kB"] / 1000, report["script_kB"] / 1000
    more = f"{size / 1e6:.0f} MB, {report['samples_count']:,} samples, "
    more += f"{report['stacks_count']} stacks, {report['s']:.1f} s"
    result = f"{own:.0f} MB, and perf script's {script:.0f} MB"
    return Promise(what, result, bound=f"< {MAX_MB} MB", kept=own + script < MAX_MB, more=more)


def text(path: Path, megabytes: int) -> None:
    """Write this many MB of perf script text, always the same."""
    draw = random.Random(megabytes)
    samples = [one for one in SAMPLE.read_bytes().split(b"\n\n") if b"LOST" not in one and one.strip()]
    size = 0
    with open(path, "wb") as file:
        while size < megabytes * 1_000_000:
            offset = b"+0x%x " % draw.randrange(1, 200)
            size += file.write(re.sub(rb"\+0x[0-9a-f]+ ", offset, draw.choice(samples), count=1) + b"\n\n")


def reference() -> tuple[str, list[str]]:
    """Return the name of the reference program on this machine, and the command that takes a path."""
    for name, argv in REFERENCES.items():
        if shutil.which(name):
            return name, argv
    return "twelve lines of Perl", ["perl", "-e", PERL]


def _taken(argv: Sequence[str]) -> tuple[str, float]:
    """Return what a program prints, and the CPU-seconds that it took."""
    before = os.times()
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotMeasuredError(f"there is no {argv[0]} to compare with") from None
    after = os.times()
    if done.returncode:
        raise NotMeasuredError(f"{argv[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, used
