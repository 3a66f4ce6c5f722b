"""The one sentence that answers a run."""

import pandas as pd
import synthetic_rows

from labkit.analysis import verdicts
from labkit.analysis.answer import answer, question


def table(arms: dict[str, float], **columns: object) -> pd.DataFrame:
    again = {f"{next(iter(arms))} (again)": next(iter(arms.values()))}
    return pd.DataFrame(synthetic_rows.rows(arms | again, **columns))


def test_an_arm_has_its_word_its_size_and_its_interval() -> None:
    [text] = answer(verdicts.verdicts(table({"veth": 1.0, "bridge": 0.8, "slow": 0.25, "alike": 1.0})))
    assert text.startswith("TCP throughput against veth: ")
    claims = text.removeprefix("TCP throughput against veth: ").split(", ")
    assert claims[0].startswith("slow is ") and "times slower (" in claims[0]  # noqa: PT018
    assert claims[1].startswith("bridge is 20 % slower (ratio 0.7")
    assert claims[2:] == ["alike shows no difference beyond 5 %"]
    assert " to 0.8" in claims[1]


def test_points_are_counted_and_alike_arms_share_a_phrase() -> None:
    rows = [
        table({"veth": 1.0, "a": factor, "b": factor}, noise=0.0005, mtu_bytes=mtu)
        for mtu, factor in ((1500, 1.2), (9000, 1.4), (600, 1.0))
    ]
    rows.append(pd.DataFrame([synthetic_rows.ROW | {"arm": name, "topology": name, "built_topology": name,
                "role": "variant", "status": "unsupported", "reason": "no such link", "mtu_bytes": 600}
                for name in ("c", "d")]))  # fmt: skip
    [text] = answer(verdicts.verdicts(pd.concat(rows)))
    assert (
        "a and b are 20 % to 40 % faster at 2 of 3 points and show no difference beyond 5 % at 1 of 3 points"
        in text
    )
    assert text.endswith("c and d were not measured")


def test_longer_round_trips_are_slower_and_nothing_has_no_answer() -> None:
    [text] = answer(verdicts.verdicts(table({"veth": 1.0, "far": 1.3}, protocol="ping")))
    assert text.startswith("ping median round-trip time against veth: far is 30 % slower (ratio 1.2")
    assert answer(verdicts.verdicts(table({"veth": 1.0}))) == []


def test_small_and_large_sizes_are_shares_and_an_absent_baseline_is_not_named() -> None:
    rows = [
        table({"veth": 1.0, "a": factor}, noise=0.0005, mtu_bytes=mtu)
        for mtu, factor in ((1500, 1.06), (9000, 2.5))
    ]
    assert "a is 6 % to 150 % faster" in answer(verdicts.verdicts(pd.concat(rows)))[0]
    rows.append(table({"veth": 1.0, "a": 1.0}, noise=0.0005, mtu_bytes=600))
    rows.append(table({"veth": 1.0, "a": 1.02}, noise=0.1, mtu_bytes=700))
    [text] = answer(verdicts.verdicts(pd.concat(rows)))
    assert (
        "at 2 of 4 points, shows no difference beyond 5 % at 1 of 4 points and no evidence at 1 of 4 points"
        in text
    )
    alone = verdicts.verdicts(table({"veth": 1.0, "a": 0.8})).assign(baseline=None, word="no evidence")
    assert answer(alone) == ["TCP throughput: a shows no evidence"]


def test_the_question_names_what_was_measured() -> None:
    def asked(*arms: str, **columns: object) -> str:
        return question(verdicts.verdicts(table(dict.fromkeys(arms, 1.0), **columns)))

    assert asked("veth", "vxlan", "gre") == "Which is faster for TCP (throughput): veth, vxlan or gre?"
    assert (
        asked("veth", "vxlan", protocol="ping")
        == "Which is faster for ping (median round-trip time): veth or vxlan?"
    )
    assert asked(*"abcdef") == "Which of 6 arms is faster for TCP (throughput)?"
    assert asked("veth") == ""
    both = pd.concat([table({"a": 1.0, "b": 1.0}, protocol=name) for name in ("tcp", "udp", "ping")])
    text = question(verdicts.verdicts(both))
    assert text == "Which is faster for ping (median round-trip time) and TCP and UDP (throughput): a or b?"
