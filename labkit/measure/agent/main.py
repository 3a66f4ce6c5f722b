"""The process that runs an experiment, as PID 1 of its own namespaces.

It reads its request as a JSON line on standard input (which stays open for more), and writes events as JSON lines on
standard output.

When it ends, by return, exception, Ctrl-C or SIGKILL, the kernel ends every program that it started and frees
every interface.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import run_folder
from labkit.common.errors import BadInput, LabkitError, Unsupported
from labkit.common.extensions import on_call
from labkit.common.printable import printable
from labkit.measure import endpoints, experiments, topologies
from labkit.system import machine, netlink, process, temporary_files

# How long the machine is looked at before the run itself makes load: 50 steps of the kernel's clock.
BEFORE_S = 0.5
SHOWN_NAMES = 16  # of a shell's namespaces


def write_event(event: dict[str, Any]) -> None:
    """Write one event as one line and flush it."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def experiment(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run an experiment and yield its events."""
    found_experiment = experiments.find(request["experiment"])
    experiments.CHANGE_SOURCES.update(request.get("functions", {}))
    parameters = found_experiment.parameters.of(request["parameters"])
    here = request.get("machine") or machine.describe()
    machine_columns = {**here, "busy_before_share": machine.busy_share(BEFORE_S)}
    folder = Path(request["folder"])
    peer = experiments.Peer(_ask_peer) if request.get("peer") else None
    again = frozenset(request.get("again", ()))
    run_context = experiments.RunContext(
        request["experiment"], folder, request["seed"], machine_columns, request.get("machine_netns"), peer,
        companion_fd=request.get("companion_fd"), again=again, send=write_event, latency=request.get("latency"),
    )  # fmt: skip
    written = "finished" in request  # on another machine
    if written:
        temporary_files.prepare(folder, request["finished"])
    parameters.check_programs()
    details = request.get("details") or machine.details()
    # A new namespace has its own values of what is not the machine's: those under which endpoints start.
    environment = {"machine": here, **details, "namespace_sysctls": machine.sysctls()}
    environment |= {} if peer is None else {"peer": peer.environment}
    run_folder.write_json(folder / "environment.json", environment)
    events = found_experiment.run(parameters, run_context)
    yield from temporary_files.with_written_files(events, folder) if written else events


def _ask_peer(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the other one of two hosts; the process that started both passes requests and answers on."""
    write_event({"event": "peer", "say": parameters})
    line = sys.stdin.buffer.readline()
    return msgspec.json.decode(line, type=dict[str, Any]) if line else {"gone": True}


def serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the servers' host of two: answer the requests of the clients' host."""
    parameters = experiments.find(request["experiment"]).parameters.of(request["parameters"])
    assert isinstance(parameters, experiments.DatapathParameters)
    from labkit.measure.experiments.two_hosts.server_side import answers  # what only two hosts need

    here = request.get("machine") or machine.describe()
    details = request.get("details") or machine.details()
    run_context = experiments.RunContext(request["experiment"], Path(), 0, here, request.get("machine_netns"))
    environment = {**details, "namespace_sysctls": machine.sysctls()}
    yield from answers(parameters, run_context, environment, sys.stdin.buffer)


def doctor(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Report what this kernel and machine can do.

    `alone` in the request: the kernel is discarded afterwards. `topologies`: try these, not capabilities.
    """
    from labkit.measure import capabilities  # what only a doctor needs

    probed = capabilities.capabilities(
        alone=request.get("alone", False), topologies=request.get("topologies", False)
    )
    result = [msgspec.to_builtins(one) for one in probed]
    yield {
        "event": "doctor",
        "machine": request.get("machine") or machine.describe(),
        "details": request.get("details") or machine.details(),
        "capabilities": result,
    }


@contextlib.contextmanager
def _build_requested(request: dict[str, Any]) -> Iterator[topologies.Topology]:
    """Stand on the machine's own interfaces, or build the network of a request; without either, the first topology of
    its parameters, with their first `pairs`."""
    if request.get("machine_interfaces"):
        if (fd := request.get("machine_netns")) is None:
            raise Unsupported(
                "interfaces of this machine cannot be monitored without privilege: run labkit as root"
            )
        with netlink.inside(fd):
            space = endpoints.Namespace(topologies.MACHINE, os.dup(fd), netlink.Netlink())
        with contextlib.closing(space):  # nothing is made and nothing removed
            yield topologies.Topology(topologies.MACHINE, topologies.Spec(), [], [space])
        return
    if "network" in request:
        with topologies.build_network(msgspec.convert(request["network"], topologies.Network)) as topology:
            yield topology
        return
    parameters = experiments.find("datapaths").parameters.of(request["parameters"]).asdict()
    endpoint = parameters["endpoint"][0]
    if endpoint in topologies.IN_GUESTS:
        raise BadInput(
            f"endpoint={endpoint} is for measuring only: build a live topology of namespaces or containers"
        )
    own = {name: parameters[name] for name in ("mtu_bytes", "family", "parent")}
    netns = request.get("machine_netns")
    spec = topologies.Spec(parameters["pairs"][0], **own, machine_netns=netns, endpoint=endpoint)
    with topologies.build(parameters["topology"][0], spec) as topology:
        yield topology


def draw(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Build a topology, report its state, and remove it."""
    from labkit.measure.topologies.state import read  # no measurement needs it

    with _build_requested(request) as topology:
        yield {"event": "state", "state": read.state(topology)}


def live(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Build a topology, report its state, and answer requests as long as standard input is open."""
    from labkit.measure.agent import interactive  # it brings captures, which no measurement needs
    from labkit.measure.topologies.state import read

    # An interrupt is meant for the programs in the topology. A handler is not inherited; SIG_IGN or a block would be.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with _build_requested(request) as topology:
        yield {"event": "state", "state": read.state(topology)}
        with open(0, "rb", buffering=0, closefd=False) as requests:
            yield from interactive.answers(topology, requests)


def shell(request: dict[str, Any]) -> int:
    """Run a shell in the first client of a topology; every namespace has a name for `ip netns exec`.

    The names exist in this mount namespace only.
    """
    with _build_requested(request) as topology, _names(topology) as named:
        first = topology.pairs[0]
        print(
            f"{topology.name}: you are in {first.client.name} ({first.client.address});"
            f" its server is {first.server_address}",
            file=sys.stderr,
        )
        names = [space.name for space in topology.namespaces]
        shown = names if len(names) <= SHOWN_NAMES else [*names[:SHOWN_NAMES], "…", names[-1]]
        print(f"others: {'ip netns exec NAME command' if named else 'not by name here'}: {' '.join(shown)};"
              " leave with exit", file=sys.stderr)  # fmt: skip
        environment = {
            **os.environ,
            "PS1": f"{topology.name}:{first.client.name}# ",
            "LABKIT_SERVER": first.server_address,
        }
        if topology.switch is not None:
            environment["OVS_RUNDIR"] = str(topology.switch.folder)  # where the tools of Open vSwitch find it
            print("its switch: ovs-vsctl show; ovs-ofctl dump-ports switch;"
                  f" ovs-appctl -t $OVS_RUNDIR/{topology.switch.CONTROL} COMMAND", file=sys.stderr)  # fmt: skip
        program = os.environ.get("SHELL", "/bin/sh")
        argv = [program, "--norc"] if Path(program).name == "bash" else [program]
        return process.interactive([*first.client.prefix, *argv], environment)


@contextlib.contextmanager
def _names(topology: topologies.Topology) -> Iterator[bool]:
    """Give every namespace a name for `ip netns` in this mount namespace; yield whether that worked."""
    folder = Path("/run/netns")
    with temporary_files.covered(folder) as named:
        try:
            for space in topology.namespaces if named else ():
                (folder / space.name).touch()
                source = f"/proc/{os.getpid()}/fd/{space.fd}"
                process.output(["mount", "--bind", source, str(folder / space.name)])
        except (OSError, LabkitError):
            named = False
        yield named


def _answer(events: Iterator[dict[str, Any]]) -> None:
    try:
        for event in events:
            write_event(event)
        write_event({"event": "done"})
    except LabkitError as error:
        write_event({"event": "error", "kind": type(error).__name__, "text": str(error)})
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if sentence := process.exhausted(error):
            write_event({"event": "error", "kind": "Failed", "text": sentence})
            return
        text = f"labkit itself failed ({type(error).__name__}: {error})"
        write_event({"event": "error", "kind": "Failed", "text": text, "traceback": traceback.format_exc()})


REQUESTS = {
    "experiment": experiment,
    "doctor": doctor,
    "draw": draw,
    "live": live,
    "serve": serve,
    "notebook kernel": on_call("labkit.measure.agent.notebook_kernel:answer"),
}


def _received(line: bytes) -> dict[str, Any]:
    """Return a request, and keep the existing networks that it hands over."""
    request: dict[str, Any] = msgspec.json.decode(line)
    if "existing" in request:
        from labkit.measure.existing import arm  # what only an existing network needs

        arm.receive(request["existing"])
    return request


def main() -> None:
    """Read one request and answer it."""
    process.raise_open_files()
    if len(sys.argv) > 1:
        try:
            with open(int(sys.argv[1]), "rb") as file:
                request = _received(file.read())
            sys.exit(shell(request))
        except LabkitError as error:
            print(f"labkit: {printable(str(error))}", file=sys.stderr)
            sys.exit(2)
    request = _received(sys.stdin.buffer.readline())
    process.raise_priority()
    with contextlib.suppress(BrokenPipeError):
        _answer(REQUESTS[request["do"]](request))


if __name__ == "__main__":
    main()
