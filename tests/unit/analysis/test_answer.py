"""The one sentence that answers a run."""

from pathlib import Path

import pandas as pd
import pytest
import synthetic_rows

from labkit.analysis import change_effects, figures, load, verdicts
from labkit.analysis.answer import answer, question
from labkit.analysis.compare_runs import compare
from labkit.commands import terminal_tables


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


def test_what_a_change_does_to_one_topology_more_than_to_another_is_no_speed() -> None:
    """Both are as fast with the change as without it, or half as fast; b is always slower than a."""
    rows = table({"a": 1.0, "a+gro": 1.0, "b": 0.6, "b+gro": 0.3}, noise=0.0005)
    is_changed = rows["arm"].str.endswith("+gro")
    rows = rows.assign(change=is_changed.map({True: "gro", False: None}), topology=rows["arm"].str[0])
    table_of_all = change_effects.all_verdicts(rows)
    [effect] = answer(table_of_all)
    assert question(table_of_all) == "Where does gro matter more for TCP (throughput): on a or on b?"
    assert effect.startswith(
        "TCP throughput, effect of gro against gro on a: gro on b makes it 2 times slower ("
    )


def test_small_and_large_sizes_are_shares_and_an_absent_baseline_is_not_named() -> None:
    rows = [
        table({"veth": 1.0, "a": factor}, noise=0.0005, mtu_bytes=mtu)
        for mtu, factor in ((1500, 1.06), (9000, 2.5))
    ]
    assert "a is 6 % to 150 % faster" in answer(verdicts.verdicts(pd.concat(rows)))[0]
    rows.append(table({"veth": 1.0, "a": 1.0}, noise=0.0005, mtu_bytes=600))
    rows.append(table({"veth": 1.0, "a": 1.02}, noise=0.1, mtu_bytes=700))
    [text] = answer(verdicts.verdicts(pd.concat(rows)))
    assert "at 2 of 4 points, shows no difference beyond 5 % at 1 of 4 points and no evidence of a" in text
    assert "no evidence of a difference at 1 of 4 points" in text
    alone = verdicts.verdicts(table({"veth": 1.0, "a": 0.8})).assign(baseline=None, word="no evidence")
    assert answer(alone) == ["TCP throughput: a shows no evidence of a difference"]


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


def test_requests_on_one_cpu_and_on_two_are_judged_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted in alternating rounds: within one CPU the arm takes 20 % less time, between two 30 % more.

    In the second run it takes 30 % more in both. In the third one the scheduler chose.
    """

    def run(name: str, on_one: float, **changes: object) -> Path:
        rows = [
            row | {"round": 2 * row["round"] + number, **changes}
            for number, (placement, usual, arm) in enumerate((("1,1", 0.005, on_one), ("1,0", 0.065, 1.3)))
            for row in synthetic_rows.rows(
                {"veth": usual, "veth (again)": usual, "far": usual * arm}, rounds=6, slices=0, whole=6, noise=0.004,
                protocol="udp_rr", placement=placement, transaction_rate=1e4, latency_p99_s=1e-3, cpu_s=1.0,
            )
        ]  # fmt: skip
        return synthetic_rows.save(tmp_path / name, rows)

    first, second, third = run("first", 0.8), run("second", 1.3), run("third", 0.8, placement=None)
    rows = load.load(first)
    # These runs have no ends_on: they counted the time before the first request.
    assert rows["cpu_s"].isna().all()
    assert load.load(third)["cpu_s"].notna().all()
    terminal_tables.show_rows(rows)
    text = " ".join(capsys.readouterr().out.split())
    assert text.index("far is 20 % faster") < text.index("Verdicts") < text.index("Medians")
    about = "UDP requests median round-trip time against veth"
    assert f"{about}, ends on one CPU: far is 20 % faster (ratio 0.7" in text
    assert f"{about}, ends on two CPUs: far is 30 % slower (ratio 1.2" in text
    words = verdicts.verdicts(rows).set_index("ends_on")["word"]
    assert dict(words) == {"one_cpu": "faster", "two_cpus": "slower"}
    titles = " ".join(one.text for one in figures.requests(rows).layout.annotations).replace("<br>", " ")
    assert "ends on one CPU" in titles
    assert "ends on two CPUs" in titles
    compared = compare(first, second)[0].query("topology == 'far'").set_index("ends_on")["word"]
    assert dict(compared) == {"one_cpu": "slower", "two_cpus": "no difference beyond 5 %"}
    [pooled] = verdicts.verdicts(load.load(third)).to_dict("records")
    assert (pooled["word"], pooled["ratio"] == pooled["ratio"]) == ("no evidence", False)
    assert "took 4 µs in 6 of 12 runs and 84.4 µs in the others, as between ends on" in pooled["sentence"]


def test_arms_are_named_in_the_order_of_the_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each turn runs in a random order."""
    arms = {"veth": 1.0, "veth (again)": 1.0, "veth+tso": 0.5, "gre": 0.8, "gre+tso": 0.4, "bridge": 0.9}
    changed = {"change": "tso", "topology": "veth"}
    made = [
        row | (changed | {"topology": row["arm"].split("+")[0]} if "+" in row["arm"] else {})
        for row in synthetic_rows.rows(arms, slices=2, whole=1)
    ]
    shuffled = sorted(made, key=lambda row: (row["round"], str(row["slice"]), -len(row["arm"])))
    parameters = {"topology": ["veth", "gre", "bridge"], "change": [{"name": "tso", "steps": []}]}
    run = synthetic_rows.save(tmp_path / "run", shuffled, parameters=parameters)
    rows = load.load(run)
    assert list(rows["arm"][: len(arms)]) == list(arms)
    assert question(verdicts.verdicts(rows)).startswith("Which of 5 arms")
    terminal_tables.show_rows(rows)
    medians = capsys.readouterr().out.split("Medians")[1]
    shown = [line.split("  ")[0] for line in medians.splitlines()]
    assert [name for name in shown if name in arms][: len(arms)] == list(arms)


def test_arms_of_which_an_effect_says_nothing_keep_their_answer() -> None:
    """A change on two topologies beside another arm: the effect says more of four arms, and nothing of the fifth."""
    words = {"m": (None, "a", "slower"), "b": (None, "a", "faster"), "a+gro": (None, "a", "faster")}
    rows = [
        {"topology": name, "baseline": of, "word": word, "change": change}
        for name, (change, of, word) in (words | {"gro on b": ("gro", "gro on a", "faster")}).items()
    ]
    one = pd.DataFrame(rows).assign(protocol="tcp", ends_on=None, ratio=0.5, low=0.4, high=0.6, metric=None)
    one = one.assign(**dict.fromkeys(load.HOST, "here"))
    assert not question(one).startswith("Where does")
    assert question(one[one["topology"].ne("m")]).startswith(
        "Where does gro matter more for TCP (throughput): on a or on b?"
    )
    assert any("m is" in sentence for sentence in answer(one))
    assert not any("b is 50" in sentence for sentence in answer(one) if "effect" not in sentence)
