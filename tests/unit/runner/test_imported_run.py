"""Runs of files that `iperf3 -J` wrote, and results for trackers of benchmarks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_rows
from conftest import ROOT

from labkit import cli
from labkit.analysis import load, verdicts

pytestmark = pytest.mark.long

# Written by iperf3 3.12; without its intervals.
SAMPLES = {
    name: json.loads((ROOT / f"tests/samples/iperf3_client_{name}.json").read_text())
    for name in ("tcp", "udp")
}
RUNS = 8


def written(folder: Path, arm: str, ratio: float, seed: int, protocol: str = "tcp", turn: int = 100) -> str:
    """Write the files of an arm, one every `turn` seconds, and return its word on the command line."""
    rng, paths = np.random.default_rng(seed), []
    for number in range(RUNS):
        page = json.loads(json.dumps(SAMPLES[protocol]))
        page["end"]["sum_received"]["bits_per_second"] = 1e10 * ratio * rng.lognormal(0, 0.02)
        page["start"]["timestamp"]["timesecs"] += number * turn + seed
        paths.append(folder / f"{arm}-{seed}-{number}.json")
        paths[-1].write_text(json.dumps(page))
    return f"{arm}={','.join(map(str, paths))}"


def imported(capsys: pytest.CaptureFixture[str], folder: Path, words: Sequence[str]) -> tuple[int, str, str]:
    code = cli.main(["import", *words, "--folder", str(folder)])
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    words = [
        written(tmp_path, "veth", 1.0, 1),
        written(tmp_path, "veth", 1.0, 2),
        written(tmp_path, "vxlan", 0.8, 3),
    ]
    code, out, err = imported(capsys, tmp_path / "run", words)
    assert (code, err) == (0, "")
    assert "TCP throughput against veth: vxlan is 2" in out
    return tmp_path / "run"


def test_files_become_verdicts(run: Path) -> None:
    [one] = verdicts.verdicts(load.load(run)).to_dict("records")
    assert (one["topology"], one["baseline"], one["word"]) == ("vxlan", "veth", "slower")
    assert one["low"] < 0.8 < one["high"]
    assert one["control_low"] < 1 < one["control_high"]
    [row] = [one for one in load.load(run).to_dict("records") if (one["arm"], one["round"]) == ("vxlan", 0)]
    assert (row["kernel"], row["machine"], row["iperf3"]) == ("6.1.0-37-amd64", "host", "3.12")
    assert (row["method"], row["streams"], row["family"]) == ("whole", 1, 4)


def test_what_is_unknown_stays_unknown(run: Path) -> None:
    table = load.load(run)
    assert table[["cpu_s", "mtu_bytes", "placement", "cpu"]].isna().all().all()
    [doubt] = [one for one in verdicts.doubts(table) if "not recorded" in one]
    assert doubt.startswith("accelerator, cpu, kernel_config_digest and sysctl_digest")
    assert doubt.endswith(" are not recorded in 24 of 24 rows: they may have differed")


@pytest.mark.parametrize(
    ("second", "turn", "says"),
    [
        (2, 100, "veth was not measured twice, so the noise of this machine is unknown"),
        (1000, 1, "the arms were measured one after the other, not in turn"),
    ],
)
def test_what_the_files_cannot_show_is_a_doubt(
    second: int, turn: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [written(tmp_path, "veth", 1.0, 1, turn=turn), written(tmp_path, "vxlan", 0.5, second, turn=turn)]
    assert says in imported(capsys, tmp_path / "run", words)[1]


def test_udp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [written(tmp_path, "veth", 1.0, 1, "udp"), written(tmp_path, "vxlan", 1.0, 2, "udp")]
    assert imported(capsys, tmp_path / "run", words)[0] == 0
    table = load.load(tmp_path / "run")
    assert set(table["protocol"]) == {"udp"}
    assert set(zip(table["length_bytes"], table["rate_bps"], strict=True)) == {(32768, 1e8)}
    assert table["sent_count"].gt(0).all()


def test_arms_of_other_loads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both loads in both arms are two comparisons."""
    tcp, udp = (written(tmp_path, name, 1.0, 1, protocol=name) for name in ("tcp", "udp"))
    code, _, err = imported(capsys, tmp_path / "run", [tcp, udp])
    assert code == 2
    assert "tcp and udp have nothing to compare: they differ in protocol (tcp and udp), length_bytes (" in err
    assert not (tmp_path / "run").exists()
    others = (written(tmp_path, name, 1.0, 2, "udp" if name == "tcp" else "tcp") for name in ("tcp", "udp"))
    both = [f"{one},{other.partition('=')[2]}" for one, other in zip((tcp, udp), others, strict=True)]
    assert imported(capsys, tmp_path / "both", both)[0] == 0


def test_writes_of_other_lengths_are_other_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """iperf3 -l: a write of 64 bytes costs as much as one of 128 KiB, which is the usual one."""
    words = [written(tmp_path, "veth", 1.0, 1), written(tmp_path, "vxlan", 1.0, 2)]
    for path in tmp_path.glob("vxlan-*.json"):
        content = json.loads(path.read_text())
        content["start"]["test_start"]["blksize"] = 64
        path.write_text(json.dumps(content))
    code, _, err = imported(capsys, tmp_path / "run", words)
    assert code == 2
    assert "veth and vxlan have nothing to compare: they differ in length_bytes" in err
    assert imported(capsys, tmp_path / "alone", words[1:])[0] == 0
    assert set(load.load(tmp_path / "alone")["length_bytes"]) == {64}


def page(**start: Any) -> str:
    return json.dumps(SAMPLES["tcp"] | {"start": SAMPLES["tcp"]["start"] | start})


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, says in (
        ("{", "cannot be read"),
        ("{}", "is not what iperf3 -J writes at the client"),
        (json.dumps({"error": "unable to connect"}), "iperf3 failed: unable to connect; leave the file out"),
        (page(timestamp={"timesecs": 1e300}), "lacks what a row needs"),
        (
            page(test_start=SAMPLES["tcp"]["start"]["test_start"] | {"protocol": "SCTP"}),
            "labkit compares tcp and udp",
        ),
    ):
        (tmp_path / "a.json").write_text(content)
        code, out, err = imported(capsys, tmp_path / "run", [f"veth={tmp_path / 'a.json'}"])
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert says in err
        assert not (tmp_path / "run").exists()


def test_words_that_name_no_files_or_one_twice_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline that is compared with its own files would have no noise at all."""
    one, other = written(tmp_path, "veth", 1.0, 1), written(tmp_path, "vxlan", 1.0, 2)
    wrong = [([word], "write ARM=FILE,FILE") for word in ("veth", "veth=", "../veth=a.json", "=a.json")]
    for words, says in (
        *wrong,
        ([one, other, other], "vxlan is named too often"),
        ([one, one, other], "is named twice"),
    ):
        assert says in imported(capsys, tmp_path / "run", words)[2]
    assert not (tmp_path / "run").exists()


def test_both_directions_count_and_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(page())
    for name in ("sum_sent", "sum_received"):
        content["end"][f"{name}_bidir_reverse"] = content["end"][name]
    (tmp_path / "both.json").write_text(json.dumps(content))
    (tmp_path / "one.json").write_text(page())
    test = SAMPLES["tcp"]["start"]["test_start"] | {"reverse": 1}
    (tmp_path / "reverse.json").write_text(page(test_start=test))
    assert imported(capsys, tmp_path / "run", [f"veth={tmp_path}/both.json"])[0] == 0
    [row] = load.load(tmp_path / "run").to_dict("records")
    each = content["end"]["sum_received"]
    assert (row["direction"], row["throughput_bps"]) == ("both", 2 * each["bits_per_second"])
    assert row["received_bytes"] == 2 * each["bytes"]
    for other in ("both", "reverse"):
        words = [f"{name}={tmp_path}/{name}.json" for name in (other, "one")]
        assert "with iperf3 -R or --bidir and others not" in imported(capsys, tmp_path / "other", words)[2]


def test_trackers_get_a_mean_for_each_arm(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("github.json", "bencher.json")]
    assert cli.main(["rows", str(run), "--github", str(paths[0]), "--bencher", str(paths[1])]) == 0
    github, bencher = (json.loads(path.read_text()) for path in paths)
    assert [(one["name"], one["unit"]) for one in github] == [
        ("veth (tcp, 1 pair)", "bit/s"), ("vxlan (tcp, 1 pair)", "bit/s"),
    ]  # fmt: skip
    assert github[1]["value"] == pytest.approx(8e9, rel=0.03)
    measured = bencher["vxlan (tcp, 1 pair)"]["throughput"]
    assert measured["lower_value"] < measured["value"] == github[1]["value"] < measured["upper_value"]
    for form in ("github", "bencher"):
        assert cli.main(["rows", str(run), f"--{form}", "-"]) == 0
        assert capsys.readouterr().out.endswith("\n")


def test_trackers_get_the_percentile_that_the_run_was_measured_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = synthetic_rows.rows(protocol="ping", latency_p99_s=5e-3)
    run = synthetic_rows.save(tmp_path / "run", made, percentile="p99")
    assert cli.main(["rows", str(run), "--bencher", "-"]) == 0
    arms = json.loads(capsys.readouterr().out).values()
    assert [one["latency"]["value"] for one in arms] == pytest.approx([5e6] * 2)
