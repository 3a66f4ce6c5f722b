"""`labkit run`: measure one experiment."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.commands import arguments
from labkit.commands.messages import agrees, json_text, note, print_error
from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed
from labkit.common.printable import printable_json
from labkit.measure import experiments, topologies
from labkit.measure.hosts import local
from labkit.runner import permissions, yaml_files
from labkit.runner import run as running
from labkit.runner.progress import Bar

if TYPE_CHECKING:
    from labkit.analysis.gate import Condition

NOTES = """\
`labkit run EXPERIMENT --help` lists the parameters of one experiment.

A run writes a folder in data/, and the command says which. The first topology is the baseline.
Several values of topology, endpoint or change are arms of one comparison. docs/network.yaml is an
example of a network of your own as an arm.

    labkit run datapaths topology=veth_bridge,macvlan_bridge pairs=1,4 rounds=5 slices=12 whole_runs=1 duration_s=1
    labkit run datapaths topology=veth,vxlan protocol=ping rounds=5 duration_s=1
    labkit run datapaths endpoint=namespace,container,guest rounds=3 duration_s=3
    labkit run datapaths topology=veth_bridge change='gro: offload gro on at server' rounds=5 duration_s=1
    labkit run throughput topology=ovs_netdev
    labkit run datapaths topology=docs/network.yaml,veth rounds=5 duration_s=1
    labkit run datapaths topology=existing:container:web+container:cli,veth_bridge rounds=5 slices=12 --yes
    labkit run throughput server=HOST frame_bytes=64,imix
    LABKIT_TREX=FOLDER labkit run throughput generator=trex topology=veth_bridge

existing:END+END is a network that is there already: container:NAME, netns:NAME, pid:NUMBER, or host
for this machine itself. An end of another machine begins with ssh:NAME/, and the ends may be of two
machines. The load runs between these two ends only, and nothing there is changed.

where= chooses the kernel. vm:KERNEL boots a lab VM within seconds. The lab VM sees this machine's
files read-only. Without KVM its CPU is emulated, and every number says so. KERNEL is debian, a
release, a series (6.12-cloud-amd64: the newest of it here) or the path of a kernel, and takes
options behind commas: cpus=N, memory_mib=N, profile=tracing, append=WORD+WORD, modules=NAME+NAME,
fresh. ssh:NAME runs on another machine over
ssh, as `ssh NAME` would connect. That machine needs Python 3.11 to 3.13 and iperf3. labkit is
copied there, and all its files there are removed after the run.

    labkit run datapaths where=vm:debian topology=veth_bridge,ipvlan_l2 rounds=5 duration_s=3
    labkit run datapaths topology=veth,vxlan,gre where=vm:debian,cpus=1 rounds=5 duration_s=3

nodes=two puts the clients on one host and the servers on another: two nodes on this machine with a
veth as the cable between them, two lab VMs, or two machines with a NIC each (where=ssh:ONE
peer=ssh:OTHER parent=NIC,NIC). If mirrors copy into a tunnel, the second host only receives their
copies.

    labkit run datapaths where=vm:debian nodes=two mtu_bytes=9000 link_rate_bps=1e8

observe= measures every arm again under observers. These runs enter no verdict. `labkit why`
explains what they saw.

    labkit run datapaths topology=veth,veth_bridge protocol=udp length_bytes=64 observe=perf_record,counters
    labkit run datapaths observe=function_times functions=ip_rcv,br_handle_frame where=vm:debian,profile=tracing
"""

JSON_ROWS = True


def add_arguments(parser: arguments.CommandParser) -> None:
    parser.late_notes = lambda: f"{NOTES}\n{_summaries()}"
    parser.add_argument("experiment", action=_Chosen, metavar="EXPERIMENT", help="one of those listed below")
    arguments.add_parameters(parser, "its parameters; lists with commas: pairs=1,2,8")
    arguments.add_percentile(parser)
    text = "print each row as soon as it is measured, one JSON object per line; with --against or --fail-if, what"
    text += " labkit compare prints"
    arguments.add_json(parser, text)
    text = "the run's folder; an unfinished run in it is resumed"
    parser.add_argument("--folder", action=arguments.Folder, help=text)
    arguments.add_keep_failed(parser)
    text = "send traffic between ends of existing networks (topology=existing:...) without asking"
    parser.add_argument("--yes", action="store_true", help=text)
    text = "compare the new run with this one, as labkit compare; without it, --fail-if judges arms"
    parser.add_argument("--against", type=run_folder.named, metavar="RUN", help=text)
    arguments.add_gate(parser)


class _Chosen(argparse.Action):
    """The experiment. A --help behind it is about this experiment alone."""

    def __call__(
        self, parser: argparse.ArgumentParser, into: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        setattr(into, self.dest, value)
        if value in experiments.TABLE and isinstance(parser, arguments.CommandParser):
            parser.late_notes = lambda: _experiment(value)


def _summaries() -> str:
    """Return what experiments measure, a line each."""
    every = {name: experiments.find(name) for name in experiments.TABLE}
    width = max(map(len, every))
    lines = [f"  {name:{width}}  {one.about}".rstrip() for name, one in every.items()]
    more = "labkit run EXPERIMENT --help lists its parameters with their defaults."
    return "\n".join(["experiments:", *lines, "", more])


def _experiment(name: str) -> str:
    """Return what an experiment measures, and its parameters."""
    experiment = experiments.find(name)
    values = experiment.parameters().asdict()
    shown = {f"{key}={arguments.typed(values[key])}": text for key, text in experiment.help.items()}
    lines = [f"    {given:24}  {text}" for given, text in shown.items()]
    heads = [f"{name}: {experiment.about}", "", "its parameters, with defaults:"]
    return "\n".join([*heads, *lines, "", f"topologies: {', '.join(topologies.TABLE)}"])


def run(given: argparse.Namespace) -> int:
    return arguments.for_git_bisect(given, lambda: _run(given))


def check_options(given: argparse.Namespace) -> None:
    """Raise BadInput for an option that nothing uses beside the others."""
    if given.folder is None:
        arguments.refuse(given, ("keep_failed",), "without --folder")
    if given.fail_if is None:
        arguments.refuse(given, ("markdown", "junit", "git_bisect"), "without --fail-if")


def _run(given: argparse.Namespace) -> int:
    check_options(given)
    is_judged = given.against is not None or given.fail_if is not None
    conditions = _gate_conditions(given) if is_judged else ()
    # A user who types a command may name any file; a YAML file may only name files in its own folder.
    parameters = yaml_files.with_files(arguments.name_value_pairs(given.parameters), None)
    if conditions:
        parameters = _with_gate_defaults(given, parameters, conditions)
    confirm(given, parameters)
    bar = Bar()
    if parameters.get("where", "here") == "here":
        say_limits(bar)

    def watch(event: dict[str, Any]) -> None:
        bar.see(event)
        if event["event"] == "rows" and given.json and not is_judged:
            for row in event["rows"]:
                print(printable_json(msgspec.json.encode(row).decode()))
            sys.stdout.flush()

    try:
        folder = running.measure(given.experiment, parameters, given.folder, watch, given.keep_failed)
    finally:
        bar.stop()
    if not given.json:
        from labkit.analysis import load
        from labkit.commands import terminal_tables

        result = load.load(folder, None)
        terminal_tables.show_rows(terminal_tables.show_observations(result))
        profiles = load.profiles(folder)
        terminal_tables.show_findings(result, profiles)
        terminal_tables.show_profiles(profiles)
    rows = run_folder.read_rows(folder)
    code = judge(rows) if rows else print_error("nothing was measured: the run has no rows")
    if code or not is_judged:
        return code
    import pandas as pd

    from labkit.analysis import gate, load, verdicts
    from labkit.commands import compare, json_output

    try:
        if given.against is not None:
            return compare.show(given.against, folder, given)
        judged = gate.judge_arms(folder, conditions)
        if given.json:
            doubts = verdicts.doubts(load.load(folder))
            print(json_text(json_output.compared(pd.DataFrame(), doubts, (), judged)))
        return compare.written(judged, conditions, given, ("its baseline", folder.name))
    except BadInput as error:
        if not given.git_bisect:
            raise
        # Of this commit, for example without a module: another one may be judged.
        raise Failed(str(error)) from None


def confirm(given: argparse.Namespace, parameters: dict[str, Any]) -> None:
    """Show what would be sent between existing ends, and ask whether to go on, unless --yes says so."""
    if "existing:" not in str(parameters.get("topology", "")):
        arguments.refuse(given, ("yes",), "without an existing network")
        return
    requested = experiments.find(given.experiment).parameters.of(parameters)
    plan = running.traffic_plan(given.experiment, requested)
    if plan is None:
        return
    note(plan)
    if given.yes or (sys.stdin.isatty() and agrees()):
        permissions.allow(running.EXISTING, running.existing(requested))


def _gate_conditions(given: argparse.Namespace) -> Sequence[Condition]:
    """Return the conditions of --fail-if. Raises BadInput for a run or condition that cannot be judged."""
    from labkit.analysis import gate

    conditions = list(map(gate.condition, given.fail_if or ()))
    if given.against is None:
        return conditions
    if given.folder is not None and os.path.realpath(given.folder) == os.path.realpath(given.against):
        raise BadInput(f"--against {given.against}: it is the run's own folder: name another run")
    if not (given.against / "sweep.json").exists():
        run_folder.read_run(given.against)
    return conditions


def _with_gate_defaults(
    given: argparse.Namespace, parameters: dict[str, Any], conditions: Sequence[Condition]
) -> dict[str, Any]:
    """Return the parameters; those of a gate of arms measure until it can tell, up to a limit of rounds.

    Raises BadInput for a load that counts nothing that a condition is about, and if there is nothing to compare.
    """
    from labkit.analysis import gate

    kind = experiments.find(given.experiment).parameters
    for repetition in gate.repetitions(conditions) if given.against is None else ():
        every = {**repetition, "half_width": gate.enough(conditions), **parameters}
        # It raises for an experiment without slices or rounds, and for a load without slices.
        with contextlib.suppress(BadInput):
            kind.of(every)
            parameters = every
            break
    requested = kind.of(parameters)
    gate.check(conditions, requested)
    has_one_arm = isinstance(requested, experiments.DatapathParameters) and requested.has_one_arm
    if given.against is None and has_one_arm:
        raise BadInput(
            "--fail-if compares arms, and this run has one: name another topology, endpoint or change to compare,"
            " or an earlier run with --against"
        )
    return parameters


def say_limits(bar: Bar) -> None:
    """Say what of this machine limits the measurement."""
    if lines := local.limits():
        bar.say(lines)


def judge(rows: list[run_folder.Row]) -> int:
    """Return the exit code: 0, or 2 if a row failed or nothing could be measured. The first reason is reported."""
    failed = [row for row in rows if row["status"] == "failed"]
    if rows and all(row["status"] in ("unsupported", "isolated", "failed") for row in rows):
        failed = failed or rows
    if not failed:
        return 0
    return print_error(f"{failed[0].get('arm') or failed[0]['point']}: {failed[0]['reason']}")
