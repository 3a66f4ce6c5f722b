"""A lab VM ends with the process that booted it, serves a whole sweep, and needs no root."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from sandbox import LABKIT, sandbox, until

from labkit.common import run_folder
from labkit.system.qemu import kernels

pytestmark = pytest.mark.needs("user namespaces", "qemu", "lab kernel")

SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
ONE = ("duration_s=2", "omit_s=0")
MEASURED = ("ok", "invalid")  # on a loaded machine, flows may not overlap long enough to count
PATIENCE_S = 300


def test_killed_at_random_moments(lab_kernel: str, tmp_path: Path) -> None:
    """Nothing is left when any process is killed while the lab VM boots, measures or ends."""
    print(f"LABKIT_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    with sandbox(tmp_path, user=False) as machine:
        for part in range(3):
            process = machine.start(*LABKIT, "run", "datapaths", *ONE, f"where=vm:{lab_kernel}")
            time.sleep((part + rng.random()) * 4)
            if running := list(
                machine.processes()
            ):  # a run takes at least 15 s in an emulated lab VM, less with KVM
                os.kill(rng.choice(running), signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
            assert until(lambda: not machine.processes(), 20), machine.processes()


@pytest.mark.smoke
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


@pytest.mark.needs("full kernel", "openvswitch", "ethtool")
def test_one_boot_serves_a_sweep(lab_kernel: str, full_kernel: str, tmp_path: Path) -> None:
    """With `fresh`, each point has a boot of its own. The sweep compares two kernels, of which each has Open vSwitch's
    datapath as a module."""
    parameters = {
        "topology": ["veth", "ovs"],
        "duration_s": 2,
        "omit_s": 0,
        "rounds": 1,
        "slices": 0,
        "pairs": [1],
    }
    shape = "cpus=1,append=labkit.test=1"
    common, fresh = f"vm:{lab_kernel},{shape}", f"vm:{full_kernel},{shape},fresh"
    grid = {"where": [common, fresh], "mtu_bytes": [1500, 9000]}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({"notebook": "01_datapaths", "parameters": parameters, "grid": grid}))
    with sandbox(tmp_path / "world", user=False) as machine:
        done = machine.labkit("sweep", str(path), cwd=Path(__file__).parents[2], timeout=3 * PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert until(lambda: not machine.processes(), 20), machine.processes()
        [sweep] = (machine.data / "datapaths").iterdir()
    boots: dict[str, list[str]] = {}
    for point in (path.parent for path in sweep.glob("*/environment.json")):
        details = json.loads((point / "environment.json").read_text())
        assert "labkit.test=1" in details["kernel_command_line"]
        rows = run_folder.read_rows(point)
        assert {row["topology"] for row in rows} == {"veth", "ovs"}
        kernel = full_kernel if rows[0]["where"] == fresh else lab_kernel
        for row in rows:
            assert (row["kernel"], row["cpus_count"]) == (kernel, 1)
            assert row["status"] in MEASURED, row["reason"]
            assert ((row["switched_count"] or 0) > 0) == (row["topology"] == "ovs")
        boots.setdefault(rows[0]["where"], []).append(details["boot_id"])
    assert {where: (len(each), len(set(each))) for where, each in boots.items()} == {
        common: (2, 1),
        fresh: (2, 2),
    }


def test_sweep_survives_a_killed_vm_and_an_unbootable_kernel(lab_kernel: str, tmp_path: Path) -> None:
    """The point of the killed lab VM continues in a newly booted one.

    The point of the corrupt image gets a row with the reason, and the same command tries it again. The report shows the
    ratios of both other kernels side by side.
    """
    image = tmp_path / "vmlinuz-corrupt"
    content = bytearray(kernels.find(lab_kernel).image.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    image.write_bytes(content)
    parameters = {
        "topology": ["veth", "veth_bridge"],
        "duration_s": 2,
        "omit_s": 0,
        "rounds": 2,
        "pairs": [1],
        "slices": 0,
    }
    path = tmp_path / "kernels.yaml"
    grid = {"where": ["here", f"vm:{lab_kernel}", f"vm:{image}"]}
    path.write_text(yaml.safe_dump({"notebook": "01_datapaths", "parameters": parameters, "grid": grid}))
    command = (*LABKIT, "sweep", str(path))
    with sandbox(tmp_path / "a, b", user=False) as machine:
        process = machine.start(*command, cwd=Path(__file__).parents[2])
        assert until(lambda: measured_in_vm(machine.data, lab_kernel), PATIENCE_S)
        [qemu] = machine.pids(lambda words: Path(words[0]).name.startswith("qemu"))
        os.kill(qemu, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
        again = machine.run(*command, cwd=Path(__file__).parents[2], timeout=PATIENCE_S)
        for code, lines, boots in ((process.returncode, err, 4), (again.returncode, again.stderr, 2)):
            assert code == 2, lines
            assert lines.count("booting Linux") == boots, lines  # two attempts with the corrupt image
            assert "could not be measured: vm:" in lines
        assert "booted its lab VM again" in err
        assert until(lambda: not machine.processes(), 20), machine.processes()
        [sweep] = (machine.data / "datapaths").iterdir()
    points = [run_folder.read_rows(folder.parent) for folder in sweep.glob("*/rows")]
    [[failed]] = [rows for rows in points if len(rows) == 1]
    assert failed["status"] == "failed"
    assert "its image cannot be unpacked: " in failed["reason"]
    rows = [row for each in points if len(each) == 6 for row in each]
    assert len(rows) == 2 * 6  # two kernels; two rounds of a baseline, its control and a variant
    assert {row["kernel"] for row in rows} == {lab_kernel, os.uname().release}
    assert "Ratios to the baseline within each kernel" in (sweep / "report.html").read_text()


def measured_in_vm(data: Path, release: str) -> bool:
    """Return whether a point in a lab VM with this kernel has rows of its first round."""
    rows = (
        row for path in data.glob("*/*/*/rows/1-r0.jsonl") for row in run_folder.read_rows(path.parents[1])
    )
    return any(row["kernel"] == release for row in rows)
