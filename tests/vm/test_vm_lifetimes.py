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
        for part in range(4):
            process = machine.start(*LABKIT, "run", "datapaths", *ONE, f"where=vm:{lab_kernel}")
            time.sleep((part + rng.random()) * 3)
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


@pytest.mark.parametrize(("fresh", "boots"), [("", 1), (",fresh", 2)])
def test_one_boot_serves_a_sweep(lab_kernel: str, tmp_path: Path, fresh: str, boots: int) -> None:
    parameters = {"topology": ["veth"], "duration_s": 1, "omit_s": 0, "rounds": 1, "slices": 0, "pairs": [1]}
    parameters["where"] = f"vm:{lab_kernel},cpus=1,append=labkit.test=1{fresh}"
    path = tmp_path / "small.yaml"
    path.write_text(
        yaml.safe_dump(
            {"notebook": "01_datapaths", "parameters": parameters, "grid": {"mtu_bytes": [1500, 9000]}}
        )
    )
    with sandbox(tmp_path / "world", user=False) as machine:
        done = machine.labkit("sweep", str(path), cwd=Path(__file__).parents[2], timeout=2 * PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert until(lambda: not machine.processes(), 20), machine.processes()
        [sweep] = (machine.data / "datapaths").iterdir()
    rows = [row for folder in sweep.glob("*/rows") for row in run_folder.read_rows(folder.parent)]
    assert sorted(row["mtu_bytes"] for row in rows) == [1500, 9000]
    assert {(row["kernel"], row["cpus_count"], row["status"] in MEASURED) for row in rows} == {
        (lab_kernel, 1, True)
    }
    began = {}
    for point in (path.parent for path in sweep.glob("*/environment.json")):
        details = json.loads((point / "environment.json").read_text())
        assert "labkit.test=1" in details["kernel_command_line"]
        began[point.name] = details["boot_id"]
    assert len(set(began.values())) == boots


def test_sweep_over_kernels_survives_a_killed_vm(lab_kernel: str, tmp_path: Path) -> None:
    """The point continues in a newly booted lab VM. The report shows the ratios of both kernels side by side."""
    parameters = {
        "topology": ["veth", "veth_bridge"],
        "duration_s": 1,
        "omit_s": 0,
        "rounds": 2,
        "pairs": [1],
        "slices": 0,
    }
    path = tmp_path / "kernels.yaml"
    grid = {"where": ["here", f"vm:{lab_kernel}"]}
    path.write_text(yaml.safe_dump({"notebook": "01_datapaths", "parameters": parameters, "grid": grid}))
    with sandbox(tmp_path / "a, b", user=False) as machine:
        process = machine.start(*LABKIT, "sweep", str(path), cwd=Path(__file__).parents[2])
        assert until(lambda: list(machine.data.glob("*/*/vm_*/rows/1-r0.jsonl")), PATIENCE_S)
        [qemu] = machine.pids(lambda words: Path(words[0]).name.startswith("qemu"))
        os.kill(qemu, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert err.count("booting Linux") == 2
        assert "booted its lab VM again" in err
        assert until(lambda: not machine.processes(), 20), machine.processes()
        [sweep] = (machine.data / "datapaths").iterdir()
    rows = {folder.parent.name: run_folder.read_rows(folder.parent) for folder in sweep.glob("*/rows")}
    assert len(rows) == 2
    assert {len(each) for each in rows.values()} == {6}  # two rounds of a baseline, its control and a variant
    assert {row["kernel"] for each in rows.values() for row in each} == {lab_kernel, os.uname().release}
    page = (sweep / "report.html").read_text()
    assert "Ratios to the baseline within each kernel" in page


def test_sweep_goes_on_after_an_unbootable_kernel(lab_kernel: str, tmp_path: Path) -> None:
    """Its point gets a row with the reason, the other kernel is measured, and the same command tries it again."""
    image = tmp_path / "vmlinuz-corrupt"
    content = bytearray(kernels.find(lab_kernel).image.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    image.write_bytes(content)
    parameters = {"topology": ["veth"], "duration_s": 1, "omit_s": 0, "rounds": 1, "slices": 0, "pairs": [1]}
    path = tmp_path / "two.yaml"
    grid = {"where": [f"vm:{image}", f"vm:{lab_kernel},cpus=1"]}
    path.write_text(yaml.safe_dump({"notebook": "01_datapaths", "parameters": parameters, "grid": grid}))
    with sandbox(tmp_path / "world", user=False) as machine:
        for boots in (3, 2):  # two attempts with the corrupt image; the other kernel is measured once
            done = machine.labkit("sweep", str(path), cwd=Path(__file__).parents[2], timeout=2 * PATIENCE_S)
            assert done.returncode == 2, done.stderr
            assert done.stderr.count("booting Linux") == boots, done.stderr
            assert "could not be measured: vm:" in done.stderr
            [sweep] = (machine.data / "datapaths").iterdir()
            rows = [row for folder in sweep.glob("*/rows") for row in run_folder.read_rows(folder.parent)]
            by_status = {row["status"]: row for row in rows}
            assert by_status.keys() in ({"failed", "ok"}, {"failed", "invalid"})
            assert "its image cannot be unpacked: " in by_status["failed"]["reason"]
            assert (sweep / "report.html").exists()
        assert until(lambda: not machine.processes(), 20), machine.processes()
