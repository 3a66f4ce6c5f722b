"""A bisect over real runs, which is killed and resumed."""

import json
import signal

import pytest
from sandbox import LABKIT, Sandbox, until

pytestmark = [pytest.mark.long, pytest.mark.needs("user namespaces", "iperf3", "ping", "ip", "veth")]

VALUES = [f"qdisc tbf rate {rate}mbit burst 64kb latency 20ms at client" for rate in (300, 302, 30)]


def test_the_first_bad_rate_is_found_after_a_kill(machine: Sandbox) -> None:
    """Margin and difference are larger than what a busy machine does to a run."""
    folder = machine.data / "bisect"
    words = "bisect datapaths topology=veth rounds=1 slices=4 whole_runs=0 duration_s=1 omit_s=0 --json"
    given = (*words.split(), "--over", "change", *VALUES, "--fail-if", "slower>60%", "--folder", str(folder))
    process = machine.start(*LABKIT, *given)
    begun = until(lambda: process.poll() is not None or list(folder.glob("01-*/good/0/rows/*")), 120)
    process.kill()
    out, err = process.communicate(timeout=20)
    assert begun, (out, err)
    assert process.returncode == -signal.SIGKILL, (out, err)
    assert until(lambda: not machine.processes(), 30), machine.processes()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("02-*/*/*/rows/*")}
    assert len(kept) >= 6, "the last value was judged before the kill"
    answer = json.loads(machine.labkit(*given, code=0, timeout=400).stdout)
    assert (answer["last_good"], answer["first_bad"]) == (VALUES[1], VALUES[2]), answer
    assert {step["value"]: step["word"] for step in answer["steps"]} == {
        VALUES[1]: "not worse",
        VALUES[2]: "worse",
    }
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "finished runs were measured again"
