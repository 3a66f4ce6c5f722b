"""A lab VM ends with the process that booted it, serves a whole sweep, and needs no root."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from executed_notebook import without_figures
from sandbox import LABKIT, sandbox, until

from labkit.common import run_folder
from labkit.system.qemu import kernels

pytestmark = pytest.mark.needs("user namespaces", "qemu", "lab kernel")

SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
ONE = ("duration_s=2", "omit_s=0")
MEASURED = ("ok", "invalid")  # on a loaded machine, flows may not overlap long enough to count
PATIENCE_S = 300


@pytest.mark.exhaustive  # the sweep below kills QEMU while it measures
def test_killed_at_a_random_moment(lab_kernel: str, tmp_path: Path) -> None:
    """Nothing is left when any process is killed while the lab VM boots or measures."""
    print(f"LABKIT_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    with sandbox(tmp_path, user=False) as machine:
        process = machine.start(*LABKIT, "run", "datapaths", *ONE, f"where=vm:{lab_kernel}")
        time.sleep(rng.random() * 12)  # a run takes at least 15 s in an emulated lab VM, less with KVM
        if running := list(machine.processes()):
            os.kill(rng.choice(running), signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
        assert until(lambda: not machine.processes(), 20), machine.processes()


@pytest.mark.exhaustive  # the sweep below is without root, and test_guests.py has such modules
def test_without_root(lab_kernel: str, tmp_path: Path) -> None:
    """In a user namespace this user owns nothing but their own files. Modules in the current folder are not
    imported, neither here nor in the guest."""
    with sandbox(tmp_path) as machine:
        for name in ("random", "json", "msgspec", "pyroute2"):
            (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('this is not the module')")
        [row] = machine.rows("topology=ipvlan_l2", *ONE, f"where=vm:{lab_kernel}")
    assert row["status"] in MEASURED
    assert (row["kernel"], row["accelerator"]) in ((lab_kernel, "tcg"), (lab_kernel, "kvm"))
    assert row["throughput_bps"] > 1e6


def test_sweep_survives_a_killed_vm_and_an_unbootable_kernel(lab_kernel: str, tmp_path: Path) -> None:
    """Without root, one boot serves all points of a kernel. The point of the killed lab VM continues in a newly booted
    one.

    The point of the corrupt image gets a row with the reason. test_failed_rows.py tries such a point again.
    """
    image = tmp_path / "vmlinuz-corrupt"
    content = bytearray(kernels.find(lab_kernel).image.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    image.write_bytes(content)
    parameters = {
        "topology": ["veth", "veth_bridge"], "duration_s": 1, "omit_s": 0, "rounds": 2, "pairs": [1], "slices": 0,
    }  # fmt: skip
    where = f"vm:{lab_kernel},cpus=1,append=labkit.test=1"
    grid = [
        {"where": [where, f"vm:{image}"]},
        {"where": [where], "mtu_bytes": [9000], "parameters": {"topology": ["veth"], "rounds": 1}},
    ]
    plan = yaml.safe_dump({"notebook": "01_datapaths", "parameters": parameters, "grid": grid})
    with sandbox(tmp_path / "a, b") as machine:
        without_figures((project := machine.project(kernels=plan)) / "notebooks/01_datapaths.ipynb")
        process = machine.start(*LABKIT, "sweep", "params/kernels.yaml", cwd=project)
        assert until(lambda: first_rounds(machine.data, lab_kernel), PATIENCE_S)
        [qemu] = machine.pids(lambda words: Path(words[0]).name.startswith("qemu"))
        os.kill(qemu, signal.SIGKILL)
        kept = {file: file.read_bytes() for file in first_rounds(machine.data, lab_kernel)}
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2, err
        # Two boots of the kernel for its two points, and two attempts with the corrupt image.
        assert err.count("booting Linux") == 4, err
        assert "could not be measured: vm:" in err
        assert "ended together with its lab VM" in err
        assert "booted its lab VM again" in err
        assert until(lambda: not machine.processes(), 20), machine.processes()
        [sweep] = (machine.data / "datapaths").iterdir()
    assert {file: file.read_bytes() for file in kept} == kept
    points = {folder.parent: run_folder.read_rows(folder.parent) for folder in sweep.glob("*/rows")}
    [[failed]] = [rows for rows in points.values() if {row["status"] for row in rows} == {"failed"}]
    assert "its image cannot be unpacked: " in failed["reason"]
    measured = {folder: rows for folder, rows in points.items() if rows != [failed]}
    # One arm alone, and two rounds of a baseline, its control and a variant.
    [[alone], other] = sorted(measured.values(), key=len)
    assert alone["status"] in MEASURED, alone["reason"]
    assert len(other) == 6
    for folder, rows in measured.items():
        assert {(row["kernel"], row["cpus_count"]) for row in rows} == {(lab_kernel, 1)}
        details = json.loads((folder / "environment.json").read_text())
        assert "labkit.test=1" in details["kernel_command_line"]
    assert f"Linux {lab_kernel}" in (sweep / "report.html").read_text()


def first_rounds(data: Path, release: str) -> list[Path]:
    """Return the files with rows of a first round in a lab VM with this kernel, of points with several rounds."""
    return [
        path
        for path in data.glob("*/*/*/rows/1-r0.jsonl")
        if any(row["kernel"] == release for row in run_folder.read_rows(path.parents[1]))
        and run_folder.read_run(path.parents[1])["parameters"]["rounds"] > 1
    ]
