"""ping's output, recorded from iputils 20221126, becomes round-trip times in seconds."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import ping
from labkit.system import process

SAMPLES = Path(__file__).parents[3] / "samples"


def sample(name: str) -> str:
    return (SAMPLES / f"ping-20221126-{name}.txt").read_text()


def test_output_of_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    times = ping.round_trip_times(sample("answered"))
    assert len(times) == 12
    # ping's own summary: rtt min/avg/max = 0.006/0.036/0.234 ms
    assert min(times) == pytest.approx(6e-6)
    assert max(times) == pytest.approx(234e-6)
    assert sum(times) / 12 == pytest.approx(36e-6, abs=1e-6)
    assert ping.round_trip_times(sample("silent")) == []
    assert ping.round_trip_times(sample("answered-ipv6")) == pytest.approx([68e-6, 41e-6, 5e-6])
    assert len(ping.round_trip_times(sample("duplicates"))) == 5  # answers of several hosts to three requests
    doubled = "64 bytes from 10.2.0.3: icmp_seq=1 ttl=64 time=0.064 ms\n" * 2
    assert len(ping.round_trip_times(doubled.rstrip() + " (DUP!)\n")) == 1
    # A killed ping has also sent requests. Ignoring them would give more answers than requests.
    whole = sample("answered")
    cut = whole.partition("---")[0]
    assert ping._sent_by_all([whole, whole]) == 24
    assert ping._sent_by_all([whole, cut]) is None


def test_steps_of_the_printed_times() -> None:
    """ping prints three digits at most, so longer times have longer steps."""
    for printed_ms, step_s in (("0.004", 1e-6), ("1.00", 1e-5), ("10.0", 1e-4), ("100", 1e-3)):
        [time_s] = ping.round_trip_times(f"64 bytes from 10.2.0.3: icmp_seq=1 ttl=64 time={printed_ms} ms\n")
        assert time_s == pytest.approx(1e-3 * float(printed_ms))
        assert ping.step_s(time_s) == step_s


def test_times_that_are_all_in_one_step_are_a_doubt() -> None:
    doubt = ping._step_doubt([0.021] * 100, 0.021, 1e-4)
    assert str(doubt).startswith("ping printed 100 % of the round-trip times as 21 ms, ")
    assert ping._step_doubt([0.021] * 50 + [0.0211] * 50, 0.0211, 1e-4) is None
    assert ping._step_doubt([0.0005] * 100, 0.0005, 1e-7) is None


@pytest.mark.parametrize("is_lost", [False, True])
def test_answered_sends_as_many_requests_as_it_says(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ping(8) sends until the deadline if it has one (-w), so a late answer would mean more requests."""
    sent: list[tuple[str, ...]] = []

    def run(words: list[str]) -> process.Ended:
        sent.append(tuple(words))
        return process.Ended(tuple(words), int(is_lost), stdout="", stderr="", cpu_s=0.0)

    monkeypatch.setattr(process, "run", run)
    client: Any = SimpleNamespace(prefix=[], name="cs1")
    with pytest.raises(Failed, match="cs1 lost a ping") if is_lost else nullcontext():
        ping.answered(client, "10.0.0.1", 3, 56)
    assert sent == [("ping", "-n", "-c1", "-W15", "-s56", "10.0.0.1")] * (1 if is_lost else 3)


def measured(folder: Path, said: str, duration_s: int) -> dict[str, Any]:
    """Return the columns of a row of a ping that says this."""
    (folder / "said").write_text(said)
    argv = ["cat", str(folder / "said")]
    client = SimpleNamespace(start=lambda _argv: process.Running(argv))
    pair: Any = SimpleNamespace(client=client, server_address="")
    given = {"protocol": "ping", "duration_s": duration_s}
    return ping.PING.latency([pair], DatapathParameters.of(given))


def test_requests_without_an_answer_are_slower_than_all_others(tmp_path: Path) -> None:
    """Ten of 510 got none. ping says nothing of them, and sends until it has 500 answers."""
    answers = "".join(f"64 bytes from 10.2.0.3: icmp_seq={n} ttl=64 time=0.040 ms\n" for n in range(500))
    said = f"{answers}510 packets transmitted, 500 received, 1.96078% packet loss, time 1020ms\n"
    row = measured(tmp_path, said, 1)
    assert (row["sent_count"], row["received_count"], row["lost_count"]) == (510, 500, 10)
    assert row["latency_p50_s"] == pytest.approx(40e-6, rel=0.02)
    assert (row["latency_p99_s"], row["latency_max_s"]) == (None, None)
    assert "2 % of the requests got no response" in row["doubts"][-1]


@pytest.mark.parametrize("duration_s", [3, 140])  # ping prints numbers modulo 65,536
@pytest.mark.parametrize("missing", [range(200, 220), range(0)])
@pytest.mark.parametrize("on_their_way", [0, 50])
def test_a_stall_hides_no_lost_requests(
    duration_s: int, missing: range, on_their_way: int, tmp_path: Path
) -> None:
    """A hundred may be on their way for a second as ping ends, but not those of which later ones were answered."""
    count = 500 * duration_s
    sent = count + len(missing)
    lines = [
        f"64 bytes from 10.2.0.3: icmp_seq={n % 65536} ttl=64 time={1000 if n == 100 else 0.04} ms"
        for n in range(1, sent + 1)
        if n not in missing
    ]
    said = "\n".join([*lines, f"{sent + on_their_way} packets transmitted, {count} received"])
    row = measured(tmp_path, said, duration_s)
    assert (row["received_count"], row["lost_count"]) == (count, len(missing))


def test_the_warm_up_is_pinged_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has pings of its own, before those that count."""
    asked, counted = list[list[str]](), list[int]()

    def start(words: list[str]) -> process.Running:
        asked.append(words)
        line = f"64 bytes from 10.2.0.3: icmp_seq=1 ttl=64 time={len(asked)}.0 ms\n1 packets transmitted"
        return process.Running(["echo", line])

    class Window:
        def __enter__(self) -> None:
            counted.append(len(asked))

        def __exit__(self, *_error: object) -> None:
            counted.append(len(asked))

    pair: Any = SimpleNamespace(client=SimpleNamespace(start=start), server_address="10.2.0.3")
    for omit_s, times in ((3, [2e-3]), (0, [3e-3])):
        given = {"protocol": "ping", "duration_s": 2, "omit_s": omit_s}
        row = ping.PING.latency([pair], DatapathParameters.of(given), Window())
        assert (row["received_count"], row["latency_max_s"]) == (1, pytest.approx(times[0]))
    assert [words[2] for words in asked] == ["-c1500", "-c1000", "-c1000"]
    assert counted == [1, 2, 2, 3]
