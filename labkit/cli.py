"""The command line. Results go to standard output, everything else to standard error.

An error is one sentence, with exit code 2.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import importlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.commands import arguments
from labkit.common import run_folder, units
from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.common.printable import printable, printable_json
from labkit.measure import hosts, topologies
from labkit.measure.agent import main as agent_main
from labkit.measure.hosts import debian_kernels
from labkit.runner import run, yaml_files
from labkit.system import process
from labkit.system.qemu import kernels

if TYPE_CHECKING:
    from labkit.runner.progress import Bar
    from labkit.runner.sweep import Measure

INTERRUPTED = 130
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)  # failed writes to a stream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        _standard_streams()
        _current_folder()
        process.check_limits()
        _temporary_folder()
        given = arguments.parsed(argv)
        code = COMMANDS[given.command](given)
        sys.stdout.flush()
        return code
    except LabkitError as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        _print_error(
            "interrupted: finished points are on disk; repeat the same command to resume (a run needs --folder FOLDER)"
        )
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader of our output, for example head(1), has closed the pipe
        return 0
    except OSError as error:
        return _print_error(_what_failed(error))
    except RuntimeError as error:
        if sentence := process.exhausted(error):
            return _print_error(sentence)
        if "Symlink loop" not in str(error):  # pathlib raises a RuntimeError for this
            raise
        return _print_error(f"symbolic links form a loop: {error}")


def _standard_streams() -> None:
    """Make the standard streams safe to use.

    Characters that the terminal's encoding lacks are replaced. A closed stream is opened on /dev/null, because the next
    opened file would otherwise get its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _current_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise BadInput("the current folder has been removed: change to an existing folder") from None


def _temporary_folder() -> None:
    """Raise BadInput if the programs that labkit starts cannot write into $TMPDIR."""
    given = os.environ.get("TMPDIR")
    if not given:
        return
    try:
        tempfile.TemporaryFile(dir=given).close()
    except OSError as error:
        if process.exhausted(error):
            raise
        raise BadInput(
            f"TMPDIR={given}: {error.strerror}: name a folder that can be written, or unset TMPDIR"
        ) from None


def _drop_output(stream: int = 1) -> None:
    """Send the rest of standard output (or error: 2) to /dev/null."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _what_failed(error: OSError) -> str:
    """Describe in one sentence what the operating system refused."""
    if sentence := process.exhausted(error):
        return sentence
    if error.filename is not None:
        return f"{str(error.filename)[:200]}: {error.strerror}"
    if error.errno not in UNWRITABLE:
        return f"the operating system refused an operation: {error}"
    _drop_output()
    return f"standard output cannot be written: {error.strerror or error}; the measured rows are on disk"


def _print_error(text: str) -> int:
    _note(text)
    return 2


def _doctor(given: argparse.Namespace) -> int:
    # The import of the console library takes as long as the probes, so both run at the same time.
    reading = threading.Thread(target=importlib.import_module, args=("labkit.commands.doctor",))
    reading.start()

    try:
        where, request = given.where, dict[str, Any](do="doctor")
        if where.startswith("vm:"):
            # The lab VM is discarded afterwards, so loaded modules may stay. In this profile one thread emulates all
            # CPUs, which makes it safe to arm tracers.
            where += "" if ",profile=" in where else ",profile=tracing"
            request |= {"alone": True}
        events = run.ask(where, request, _note)
        answer = next(event for event in events if event["event"] == "doctor")
    except Failed as error:
        if given.where != "here":
            raise
        # The doctor is needed most if no namespace can be created, so it then probes without one.
        _note(str(error))
        answer = next(agent_main.doctor({}))
    del answer["event"]
    reading.join()
    from labkit.commands import doctor

    print(doctor.as_json(answer) if given.json else doctor.as_text(answer), end="")
    return 0


def _new(given: argparse.Namespace) -> int:
    from labkit.commands import new_project

    count = new_project.create(given.folder)
    shown = run_folder.shown(given.folder.absolute())
    print(
        printable(
            f"{units.many(count, 'file')} in {shown}: go there (cd), and then `labkit doctor`,"
            " `labkit sweep params/datapaths-quick.yaml`, or `jupyter lab notebooks`"
        )
    )
    return 0


def _run(given: argparse.Namespace) -> int:
    # A user who types a command may name any file; a YAML file may only name files in its own folder.
    parameters = yaml_files.with_files(arguments.name_value_pairs(given.parameters), None)
    from labkit.runner.progress import Bar

    bar = Bar()
    if parameters.get("where", "here") == "here":
        _say_limits(bar)

    def watch(event: dict[str, Any]) -> None:
        bar.see(event)
        if event["event"] == "rows" and given.json:
            for row in event["rows"]:
                print(printable_json(msgspec.json.encode(row).decode()))
            sys.stdout.flush()

    try:
        folder = run.measure(given.experiment, parameters, given.folder, watch, given.keep_failed)
    finally:
        bar.stop()
    if not given.json:
        from labkit.analysis import load
        from labkit.commands import terminal_tables

        result = load.load(folder, None)
        terminal_tables.show_rows(terminal_tables.show_parts(result))
        profiles = load.profiles(folder)
        terminal_tables.show_findings(result, profiles)
        terminal_tables.show_profiles(profiles)
    return _judge(run_folder.read_rows(folder))


def _say_limits(bar: Bar) -> None:
    if lines := hosts.local.limits():
        bar.say(lines)


def _judge(rows: list[run_folder.Row]) -> int:
    """Return the exit code: 0, or 2 if a row failed or nothing could be measured. The first reason is reported."""
    failed = [row for row in rows if row["status"] == "failed"]
    if rows and all(row["status"] in ("unsupported", "isolated", "failed") for row in rows):
        failed = failed or rows
    return (
        _print_error(f"{failed[0].get('arm') or failed[0]['point']}: {failed[0]['reason']}") if failed else 0
    )


def _sweep(given: argparse.Namespace) -> int:
    from labkit.analysis import load, report
    from labkit.commands import terminal_tables
    from labkit.runner import sweep
    from labkit.runner.progress import Bar

    bar = Bar()
    parameters = sweep.load(given.file)
    _say_limits(bar)
    folder = sweep.run(
        parameters, bar, bar.say, _fleet(given.dask) if given.dask else None, given.keep_failed
    )
    bar.doing("writing the report")
    page = report.html(folder / "notebook.ipynb", folder / "report.html")
    bar.stop()
    if given.json:
        from labkit.commands import json_output

        print(json_output.text(json_output.of_sweep(folder, page, sweep.failed(folder))))
        return _judge_sweep(folder)
    result = load.load(folder, None)
    terminal_tables.show_verdicts(terminal_tables.show_parts(result))
    profiles = load.profiles(folder)
    terminal_tables.show_findings(result, profiles)
    terminal_tables.show_profiles(profiles)
    print(f"report: {printable(run_folder.shown(page))}")
    return _judge_sweep(folder)


def _judge_sweep(folder: Path) -> int:
    """Return the exit code for all rows, like `_judge`; 2 with a sentence for each point that could not be measured."""
    from labkit.runner import sweep, unmeasured_point

    failed = sweep.failed(folder)
    for name, why in failed.items():
        _print_error(f"point {name} could not be measured: {why}")
    measured = [row for row in sweep.rows(folder) if row["point"] != unmeasured_point.POINT]
    return max(_judge(measured), 2 if failed else 0)


def _fleet(address: str) -> Measure:
    """Return the function that measures the points of a sweep on a Dask cluster."""
    try:
        from labkit.runner.cluster import caller  # imported here, because it takes half a second
    except ModuleNotFoundError as error:
        if error.name != "distributed":
            raise
        raise Unsupported(
            "--dask needs the Python package distributed, which is not installed: pip install 'labkit[dask]'"
        ) from None
    return functools.partial(caller.measure, address)


def _report(given: argparse.Namespace) -> int:
    from labkit.analysis import report
    from labkit.runner import sweep
    from labkit.runner.progress import Bar

    notebook = given.run / "notebook.ipynb"
    if given.run.exists() and not given.run.is_dir():
        raise BadInput(f"{given.run} is not a folder: name the folder of a run or a sweep")
    if not given.run.is_dir():
        raise BadInput(
            f"there is no folder {given.run}: name the folder of a run or a sweep, for example one in"
            f" {run_folder.shown(run_folder.data_root())}"
        )
    if not notebook.is_file():
        sweep.show(given.run, Bar())
    page = report.html(notebook, given.run / "report.html")
    images = report.images(notebook, given.run / "figures") if given.images else []
    if given.json:
        from labkit.commands import json_output

        print(json_output.text({"report": str(page), "figures": list(map(str, images))}))
        return 0
    print(f"report: {printable(run_folder.shown(page))}")
    for path in images:
        print(f"figure: {printable(run_folder.shown(path))}")
    return 0


def _rows(given: argparse.Namespace) -> int:
    from labkit.commands import rows

    wanted = {form: out for form in rows.FORMS if (out := getattr(given, form)) is not None}
    if not wanted:
        raise BadInput(f"no output is named: write --{' FILE, --'.join(rows.FORMS)} FILE")
    for form, out in wanted.items():
        count = rows.write(given.run, form, out)
        if out != rows.STDOUT:
            _note(f"{units.many(count, 'row')} in {run_folder.shown(out)}")
    return 0


def _completion(given: argparse.Namespace) -> int:
    from labkit.commands import completion

    print(completion.script(given.shell), end="")
    return 0


def _compare(given: argparse.Namespace) -> int:
    from labkit.analysis import compare_runs
    from labkit.commands import terminal_tables

    if os.path.realpath(given.left) == os.path.realpath(given.right):
        raise BadInput(f"{given.right} is named twice: name two runs")
    table, sentences = compare_runs.compare(given.left, given.right)
    if given.json:
        from labkit.commands import json_output

        print(json_output.text(json_output.compared(table, sentences)))
        return 0
    terminal_tables.show_comparison(table, sentences)
    return 0


def _why(given: argparse.Namespace) -> int:
    from labkit.analysis import why

    explained = why.explain(given.left, given.right, given.processes)
    path = explained.write(given.out)
    exported = explained.export(given.export) if given.export is not None else None
    if given.json:
        from labkit.commands import json_output

        print(json_output.text({**explained.as_json(), "page": str(path), "exported": exported}))
        return 0
    for sentence in [*explained.sentences(), *([exported] if exported else [])]:
        print(f"- {printable(sentence)}")
    print(f"page: {printable(run_folder.shown(path))}")
    return 0


def _shell(given: argparse.Namespace) -> int:
    request = run.one_topology(given.topology, arguments.name_value_pairs(given.parameters))
    if (where := request["parameters"]["where"]) != "here":
        raise BadInput(
            f"where={where} is not possible: `labkit shell` runs on this kernel only; leave where out"
        )
    fds: tuple[int, ...] = ()
    if hosts.local.privileged():
        fds = (os.open("/proc/self/ns/net", os.O_RDONLY),)
        request["machine_netns"] = fds[0]
    argv = [
        *hosts.local.prefix(),
        *process.python("-m", "labkit.measure.agent.main", msgspec.json.encode(request).decode()),
    ]
    return process.interactive(argv, pass_fds=fds)


def _monitor(given: argparse.Namespace) -> int:
    from labkit.commands import monitor

    parameters = arguments.name_value_pairs(given.parameters)
    if given.serve:
        return monitor.serve(given.target, parameters, given.port, given.ping)
    monitor.watch(given.target, parameters, given.seconds, given.pcapng, given.ping, given.json)
    return 0


def _attach(given: argparse.Namespace) -> int:
    from labkit.commands import attach

    kind = next(name for name in attach.KINDS if getattr(given, name))
    more = (given.interface, given.address, given.gateway, given.mac, given.vlan, given.mtu)
    result = attach.attach(given.container, attach.AttachRequest(kind, getattr(given, kind), *more))
    address = f" {result.address}" if result.address else ""
    print(printable(f"{given.container}: {given.interface}{address}; on this machine: {result.here}"))
    return 0


def _kernels(given: argparse.Namespace) -> int:
    from labkit.commands import kernels as kernels_command

    failed = kernels_command.ask_all(_note) if given.ask else []
    print(
        printable_json(kernels_command.as_json()) if given.json else printable(kernels_command.as_text()),
        end="",
    )
    return 2 if failed else 0


def _kernels_get(given: argparse.Namespace) -> int:
    before = _debian_release()
    kernel = debian_kernels.get(given.name, _note)
    if before not in (None, after := _debian_release()):
        _note(f"vm:debian now means {after} instead of {before}: write vm:{before} to keep the old kernel")
    print(printable(f"{kernel.image}\nwhere=vm:{kernel.release}"))
    return 0


def _debian_release() -> str | None:
    """Return the kernel release that vm:debian stands for, or None when there is none."""
    try:
        return kernels.find("debian").release
    except BadInput:
        return None


def _kernels_install(given: argparse.Namespace) -> int:
    from labkit.jupyter import kernelspecs

    for name, display in kernelspecs.install(given.parameters).items():
        print(printable(f"{name}: {display}"))
    if not kernelspecs.newest():
        _note(
            "there is no kernel for a lab VM yet: fetch one with `labkit kernels get`, then repeat this command"
        )
    return 0


def _note(text: str) -> None:
    try:
        print(f"labkit: {printable(text)}", file=sys.stderr)
    except OSError:  # standard error is full: the exit code still tells
        _drop_output(2)


def _draw(given: argparse.Namespace) -> int:
    from labkit.analysis import drawing

    request = run.one_topology(given.topology, arguments.name_value_pairs(given.parameters))
    [answer] = run.ask(request["parameters"]["where"], {"do": "draw", **request}, _note)
    state = msgspec.convert(answer["state"], topologies.State)
    if given.html:
        from labkit.analysis.drawing import figure

        run_folder.write(given.html, figure.page(state).encode())
        print(f"drawing: {printable(run_folder.shown(given.html))}")
    elif given.json:
        print(printable_json(msgspec.json.format(msgspec.json.encode(state), indent=2).decode()))
    else:
        draw = drawing.dot if given.dot else drawing.mermaid if given.mermaid else drawing.tree
        print(printable(draw(state)), end="")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": _doctor,
    "new": _new,
    "run": _run,
    "sweep": _sweep,
    "report": _report,
    "rows": _rows,
    "compare": _compare,
    "why": _why,
    "kernels": _kernels,
    "kernels get": _kernels_get,
    "kernels install": _kernels_install,
    "attach": _attach,
    "shell": _shell,
    "monitor": _monitor,
    "draw": _draw,
    "completion": _completion,
}


if __name__ == "__main__":
    sys.exit(main())
