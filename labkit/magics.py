"""Labkit's commands in the cells of a notebook, after `%load_ext labkit`: the magic `%labkit`, and its completion."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from IPython.core import completer
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Markdown, display

from labkit import cli, notebook
from labkit.analysis import why
from labkit.commands import arguments, registry
from labkit.commands import run as run_command
from labkit.common import run_folder, schema
from labkit.common.errors import BadInput, LabkitError, choose
from labkit.measure import experiments, topologies
from labkit.runner import yaml_files

OPEN = "open"
NEXT = (
    "The result is a run. Name it, for example `run = _`; then `run.rows`, `run.verdicts`, `run.figures`,"
    " `run.doubts()` and `run.why()` show more."
)
COMMANDS = [OPEN, *(name for name in registry.COMMANDS if name not in ("shell", "completion"))]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics and their completion."""
    shell.register_magic_function(labkit, "line_cell", "labkit")  # type: ignore[arg-type]
    if _completes not in shell.Completer.custom_matchers:  # it is loaded a second time
        shell.Completer.custom_matchers.append(_completes)


def labkit(line: str, cell: str | None = None) -> notebook.Run | why.Explanation | None:
    """Run a command of labkit.

        %labkit run datapaths topology=veth,veth_bridge rounds=5
        %labkit run datapaths --help
        %labkit open data/datapaths/RUN
        %labkit why data/datapaths/RUN
        %labkit doctor

    `run` and `open` return a Run (labkit.open), `why` returns an explanation, and the other commands print.
    `%%labkit run EXPERIMENT` reads the parameters from the cell as YAML. The Tab key completes names and values.
    Raises UsageError with one sentence, which a notebook shows without a traceback.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%labkit {line}: {error}") from None
    before = os.environ.get(schema.PERCENTILE)
    try:
        return _command(words, cell)
    except LabkitError as error:
        raise UsageError(str(error)) from None
    finally:  # --percentile is about this command alone
        os.environ.pop(schema.PERCENTILE, None)
        if before is not None:
            os.environ[schema.PERCENTILE] = before


def _command(words: list[str], cell: str | None) -> notebook.Run | why.Explanation | None:
    if cell is not None and words[:1] != ["run"]:
        raise BadInput("%%labkit reads the parameters of an experiment: begin with %%labkit run EXPERIMENT")
    if not words or words[0] not in COMMANDS:
        choice = choose(words[0] if words else "", COMMANDS)
        raise BadInput(f"%labkit {' '.join(words)} is no command: {choice}")
    if words[0] == OPEN:
        if len(words) != 2:
            raise BadInput("%labkit open takes one folder, for example %labkit open data/datapaths/RUN")
        return notebook.open_run(words[1])
    try:
        given = arguments.parse(words)
    except SystemExit as ended:
        if ended.code:
            raise UsageError(f"%labkit {' '.join(words)}: see %labkit {words[0]} --help") from None
        return None
    if given.command == "why" and not (given.json or given.out or given.export):
        several = given.right is None and why.has_several(run_folder.named(given.left))
        if not several:
            return why.explain(given.left, given.right, given.processes)
    if given.command != "run" or given.json or given.against is not None or given.fail_if is not None:
        if cell is not None:
            raise BadInput(
                "--json, --against and --fail-if need the parameters in the line: begin with %labkit"
            )
        if cli.main(words) in (cli.FAILED, cli.INTERRUPTED):  # it has said why
            raise UsageError(f"%labkit {words[0]} failed")
        return None
    run_command.check_options(given)
    parameters = {**_parse_cell(cell), **arguments.name_value_pairs(given.parameters)}
    parameters = yaml_files.with_files(parameters, Path.cwd(), run_folder.project_root())
    run_command.confirm(given, parameters)
    measured = notebook.run_experiment(given.experiment, parameters, given.folder, given.keep_failed)
    display(Markdown(NEXT))
    return measured


def _parse_cell(cell: str | None) -> dict[str, Any]:
    """Return the parameters from the YAML of a cell. Raises BadInput unless it is a mapping."""
    try:
        content = yaml.safe_load(cell or "")
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        way = "write a line `name: value` for each parameter"
        raise BadInput(f"the cell is not valid YAML ({why}): {way}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise BadInput("the cell is not a mapping: write a line `name: value` for each parameter")
    return content


@completer.context_matcher()  # type: ignore[untyped-decorator]
def _completes(context: completer.CompletionContext) -> completer.SimpleMatcherResult:
    """Complete the word before the cursor. What fits is all that is offered: names of Python are no values."""
    line = context.text_until_cursor
    own = re.match(r"\s*%%?labkit\s", line)
    found = _completions(line, context.token) if own else []
    return {
        "completions": [completer.SimpleCompletion(one) for one in found], "suppress": True, "ordered": True,
    }  # fmt: skip


def _completions(line: str, symbol: str) -> list[str]:
    """Return the completions of a line's last word, whose part behind `=` and `,` is the symbol."""
    words = line.split()[1:]
    last = words.pop() if words and not line.endswith(" ") else ""
    if not words:
        return [name for name in COMMANDS if name.startswith(last)]
    if words[0] in ("open", "report", "compare", "publish", "why", "rows"):
        return [str(path) for path in _folders(last)]
    if words[0] in ("draw", "shell") and len(words) == 1:
        return [name for name in topologies.TABLE if name.startswith(last)]
    if words[0] != "run":
        return []
    if len(words) == 1:
        return [name for name in experiments.TABLE if name.startswith(last)]
    if words[1] not in experiments.TABLE:
        return []
    name, equals, _value = last.partition("=")
    parameters = experiments.find(words[1]).parameters
    if equals:
        return [value for value in parameters.known_values(name) if value.startswith(symbol)]
    given = {word.partition("=")[0] for word in words[2:]}
    names = (each for each in parameters.__struct_fields__ if each not in given)
    return [f"{each}=" for each in names if each.startswith(last)]


def _folders(last: str) -> list[Path]:
    """Return the folders that complete a path: of the current folder, and of the project (`run_folder.named`)."""
    head = Path(last) if last.endswith("/") else Path(last).parent
    roots = (Path(), run_folder.project_root())
    there = {head / path.name for root in roots for path in (root / head).glob("*/")}
    return sorted(path for path in there if str(path).startswith(last))
