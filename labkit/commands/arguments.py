"""The arguments of each command, in the order of the help text."""

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

EXIT_CODES = {
    "0": "The command succeeded. A reader may have closed the output early, for example head.",
    "1": "labkit itself has a fault. A traceback says where.",
    "2": "The input is wrong, the machine cannot do it, or something could not be measured. One sentence on standard"
    " error says what. Rows that were measured are on disk.",
    "130": "Ctrl-C. Finished rows are on disk. The same command resumes a sweep, and a run with --folder.",
}
VARIABLES = {
    "LABKIT_DATA": "the folder for runs; default: data in the project",
    "LABKIT_PROJECT": "the project, a folder with notebooks and params; labkit then executes its notebooks, whoever"
    " wrote them",
    "LABKIT_ALLOW": "machine_sysctl: changes may set sysctls of the whole machine while their arm is measured;"
    " trex_profile: a sweep's file may name a profile of TRex, which is code; trex_folder: it may name the folder of"
    " TRex, from which a program is started; several behind commas",
    "LABKIT_TREX": "the folder of an unpacked TRex release, from which labkit starts a server",
}
# The text below the arguments in a command's help. Lines that begin with four spaces are commands.
NOTES = {
    "doctor": """\
The doctor tries each capability instead of asking for versions. For each that is missing it says
how to get it.

    labkit doctor
    labkit doctor --where vm:debian
    labkit doctor --where ssh:NAME
""",
    "new": """\
The folder then contains the notebooks, the sweep files, docs/network.yaml, which is an example of a
network of your own, and what the notebooks refer to. Commands that are typed in it write their
runs to its folder data.

    labkit new my-project
    cd my-project
    labkit run datapaths duration_s=1
    labkit sweep params/datapaths-quick.yaml
    jupyter lab notebooks
""",
    "run": """\
A run writes a folder in data/, and the command says which. The first topology is the baseline.
Several values of topology, endpoint or change are arms of one comparison. docs/network.yaml is an
example of a network of your own as an arm.

    labkit run datapaths topology=veth_bridge,macvlan_bridge pairs=1,4 rounds=5 slices=12 whole_runs=1 duration_s=1
    labkit run datapaths topology=veth,vxlan protocol=ping rounds=5 duration_s=1
    labkit run datapaths endpoint=namespace,container,guest rounds=3 duration_s=3
    labkit run datapaths topology=veth_bridge change='gro: offload gro on at server' rounds=5 duration_s=1
    labkit run throughput topology=ovs_netdev
    labkit run datapaths topology=docs/network.yaml,veth duration_s=1
    labkit run trex_stateless server=HOST profile=imix target=50%
    LABKIT_TREX=FOLDER labkit run trex_stateless topology=veth_bridge,veth_routed profile=64b
    LABKIT_TREX=FOLDER labkit run throughput generator=trex topology=veth_bridge

where= chooses the kernel. vm:KERNEL boots a lab VM within seconds. The lab VM sees this machine's
files read-only. Without KVM its CPU is emulated, and every number says so. KERNEL is debian, a
release or the path of a kernel, and takes options behind commas: cpus=N, memory_mib=N,
profile=tracing, append=WORD+WORD, modules=NAME+NAME, fresh. ssh:NAME runs on another machine by
your own `ssh NAME`. That machine needs Python 3.11 to 3.13 and iperf3. labkit is copied there, and
nothing of a run stays.

    labkit run datapaths where=vm:debian topology=veth_bridge,ipvlan_l2 duration_s=3
    labkit run overlay part=path,reachability routes=static where=vm:debian,cpus=1

nodes=two puts the clients on one host and the servers on another: two lab VMs with a cable between
them, or two machines with a NIC each (where=ssh:ONE peer=ssh:OTHER parent=NIC,NIC).

    labkit run datapaths where=vm:debian nodes=two mtu_bytes=9000 link_rate_bps=1e8

observe= measures every arm again under observers. These runs enter no verdict. `labkit why`
explains what they saw.

    labkit run datapaths topology=veth,veth_bridge protocol=udp length_bytes=64 observe=perf_record,counters
    labkit run datapaths observe=function_times functions=ip_rcv,br_handle_frame where=vm:debian,profile=tracing
""",
    "sweep": """\
An interrupted sweep resumes when the same command is given again. A point that cannot be measured
is named, and the sweep goes on. `--dask` needs the extra labkit[dask] and workers that take one
point at a time.

    labkit sweep params/datapaths.yaml
    dask worker ADDRESS --resources "labkit=1" --nthreads 2
    labkit sweep params/datapaths.yaml --dask ADDRESS

params/datapaths.yaml is the sweep of the paper: up to 128 pairs, MTU 1500 and 9000.
params/kernels.yaml puts kernels side by side. params/nodes.yaml uses two hosts. params/overlay.yaml
follows packets through an overlay, lets a spine fail, and measures what each tunnel costs.
params/container_vs_vm.yaml compares containers with virtual machines. params/packet_size.yaml
measures what a packet costs, fixed and by the byte. params/virtual_tap.yaml measures mirrors of
Open vSwitch. params/what_does_it_cost.yaml is the price list of everyday changes.
params/live_monitor.yaml measures what tcpdump, tshark and the monitor cost.
params/ovs_test_plan.yaml searches the rates of Open vSwitch with 1,000 rules and 64,000 flows.
""",
    "report": """\
`--images` needs the extra labkit[images]. The images are written to the folder figures of the run.

    labkit report data/datapaths/RUN --images
""",
    "rows": """\
Parquet, CSV and JSON (one object per line) contain the rows as they are on disk, with profiles. In
Parquet each column contains its unit and its meaning. The file - is standard output.
docs/ROWS.md explains the columns.

    labkit rows RUN --parquet rows.parquet
    labkit rows RUN --csv - --json rows.jsonl
""",
    "compare": """\
labkit refuses to compare runs that differ in something that matters, and names it. Of two hosts
only ratios to the same baseline are compared, never speeds.

    labkit compare RUN RUN
""",
    "why": """\
The first sentence names the cause of the difference with its size and share. If the evidence is too
weak, it says what is known. The page works offline. Both sides need profiles (`labkit run ...
observe=perf_record,counters`). Several runs of one side are RUN+RUN. Arms are named by what
differs.

    labkit why RUN
    labkit why RUN:veth veth_bridge
    labkit why RUN:veth,length_bytes=1472 length_bytes=1473
    labkit why RUN:veth,pairs=1 pairs=8
    labkit why RUN+RUN RUN+RUN
""",
    "kernels": """\
`labkit kernels get` downloads a kernel. `labkit kernels install` offers kernels to notebooks.
""",
    "kernels get": """\
    labkit kernels get
    labkit kernels get cloud
""",
    "kernels install": """\
Notebooks then have the kernels "labkit (this kernel)" and, for example, "labkit (Linux 6.1 lab
VM)". Cells of the second run as root of that Linux. They write into the notebook's folder only.
`make lab` installs both.

    labkit kernels install
    papermill -k labkit-vm-6.1 --start-timeout 120 NOTEBOOK RESULT
""",
    "attach": """\
Everything is removed again when attaching fails. An address by DHCP keeps its first lease, because
nothing renews it.

    labkit attach CONTAINER --veth BRIDGE --address 10.0.0.2/24
    labkit attach CONTAINER --macvlan NIC --vlan 10 --address dhcp
""",
    "shell": """\
The topology is removed when the shell ends, and the exit code is that of the shell. A notebook has
the same: `from labkit import live; net = live.build("veth_bridge")`.

    labkit shell veth_bridge pairs=2
""",
    "monitor": """\
The kernel selects packets, so that others cost little. A sampler then chooses, and memory holds the
last of those. Every packet is counted: seen by the interface, selected, dropped (the reader was too
slow), sampled, kept, forgotten (pushed out of memory). A mirror port of Open vSwitch is monitored
where its copies arrive: mirror0 in the namespace monitor. An interface of this machine needs root.

    labkit monitor eth0 source=10.0.0.1 destination=10.0.0.0/8 --seconds 10
    labkit monitor eth0 expression='tcp[tcpflags] & tcp-syn != 0' sample=interval:10:1
    labkit monitor veth_bridge interface=client0:eth0 protocol=icmp --ping --seconds 3 --pcapng seen.pcapng
    labkit monitor veth_bridge interface=client0:eth0 where=vm:debian --ping --seconds 5
    labkit monitor eth0 --serve

--serve prints the address of a page with controls, charts, conversations and the last packets. It
needs the extra labkit[serve]. From another machine, forward the port: ssh -L PORT:127.0.0.1:PORT.

parameters of a monitor:
    source=, destination=   an address or a prefix, IPv4 or IPv6
    port=                   of the source or the destination: 53, or 5000-5010
    protocol=               arp, gre, icmp, icmp6, ip, ip6, sctp, tcp, udp
    vlan=                   the VLAN's number
    inside=                 vxlan, geneve, gre: source and destination are inner IPv4 addresses
    expression=             what else must hold, in libpcap's syntax (pcap-filter)
    sample=                 all, one_in:N, random:P, interval:N:S (N packets every S seconds),
                            first:B (the first B bytes of each flow)
    display=                of these keep what matches, in Wireshark's syntax (needs tshark)
    keep_count=             packets in memory; default 10000
    snap_bytes=             bytes of each packet; default 256
    interface=              of a topology: NAMESPACE:INTERFACE, or a name that only one namespace has
and those of the topology (pairs, mtu_bytes, family, parent) and where.
""",
    "completion": """\
bash: write it to a file in ~/.local/share/bash-completion/completions named labkit. zsh: to a file
_labkit in a folder of fpath. fish: to ~/.config/fish/completions/labkit.fish.

    labkit completion bash
    labkit completion zsh
    labkit completion fish
""",
    "draw": """\
The drawing shows what the kernel reports, not what was requested. docs/network.yaml is an example
of a network as a file.

    labkit draw veth_bridge pairs=2
    labkit draw docs/network.yaml --mermaid
""",
}


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `command` holds the name of the command.

    Invalid arguments end the process with exit code 2. Arguments of the form name=value may also follow options, which
    argparse alone would reject.
    """
    parser = command_parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "parameters")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.parameters += rest
    return arguments


def name_value_pairs(words: Sequence[str]) -> dict[str, str]:
    """Return name=value arguments as a mapping.

    Raises BadInput for an argument of another form and for a repeated name.
    """
    mapping: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r} is not a parameter: write name=value, for example pairs=8")
        if name in mapping:
            raise BadInput(f"the parameter {name} is given twice: keep one of them")
        mapping[name] = value
    return mapping


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="labkit",
        description="Which Linux virtual-network datapath is faster, by how much, and why.",
        epilog=f"exit codes:\n{_listed(EXIT_CODES)}\nenvironment variables:\n{_listed(VARIABLES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, fill) in COMMANDS.items():
        fill(_command(commands, name, text))
    return parser


def _listed(texts: dict[str, str]) -> str:
    return "\n".join(f"  {name:15}{text}" for name, text in texts.items())


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name.split()[-1],
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=NOTES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    return parser


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--where",
        default="here",
        metavar="HOST",
        help="examine a lab VM (vm:KERNEL) or another machine (ssh:NAME) instead of this one",
    )


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", action=_Folder, metavar="FOLDER", help="a folder that does not exist yet, or an empty one"
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"{NOTES['run']}\n{_experiments()}"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"one of {', '.join(experiments.TABLE)}")
    parser.add_argument(
        "parameters", nargs="*", metavar="name=value", help="its parameters; lists with commas: pairs=1,2,8"
    )
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
    """A folder argument that may occur once and must not be empty, because Path("") is the current folder."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if not value:
            written = f"{option} " if option else ""
            raise BadInput(
                f"{written}'' names no folder: write {written}{self.metavar or 'FOLDER'}, for example {written}results"
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
        values = experiment.parameters().asdict()
        for key, text in experiment.help.items():
            if key in values:
                lines.append(f"    {f'{key}={typed(values[key])}':24}  {text}")
    return "\n".join([*lines, f"topologies: {', '.join(topologies.TABLE)}"])


def typed(value: Any) -> str:
    """Return a value as a user types it after the = of a parameter."""
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else str(value).lower()
        if value in (None, True, False)
        else str(value)
    )


def _sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="params/FILE.yaml", help="a YAML file: notebook, parameters, grid"
    )
    parser.add_argument(
        "--dask", metavar="ADDRESS", help="measure the points on the workers of this Dask cluster"
    )
    _json(parser)
    _keep_failed(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run or a sweep")
    parser.add_argument(
        "--images",
        action="store_true",
        help="also write the figures as PNG and SVG into the folder figures of the run (needs a browser)",
    )
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run or a sweep")
    for form, text in ROW_FORMS.items():
        parser.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write the rows as {text}")


ROW_FORMS = {
    "parquet": "Parquet, with units and meanings",
    "csv": "CSV",
    "json": "JSON, one object per line",
}


SHELLS = ("bash", "zsh", "fish")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("left", type=Path, metavar="RUN", help="the folder of a run or a sweep")
    parser.add_argument("right", type=Path, metavar="RUN", help="the folder to compare it with")
    _json(parser)


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
        " length_bytes=1473, or pairs=8; a value that only one side names applies to both",
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
        help="also write the stacks of each side to this folder: folded (flamegraph.pl, Firefox Profiler) and for"
        " speedscope",
    )
    _json(parser)


def _shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        help=f"{', '.join(topologies.TABLE)}; or a YAML file that describes a network",
    )
    parser.add_argument(
        "parameters", nargs="*", metavar="name=value", help="pairs, mtu_bytes, family, parent"
    )


def _monitor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="INTERFACE|TOPOLOGY",
        help="an interface of this machine; or a topology or a YAML file of a network, with interface=NAME",
    )
    parser.add_argument(
        "parameters", nargs="*", metavar="name=value", help="what is selected, and how it is sampled"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="stop after so long; default: Ctrl-C stops it"
    )
    parser.add_argument(
        "--pcapng", action=_Folder, metavar="FILE", help="write the sampled packets to this file"
    )
    parser.add_argument(
        "--serve", action="store_true", help="show a page on loopback, behind a token, instead of a table"
    )
    parser.add_argument("--port", type=int, metavar="N", help="the page's port; default: a free one")
    parser.add_argument(
        "--ping", action="store_true", help="each client of the topology pings its server meanwhile"
    )
    parser.add_argument("--json", action="store_true", help="print the last counts as one JSON object")


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
    get = _command(more, "kernels get", text)
    get.add_argument(
        "name",
        nargs="?",
        default=debian_kernels.ARCHITECTURE,
        metavar="PACKAGE|RELEASE",
        help=f"{', '.join(debian_kernels.SHORT)} (the newest; cloud is smaller), or a package or release of apt",
    )

    text = "write kernelspecs: JupyterLab and papermill run notebooks on this kernel, or in a lab VM"
    install = _command(more, "kernels install", text)
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


# Each command with its line of the help text and the function that adds its arguments. cli.COMMANDS runs it.
COMMANDS: dict[str, tuple[str, Fill]] = {
    "doctor": ("show what this kernel and machine can do, and how to get the rest", _doctor),
    "new": ("create a project: a folder with labkit's notebooks and sweep files", _new),
    "run": ("run one experiment", _run),
    "sweep": ("run a notebook for every point of a grid, and write one report about all of them", _sweep),
    "report": (
        "write the executed notebook of a run or a sweep as one HTML file that works offline",
        _report,
    ),
    "rows": ("write the rows of a run or a sweep as Parquet, CSV or JSON for other programs", _rows),
    "compare": ("compare two runs or sweeps point by point", _compare),
    "why": (
        "explain why two profiled arms, runs or points differ, as one HTML page: functions, counters, losses",
        _why,
    ),
    "kernels": ("list the kernels that a lab VM can boot, and what each of them can do", _kernels),
    "attach": ("add a network interface to a running Docker or Podman container", _attach),
    "shell": ("open a shell inside a live topology, for ip, ping, tcpdump", _shell),
    "monitor": ("watch the packets of an interface, selected in the kernel and sampled", _monitor),
    "draw": ("build a topology, and draw it as the kernel reports it", _draw),
    "completion": ("print a script that completes labkit's words in a shell", _completion),
}
