"""The first sentence of `labkit why` for TCP, loss, frames, kernels and endpoints, and its rate of false claims."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_arms import BASELINE, READ, RECEIVE, SOFTIRQ, USUAL, WRITE, MadeArm, concluded, effect, run

from labkit.analysis.why import arms, next_steps
from labkit.cli import main
from labkit.measure.experiments import changes
from labkit.measure.experiments.datapaths_parameters import DatapathParameters

FILTER = (effect("sysctl", "net.ipv4.conf.all.rp_filter", "0", "1"),)
AGAIN = f"{BASELINE} (again)"
COPY = f"{READ};tcp_recvmsg_[k];_copy_to_iter_[k]"
SEGMENT = f"{WRITE};tcp_sendmsg_[k];tcp_write_xmit_[k];validate_xmit_skb_[k];__skb_gso_segment_[k];skb_segment_[k]"


def one(folder: Path, arm: MadeArm, seed: int = 1, protocol: str = "udp", **columns: object) -> str:
    """Write a run of one arm and return its path."""
    return str(run(folder, {BASELINE: arm}, seed, protocol, **columns))


def test_null_arms_of_one_run_are_seldom_claimed(tmp_path: Path) -> None:
    """Ten arms whose change does nothing, in each of twelve runs. Every second run has foreign load."""
    claims, control = 0, 0
    for seed in range(12):
        null = MadeArm(effects=FILTER, foreign=0.2 * (seed % 2))
        made = {BASELINE: replace(null, effects=()), AGAIN: replace(null, effects=())}
        folder = run(tmp_path / str(seed), made | {f"x{at}": null for at in range(10)}, seed)
        claims += sum(concluded(f"{folder}:{BASELINE}", f"x{at}").claims for at in range(10))
        control += concluded(f"{folder}:{BASELINE}", AGAIN).claims
        _, judged = arms.of_run(folder)
        assert sum(each.conclusion is not None and each.conclusion.claims for each in judged) <= 1
    assert claims <= 6, "5 % of 120"
    assert control == 0, "nothing was changed between an arm and its repetition"


@pytest.mark.parametrize("seed", range(5))
def test_small_effects_are_still_found(tmp_path: Path, seed: int) -> None:
    rules = f"{RECEIVE['udp']};ip_rcv_[k];nf_hook_slow_[k];nft_do_chain_[k]"
    changed = MadeArm({rules: 1.2e-6}, (effect("nftables", "nftables ruleset", "none", "9 rules"),))
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), AGAIN: MadeArm(), "rules": changed}, seed)
    result = concluded(f"{folder}:{BASELINE}", "rules")
    assert result.claims
    assert "packet filter rules (nftables) cost 1." in result.sentence.partition(". ")[0]
    assert "rules" in [each.arm for each in arms.of_run(folder)[1] if each.conclusion and each.conclusion.claims]


def test_claims_of_many_arms_are_corrected(tmp_path: Path) -> None:
    names = [f"x{at}" for at in range(30)]
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x0": MadeArm(effects=FILTER)}, 1)
    plain = concluded(f"{folder}:{BASELINE}", "x0")
    made = [
        arms.ArmConclusion(name, "", replace(plain, claims=name == "x0", p=0.04 if name == "x0" else 0.5))
        for name in names
    ]
    alone, many = arms.judged(made[:1]), arms.judged(made)
    assert [each.conclusion.claims for each in (*alone, many[0]) if each.conclusion] == [True, False]
    assert many[0].sentence.startswith("No difference is claimed, because chance alone")


@pytest.mark.parametrize(
    ("arm", "start", "cause"),
    [
        (
            MadeArm({SEGMENT: 0.6}, (effect("offload", "tcp-segmentation-offload", "on", "off", "client"),)),
            r"segmentation in software",
            "offload tcp-segmentation-offload",
        ),
        (
            MadeArm({COPY: 0.3}, (effect("parameter", "length_bytes", "131072", "600", "load"),), frames=90_000),
            r"copying data",
            "parameter length_bytes",
        ),
        (
            MadeArm({}, (effect("sysctl", "net.ipv4.tcp_rmem", "4096 131072 6291456", "4096 8192 8192"),), speed=0.5),
            r"0\.\d+ times",
            "sysctl net.ipv4.tcp_rmem",
        ),
    ],
)  # fmt: skip
def test_tcp_changes(tmp_path: Path, arm: MadeArm, start: str, cause: str) -> None:
    folder = run(tmp_path / "run", {BASELINE: MadeArm(), "x": arm}, 3, "tcp")
    result = concluded(f"{folder}:{BASELINE}", "x")
    assert result.claims
    assert result.cause == cause
    first = result.sentence.partition(". ")[0]
    assert first.startswith(f"The cause is the change of {cause}")
    assert start in first or "times" in first
    assert "per gigabyte" in first or "throughput" in first
