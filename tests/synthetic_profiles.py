"""Simulate profiles: trees of thousands of frames, rounds that vary as real ones do, and planted causes."""

from collections import Counter

import numpy as np

from labkit.analysis.flame import Arm, Round

PERIOD_S = 0.001
PACKETS = 200_000.0


def stacks(frames: int = 2000, seed: int = 1, processes: int = 4) -> list[str]:
    """Return folded stacks that grow randomly into a tree of about this many frames. Names occur at several places."""
    chance = np.random.default_rng(seed)
    result = [f"process{number}" for number in range(processes)]
    while len(result) < frames:
        above = result[int(chance.integers(len(result)))]
        if above.count(";") < 40:
            result.append(f"{above};function{int(chance.integers(frames // 3))}_[k]")
    return result


def arm(
    name: str, seed: int, rounds: int = 5, samples: int = 20_000, planted: dict[str, float] | None = None,
    frames: int = 2000, common: float = 0.05, single: float = 0.1,
) -> Arm:  # fmt: skip
    """Return an arm with random rounds.

    Each round varies by a common factor and by one for each stack (standard deviations of logarithms), and by the
    counting of samples. planted: additional seconds per packet for stacks.
    """
    there = stacks(frames)
    cost = np.random.default_rng(7).pareto(1.2, len(there)) + 0.01  # a few stacks take most of the time
    cost *= samples * PERIOD_S / PACKETS / cost.sum()
    more = planted or {}
    chance, made = np.random.default_rng(seed), []
    for _ in range(rounds):
        noise = np.exp(chance.normal(0, common) + chance.normal(0, single, len(there) + len(more)))
        packets = PACKETS * float(np.exp(chance.normal(0, 0.1)))
        seconds = np.append(cost, list(more.values())) * noise * packets
        counts = chance.poisson(seconds / PERIOD_S)
        made.append(
            Round(
                Counter(dict(zip([*there, *more], counts.tolist(), strict=True))),
                PERIOD_S,
                packets,
                packets * 64,
                float(seconds.sum()),
            )
        )
    return Arm(name, made)
