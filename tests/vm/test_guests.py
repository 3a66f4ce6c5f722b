"""Guests as endpoints. Each test boots as few as possible."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import LABKIT, Sandbox, Trap, also, clean_sandbox, one_sentence, printed, until
from searches import searched

pytestmark = pytest.mark.needs("root", "qemu", "lab kernel", "bridge", "tap", "iperf3")

COMMON = ("topology=veth_bridge", "omit_s=0")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with clean_sandbox(tmp_path) as made:
        trap = Trap(tmp_path / "here")
        yield made
        assert not trap.imported()


STEPS = (
    "offload tso off at client", "mtu 1400 at client", "txqueuelen 10 at client", "route 192.0.2.0/24 at client",
    "neighbour 10.2.0.9 02:00:00:00:00:09 at client", "sysctl net.ipv4.conf.all.rp_filter=1 at server",
    "rps 0 at server",
)  # fmt: skip


@pytest.mark.parametrize("endpoint", ["shared_guest", *also("exhaustive", "guest")])
def test_changes_in_a_guest(lab_kernel: str, endpoint: str) -> None:
    """A change in a guest writes the guest's files only, of one namespace where ends share a guest."""
    changes = (
        f"all: {' and '.join(STEPS)}",
        "absent: rules 1 at server",
        "watched: monitor one_in:1 at server",
    )
    program = Path(__file__).with_name("change_guests.py")
    report = printed(program, endpoint, lab_kernel, *changes, timeout_s=500)
    before, after = report["rp_filter_here"]
    assert before == after
    changed, absent, watched = report["results"]
    assert isinstance(changed, list), changed
    effects = {(one["at"], one["setting"], one["after"]) for one in changed}
    assert effects >= {
        ("client", "tcp-segmentation-offload", "off"),
        ("client", "mtu_bytes", "1400"),
        ("client", "txqueuelen", "10"),
        ("server", "net.ipv4.conf.all.rp_filter", "1"),
        ("server", "rps rx-0", "1"),
    }
    assert {"routes", "neighbour 10.2.0.9"} <= {setting for _, setting, _ in effects}
    assert watched.startswith("the monitor cannot watch inside a guest")
    assert "nft" in absent


# test_vm_faults has a panic in CI.
@pytest.mark.parametrize(
    ("options", "says"),
    [("boot_s=1", "did not boot in time"), *also("exhaustive", ("append=rdinit=/nothing", "Kernel panic"))],
)
def test_guest_does_not_boot(lab_kernel: str, machine: Sandbox, options: str, says: str) -> None:
    # An arm boots one of this kind, and two of the other one.
    words = (*COMMON, "endpoint=shared_guest", "protocol=ping", f"guest={lab_kernel},{options}")
    lines = one_sentence(machine.labkit("run", "datapaths", *words, timeout=400))
    assert lines.startswith("veth_bridge/shared_guest: the guest ")
    assert says in lines


def test_killed_run_leaves_no_guest(lab_kernel: str, machine: Sandbox) -> None:
    words = (*COMMON, "endpoint=guest", "protocol=ping", f"guest={lab_kernel}")
    left = lambda: set(Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp").glob("labkit-guest-*"))  # noqa: E731
    before = left()
    process = machine.start(*LABKIT, "run", "datapaths", *words)
    booting = lambda: machine.pids(lambda argv: Path(argv[0]).name.startswith("qemu"))  # noqa: E731
    assert until(lambda: len(booting()) == 2, 120), process.poll()
    process.kill()
    process.communicate()
    assert until(lambda: not machine.processes(), 20), machine.processes()
    assert left() <= before  # 40 MB each


@pytest.mark.exhaustive
@pytest.mark.needs("nft")
def test_packet_generator_between_guests(lab_kernel: str, machine: Sandbox) -> None:
    """Everything that the sending guest's interface sends is offered, and the receiving guest counts what arrives."""
    words = ("endpoint=guest", f"guest={lab_kernel},cpus=2,queues=2,offloads=off", "flows=10")
    results, trials = searched(machine, *words, "trial_s=0.2", "width=0.3", "limit_s=20", "min_rate=500pps")
    for row in (*results, *trials):
        assert (row["endpoint"], row["guest_kernel"]) == ("guest", lab_kernel)
        assert (row["guest_cpus_count"], row["guest_queues_count"]) == (2, 2)
        assert "tx-checksumming" not in row["offloads"]
    assert any(row["lost_count"] == 0 for row in trials if row["phase"] == "search"), trials
    assert {row["datapath_scheduling"] for row in results} == {"normal"}


@pytest.mark.parametrize("endpoint", ["shared_guest", *also("exhaustive", "guest")])
def test_connections_between_guests(lab_kernel: str, machine: Sandbox, endpoint: str) -> None:
    """labkit's sockets run there, and the ports of the client's kernel do not limit them."""
    words = (f"endpoint={endpoint}", f"guest={lab_kernel}", "protocol=tcp_crr", "streams=2", "duration_s=2")
    [row] = machine.rows(*COMMON, *words, timeout=500)
    assert (row["status"], row["reason"], row["endpoint"]) == ("ok", None, endpoint)
    assert row["received_count"] > 10
    assert 1e-5 < row["latency_p50_s"] <= row["latency_p99_s"]
    assert "tcp_tw_reuse=1" in row["connection_sysctls"]
