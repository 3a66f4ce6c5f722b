"""Rows of two nodes: the servers' host is identified and doubted like the clients' host."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from synthetic_rows import rows, save

from labkit.analysis import load, verdicts
from labkit.notebook import Run


def test_node_names() -> None:
    two = {"nodes": "two", "peer": "ssh:b", "peer_kernel": "6.1.0", "peer_accelerator": "kvm"}
    newer = two | {"peer_kernel": "6.12.9"}
    some = rows(**two) + rows(**newer) + rows(**two | {"peer_accelerator": "tcg"})
    assert [name for name, _ in load.hosts(load.complete(pd.DataFrame(some)))] == [
        "Linux 6.1.0, peer kernel 6.1.0",
        "Linux 6.1.0, emulated",
        "Linux 6.1.0, peer kernel 6.12.9",
    ]


def test_emulated_peer_in_the_headline(tmp_path: Path) -> None:
    two = rows(nodes="two", peer="vm:6.1", peer_kernel="6.1.0-37-amd64", peer_accelerator="tcg")
    lines = str(Run(save(tmp_path / "two", two)).headline().data)
    assert "the other node `vm:6.1`: Linux 6.1.0-37-amd64 (emulated by QEMU). **Emulated CPU" in lines


def test_unknown_server_host_is_a_doubt() -> None:
    one = "\n".join(verdicts.doubts(pd.DataFrame(rows(kernel_build=None))))
    assert "kernel_build is not recorded in 180 of 180 rows" in one
    assert "peer_" not in one
    two = "\n".join(verdicts.doubts(pd.DataFrame(rows(nodes="two", peer="ssh:b", peer_accelerator="tcg"))))
    assert "peer_kernel is not recorded in 180 of 180 rows" in two
    assert "emulated CPU (TCG) in 180 of 180 rows" in two
