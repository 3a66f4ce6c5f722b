"""The page of all commands, whose examples are valid commands, and the completion script, tested with bash."""

import re
import shlex

import pytest
from sandbox import output

from labkit import cli
from labkit.commands import arguments, completion, reference, registry, why
from labkit.measure import experiments, topologies


def test_examples_are_commands() -> None:
    """The parser accepts each example of the page, and its experiment accepts the parameters."""
    examples = set(re.findall(r"^    labkit (.*)$", reference.page(), re.MULTILINE))
    assert len(examples) > 50
    for words in examples:
        given = arguments.parse(shlex.split(words))
        if given.command == "run":
            values = arguments.name_value_pairs(given.parameters)
            assert values.keys() <= experiments.find(given.experiment).parameters().asdict().keys(), words


def test_help_has_notes_and_the_fields_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["why", "--help"])
    shown = capsys.readouterr().out
    assert why.NOTES.strip() in shown
    assert re.findall(r"^  (\w+): ", shown, re.MULTILINE) == list(why.JSON)


def test_topologies_stand_in_the_row_of_their_model() -> None:
    """Those that labkit lacks have a row each, with what they need."""
    lines = reference.page().splitlines()
    for name, kind in topologies.TABLE.items():
        [row] = [line for line in lines if line.startswith(f"| {kind.networking_model} | ")]
        assert f"`{name}`" in row
    assert {line.split(" | ")[0] for line in lines} >= {"| SR-IOV", "| SmartNIC", "| VPP"}


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
    printed = output(["bash", "--norc"], 60, input=f"{completion.script('bash')}\n{asked}")
    for (words, expected), line in zip(COMPLETED, printed.splitlines(), strict=True):
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
