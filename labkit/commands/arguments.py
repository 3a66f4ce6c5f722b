"""The words of the command line: each command with its arguments, in the order of the help text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.common.errors import BadInput
from labkit.measure import experiments, topologies
from labkit.measure.hosts import debian_kernels

Fill = Callable[[argparse.ArgumentParser], None]


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, with `command`: the name of the command. What argparse cannot read ends the process with
    exit code 2; name=value words may also stand behind options, where argparse does not look for them."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "parameters")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.parameters += rest
    return arguments


def name_value_pairs(words: Sequence[str]) -> dict[str, str]:
    """name=value words as a mapping. Raises BadInput for a word of another form or a name that is there
    twice."""
    mapping: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r} is not of the form name=value")
        if name in mapping:
            raise BadInput(f"{name} is given twice")
        mapping[name] = value
    return mapping


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="labkit", description="Which Linux virtual-network datapath is faster, by how much, and why."
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, fill) in COMMANDS.items():
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.set_defaults(command=name)
        fill(one)
    return parser


def _doctor(one: argparse.ArgumentParser) -> None:
    one.add_argument("--json", action="store_true", help="one JSON object on standard output")
    one.add_argument(
        "--where",
        default="here",
        metavar="HOST",
        help="of a lab VM (vm:KERNEL) or another machine (ssh:NAME)",
    )


def _run(one: argparse.ArgumentParser) -> None:
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.epilog = _experiments()
    one.add_argument("experiment", metavar="EXPERIMENT")
    one.add_argument("parameters", nargs="*", metavar="name=value", help="lists with commas: pairs=1,2,8")
    one.add_argument(
        "--json",
        action="store_true",
        help="rows on standard output, one JSON object a line, as they are measured",
    )
    one.add_argument(
        "--folder",
        type=Path,
        help="the run's folder; an unfinished run in it is resumed",
    )
    _keep_failed(one)


def _keep_failed(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--keep-failed", action="store_true", help="keep failed rows; without it they are measured again"
    )


def _experiments() -> str:
    lines = ["experiments and their parameters, with defaults:"]
    for name in experiments.TABLE:
        experiment = experiments.find(name)
        lines.append(f"  {name}")
        for key, value in experiment.parameters().asdict().items():
            lines.append(f"    {f'{key}={_typed(value)}':24}  {experiment.help[key]}")
    return "\n".join([*lines, f"topologies: {', '.join(topologies.TABLE)}"])


def _typed(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else str(value).lower()
        if value in (None, True, False)
        else str(value)
    )


def _sweep(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", type=Path, metavar="params/FILE.yaml")
    one.add_argument(
        "--dask", metavar="ADDRESS", help="measure the points on the workers of this Dask cluster"
    )
    _keep_failed(one)


def _report(one: argparse.ArgumentParser) -> None:
    one.add_argument("run", type=Path, metavar="RUN")
    one.add_argument(
        "--images",
        action="store_true",
        help="the figures as PNG and SVG, too, if there is a browser to draw them",
    )


def _compare(one: argparse.ArgumentParser) -> None:
    one.add_argument("left", type=Path, metavar="RUN")
    one.add_argument("right", type=Path, metavar="RUN")


def _why(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "left",
        metavar="RUN[:ARM][,name=value…]",
        help="a run's folder, which of its arms, and at which of its points: RUN:veth,length_bytes=1472",
    )
    one.add_argument(
        "right",
        nargs="?",
        metavar="RUN[:ARM]|ARM[,name=value…]",
        help="another run, or of the same another arm or point: veth_bridge, or length_bytes=1473, or pairs=8; what one"
        " side alone names holds for both",
    )
    one.add_argument(
        "--out", type=Path, metavar="FILE", help="the page; else why.html in the first run's folder"
    )
    one.add_argument(
        "--processes",
        default=r"(?!elsewhere$).*",
        metavar="REGEX",
        help="whose CPU time counts; by itself all of the experiment and of the kernel",
    )
    one.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write the stacks of each side there, too, folded and for speedscope",
    )


def _shell(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "topology", metavar="TOPOLOGY", help=f"{', '.join(topologies.TABLE)}; or a YAML file of parts"
    )
    one.add_argument("parameters", nargs="*", metavar="name=value", help="pairs, mtu_bytes, family, parent")


def _attach(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "container", metavar="CONTAINER", help="a running one of docker's or podman's, by its name"
    )
    kind = one.add_mutually_exclusive_group(required=True)
    kind.add_argument("--veth", metavar="BRIDGE", help="a cable to this bridge")
    kind.add_argument("--macvlan", metavar="NIC", help="a device on this NIC, with a MAC address of its own")
    kind.add_argument("--ipvlan", metavar="NIC", help="a device on this NIC, with the NIC's MAC address")
    one.add_argument("--interface", default="eth1", metavar="NAME", help="its name in the container")
    one.add_argument("--address", metavar="ADDRESS/LENGTH|dhcp")
    one.add_argument("--gateway", metavar="ADDRESS", help="of the container's default route")
    one.add_argument("--mac", metavar="MAC")
    one.add_argument("--vlan", type=int, metavar="N")
    one.add_argument("--mtu", type=int, metavar="BYTES")


def _kernels(one: argparse.ArgumentParser) -> None:
    one.add_argument("--ask", action="store_true", help="boot each that was not asked yet what it can do")
    one.add_argument("--json", action="store_true", help="all that is known, as JSON on standard output")
    more = one.add_subparsers(metavar="get | install")
    text = "fetch a kernel of Debian's into labkit's store; nothing is installed"
    get = more.add_parser("get", help=text, description=text + ".")
    get.set_defaults(command="kernels get")
    get.add_argument(
        "name",
        nargs="?",
        default=debian_kernels.ARCHITECTURE,
        metavar="PACKAGE|RELEASE",
        help=f"{', '.join(debian_kernels.SHORT)} (the newest; cloud is smaller), or a package or release that apt knows",
    )

    text = "write kernelspecs: JupyterLab and papermill run notebooks on this kernel, or in a lab VM"
    install = more.add_parser("install", help=text, description=text + ".")
    install.set_defaults(command="kernels install")
    install.add_argument(
        "parameters",
        nargs="*",
        metavar="RELEASE[,cpus=N,...]",
        help="what may follow vm:, also with its options; without any, the newest kernel of each series",
    )


def _draw(one: argparse.ArgumentParser) -> None:
    _shell(one)
    form = one.add_mutually_exclusive_group()
    form.add_argument("--dot", action="store_true", help="as a graph for Graphviz")
    form.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart")
    form.add_argument("--json", action="store_true", help="all that the kernel tells, as one JSON object")
    form.add_argument(
        "--html", type=Path, metavar="FILE", help="as a figure in an HTML file that works offline"
    )


# Each command: its line of the help text, and what adds its arguments. What it does is in cli.COMMANDS.
COMMANDS: dict[str, tuple[str, Fill]] = {
    "doctor": ("what this kernel and machine can do, and what to do about the rest", _doctor),
    "run": ("run one experiment", _run),
    "sweep": ("run a grid of experiments through a notebook, and report on all of them", _sweep),
    "report": (
        "write the executed notebook of a run or a sweep as one HTML file that works offline",
        _report,
    ),
    "compare": ("compare two runs or sweeps point by point", _compare),
    "why": (
        "where two arms, runs or points that were profiled differ, as one HTML page: functions, counters, losses",
        _why,
    ),
    "kernels": ("the kernels that a lab VM can boot, and what each can do", _kernels),
    "attach": ("give a running container of docker's or podman's one more interface", _attach),
    "shell": ("a shell inside a live topology, to look around with ip, ping, tcpdump", _shell),
    "draw": ("build a topology and show what the kernel tells of it", _draw),
}
