"""Parameters of throughput searches: accepted values, and values that are rejected before anything runs."""

from pathlib import Path

import msgspec
import pytest

from labkit.common.errors import BadInput
from labkit.measure.experiments.throughput_search import experiment
from labkit.measure.experiments.throughput_search.mlrsearch import FoundRate, Result
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic import registry
from labkit.measure.traffic.packet_sender import Mix


def test_presets_have_time_to_end() -> None:
    usual, rfc = Throughput.of({}).settings, Throughput.of({"preset": "rfc2544"}).settings
    assert (usual.trial_s, usual.sum_s, usual.exceed_ratio) == (0.2, 2.1, 0.5)
    assert (rfc.trial_s, rfc.sum_s, rfc.exceed_ratio) == (60, 60, 0)
    short = Throughput.of({"preset": "rfc2544", "trial_s": "2"}).settings
    assert (short.trial_s, short.sum_s) == (2, 2)
    # One trial of rfc2544 takes as long as a whole search of the usual preset.
    rfc = Throughput.of({"preset": "rfc2544"})
    assert rfc.search_limit_s == 1680
    assert Throughput.of({"preset": "rfc2544", "limit_s": "600"}).search_limit_s == 600
    assert Throughput.of({}).search_limit_s == 60
    planned_s = experiment.EXPERIMENT.planned_s
    assert planned_s(rfc) > 3 * experiment.PLANNED_SUMS * 60 > planned_s(Throughput.of({}))


def test_percentages_refer_to_the_line_of_a_server_elsewhere() -> None:
    """The rate of its ports' line is known only when it answers."""
    parameters = Throughput.of({"server": "host", "min_rate": "5%", "max_rate": "50%"})
    with_line = msgspec.structs.replace(parameters, line_rate_bps=2 * 672e6)
    assert with_line.bounds("64") == pytest.approx((1e5, 1e6))
    turned = Throughput.of({"server": "host", "min_rate": "50%", "max_rate": "5%"})
    with pytest.raises(BadInput, match="max_rate=5% is not above min_rate=50%"):
        msgspec.structs.replace(turned, line_rate_bps=1e9).check_bounds("64")


def test_server_elsewhere() -> None:
    parameters = Throughput.of({"server": "host:5000", "ports": "2,3", "min_rate": "10kpps"})
    assert parameters.load_generator is registry.GENERATORS["trex"]
    assert (parameters.companion, Throughput.of({}).companion) == ("trex", None)
    default = Throughput.of({"server": "trex.example", "ports": "2,3"}).address
    assert (str(parameters.address), str(default)) == ("host:5000", "trex.example:4501")
    assert (parameters.settings.trial_s, parameters.settings.sum_s) == (0.5, 2.1)
    assert 0 < experiment.EXPERIMENT.planned_s(parameters) < 3 * 80


def test_frames_lines_and_guests() -> None:
    assert Throughput.of({"family": "6", "frame_bytes": "66"}).mix("66", 1).frame_bytes == (66,)
    made = Throughput.of({"flow_profile": "test_plan", "flows": "64000", "frame_bytes": "imix,128"})
    assert made.mix("128", 64000) == Mix((128,), 64000, ("source_port",), 2000, 10)
    assert len(made.mix("imix", 64000).frame_bytes) == 12
    least, most = Throughput.of({"line_rate_bps": 1e9, "min_rate": "10%"}).bounds("64")
    assert (least, most) == (pytest.approx(148_809.5), pytest.approx(1_488_095.2))
    assert Throughput.of({}).bounds("64") == (1000, None)
    tagged = Throughput.of({"line_rate_bps": 1e9, "vlan": "7"})
    assert tagged.bounds("64")[1] == pytest.approx(1_420_454.5)
    assert Throughput.of({"line_rate_bps": 1e9, "vlan": "7", "line_tag": "vlan"}).line() == tagged.line()
    assert tagged.mix("64", 1).vlan == 7
    made = Throughput.of({"endpoint": "guest"})
    assert [Path(name).name for name in made.spec(1, None, endpoint="guest").guest_files] == [
        "packet_agent.py"
    ]


def test_search_summary() -> None:
    limited = "generator-limited: loss of at most 0 % up to 300 kpps"
    for outcome, problem, line_pps, status, words in (
        (FoundRate(0, 1e5, 1e5, 1.05e5), None, None, None, ""),
        (FoundRate(0, 3e5, 3e5, None), None, None, "invalid", limited),
        (FoundRate(0, 3e5, 3e5, None), None, 300e3, None, ""),  # 300 kpps was requested, or is the line rate
        (FoundRate(0, None, None, 1e3), None, None, "invalid", "the lowest load, 1 kpps, already lost"),
        (FoundRate(0.00125, None, None, 1e3), None, None, "invalid", "(loss of at most 0.125 %)"),
        (
            FoundRate(0, None, 9e4, None),
            "out of time",
            None,
            "invalid",
            "300000 pps: it needs a longer limit_s",
        ),
    ):
        result = Result([outcome], 300e3, 40, 0, 0, 5.0, problem)
        found, sentence = experiment._verdict(outcome, result, line_pps)[:2]
        assert (found, words in str(sentence)) == (status, True)
