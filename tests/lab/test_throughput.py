"""Throughput searches on real datapaths: a planted rate limit, a path without loss, invalid input, and kills."""

import os
import random
import signal
import statistics
import time
from pathlib import Path

import pytest
from sandbox import LABKIT, Row, also, rows_on_disk, sandbox, until

from labkit.common import run_folder

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "ip", "ping", "nft", "veth", "bridge")]

LIMITED = "change=limited: qdisc tbf rate 40mbit burst 20kb limit 20kb at between:port1"
LIMIT_PPS = 40e6 / 8 / 508  # tbf counts frames without FCS
SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Return the rows of one search of an unlimited bridge and of one whose port is limited."""
    with sandbox(tmp_path_factory.mktemp("searched"), user=False) as made:
        words = "frame_bytes=512 rounds=1 sum_s=0.6 passes=1 limit_s=30 burst_frames=4"
        return made.rows(*words.split(), LIMITED, experiment="throughput", timeout=300)


def test_planted_limit_is_the_ndr(searched: list[Row]) -> None:
    [ndr, pdr] = [row for row in searched if row["method"] == "search" and row["change"] == "limited"]
    assert (ndr["loss_goal_ratio"], pdr["loss_goal_ratio"]) == (0, 0.005)
    for row in (ndr, pdr):
        assert row["status"] == "ok", row["reason"]
        # The bucket and its queue hold 4 % of a trial's packets, and bounds are 5 % apart.
        assert row["throughput_pps"] == pytest.approx(LIMIT_PPS, rel=0.12)
        assert row["lower_bound_pps"] < row["upper_bound_pps"]
        assert (row["burst_frames"], row["sent_burst_frames"]) == (4, pytest.approx(4, rel=0.5))
        assert row["throughput_bps"] == pytest.approx(row["throughput_pps"] * 512 * 8)


def test_lossless_path_is_generator_limited(searched: list[Row]) -> None:
    result = [row for row in searched if row["method"] == "search" and row["change"] is None]
    assert {row["role"] for row in result} == {"baseline", "control"}
    for row in result:
        assert row["status"] == "invalid"
        assert row["throughput_pps"] is None
        assert row["reason"].startswith("generator-limited: ")


@pytest.mark.parametrize("direction", ["both", *also("exhaustive", "reverse")])
def test_limit_of_one_direction(direction: str, tmp_path: Path) -> None:
    """Only the way to the server is a bottleneck. A search in both directions ends where it loses."""
    with sandbox(tmp_path, user=False) as made:
        words = "frame_bytes=512 rounds=1 sum_s=0.6 passes=1 limit_s=30 burst_frames=4 loss=0 latency=false"
        rows = made.rows(
            *words.split(), LIMITED, f"direction={direction}", experiment="throughput", timeout=300
        )
    limited = [row for row in rows if row["change"] == "limited"]
    [found] = [row for row in limited if row["method"] == "search"]
    fastest = [row for row in limited if row["phase"] == "calibration"]
    limit_bps = LIMIT_PPS * 512 * 8
    assert statistics.median(row["reverse_bps"] for row in fastest) > 2 * limit_bps
    if direction == "reverse":
        assert {row["forward_bps"] for row in fastest} == {None}
        assert found["reason"].startswith("generator-limited: ")
        return
    # A trial of 0.1 s has 10 % more, because the bucket and the queue pass 20 kB each.
    assert limit_bps < statistics.median(row["forward_bps"] for row in fastest) < 1.2 * limit_bps
    assert found["status"] == "ok", found["reason"]
    assert found["throughput_pps"] == pytest.approx(2 * LIMIT_PPS, rel=0.12)
    assert found["forward_bps"] == pytest.approx(limit_bps, rel=0.12)
    assert found["reverse_bps"] == pytest.approx(limit_bps, rel=0.12)


def test_every_trial_is_a_row(searched: list[Row]) -> None:
    assert len({frozenset(row) for row in searched}) == 1  # every row has the same columns
    for arm in {row["arm"] for row in searched}:
        own = [row for row in searched if row["arm"] == arm and row["method"] == "trial"]
        [count] = {row["trials_count"] for row in searched if row["arm"] == arm and row["method"] == "search"}
        assert len([row for row in own if row["phase"] == "search"]) == count
        for row in own:
            assert row["offered_count"] == row["sent_count"] >= row["received_frames_count"]
            assert row["lost_count"] == row["offered_count"] - row["received_frames_count"]
            sent, received = row["hops"].values()  # by the interfaces, which also count other frames
            assert 0 <= sent - row["sent_count"] < 5
            assert 0 <= received - row["received_frames_count"] < 5
            assert row["status"] == "ok" or row["reason"].startswith(("disturbed: ", "generator-limited: "))


def test_latency_at_three_shares_of_the_rate(searched: list[Row]) -> None:
    """A busy machine may disturb a trial even after repeats, so its percentiles are not compared."""
    limited = [row for row in searched if row["change"] == "limited"]
    [_, pdr_pps] = [row["throughput_pps"] for row in limited if row["method"] == "search"]
    beside = {row["phase"]: row for row in limited if str(row["phase"]).startswith("latency")}
    assert set(beside) == {"latency at 10 %", "latency at 50 %", "latency at 90 %"}
    for phase, row in beside.items():
        assert row["requested_pps"] == pytest.approx(int(phase.split()[2]) / 100 * pdr_pps)
        if row["status"] != "ok":
            continue
        assert 0 < row["latency_p50_s"] <= row["latency_p99_s"] <= row["latency_max_s"] * 1.01
        assert row["histogram"]


def test_killed_search_keeps_every_finished_trial_and_leaves_nothing(tmp_path: Path) -> None:
    """It is killed at a random moment of the second round, after a trial of that round; then it is resumed."""
    words = "topology=veth rounds=3 trial_s=0.1 sum_s=0.1 passes=1 limit_s=2 max_rate=20kpps latency=false"
    moment_s = random.Random(SEED).random()
    print(f"LABKIT_TEST_SEED={SEED}")
    with sandbox(tmp_path) as made:
        folder = made.folder / "run"
        running = made.start(*LABKIT, "run", "throughput", *words.split(), "--folder", str(folder))
        assert until(lambda: rows_on_disk(folder), 60), made.processes()
        time.sleep(moment_s)
        kept = rows_on_disk(folder)  # before the next trial is looked for: its round may end meanwhile
        assert until(lambda: [*folder.glob("rows/*.unfinished")], 60)
        trials = run_folder.read_rows(folder)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert until(lambda: not made.processes(), 10), made.processes()
        assert until(made.only_namespace, 10)
        assert kept.items() <= rows_on_disk(folder).items()
        rows = run_folder.read_rows(folder)
        assert {row["method"] for row in rows} == {"search", "trial"}
        assert all(row in rows for row in trials)
        assert len({row["round"] for row in rows}) > len(kept)
        made.labkit("run", "throughput", *words.split(), "--folder", str(folder), code=0)
        assert kept.items() <= rows_on_disk(folder).items()
        assert len(rows_on_disk(folder)) == 3
        assert not [*folder.glob("rows/*.unfinished")]
        rounds = [row["round"] for row in run_folder.read_rows(folder) if row["method"] == "search"]
        assert sorted(rounds) == [0, 0, 1, 1, 2, 2]


@pytest.mark.needs("perf")
def test_why_explains_two_searched_arms(tmp_path: Path) -> None:
    """A router costs CPU time at the same rate; the profiles say where."""
    with sandbox(tmp_path, user=False) as made:
        folder = made.folder / "run"
        words = "topology=veth,veth_routed rounds=1 sum_s=0.4 passes=1 width=0.2 limit_s=20 latency=false"
        observed = ("observe=perf_record", "profile_rounds=1", "max_rate=60kpps", "--folder", str(folder))
        rows = made.rows(*words.split(), *observed, experiment="throughput", timeout=300)
        profiles = [row for row in rows if row["method"] == "profile"]
        assert len(profiles) == 3 * 2  # two arms and a control, with and without the observer
        [rate_pps] = {row["requested_pps"] for row in profiles}
        assert 0 < rate_pps <= 30e3
        for row in profiles:
            assert row["status"] in ("ok", "invalid"), row["reason"]
            assert row["received_count"] > 0
            assert row["cpu_s"] > 0
        made.labkit("why", f"{folder}:veth", "veth_routed", code=0)
        # On a busy machine, trials may not be what they should, and no arm has a cost then.
        if all(row["status"] == "ok" for row in profiles):
            assert "per packet" in (folder / "why.html").read_text()
