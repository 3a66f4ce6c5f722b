"""The meaning of TRex's counters, on transcripts of a real server. Each test covers one possible misreading."""

from typing import Any

import pytest
from trex_server import calls

from labkit.measure.traffic.rates import Line
from labkit.measure.traffic.trex import readings
from labkit.measure.traffic.trex.readings import Direction, ProbeLatency
from studies.load_test import sides


def counters(name: str, port: int) -> list[dict[str, Any]]:
    """Return the answers to `get_port_stats`, each with its time in the transcript."""
    return [
        {**result, "time": t}
        for t, method, parameters, result in calls(name)
        if method == "get_port_stats" and parameters["port_id"] == port
    ]


def whole(name: str, after: float, before: float) -> Direction:
    """Return the counters of the direction 0→1 between two idle times of a transcript."""
    zero, one = ([one for one in counters(name, at) if after <= one["time"] <= before] for at in (0, 1))
    raw = [
        {"time": zero[at]["time"], "ports": {"0": zero[at], "1": one[at]}}
        for at in (0, 1, -2 if zero[-1]["opackets"] > zero[-2]["opackets"] else -3, -1)
    ]
    [direction] = readings.directions({"readings": raw}, (0, 1), (0,))
    return direction


def last_answer(name: str) -> dict[str, Any]:
    """Return the last answer with a latency of the packet group 5."""
    answers: list[dict[str, Any]] = [
        result
        for _, method, _, result in calls(name)
        if method == "get_pgid_stats" and result.get("latency", {}).get("5")
    ]
    return answers[-1]


def last_latency(name: str) -> ProbeLatency:
    return readings.stateless_latency(last_answer(name), 5)


def test_rate_is_over_wall_time_not_over_schedule_time() -> None:
    """1: With a request of 400 kpps for 3 s, TRex took longer and sent at a lower rate."""
    starts = [(t, given) for t, method, given, _ in calls("stl_ramp64_overload") if method == "start_traffic"]
    begun, given = starts[-1]
    requested_pps, duration_s = given["mul"]["value"], given["duration"]
    assert (requested_pps, duration_s) == (400_000, 3)
    running = [one for one in counters("stl_ramp64_overload", 0) if one["time"] > begun]
    # All requested packets were sent, but not at the requested rate.
    assert running[-1]["opackets"] - 330_002 == 1_200_000
    pps = readings.rate(running[0], running[2], "opackets", running[2]["time"] - running[0]["time"])
    assert pps == pytest.approx(318_000, rel=0.01)
    direction = whole("stl_ramp64_overload", begun - 0.05, 99)
    assert direction.sent_pps < 0.9 * requested_pps
    assert "generator-limited" not in (sides.problem_of([direction], requested_pps, duration_s) or "")


def test_ring_drops_are_no_loss_of_the_device() -> None:
    """2: The device delivered the packets that the receiving port counts as `ierrors`, so the run is invalid."""
    direction = whole("stl_ramp64_overload", 4.7, 8.334)
    final = counters("stl_ramp64_overload", 1)[-1]
    assert final["opackets"] == 0
    assert final["ierrors"] > 0
    assert direction.ring_drops_count > 0
    assert direction.sent_count - direction.received_count == direction.ring_drops_count
    assert direction.lost_count == 0
    problem = sides.problem_of([direction], 100_000, 3)
    assert problem.startswith(f"TRex's own receive ring dropped {direction.ring_drops_count} of ")


def test_buckets_are_lower_edges_and_key_0_is_below_10_us() -> None:
    """4: A percentile is the upper edge of its bucket, but never above the maximum latency."""
    latency = last_latency("stl_latency")
    assert latency.buckets[0] == 3
    assert sum(latency.buckets.values()) == latency.received_count == 4000
    assert [readings.upper_edge(edge) for edge in (0, 10, 90, 100, 900, 1000, 20_000)] == [
        10, 20, 100, 200, 1000, 2000, 30_000,
    ]  # fmt: skip
    assert latency.percentiles_s["p50"] == pytest.approx(500e-6)
    assert latency.percentiles_s["max"] == pytest.approx(2492e-6)
    assert latency.mean_s == pytest.approx(484e-6)


def test_probes_of_a_second_are_in_no_bucket() -> None:
    """4: They are the slowest, although the histogram leaves them out."""
    usual = last_latency("stl_latency")
    slow = readings.percentiles_s(usual.buckets, 5000, 1.5)  # a fifth is in no bucket
    assert slow["p50"] == pytest.approx(600e-6)
    assert slow["p90"] == slow["max"] == 1.5
    assert readings.percentiles_s({}, 0, None)["p50"] is None


def latencies(name: str, *groups: int) -> list[ProbeLatency]:
    answers = [result for _, method, _, result in calls(name) if method == "get_pgid_stats"]
    all_of = (readings.stateless_latency(answer, group) for answer in answers for group in groups)
    return [one for one in all_of if one is not None and one.buckets]


def test_key_0_of_earlier_steps_is_not_counted_again() -> None:
    """4: The server keeps the greatest count of probes below 10 µs: 65 and 42 of an earlier run."""
    some = latencies("stl_short_steps_max", 1000, 1001)
    assert all(sum(one.buckets.values()) <= one.received_count for one in some)
    counts = {one.buckets.get(0, 0) for one in some if one.received_count == 201}
    assert counts == {6, 1}
    assert readings.stateless_latency({"flow_stats": None, "latency": {"g": None}}, 1000) is None


@pytest.mark.parametrize("name", ["stl_short_steps_max", "stl_ring_drops_hdrh"])
def test_maximum_is_not_below_the_highest_bucket(name: str) -> None:
    """4: `total_max` leaves out the first probes; the histograms do not."""
    some = latencies(name, 1000, 1001)
    assert some
    for one in some:
        p50, p999, longest_s = (one.percentiles_s[name] for name in ("p50", "p999", "max"))
        assert max(one.buckets) * 1e-6 <= longest_s
        assert 0 < p50 <= p999 <= longest_s
        assert one.mean_s is None or one.mean_s > 0


def test_hdr_histogram_gives_exact_percentiles() -> None:
    """4: With `--hdrh` a percentile lies inside its bucket instead of at its edge."""
    exact = last_latency("stl_latency_loss_hdrh")
    assert exact.histogram is not None
    value = exact.percentiles_s["p50"]
    edge = readings.percentiles_s(exact.buckets, exact.received_count, exact.percentiles_s["max"])["p50"]
    assert edge == pytest.approx(200e-6)
    assert 100e-6 <= value <= 200e-6


def test_lost_probes_include_those_at_the_end() -> None:
    """5: `dropped` misses losses after the last received probe. The difference of sent and received includes them."""
    dropped = last_answer("stl_latency_loss_hdrh")["latency"]["5"]["er"]["drp"]
    latency = last_latency("stl_latency_loss_hdrh")
    assert latency.lost_count == 509 > dropped == 506


def test_off_by_one_and_more_than_sent_are_no_loss() -> None:
    """5: A port also receives ARP, and counters differ by one."""
    direction = whole("stl_ramp64", 1.0, 4.61)
    values = vars(direction)
    assert direction.lost_count == 0
    assert Direction(**{**values, "sent_count": direction.received_count + 1}).lost_count == 0
    assert Direction(**{**values, "sent_count": direction.received_count - 3}).lost_count == 0
    assert Direction(**{**values, "sent_count": direction.received_count + 2}).lost_count == 2


def test_frames_above_the_mtu_raise_only_oerrors() -> None:
    """6: There is no error, but nothing is sent."""
    direction = whole("stl_ramp64", 1.0, 4.61)
    refused = Direction(**{**vars(direction), "refused_count": 3000, "sent_count": 0, "received_count": 0})
    problem = sides.problem_of([refused], 1000, 3)
    assert "refused 3000 frames (oerrors): are they longer than the MTU" in problem
    fields = counters("stl_ramp64", 0)[-1]
    assert fields["oerrors"] == 0


def test_sent_latency_of_a_stateful_port_is_the_peer() -> None:
    """7: Port 1 received what port 0 sent, and the error counter of other protocols counts the probes."""
    answer = [result for _, method, _, result in calls("astf_http_own") if method == "get_latency_stats"][-1]
    to_one, to_zero = readings.stateful_latency(answer, 1, 0), readings.stateful_latency(answer, 0, 1)
    assert (to_one.sent_count, to_one.received_count) == (5134, 5133)
    assert (to_zero.sent_count, to_zero.received_count) == (4377, 4377)
    assert answer["data"]["port-0"]["hist"]["min_usec"] == answer["data"]["port-1"]["hist"]["min_usec"] == 10
    values = [result for _, method, _, result in calls("astf_http_own") if method == "get_counter_values"][-1]
    names = {
        str(one["id"]): one["name"]
        for _, method, _, result in calls("astf_http_own")
        if method == "get_counter_desc"
        for one in result["data"]
    }
    [error] = [key for key, name in names.items() if name == "err_no_tcp_udp"]
    assert values["client"][error] == to_zero.received_count


def test_maximum_that_the_server_has_not_counted_yet() -> None:
    """4: A second after the start ASTF's `max_usec` is still 0, and no percentile may be."""
    first = next(result for _, method, _, result in calls("astf_http_own") if method == "get_latency_stats")
    assert first["data"]["port-1"]["hist"]["max_usec"] == 0
    latency = readings.stateful_latency(first, 1, 0)
    assert latency.percentiles_s["max"] == pytest.approx(2000e-6)
    assert latency.percentiles_s["p50"] == pytest.approx(600e-6)


def test_counters_of_connections_and_latency_begin_anew_with_each_start() -> None:
    """Before the start those of an earlier test stand there: 137 attempts and 4,623 probes."""
    recorded = list(calls("astf_overload"))
    described = next(result["data"] for _, method, _, result in recorded if method == "get_counter_desc")
    [values, latency] = (
        [(t, result) for t, method, _, result in recorded if method == wanted]
        for wanted in ("get_counter_values", "get_latency_stats")
    )
    [attempts] = [str(one["id"]) for one in described if one["name"] == "tcps_connattempt"]
    assert (values[0][1]["client"][attempts], values[1][1]["client"].get(attempts)) == (137, None)
    assert [one["data"]["port-0"]["stats"]["m_tx_pkt_ok"] for _, one in latency[:2]] == [4623, 0]
    read = [{"time": t, "counters": one} for t, one in values[2:]]
    own = readings.connections({"described": described, "readings": read})
    assert (own.connections_count, own.errors_count) == (29_460, 3)
    assert own.attempts_pps == pytest.approx(own.connections_pps, rel=0.01)
    assert own.attempts_pps == pytest.approx((29_448 - 5506) / own.window_s)


def test_bytes_include_the_fcs_and_per_cent_are_of_a_given_line() -> None:
    """8: A frame counts 64 bytes, and a veth's nominal 10 Gbit/s is not the line rate."""
    direction = whole("stl_ramp64", 1.0, 4.61)
    assert direction.received_bytes == 64 * direction.received_count
    system = next(result for _, method, _, result in calls("stl_ramp64") if method == "get_port_status")
    assert system["attr"]["speed"] == 10.0
    assert Line(1e9).arithmetic(56).startswith("64 + 20 = 84 bytes on the line")  # shorter frames are padded


@pytest.mark.parametrize(
    ("received", "max_us", "samples"), [(201, 1_200_000, 150), (201, 900, 201), (0, 0, 0)]
)
def test_key_0_of_an_earlier_start_is_no_sample(received: int, max_us: int, samples: int) -> None:
    histogram = {"0": 260, "100": 150} if received else {"0": 260}
    own = {"lat": {"histogram": histogram, "total_max": max_us, "average": 1.0, "jit": 1.0}, "er": {}}
    answer = {"flow_stats": {"5": {"rp": {"1": received}, "tp": {"0": 300}}}, "latency": {"5": own}}
    latency = readings.stateless_latency(answer, 5)
    assert sum(latency.buckets.values()) == samples
    assert (latency.percentiles_s["max"] is None, latency.jitter_s is None) == (
        (True, True) if not received else (False, False)
    )
