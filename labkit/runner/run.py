"""Run an experiment: a labkit process on its host, rows in the run folder, progress for the user.

The command line and the notebooks use the same `measure`.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from labkit.analysis import protocols
from labkit.common import errors, existing_names, run_folder, safe_files, schema, units
from labkit.common.errors import BadInput, Failed
from labkit.measure import experiments, hosts, topologies
from labkit.measure.observers.registry import TABLE
from labkit.measure.parameters import Parameters
from labkit.measure.topologies import Network, check_network
from labkit.runner import code_files, permissions, two_hosts, unmeasured_point, yaml_files
from labkit.system import machine

EventCallback = Callable[[dict[str, Any]], None]
KEEP_FAILED = "LABKIT_KEEP_FAILED"  # environment variable: show failed rows instead of measuring them again
EXISTING = "existing_network"  # what the user allows: traffic between ends that labkit did not make
DESCRIPTIONS = ("run.json", "environment.json")  # files of a run in which nothing was measured


def ask(
    where: str, request: dict[str, Any], say: Callable[[str], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Send a request to a labkit process on `where` and yield its events; `say` gets a sentence for each slow step.

    Raises the error of the process (BadInput, Unsupported, Failed), and Failed if it ended without an answer. When the
    caller ends in any way, the kernel ends the process and everything that it started.
    """
    peer, say = request.get("peer"), say or (lambda _text: None)
    with (
        two_hosts.conversation(where, peer, request, say)
        if peer
        else hosts.conversation(where, request, say) as conversation
    ):
        for line in conversation.lines():
            try:
                event: dict[str, Any] = msgspec.json.decode(line)
            except msgspec.DecodeError:
                raise Failed(
                    f"the experiment's process wrote an invalid event: {line.strip()[:200]!r}"
                ) from None
            if event["event"] == "done":
                return
            if event["event"] == "error":
                _raise(event, request)
            yield event
        kept = "nothing was measured"
        if "folder" in request and run_folder.has_rows(Path(request["folder"])):
            shown = run_folder.display_path(Path(request["folder"]))
            kept = f"finished rows are kept; repeat the command with --folder {shown} to continue"
        raise Failed(f"the experiment's process {conversation.end_reason()}; {kept}")


def one_topology(topology: str | Network, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for one topology: a name, a Network, or a YAML file of one, with its parameters.

    Raises BadInput for an invalid one.
    """
    if isinstance(topology, str) and topology.endswith((".yaml", ".yml")):
        topology = yaml_files.network(Path(topology))
    if isinstance(topology, Network):
        return _own_network(topology, given)
    topologies.check_names([topology])
    request_parameters = experiments.find("datapaths").parameters.of({**given, "topology": topology}).asdict()
    if len(request_parameters["pairs"]) > 1:
        raise BadInput(
            f"pairs={given['pairs']}: one topology has one number of pairs: name one, for example pairs=2"
        )
    if len(request_parameters["endpoint"]) > 1:
        raise BadInput(f"endpoint={given['endpoint']}: one topology is built, so name one kind of endpoint")
    if request_parameters["nodes"] == "two":
        if existing_names.is_network(topology):
            ends = " ".join(existing_names.ends(topology))
            raise BadInput(
                f"a live topology is on one machine: `labkit draw {ends}` draws the path between these ends"
            )
        raise BadInput("nodes=two is for measuring only: build a live topology on one host, with nodes=one")
    hosts.check(request_parameters["where"])
    return {"parameters": request_parameters}


def _own_network(described: Network, given: Mapping[str, Any]) -> dict[str, Any]:
    check_network(described)
    if more := given.keys() - {"where"}:
        raise BadInput(
            f"the network {described.name} has its own values of all parameters but where:"
            f" leave out {', '.join(sorted(more))}"
        )
    where = given.get("where", "here")
    hosts.check(where)
    return {"parameters": {"where": where}, "network": msgspec.to_builtins(described)}


def _raise(event: dict[str, Any], request: dict[str, Any]) -> None:
    text = event["text"]
    if "traceback" in event and "folder" in request:
        path = Path(request["folder"]) / "error.txt"
        run_folder.write(path, event["traceback"].encode())
        text += f"; {path} shows where"
    raise errors.error_by_name(event["kind"], text)


def measure(
    experiment: str,
    parameters: Mapping[str, Any],
    folder: Path | None = None,
    watch: EventCallback | None = None,
    keep_failed: bool = False,
) -> Path:
    """Run an experiment and return its run folder with all rows.

    An unfinished run in the folder is resumed: measured points are kept, except those with a failed row.
    `keep_failed`, or the variable LABKIT_KEEP_FAILED, keeps these too. `watch` receives every event, and ends the
    run if it raises; a resumed run begins with the rows that are kept (`kept`). It gets `waiting` about twice a second
    while another measurement has the lock. Raises BadInput before anything runs for an invalid name or value, or if the
    folder holds a run with other parameters.
    """
    protocols.percentile()  # raises BadInput for an unknown one
    parameters = yaml_files.with_files(parameters, Path.cwd(), run_folder.project_root())
    kind = experiments.find(experiment).parameters
    parameters, sources = code_files.read(kind, parameters)
    requested = kind.of(parameters)
    _check_allowed(experiment, requested)
    folder = _own_folder(run_folder.new_run(experiment) if folder is None else folder)
    earlier = None if (folder / "run.json").exists() else {*folder.rglob("*")}
    description = _description(folder, experiment, requested.asdict())
    keep_failed = keep_failed or bool(os.environ.get(KEEP_FAILED))
    if not keep_failed:
        unmeasured_point.remove(folder)
    again = [] if keep_failed else run_folder.failed_points(folder)
    if run_folder.is_finished(folder, description) and not again:
        return folder
    if chosen := os.environ.get(schema.PERCENTILE):
        description["percentile"] = chosen
        run_folder.write_json(folder / "run.json", description)
    safe_files.remove(folder / "notebook.ipynb")  # it shows the rows of before
    request = _request(description, folder) | ({"again": again} if again else {})
    request["functions"] |= sources
    request["companion"] = requested.companion
    watch = watch or _watcher()
    if kept := run_folder.finished_points(folder).difference(again):
        rows = [row for row in run_folder.read_rows(folder) if row.get("point") in kept]
        watch({"event": "kept", "rows": rows})
    _record(request, description, folder, watch, earlier)
    return folder


def _check_allowed(experiment: str, requested: Parameters) -> None:
    """Raise an error for a run that its host cannot do, or that the user has not allowed."""
    request_parameters = requested.asdict()
    hosts.check(request_parameters["where"])
    _check_machine_sysctls(request_parameters)
    if (plan := traffic_plan(experiment, requested)) and not permissions.is_allowed(
        EXISTING, existing(requested)
    ):
        raise BadInput(f"{plan}: agree with --yes, or with {permissions.ALLOW}={EXISTING} in the environment")
    if _traces(request_parameters):
        hosts.check_tracing(request_parameters["where"])


def _own_folder(folder: Path) -> Path:
    """Make a run's folder, and return its real path. Raises BadInput if the user cannot have it."""
    with run_folder.write_errors(folder):
        try:
            folder = safe_files.make_folder(folder)  # another host has another current folder and other links
        except PermissionError as error:
            raise BadInput(f"no run can be written to {folder}: {error.strerror}") from None
    _check_owner(folder)
    return folder


def _record(
    request: dict[str, Any],
    description: dict[str, Any],
    folder: Path,
    watch: EventCallback,
    earlier: Set[Path] | None,
) -> None:
    """Send a request to its host, and write the rows and run.json into the run's folder.

    `earlier`: what was in the folder before a new run; None for a resumed run. A rejected new run leaves nothing else.
    """
    where = request["parameters"]["where"]
    nodes = [where, *([request["peer"]] if "peer" in request else [])]

    def say(text: str) -> None:
        watch({"event": "log", "text": text})

    def still_waits() -> None:
        watch({"event": "waiting"})

    if again := request.get("again"):
        say(
            f"{units.counted(len(again), 'point')} with a failed row will be measured again: {', '.join(again)}"
        )
    with hosts.measuring_lock(nodes, say, request.get("command"), still_waits):
        surroundings = _Surroundings(nodes)
        refused = False
        begun_points: set[str] = set()
        begun, before = time.monotonic(), description.get("measuring_s", 0.0)
        try:
            names = map(str, request["parameters"].get("topology", ()))
            if apart := [one for one in names if existing_names.is_apart(one)]:
                from labkit.runner import across  # only ends on two machines need it

                family = request["parameters"]["family"]
                request = request | {"addresses": across.addresses(apart, family, say)}
            for number, event in enumerate(ask(where, request, say)):
                surroundings.sample()
                if not number:  # a rejected run leaves no folder
                    say(f"the run is in {run_folder.display_path(folder)}")
                if event["event"] == "unfinished":
                    point = event["point"]
                    run_folder.keep_unfinished(folder, point, event["rows"], first=point not in begun_points)
                    begun_points.add(point)
                    continue
                if event["event"] == "rows":
                    event["rows"] = surroundings.with_columns(event["rows"])
                    run_folder.write_rows(folder, event["point"], event["rows"])
                elif event["event"] == "stopped":
                    description["why_stopped"][str(event["pairs"])] = event["why"]
                watch(event | {"elapsed_s": time.monotonic() - begun})
            description |= {
                "finished": run_folder.now(),
                "points": sorted(run_folder.finished_points(folder)),
            }
        except errors.LabkitError:  # before anything was measured, there is nothing to keep
            refused = earlier is not None and not any(
                one.is_file() and one.name not in DESCRIPTIONS for one in {*folder.rglob("*")} - earlier
            )
            raise
        finally:
            description["measuring_s"] = before + time.monotonic() - begun
            description["others"] = surroundings.others.report(description.get("others") or ())
            if refused:
                _remove_refused(folder)
            else:
                run_folder.write_json(folder / "run.json", description)
    watch({"event": "finished", "elapsed_s": time.monotonic() - begun})


class _Surroundings:
    """What else this machine did during a run on these nodes, as columns of its rows."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.others = machine.Background(hosts.shared_vm_scratch())
        self._throttling = machine.Throttling()
        self._host: machine.HostLoad | None = None
        self._in_vm = any(one.startswith("vm:") for one in nodes)
        self._elsewhere = all(one.startswith("ssh:") for one in nodes)

    def sample(self) -> None:
        """Note what other programs do. Call it for each event."""
        self.others.sample()
        if self._host is None and self._in_vm:  # the lab VM has booted
            self._host = machine.HostLoad(hosts.shared_vm_scratch())

    def with_columns(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows with the columns about the time since the previous call."""
        if not self._elsewhere:
            here = self._throttling.columns() | {"host_foreign_share": self.others.share()}
            rows = [machine.with_throttling(row, here) for row in rows]
        if self._host is not None:
            columns = self._host.columns()
            rows = [machine.with_host_load(row, columns) for row in rows]
        return rows


def existing(requested: Parameters) -> list[str]:
    """Return the networks that labkit did not make, between whose ends a run would send."""
    names: list[str] = getattr(requested, "existing_networks", [])
    return names


def traffic_plan(experiment: str, requested: Parameters) -> str | None:
    """Return what a run would send between ends that labkit did not make, in one sentence; None if nothing."""
    names = existing(requested)
    if not names or not isinstance(requested, experiments.DatapathParameters):
        return None
    seconds = units.duration(experiments.find(experiment).planned_s(requested))
    paced = [units.si(requested.rate_bps, "bit/s")] if requested.rate_bps else []
    paced += [f"{requested.rate_rps} requests a second"] if requested.rate_rps else []
    rate = paced[0] if paced else "as fast as the path carries it"
    pairs = units.listed([" to ".join(existing_names.ends(name)) for name in names])
    there = "" if requested.where == "here" or "ssh:" in pairs else f" on {requested.where}"
    return (
        f"this run sends {requested.protocol} traffic from {pairs}{there}, {rate}, in turns with the other arms, for"
        f" {seconds} in all, and changes nothing there"
    )


def _check_owner(folder: Path) -> None:
    """Raise BadInput for a run folder of another user, or with links, which may lead anywhere."""
    for path in (folder, folder / "rows", folder / "artefacts"):
        with contextlib.suppress(OSError):
            state = path.lstat()
            if state.st_uid not in safe_files.trusted_users():
                raise BadInput(
                    f"{path} belongs to another user, who may have put links into it: name another folder"
                )
            if stat.S_ISLNK(state.st_mode):
                raise BadInput(
                    f"{path} is a link, and labkit writes runs into real folders only: remove the link"
                )


def _remove_refused(folder: Path) -> None:
    """Remove what a rejected run has left: its descriptions, and empty folders."""
    for name in DESCRIPTIONS:
        safe_files.remove(folder / name)
    for each in (*folder.glob("*"), folder):
        with contextlib.suppress(OSError):
            each.rmdir()


def _request(description: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the request to the labkit process on the host.

    With two nodes it also names the other host. The command lets both hosts recognise that they share one machine's
    lock.
    """
    request_parameters = description["parameters"]
    request = {
        "do": "experiment",
        "experiment": description["experiment"],
        "parameters": request_parameters,
        "folder": str(folder),
        "seed": description["seed"],
        "traces": _traces(request_parameters),
        "functions": experiments.sources_of_changes(request_parameters.get("change", ())),
        "changes_machine": bool(_machine_sysctls(request_parameters)),
    }
    if chosen := description.get("percentile"):
        request["latency"] = f"latency_{protocols.percentile(chosen)}_s"
    if request_parameters.get("nodes") == "two":
        request |= {
            "peer": request_parameters["peer"] or request_parameters["where"],
            "command": secrets.token_hex(8),
        }
    return request


def _machine_sysctls(request_parameters: dict[str, Any]) -> list[str]:
    """Return the machine-wide sysctls that changes set while their arms are measured."""
    steps = [step for change in request_parameters.get("change", ()) for step in change["steps"]]
    return [name for step in steps if step["kind"] == "machine_sysctl" for name in step["options"]]


def _check_machine_sysctls(request_parameters: dict[str, Any]) -> None:
    """Raise BadInput if a change touches this machine and its user has not allowed it.

    Parameters may come from others. A lab VM is discarded, so it needs no permission.
    """
    names = _machine_sysctls(request_parameters)
    if (
        names
        and not request_parameters["where"].startswith("vm:")
        and not permissions.is_allowed("machine_sysctl")
    ):
        raise BadInput(
            f"machine_sysctl {', '.join(names)} changes the whole machine while an arm is measured: allow it with"
            f" {permissions.ALLOW}=machine_sysctl in the environment, or measure in a lab VM (where=vm:debian)"
        )


def _traces(request_parameters: dict[str, Any]) -> bool:
    return any(TABLE[name].traces for name in request_parameters.get("observe", ()))


def _has_parameters(experiment: str, recorded: dict[str, Any], requested: dict[str, Any]) -> bool:
    """Return whether a recorded run has these parameters. A parameter that did not exist when it was recorded
    counts as its default."""
    if recorded == requested:
        return True
    try:
        return experiments.find(experiment).parameters.of_recorded(recorded).asdict() == requested
    except BadInput:  # it has a parameter or value that this labkit does not know
        return False


def _description(folder: Path, experiment: str, request_parameters: dict[str, Any]) -> dict[str, Any]:
    path = folder / "run.json"
    if path.exists() and not unmeasured_point.is_only_this(folder):
        there = run_folder.read_run(folder)
        if there["experiment"] != experiment or not _has_parameters(
            experiment, there["parameters"], request_parameters
        ):
            raise BadInput(f"{folder} holds a run with other parameters: name another folder")
        return there
    description = run_folder.describe_run(folder, experiment, request_parameters)
    run_folder.write_json(path, description)
    return description


def _watcher() -> EventCallback:
    path = os.environ.get(permissions.PROGRESS)
    if path:
        return lambda event: _note(Path(path), event)
    # Importing rich takes 0.1 s, and a sweep's notebook does not need it.
    from labkit.runner.progress import Bar

    return Bar().see


def _note(path: Path, event: dict[str, Any]) -> None:
    """Write the last event, without its rows, which are on disk, to the file that the sweep reads.

    `waiting` says nothing new, and would replace the sentence that says for what.
    """
    if event["event"] == "waiting":
        return
    with contextlib.suppress(errors.Failed):
        run_folder.write(
            path, msgspec.json.encode({name: value for name, value in event.items() if name != "rows"})
        )
