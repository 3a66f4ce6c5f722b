"""A cause planted in this kernel is named: 2,000 nftables rules that each packet of a UDP flow has to pass."""

from pathlib import Path

import pytest
from sandbox import printed

from labkit.analysis import flame

pytestmark = [pytest.mark.alone, pytest.mark.needs("root", "namespaces", "veth", "iperf3", "nft", "perf")]

ROUNDS, RULES = 5, 2000
FLOW = r"iperf3|swapper|ksoftirqd.*|kernel"  # a busy machine runs many other functions


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, flame.Arm]:
    """Measure five rounds with the rules and five without, in the order A B B A."""
    folder = tmp_path_factory.mktemp("profiles")
    words = (str(folder), str(ROUNDS), str(RULES))
    result: dict[str, list[flame.Round]] = {"without": [], "with": []}
    for one in printed(Path(__file__).with_name("profile_nft_rules.py"), *words, timeout_s=400):
        result[one["arm"]].append(flame.Round(flame.read(Path(one["folded"])), **one["work"]))
    return {
        name: flame.Arm(f"{name} rules", rounds, one["event"]).only(FLOW) for name, rounds in result.items()
    }


def test_planted_nft_rules_are_named_first_and_coloured(arms: dict[str, flame.Arm]) -> None:
    one = flame.difference(arms["without"], arms["with"])
    table = one.functions()
    first, whole = table.iloc[0], table.iloc[-1]
    assert first["function"] == "nft_do_chain"
    assert first["stands_out"]
    assert first["left_s"] == 0
    # a rule costs at least one comparison: some nanoseconds
    assert first["difference_low_s"] > RULES * 0.5e-9
    assert first["difference_s"] > 0.4 * whole["difference_s"]
    assert table["difference_s"][:-1].sum() == pytest.approx(whole["difference_s"], rel=1e-9)
    assert "nft_do_chain" in flame.sentence(one)
    data = flame.draw_difference(flame.difference(arms["without"], arms["with"])).data
    coloured = {
        data["names"][name] for name, out in zip(data["name"], data["stands_out"], strict=True) if out
    }
    assert {"nft_do_chain", "nf_hook_slow", "ip_local_deliver"} <= coloured
    assert len(coloured) < 0.5 * len(data["names"])
