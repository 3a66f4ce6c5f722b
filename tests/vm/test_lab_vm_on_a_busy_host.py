"""A run in a lab VM while other programs use its host: it is a doubt, and a sysctl of the lab VM's whole kernel,
which nobody has to allow, is set and restored."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from conftest import SharedVm
from sandbox import LABKIT

from labkit.analysis import verdicts
from labkit.analysis.load import load as load_rows
from labkit.common import run_folder

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.needs("namespaces", "ip", "ping", "iperf3", "qemu", "full kernel"),
]

PATIENCE_S = 300
SYSCTL = "net.core.high_order_alloc_disable"
# It pauses for half of its time, so that the emulated CPU has a share of its own.
SPIN = f"""
import time
end = time.monotonic() + {PATIENCE_S}
while time.monotonic() < end:
    if time.monotonic() % 0.02 < 0.01:
        time.sleep(0.01)
"""


@pytest.fixture
def load() -> Iterator[None]:
    """Keep every other CPU of this machine half busy: a quarter of all its time is far above what the doubt needs."""
    with ExitStack() as stack:
        for _ in range(max(1, (os.cpu_count() or 1) // 2)):
            spinning = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(spinning.kill)
        yield


@pytest.mark.usefixtures("load")
def test_changed_sysctl_and_doubt(shared_vm: SharedVm) -> None:
    folder = shared_vm.folder / "sysctl"
    words = ("topology=veth", f"change=order: machine_sysctl {SYSCTL}=1", f"where={shared_vm.where}")
    more = ("rounds=2", "slices=2", "whole_runs=0", "--folder", str(folder))
    environment = {name: value for name, value in os.environ.items() if name != "LABKIT_ALLOW"}
    done = subprocess.run(
        [*LABKIT, "run", "datapaths", *words, *more],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    rows = run_folder.read_rows(folder)
    effects = [one for row in rows if row["change"] for one in row["changed"] or ()]
    assert len(effects) >= 2, done.stderr  # once a round
    # The second round finds the value that the first one restored.
    expected = {("machine", SYSCTL, "0", "1")}
    assert {(one["at"], one["setting"], one["before"], one["after"]) for one in effects} == expected
    assert all(row["host_foreign_share"] > 0.1 for row in rows)
    doubts = verdicts.doubts(load_rows(folder))
    assert any("of all CPU time, up to " in doubt for doubt in doubts), doubts
