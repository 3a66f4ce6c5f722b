"""The completion script, tested with bash."""

import shlex
import subprocess

import pytest

from labkit import cli
from labkit.commands import completion, registry
from labkit.measure import topologies

COMPLETED = [
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
]


def test_bash_completes() -> None:
    """Bash completes the last word of each line."""
    asked = "".join(
        f"COMP_WORDS=({shlex.join(['labkit', *words])}); COMP_CWORD={len(words)}; _shtab_labkit;"
        ' echo "${COMPREPLY[@]}"\n'
        for words, _ in COMPLETED
    )
    bash = subprocess.run(
        ["bash", "--norc"],
        input=f"{completion.script('bash')}\n{asked}",
        capture_output=True,
        text=True,
        check=True,
    )
    for (words, expected), line in zip(COMPLETED, bash.stdout.splitlines(), strict=True):
        assert expected <= set(line.split()), words
        assert len(set(line.split())) < 5, words


def test_scripts_of_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef labkit")
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
