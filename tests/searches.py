"""A short search whose ends have clocks of their own, and what holds for each of its trials."""

from __future__ import annotations

from sandbox import Row, Sandbox


def searched(machine: Sandbox, *words: str) -> tuple[list[Row], list[Row]]:
    """Search one datapath in one round; return the rows of the results and of the trials.

    What was sent was offered, what arrived was sent, and no latency is computed from two clocks.
    """
    short = ("rounds=1", "sum_s=0.4", "passes=1")
    rows = machine.rows(*words, *short, experiment="throughput", timeout=400)
    trials = [row for row in rows if row["method"] == "trial"]
    assert len(trials) > 5
    for row in trials:
        assert row["offered_count"] >= row["sent_count"] >= row["received_frames_count"]
        assert row["received_by"] == {"server0": row["received_frames_count"]}
        assert row["latency_p50_s"] is None
    return [row for row in rows if row["method"] == "search"], trials
