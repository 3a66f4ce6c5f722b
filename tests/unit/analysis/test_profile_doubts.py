"""Doubts about profiles appear in notebooks for each observer and arm, and only if the observer causes them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_rows import ROW, rows, save

from labkit import notebook
from labkit.analysis import load, profile_doubts
from labkit.commands import terminal_tables
from studies.container_vs_vm import finding as container_vs_vm

ENDS = {"endpoint": "guest", "guest_kernel": "6.12.9", "guest_accelerator": "kvm"}


def profile(number: int, observer: str | None, doubts: str | None = None, **changes: Any) -> dict[str, Any]:
    of_arm = {"arm": "veth_bridge", "topology": "veth_bridge", "protocol": "udp", "length_bytes": 800}
    of_round = {"round": number, "point": f"1-p{number}", "method": "profile", "observer": observer}
    return ROW | of_arm | of_round | {"doubts": doubts} | changes


def test_notebook_shows_doubts_by_observer(tmp_path: Path) -> None:
    measured = rows({"veth_bridge": 1.0, "macvlan_bridge": 1.0}, protocol="udp", length_bytes=800)
    measured[0]["doubts"] = "one clock is wrong"
    seen = [profile(number, None, "datagrams were lost") for number in range(3)]
    for number in range(3):
        seen.append(profile(number, "perf_record", f"perf lost {number}00 samples, of 1,{number}00,000"))
        seen.append(profile(number, "function_times", "datagrams were lost"))
    seen[2]["doubts"] = "datagrams were lost"
    for number in (3, 4):
        reason = f"ran for 0.{number} s"
        seen.append(profile(number, "perf_record", "one clock is wrong", status="invalid", reason=reason))
    seen.append(profile(3, "perf_stat", status="failed", reason="perf ended"))
    lines = notebook.Run(save(tmp_path / "run", [*measured, *seen])).doubts().data.splitlines()
    report = [line for line in lines if "perf_" in line or "function_times" in line]
    assert report == [
        "- perf_stat recorded nothing: perf ended",
        "- perf_record, veth_bridge: for example, perf lost 000 samples, of 1,000,000 (in 3 of 3 rows)",
        "- perf_record, veth_bridge: 2 of 5 rows left out as invalid: for example, ran for 0.3 s",
    ]


def test_doubts_by_host_and_tracer() -> None:
    seen = [profile(0, "perf_record", "perf lost 9 samples, of 99"), profile(0, None)]
    there = [row | {"kernel": kernel} for row in seen for kernel in ("6.1.0", "6.12.9")]
    lines = profile_doubts.profile_doubts(pd.DataFrame(there), pd.DataFrame(seen[1:]))
    assert [line.split(",")[0] for line in lines] == ["Linux 6.1.0", "Linux 6.12.9"]
    assert profile_doubts.profile_doubts(pd.DataFrame(there).iloc[:0], pd.DataFrame(seen)) == []
    # BPF's bins are coarse, and it does not report losses. `observed` may be an object or its text.
    seen = [
        profile(0, "function_times", observed={"tracer": "bpf", "functions": {}}),
        profile(1, "function_times", observed='{"tracer": "bpf", "functions": {}}'),
        profile(2, "function_times", observed={"tracer": "function_graph", "functions": {}}),
    ]
    [lines] = profile_doubts.profile_doubts(pd.DataFrame(seen), pd.DataFrame([profile(0, None)]))
    assert lines.startswith("function_times, veth_bridge: BPF took the times, not function_graph")
    assert lines.endswith("(in 2 of 3 rows)")


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (["may panic: guest=debian,profile=tracing"], "guest_function_times recorded nothing: may panic"),
        (
            ["may panic", "may panic", "no tracer"],
            "guest_function_times recorded nothing: may panic; no tracer.",
        ),
        ([], "Not measured: `observe=guest_function_times"),
    ],
)
def test_report_explains_missing_function_times(
    tmp_path: Path, reasons: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = [
        profile(number, "guest_function_times", status="unsupported", reason=reason, **ENDS)
        for number, reason in enumerate(reasons)
    ]
    place = save(tmp_path / "run", [*rows({"veth_bridge": 1.0}, protocol="udp", length_bytes=800), *refused])
    profiles = load.profiles(place)
    assert words in container_vs_vm._missing(profiles, container_vs_vm.TIMERS)
    container_vs_vm.ContainerVsVmFindings(place, load.load(place)).functions()
    assert "Markdown object" in capsys.readouterr().out


BOOT = "client0 did not boot in time"


def with_a_failed_round(rounds: int) -> list[dict[str, Any]]:
    """Return profiles of one arm whose last round failed before any observer ran."""
    seen = [profile(number, observer) for number in range(rounds) for observer in (None, "perf_record")]
    return [*seen, profile(rounds, None, status="failed", reason=BOOT)]


def test_failed_set_ups_are_reported() -> None:
    result = profile_doubts.profile_doubts(pd.DataFrame(with_a_failed_round(2)), pd.DataFrame(rows()))
    assert result == [f"perf_record, veth_bridge: 1 of 3 rounds of profiles could not be set up: {BOOT}"]
    result = profile_doubts.profile_doubts(pd.DataFrame(with_a_failed_round(0)), pd.DataFrame(rows()))
    assert result == [f"veth_bridge: {BOOT} (1 round of profiles could not be set up)"]
    some = pd.DataFrame(with_a_failed_round(2)[:4]).assign(folder="run")
    some.loc[0, ["status", "reason"]] = ["failed", "iperf3: no route"]
    assert profile_doubts.not_set_up(some) == []


def test_terminal_reports_failed_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [*with_a_failed_round(1), profile(0, "perf_stat", status="failed", reason="perf ended")]
    terminal_tables.show_profiles(load.profiles(save(tmp_path / "run", some)))
    assert capsys.readouterr().out.splitlines() == [
        f"- veth_bridge: {BOOT} (1 round of profiles could not be set up)",
        "- veth_bridge: perf ended (1 profile failed)",
    ]
