"""The arguments of the command line: each command with its own, in the order of the help text."""

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
    """Parse the command line; `command` holds the name of the command. Invalid arguments end the process with exit
    code 2. Arguments of the form name=value may also follow options, which argparse alone would reject."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "parameters")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.parameters += rest
    return arguments


def name_value_pairs(words: Sequence[str]) -> dict[str, str]:
    """Return name=value arguments as a mapping. Raises BadInput for an argument of another form and for a name that
    is given twice."""
    mapping: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r} is not a parameter: write name=value, for example pairs=8")
        if name in mapping:
            raise BadInput(f"the parameter {name} is given twice: keep one of them")
        mapping[name] = value
    return mapping


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="labkit", description="Which Linux virtual-network datapath is faster, by how much, and why."
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, fill) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.set_defaults(command=name)
        fill(command)
    return parser


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--where",
        default="here",
        metavar="HOST",
        help="examine a lab VM (vm:KERNEL) or another machine (ssh:NAME) instead of this one",
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _experiments()
    parser.add_argument("experiment", metavar="EXPERIMENT")
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="lists with commas: pairs=1,2,8")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each row as soon as it is measured, one JSON object per line",
    )
    parser.add_argument(
        "--folder",
        action=_Folder,
        help="the run's folder; an unfinished run in it is resumed",
    )
    _keep_failed(parser)


class _Folder(argparse.Action):
    """A folder that is given once and has a name. Path("") would be the current folder."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if not value:
            raise BadInput(
                f"{option} '' names no folder: write {option} FOLDER, for example {option} results"
            )
        if getattr(namespace, self.dest) is not None:
            raise BadInput(f"{option} is given twice: keep one of them")
        setattr(namespace, self.dest, Path(value))


def _keep_failed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-failed", action="store_true", help="keep failed rows instead of measuring them again"
    )


def _experiments() -> str:
    lines = ["experiments, and their parameters with defaults:"]
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


def _sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="params/FILE.yaml")
    parser.add_argument(
        "--dask", metavar="ADDRESS", help="measure the points on the workers of this Dask cluster"
    )
    _keep_failed(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "--images",
        action="store_true",
        help="also write the figures as PNG and SVG (needs a browser)",
    )


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("left", type=Path, metavar="RUN")
    parser.add_argument("right", type=Path, metavar="RUN")


def _why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "left",
        metavar="RUN[:ARM][,name=value…]",
        help="a run's folder, one of its arms, and one of its points, for example RUN:veth,length_bytes=1472",
    )
    parser.add_argument(
        "right",
        nargs="?",
        metavar="RUN[:ARM]|ARM[,name=value…]",
        help="what to compare with: another run, or another arm or point of the same run, for example veth_bridge, or"
        " length_bytes=1473, or pairs=8; a value that only one side names holds for both",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write the page; default: why.html in the first run's folder",
    )
    parser.add_argument(
        "--processes",
        default=r"(?!elsewhere$).*",
        metavar="REGEX",
        help="count the CPU time of these processes; default: all of the experiment and of the kernel",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="also write the stacks of each side to this folder, folded and for speedscope",
    )


def _shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        help=f"{', '.join(topologies.TABLE)}; or a YAML file that describes a network",
    )
    parser.add_argument(
        "parameters", nargs="*", metavar="name=value", help="pairs, mtu_bytes, family, parent"
    )


def _attach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "container", metavar="CONTAINER", help="the name of a running Docker or Podman container"
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--veth", metavar="BRIDGE", help="connect a veth pair to this bridge")
    kind.add_argument(
        "--macvlan", metavar="NIC", help="create a macvlan on this NIC, with its own MAC address"
    )
    kind.add_argument(
        "--ipvlan", metavar="NIC", help="create an ipvlan on this NIC, with the NIC's MAC address"
    )
    parser.add_argument(
        "--interface", default="eth1", metavar="NAME", help="its name in the container; default: eth1"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS/LENGTH|dhcp", help="its address, for example 10.0.0.2/24"
    )
    parser.add_argument("--gateway", metavar="ADDRESS", help="gateway of the container's default route")
    parser.add_argument("--mac", metavar="MAC", help="its MAC address; default: the kernel chooses one")
    parser.add_argument("--vlan", type=int, metavar="N", help="its VLAN, 1 to 4094")
    parser.add_argument("--mtu", type=int, metavar="BYTES", help="its MTU in bytes")


def _kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ask", action="store_true", help="boot each kernel that was not examined yet")
    parser.add_argument("--json", action="store_true", help="print everything that is known as JSON")
    more = parser.add_subparsers(metavar="get | install")
    text = "download a Debian kernel into labkit's store; nothing is installed on the system"
    get = more.add_parser("get", help=text, description=text + ".")
    get.set_defaults(command="kernels get")
    get.add_argument(
        "name",
        nargs="?",
        default=debian_kernels.ARCHITECTURE,
        metavar="PACKAGE|RELEASE",
        help=f"{', '.join(debian_kernels.SHORT)} (the newest; cloud is smaller), or a package or release of apt",
    )

    text = "write kernelspecs: JupyterLab and papermill run notebooks on this kernel, or in a lab VM"
    install = more.add_parser("install", help=text, description=text + ".")
    install.set_defaults(command="kernels install")
    install.add_argument(
        "parameters",
        nargs="*",
        metavar="RELEASE[,cpus=N,...]",
        help="a kernel as after vm:, with or without options; default: the newest kernel of each series",
    )


def _draw(parser: argparse.ArgumentParser) -> None:
    _shell(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--dot", action="store_true", help="print a graph for Graphviz")
    form.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart")
    form.add_argument(
        "--json", action="store_true", help="print everything that the kernel reports as one JSON object"
    )
    form.add_argument(
        "--html", type=Path, metavar="FILE", help="write a figure as an HTML file that works offline"
    )


# Each command: its line of the help text, and the function that adds its arguments. cli.COMMANDS runs it.
COMMANDS: dict[str, tuple[str, Fill]] = {
    "doctor": ("show what this kernel and machine can do, and how to get the rest", _doctor),
    "run": ("run one experiment", _run),
    "sweep": ("run a notebook for every point of a grid, and write one report about all of them", _sweep),
    "report": (
        "write the executed notebook of a run or a sweep as one HTML file that works offline",
        _report,
    ),
    "compare": ("compare two runs or sweeps point by point", _compare),
    "why": (
        "explain why two profiled arms, runs or points differ, as one HTML page: functions, counters, losses",
        _why,
    ),
    "kernels": ("list the kernels that a lab VM can boot, and what each of them can do", _kernels),
    "attach": ("add a network interface to a running Docker or Podman container", _attach),
    "shell": ("open a shell inside a live topology, for ip, ping, tcpdump", _shell),
    "draw": ("build a topology, and draw it as the kernel reports it", _draw),
}
