"""The completion script, tested with bash."""

from __future__ import annotations

import subprocess

import pytest

from labkit import cli
from labkit.commands import completion, registry
from labkit.measure import topologies

ASK = 'source /dev/stdin; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_labkit; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script() -> str:
    return completion.script("bash")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["com"], {"compare", "completion"}),
        (["run", "packet"], {"packet_size"}),
        (["run", "datapaths", "mtu"], {"mtu_bytes="}),
        (["draw", "macvlan_b"], {"macvlan_bridge"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["rows", "--p"], {"--parquet"}),
        # Bash has divided the words at "=".
        (["run", "throughput", "preset", "=", "rfc"], {"rfc2544"}),
        (["run", "ovs_test_plan", "case", "="], {"net_to_vm", "vm_to_net", "vm_to_vm"}),
        (["run", "monitor_cost", "readers", "=", "socket,tcp"], {"socket,tcpdump"}),
        (["run", "datapaths", "where=vm"], {"where=vm:debian"}),
        (["run", "datapaths", "zerocopy", "=", "t"], {"true"}),
    ],
)
def test_bash_completes(script: str, words: list[str], expected: set[str]) -> None:
    """Bash completes the last word."""
    argv = ["bash", "--norc", "-c", ASK, "bash", "labkit", *words]
    answer = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
    assert expected <= set(answer.stdout.split())
    assert len(set(answer.stdout.split())) < 5


def test_fish_has_commands_words_and_options() -> None:
    script = completion.script("fish")
    for word in (
        *registry.COMMANDS,
        "get",
        "install",
        *topologies.TABLE,
        "mtu_bytes=",
        "preset=rfc2544",
        "-l keep-failed",
    ):
        assert word in script


def test_command_prints_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef labkit")
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
