"""The command line. Results on standard output, everything else on standard error; what cannot be is one
sentence and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labkit import __version__, agent, experiments, hosts, process, records, run, topologies
from labkit.errors import BadInput, Failed, LabkitError

if TYPE_CHECKING:
    from labkit.progress import Bar

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parsed(argv)
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except LabkitError as error:
        return _sorry(str(error))
    except KeyboardInterrupt:
        _sorry(
            "interrupted; finished points are on disk, and the same goes on (a run with --folder and its folder)"
        )
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read our output has had enough
        return 0


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; name=value words may also stand behind options, where argparse does not look for them."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "parameters")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.parameters += rest
    return arguments


def _sorry(text: str) -> int:
    print(f"labkit: {text}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="labkit", description="Which Linux virtual-network datapath is faster, by how much, and why."
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], text: str, **more: Any
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **more)
        one.set_defaults(command=function)
        return one

    one = command("doctor", _doctor, "what this kernel and machine can do, and what to do about the rest")
    one.add_argument("--json", action="store_true", help="one JSON object on standard output")
    one = command(
        "run",
        _run,
        "run one experiment",
        epilog=_experiments(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        help="the run's folder; one that holds the beginning of the same run is gone on with",
    )
    one = command("sweep", _sweep, "run a grid of experiments through a notebook, and report on all of them")
    one.add_argument("file", type=Path, metavar="params/FILE.yaml")
    one = command(
        "report",
        _report,
        "write the executed notebook of a run or a sweep as one HTML file that works offline",
    )
    one.add_argument("run", type=Path, metavar="RUN")
    one.add_argument(
        "--images",
        action="store_true",
        help="the figures as PNG and SVG, too, if there is a browser to draw them",
    )
    one = command("compare", _compare, "compare two runs or sweeps point by point")
    one.add_argument("left", type=Path, metavar="RUN")
    one.add_argument("right", type=Path, metavar="RUN")
    one = command("shell", _shell, "a shell inside a live topology, to look around with ip, ping, tcpdump")
    one.add_argument("topology", metavar="TOPOLOGY", help=", ".join(topologies.TABLE))
    one.add_argument("parameters", nargs="*", metavar="name=value", help="pairs, mtu_bytes, family, parent")
    return parser


def _experiments() -> str:
    lines = ["experiments and their parameters, with defaults:"]
    for name, experiment in experiments.TABLE.items():
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


def _named(words: Sequence[str]) -> dict[str, str]:
    """name=value words as a mapping. Raises BadInput for a word of another form or a name that is there
    twice."""
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r} is not of the form name=value")
        if name in named:
            raise BadInput(f"{name} is given twice")
        named[name] = value
    return named


def _doctor(arguments: argparse.Namespace) -> int:
    from labkit import doctor

    try:
        answer = next(run.ask("here", {"do": "doctor"}))
    except Failed as error:
        # The doctor is needed most where no namespace can be made: then it asks from outside of one.
        print(f"labkit: {error}", file=sys.stderr)
        answer = next(agent.doctor({}))
    del answer["event"]
    print(doctor.as_json(answer) if arguments.json else doctor.as_text(answer), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    parameters = _named(arguments.parameters)
    from labkit.progress import Bar

    bar = Bar()
    _say_limits(bar)
    rows: list[records.Row] = []

    def watch(event: dict[str, Any]) -> None:
        bar.see(event)
        if event["event"] == "rows":
            rows.extend(event["rows"])
            if arguments.json:
                sys.stdout.buffer.writelines(msgspec.json.encode(row) + b"\n" for row in event["rows"])
                sys.stdout.buffer.flush()

    try:
        folder = run.measure(arguments.experiment, parameters, arguments.folder, watch)
    finally:
        bar.stop()
    if not arguments.json:
        from labkit import tables, terminal

        terminal.show_rows(tables.load(folder))
    return _judge(rows)


def _say_limits(bar: Bar) -> None:
    if said := hosts.here.limits():
        bar.say(said)


def _judge(rows: list[records.Row]) -> int:
    """0, or 2 with the first sentence when something failed or nothing could be measured."""
    failed = [row for row in rows if row["status"] == "failed"]
    if rows and all(row["status"] in ("unsupported", "isolated", "failed") for row in rows):
        failed = failed or rows
    return _sorry(f"{failed[0]['arm']}: {failed[0]['reason']}") if failed else 0


def _sweep(arguments: argparse.Namespace) -> int:
    from labkit import report, sweep, tables, terminal
    from labkit.progress import Bar

    bar = Bar()
    asked = sweep.load(arguments.file)
    _say_limits(bar)
    folder = sweep.run(asked, bar, bar.say)
    page = report.html(folder / "notebook.ipynb", folder / "report.html")
    table = tables.load(folder)
    terminal.show_verdicts(table)
    print(f"report: {records.shown(page)}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from labkit import report, sweep
    from labkit.progress import Bar

    notebook = arguments.run / "notebook.ipynb"
    if not arguments.run.is_dir():
        raise BadInput(
            f"{arguments.run} is not there: name the folder of a run or a sweep;"
            f" they are in {records.shown(records.data_root())}"
        )
    if not notebook.is_file():
        sweep.show(arguments.run, Bar())
    page = report.html(notebook, arguments.run / "report.html")
    print(f"report: {records.shown(page)}")
    if arguments.images:
        for path in report.images(notebook, records.project_root() / "figures" / _name(arguments.run)):
            print(f"figure: {records.shown(path)}")
    return 0


def _name(run: Path) -> str:
    """The name of a run; of a point of a sweep with that of the sweep, or the points of two sweeps would meet."""
    run = run.absolute()
    return f"{run.parent.name}-{run.name}" if (run.parent / "sweep.json").exists() else run.name


def _compare(arguments: argparse.Namespace) -> int:
    from labkit import comparison, terminal

    table, sentences = comparison.compare(arguments.left, arguments.right)
    terminal.show_comparison(table, sentences)
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    topologies.check_names([arguments.topology])
    given = {"topology": arguments.topology, **_named(arguments.parameters)}
    asked = experiments.find("datapaths").parameters.of(given)
    if len(asked.asdict()["pairs"]) > 1:
        raise BadInput(f"a shell has one topology: pairs={given['pairs']} is more than one number")
    request: dict[str, Any] = {"parameters": asked.asdict()}
    fds: tuple[int, ...] = ()
    if hosts.here.privileged():
        fds = (os.open("/proc/self/ns/net", os.O_RDONLY),)
        request["machine_netns"] = fds[0]
    argv = [
        *hosts.here.prefix(),
        sys.executable,
        "-m",
        "labkit.agent",
        msgspec.json.encode(request).decode(),
    ]
    return process.interactive(argv, pass_fds=fds)


if __name__ == "__main__":
    sys.exit(main())
