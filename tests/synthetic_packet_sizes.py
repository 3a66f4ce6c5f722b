"""Make up rows of datagrams of several sizes with a known cost, for the tests of their readers."""

from typing import Any

import numpy as np
import pandas as pd
import synthetic_rows

from studies.packet_size.cost_model import fragments_count

SIZES = (16, 64, 200, 400, 800, 1472, 1473, 4000, 16000, 65507)
FIXED, BYTE, FIRST, FRAGMENT = 20e-6, 3e-9, 30e-6, 4e-6  # s, for veth
NONE = (0.0, 0.0, 0.0)
ARMS = {"veth": NONE, "veth (again)": NONE, "veth_bridge": (0.0, 0.0, 2e-6), "vxlan": (0.0, 6e-9, 0.0)}
WINDOW_S, CPUS = 0.07, 2


def rows(
    sizes: tuple[int, ...] = SIZES,
    rounds: int = 5,
    noise: float = 0.02,
    seed: int = 5,
    lost: float = 0.0,
    arms: dict[str, tuple[float, float, float]] = ARMS,
    places: int = 3,
    **changes: Any,
) -> pd.DataFrame:
    """Return rows of the experiment `packet_size` in which both CPUs are busy all the time.

    Each datagram takes FIXED + BYTE * size, or FIRST + FRAGMENT for each further fragment. `arms` adds to the cost
    (fixed, byte, fragment). `places`: slices of an arm and size in a round.
    """
    rng, result = np.random.default_rng(seed), []
    mtu, family = changes.get("mtu_bytes", 1500), changes.get("family", 4)
    for number in range(rounds):
        mood = 1 + noise * rng.standard_normal()
        for size in sizes:
            many = fragments_count(size, mtu, family)
            for arm, (fixed, byte, fragment) in arms.items():
                straight = FIXED + fixed + (BYTE + byte) * size
                each = straight if many == 1 else FIRST + (FRAGMENT + fragment) * (many - 1)
                for place in range(places):
                    cost_s = each * mood * (1 + noise * rng.standard_normal())
                    result.append(_row(arm, size, number, place, cost_s, many, lost))
    return pd.DataFrame([synthetic_rows.ROW | row | changes for row in result])


def _row(
    arm: str, size: int, number: int, place: int, each_s: float, many: int, lost: float
) -> dict[str, Any]:
    count = round(WINDOW_S / each_s)
    sent = round(count / (1 - lost))
    role = "control" if "again" in arm else "baseline" if arm == next(iter(ARMS)) else "variant"
    return {
        "experiment": "packet_size", "protocol": "udp", "arm": arm, "topology": arm.split()[0], "role": role,
        "method": "slice", "round": number, "slice": place, "point": f"{size}b-1-r{number}", "length_bytes": size,
        "window_s": WINDOW_S, "cpu_s": CPUS * WINDOW_S, "softirq_s": 0.4 * WINDOW_S, "received_count": count,
        "received_bytes": float(count * size), "sent_count": sent, "fragments_count": sent * many if many > 1 else 0,
        "throughput_bps": count * size * 8 / WINDOW_S, "throughput_pps": count / WINDOW_S,
        "offloads": "generic-receive-offload tx-udp-segmentation",
    }  # fmt: skip


def profiles(
    took_s: dict[int, float], rounds: int = 5, noise: float = 0.02, again: float = 1.0, **changes: Any
) -> pd.DataFrame:
    """Return function_times rows in which `ip_rcv` took this long (p50) at each size.

    `again`: the factor of the control.
    """
    rng, result = np.random.default_rng(4), []
    for number in range(rounds):
        for size, long_s in took_s.items():
            for arm, role, factor in (("veth", "baseline", 1.0), ("veth (again)", "control", again)):
                p50_s = long_s * factor * float(np.exp(noise * rng.standard_normal()))
                one = dict.fromkeys(("mean_s", "p50_s", "p90_s"), p50_s)
                one |= {"count": 500, "p99_s": 2 * p50_s, "max_s": 1e-3}
                row = synthetic_rows.ROW | {
                    "experiment": "packet_size", "protocol": "udp", "arm": arm, "topology": "veth", "role": role,
                    "method": "profile", "round": number, "length_bytes": size, "received_count": 250,
                    "point": f"{size}b-1-p{number}", "observer": "function_times", "overhead_ratio": 0.93,
                    "observed": {"tracer": "function_graph", "functions": {"ip_rcv": one, "never": {"count": 0}}},
                }  # fmt: skip
                result.append(row | changes)
    return pd.DataFrame(result)
