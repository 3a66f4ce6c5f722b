"""Changes as data: what an arm changes of its topology, of the kernel's settings in it, or of its load.

A change has a name and steps. A step has a kind (`KINDS` of `change_kinds`), a place, and options. A step never holds a
command: each kind checks its options and builds its own argument list or netlink message. Files that a step needs
(nftables rules, BPF objects) are read once, where the change is written, and travel in it with their digest.
"""

import __future__

import inspect
import os
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from labkit.common.errors import BadInput, Failed, LabkitError, NoEffect, Unsupported, choose, did_you_mean
from labkit.common.plain_types import wrong_type
from labkit.measure.experiments.change_kinds import registry
from labkit.measure.experiments.change_kinds.base import Files, Place, digest
from labkit.measure.topologies import Topology
from labkit.system import machine, netlink

NAME = r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,39}"
INTERFACE = r"[A-Za-z0-9_.-]{1,15}"
NAMESPACE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
ROLES = ("client", "server", "both", "between")
PLACE_WORDS = {
    "client": "the interface of each client",
    "server": "the interface of each server",
    "both": "the interfaces of clients and servers",
    "between": "every virtual interface (of bridges, cables, tunnels) in the namespaces between the ends",
    "NAMESPACE:INTERFACE": "one interface, as `labkit draw` shows it",
}
PLACES = f"{', '.join(ROLES)}, or NAMESPACE:INTERFACE as `labkit draw` shows them"
FORM = "NAME: KIND OPTIONS at PLACE [and KIND OPTIONS at PLACE ...]"
MAX_CHANGES, MAX_STEPS = 64, 32


class NoPlace(Unsupported):
    """A topology has no such interface; another one may."""


# The source code of functions that are changes, by digest. They come from Python in this process or with the request.
SOURCES: dict[str, str] = {}


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a change.

    `at` is its place: one of ROLES or NAMESPACE:INTERFACE, or empty if its kind has no place.
    """

    kind: str
    at: str
    options: dict[str, Any]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The difference between a changed arm and the unchanged arm: named steps, applied in order."""

    name: str
    steps: tuple[Step, ...]

    @property
    def machine_sysctls(self) -> dict[str, str]:
        """The sysctls of the whole machine that this change sets while its arm is measured."""
        return self._options(lambda one: one.kind == "machine_sysctl")

    @property
    def programs(self) -> dict[str, dict[str, Any]]:
        """The programs of which this change starts another build: the options of each step, by the program's name."""
        return {one.options["name"]: one.options for one in self.steps if one.kind == "program"}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the experiment that this change sets."""
        return self._options(lambda one: isinstance(registry.find(one.kind), registry.Parameter))

    def _options(self, chosen: Callable[[Step], bool]) -> dict[str, Any]:
        return {name: value for one in filter(chosen, self.steps) for name, value in one.options.items()}


def parse(given: Any, files: Files | None = None) -> tuple[Change, ...]:
    """Parse the changes in a text, a mapping, a function, or a list of these.

    `files` reads the files that a change names; by default those below the current folder. Raises BadInput.
    """
    files = files or Files(Path.cwd())
    if given is None or given in ("", "none"):
        return ()
    if isinstance(given, str):
        items: list[Any] = [text for text in given.split(";") if text.strip()]
    elif isinstance(given, (list, tuple)):
        items = list(given)
    else:
        items = [given]
    if len(items) > MAX_CHANGES:
        raise BadInput(f"change has {len(items)} changes: {MAX_CHANGES} are allowed")
    result = tuple(_change(item, files) for item in items)
    names = [one.name for one in result]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"change names {twice[0]} twice: each change needs a name of its own")
    return result


def _change(item: Any, files: Files) -> Change:
    if isinstance(item, Change):
        change = item
    elif callable(item):
        change = _from_function(item)
    elif isinstance(item, str):
        change = _from_text(item, files)
    elif isinstance(item, Mapping):
        change = _from_mapping(item, files)
    else:
        raise BadInput(f"change={item!r} is neither a text ({FORM}) nor a mapping")
    _check(change)
    return change


def _from_function(function: Callable[[Topology], object]) -> Change:
    """Return the change that calls `function` with the built topology.

    The experiment's process receives only the source code of the function, so the function must import what it needs.
    Raises BadInput if the source code is not available.
    """
    name = getattr(function, "__name__", "")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise BadInput(
            f"change={name}: the source code of this function is not available: define it in a file or a"
            " notebook cell"
        ) from None
    if not source.startswith("def "):
        raise BadInput(f"change={name}: the function must be a plain one: write def NAME(topology)")
    known = digest(source.encode())
    SOURCES[known] = source
    return Change(name, (Step("function", "", {"name": name, "digest": known}),))


def sources(changes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by digest, the source code that this process has of the functions in these changes (in JSON form)."""
    steps = [step for one in changes for step in one["steps"] if step["kind"] == "function"]
    return {one: SOURCES[one] for step in steps if (one := step["options"]["digest"]) in SOURCES}


def _call(options: Mapping[str, Any], topology: Topology) -> dict[tuple[str, str], str]:
    """Call a function that is a change, and return the settings of every namespace afterwards, as `_settings`.

    The programs that it leaves running end with the topology: every round builds the topology anew and calls it again.
    """
    source = SOURCES.get(options["digest"])
    if source is None:
        raise BadInput(
            f"the request lacks the code of the function {options['name']}: start the run from Python with this"
            " function"
        )
    space: dict[str, Any] = {}
    # Its annotations may name what only the user's own file imports.
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<change {options['name']}>", "exec", flags), space)
    earlier = machine.descendants(os.getpid())
    try:
        space[options["name"]](topology)
    except LabkitError:
        raise
    except Exception as error:
        raise Failed(f"the function {options['name']} failed ({type(error).__name__}: {error})") from None
    finally:
        topology.at_end.callback(machine.kill_descendants, machine.descendants(os.getpid()) - earlier)
    return _settings(topology)


def _settings(topology: Topology) -> dict[tuple[str, str], str]:
    """Return the settings of every namespace and its programs by namespace and name, and other programs of the
    experiment.

    Programs that begin or end while the settings are read come and go by themselves, so they are left out.
    """
    earlier = _programs(topology)
    result = {
        (space.name, str(name)): str(value)
        for space in topology.namespaces
        for name, value in machine.namespace_settings(space.fd).items()
    }
    later = _programs(topology)
    reporting_ended = {place: sorted((names & later[place]).elements()) for place, names in earlier.items()}
    return result | {
        (place, "programs"): ", ".join(names) for place, names in reporting_ended.items() if names
    }


def _programs(topology: Topology) -> dict[str, Counter[str]]:
    """Return the names of the programs in each namespace, and of others of the experiment."""
    places = {os.fstat(space.fd).st_ino: space.name for space in topology.namespaces}
    result: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for inode, _pid, name in machine.pids_by_namespace():
        result[places.get(inode, "experiment")][name] += 1
    return result


def _from_text(text: str, files: Files) -> Change:
    """Parse a change such as `gro-off: offload gro off at server and mtu 9000 at both`."""
    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise BadInput(f"change={text.strip()!r} is not of the form {FORM!r}")
    return Change(
        name.strip(), tuple(_step_of_text(part, files) for part in re.split(r"\s+and\s+", rest.strip()))
    )


def _step_of_text(text: str, files: Files) -> Step:
    what, _, at = text.rpartition(" at ")
    what, at = (what, at.strip()) if what else (text, "")
    kind, _, words = what.strip().partition(" ")
    return Step(kind, at, _options(kind, words.strip(), files))


def _from_mapping(item: Mapping[Any, Any], files: Files) -> Change:
    """Parse `{name: gro-off, at: server, offload: {gro: off}}`, or a list `steps` of such mappings with own places."""
    name, steps = item.get("name"), item.get("steps")
    if not isinstance(name, str):
        raise BadInput(f"change={dict(item)!r}: name is missing")
    if steps is None:
        return Change(name, _steps(name, {key: value for key, value in item.items() if key != "name"}, files))
    if more := item.keys() - {"name", "steps"}:
        raise BadInput(f"change {name}: write {', '.join(map(str, more))} inside a step")
    if not isinstance(steps, (list, tuple)) or not all(isinstance(one, Mapping) for one in steps):
        raise BadInput(f"change {name}: steps must be a list of mappings")
    return Change(name, tuple(step for one in steps for step in _steps(name, one, files)))


def _steps(name: str, item: Mapping[Any, Any], files: Files) -> tuple[Step, ...]:
    if item.keys() == {"kind", "at", "options"}:  # the JSON form of a Step
        try:
            return (msgspec.convert(dict(item), Step),)
        except msgspec.ValidationError as error:
            raise BadInput(f"change {name}: {wrong_type(error)}") from None
    at = item.get("at", "")
    kinds = [(str(kind), value) for kind, value in item.items() if kind != "at"]
    if not kinds or not isinstance(at, str):
        raise BadInput(f"change {name}: a step needs a kind, and at most one place (at)")
    return tuple(Step(kind, at, _options(kind, value, files)) for kind, value in kinds)


def _options(kind: str, value: Any, files: Files) -> dict[str, Any]:
    result = registry.find(kind)
    if isinstance(value, Mapping):
        return result.parse_mapping({str(name): _word(one) for name, one in value.items()}, files)
    return result.parse_text(str(_word(value)), files)


def _word(value: Any) -> Any:
    """Return "on" or "off" for a boolean, because YAML reads on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _check(change: Change) -> None:
    if not re.fullmatch(NAME, change.name):
        raise BadInput(f"change={change.name!r}: a name has up to 40 letters, digits, and . _ = -")
    if not change.steps or len(change.steps) > MAX_STEPS:
        raise BadInput(f"change {change.name} has {len(change.steps)} steps: 1 to {MAX_STEPS} are allowed")
    for step in change.steps:
        kind = registry.find(step.kind)
        try:
            if kind.placed:
                check_place(step.at)
            elif step.at:
                raise BadInput(f"{step.kind} is not applied at a place: leave out 'at {step.at}'")
            kind.check(step.options)
        except BadInput as error:
            raise BadInput(f"change {change.name}: {error}") from None


def check_place(at: str) -> None:
    """Raise BadInput if `at` is not a place (one of ROLES or NAMESPACE:INTERFACE)."""
    if at not in ROLES and not re.fullmatch(rf"{NAMESPACE}:{INTERFACE}", at):
        raise BadInput(f"at={at!r}: a change is applied at {PLACES}{did_you_mean(at, ROLES)}")


def apply(change: Change, topology: Topology) -> list[dict[str, Any]]:
    """Apply a change to a built topology, and return its effects as the kernel reports them.

    Each effect is a mapping: `at` (client, server, between), `count` (number of places), `kind`, `setting`, `before`,
    `after`. Raises Unsupported if the kernel lacks a feature, Failed if it refuses a step or only a part of the change
    has an effect, NoEffect if no part has one.
    """
    if topology.shown is not None and len(change.parameters) < sum(
        len(step.options) for step in change.steps
    ):
        raise Unsupported(f"change {change.name}: nothing of an existing network is changed")
    result: Counter[tuple[str, str, str, str, str]] = Counter()
    without: list[str] = []
    with while_measured(change, topology) as machine_effects:
        for name, (was, now) in (machine_effects or {}).items():
            if was == now:
                without.append(
                    f"machine_sysctl {name}={now} has no effect, because the machine already has this value"
                )
            else:
                result["machine", "machine_sysctl", name, was, now] += 1
    for step in change.steps:
        kind = registry.find(step.kind)
        if step.kind == "function":
            old = _settings(topology)
            new = _call(step.options, topology)
            differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            if not differ:
                without.append(f"the function has no effect on any setting or program of {topology.name}")
            for at, name in differ:
                was, now = (each.get((at, name), "none") for each in (old, new))
                result[re.sub(r"\d+$", "", at), "function", name, was, now] += 1
        if step.kind == "program":
            from labkit.measure.experiments.change_kinds.program import SWITCH  # few changes are programs

            name, path, wanted = (step.options[key] for key in ("name", "path", "digest"))
            if name == SWITCH and topology.switch is None:
                without.append(f"{topology.name} has no {name}")
                continue
            usual = machine.require_program(name)
            version = machine.versions([usual, path])
            if version[path] is None:
                raise Unsupported(f"change {change.name}: {path} cannot be started")
            if digest(Path(usual).read_bytes()) == wanted:
                without.append(f"program {path} has no effect: it is the same as {usual}")
            else:
                now = f"{version[path]}, {path}, {wanted[:19]}"
                at = "between" if name == SWITCH else "both"
                result[at, "program", name, str(version[usual]), now] += 1
        for place in _places(step.at, topology, kind.per_interface) if kind.placed else ():
            before = kind.state(place, step.options)
            kind.apply(place, step.options)
            after = kind.state(place, step.options)
            kind.verify(after, step.options, place)
            requested = set(map(kind.setting, step.options))
            effects = [
                (place.role, step.kind, name, before.get(name, "none"), after.get(name, "none"))
                # What was requested comes first, because `why` names the first effect; the rest follows from it.
                for name in sorted({*before, *after}, key=lambda name: (name not in requested, name))
                if before.get(name) != after.get(name)
            ]
            if not effects:
                shown = (
                    after if len(after) < 4 else {name: after[name] for name in after if name in requested}
                )
                now = "; ".join(f"{name} {value}" for name, value in shown.items())
                without.append(
                    f"{step.kind} at {place} has no effect"
                    + (f": the kernel still reports {now}; give a value that differs" if now else "")
                )
            result.update(effects)
    if without:
        raise (Failed if result or change.parameters else NoEffect)(f"change {change.name}: {without[0]}")
    names = ("at", "kind", "setting", "before", "after")
    return [{**dict(zip(names, one, strict=True)), "count": count} for one, count in result.items()]


def while_measured(
    change: Change | None, topology: Topology
) -> AbstractContextManager[dict[str, tuple[str, str]] | None]:
    """Set the machine-wide sysctls of a change until the block ends.

    They hold only while the changed arm is measured, because they would affect all other arms.
    """
    if change is None or not change.machine_sysctls:
        return nullcontext()
    from labkit.system.machine import sysctl_journal  # what only such a change needs

    return sysctl_journal.changed(change.machine_sysctls, topology.spec.machine_netns)


def parameter_effect(name: str, before: Any, after: Any) -> dict[str, Any]:
    """Return the effect of a change on a parameter of the experiment, in the form that `apply` returns."""
    return {
        "at": "load", "kind": "parameter", "setting": name, "before": str(before), "after": str(after), "count": 1,
    }  # fmt: skip


def _places(at: str, topology: Topology, per_interface: bool) -> list[Place]:
    """Return the places of a built topology that `at` names, each once. Raises Unsupported if there are none."""
    result = list(_all_places(at, topology))
    once = {(id(one.kernel), one.interface if per_interface else ""): one for one in result}
    if not once:
        there = (
            f"{space.name}:{one.name}"
            for space in topology.namespaces
            for one in netlink.links(space.netlink)
        )
        kind = Unsupported if at in ROLES else NoPlace
        raise kind(f"{topology.name} has nothing at {at!r}: {choose(at, there)}")
    return list(once.values())


def _all_places(at: str, topology: Topology) -> Iterator[Place]:
    if at in ("client", "server", "both"):
        for pair in topology.pairs:
            for role, end in (("client", pair.client), ("server", pair.server)):
                if at in (role, "both"):
                    yield Place(role, end.kernel, end.interface, topology.at_end)
        return
    ends = {id(end.namespace) for end in topology.ends if end.tap is None}
    name, _, interface = at.partition(":")
    for space in topology.namespaces:
        if (at == "between" and id(space) not in ends) or space.name == name:
            role = "between" if id(space) not in ends else re.sub(r"\d+$", "", space.name)
            for link in netlink.links(space.netlink):
                if link.name == interface or (at == "between" and link.kind is not None):
                    yield Place(role, space, link.name, topology.at_end)
