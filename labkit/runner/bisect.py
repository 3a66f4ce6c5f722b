"""Search the first value of a list at which a benchmark is worse (`labkit bisect`).

Each value is measured in turn with the good end, so that drift of the machine cancels out, in more and more pairs of
runs until the gate's word about it is certain. The state is in the runs and in one JSON file, so the same command goes
on after `kill -9`:

    FOLDER/bisect.json        the question, values that were skipped, and the words so far
           N-VALUE/good/P     the P-th run of the good end
           N-VALUE/bad/P      the P-th run of the N-th value, measured next to it
           answer/…           the same of the last good and the first bad value, and their profiles
"""

import contextlib
import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.analysis import compare_runs, gate, load, why
from labkit.common import run_folder, safe_files, schema, units
from labkit.common.errors import BadInput, Failed, LabkitError, choose
from labkit.measure import experiments
from labkit.runner import run as running
from labkit.runner import yaml_files
from labkit.system.machine import locked_file
from labkit.system.qemu import kernels, vm_spec

ENDS_S = 2.0  # how long what a killed bisect has started may still hold its folder
FIRST_PAIRS = 3  # with two, Student's t at 99 % is 64 standard errors wide
SKIPPED = "skipped"
KERNELS, CHANGE = "kernels", "change"
ARM = "candidate"  # the name of a change that is exchanged for others, so that its arm has one name
FILE = "bisect.json"
OBSERVED = {"observe": "perf_record,counters", "profile_rounds": 3}
SIDES = ("good", "bad")
# What may confirm an only candidate that was not, by the word about it
HELP = {
    gate.UNCLEAR: "; more pairs (--most-pairs), a quieter machine, or more rounds in another folder may tell",
    gate.NOT_WORSE: "; a smaller margin (--fail-if, in another folder) may tell them apart",
}
FOUND = ("skipped", "words")  # what the state has beside the question

Say = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """What is searched for.

    over: a parameter, or `kernels`. values: in order, from good to bad. most_pairs: limit of pairs of runs per value.
    """

    experiment: str
    parameters: dict[str, Any]
    over: str
    values: tuple[str, ...]
    conditions: tuple[str, ...]
    most_pairs: int

    def of(self, value: str) -> dict[str, Any]:
        """Return the parameters of a run with one of the values."""
        if self.over == KERNELS:
            _, _, options = str(self.parameters.get("where", "")).partition(",")
            return {**self.parameters, "where": f"vm:{value}{options and f',{options}'}"}
        if self.over == CHANGE:
            steps = re.sub(r"^[A-Za-z0-9][\w.=-]*:\s+", "", value)
            return {**self.parameters, CHANGE: f"{ARM}: {steps}"}
        return {**self.parameters, self.over: value}

    def check(self) -> None:
        """Raise BadInput for what cannot be searched, before anything runs."""
        if len(self.values) < 2 or len(set(self.values)) < len(self.values):
            raise BadInput("a bisect needs at least two values of --over, each once, from good to bad")
        if self.over in self.parameters and self.over != KERNELS:
            raise BadInput(f"{self.over} is what --over exchanges: leave out {self.over}=")
        if self.over == "protocol":
            raise BadInput("protocols have no common metric: exchange another parameter")
        conditions = [gate.condition(one) for one in self.conditions]
        kind = experiments.find(self.experiment).parameters
        for value in self.values:
            if self.over == KERNELS:
                name = vm_spec.parse(self.of(value)["where"]).kernel
                if not Path(name).is_file():  # an image that cannot be booted is skipped when it is its turn
                    kernels.find(name)  # raises BadInput
            gate.check(conditions, kind.of(yaml_files.with_files(self.of(value), None)))


@dataclass(frozen=True)
class Step:
    """A value and its word: gate.WORSE, gate.NOT_WORSE, gate.UNCLEAR or SKIPPED; pairs of runs, and a sentence.

    arm: the name of the arm that is the worst.
    """

    value: str
    word: str
    pairs: int
    sentence: str
    arm: str = ""


@dataclass(frozen=True)
class Answer:
    """What a search found.

    first_bad: None if it cannot tell; then it is one of `left`. last_good: the nearest value that is not worse. why:
    sentences of `labkit why` about good against bad.
    """

    steps: list[Step]
    last_good: str
    first_bad: str | None
    left: list[str]
    sentence: str
    why: list[str]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder of a bisect for the block. Raises BadInput if another bisect does."""
    try:
        lock = locked_file.open_locked(folder / "lock", patience_s=ENDS_S)
    except BlockingIOError:
        raise BadInput(
            f"another bisect runs in {folder}: wait until it ends, or name another folder"
        ) from None
    with safe_files.closed(lock):
        yield


class Search:
    """A search in a folder. `watch` receives the events of its runs, and `say` a sentence for each step."""

    def __init__(self, question: Question, folder: Path, watch: running.EventCallback, say: Say) -> None:
        question.check()
        self._question, self._folder, self._watch, self._say = question, folder, watch, say
        self._conditions = [gate.condition(one) for one in question.conditions]
        self._steps: dict[str, Step] = {}
        asked = {**dataclasses.asdict(question), "percentile": os.environ.get(schema.PERCENTILE)}
        self._state = {"format": 1, **asked, "skipped": {}, "words": {}}
        path = folder / FILE
        if not path.exists():
            self._write()
            return
        there = run_folder.read_object(path)
        # A higher limit of pairs goes on where a lower one ended.
        asked = {name: value for name, value in self._state.items() if name not in (*FOUND, "most_pairs")}
        for name, value in asked.items():
            recorded = there.get(name)
            if (tuple(recorded) if isinstance(recorded, list) else recorded) != value:
                raise BadInput(f"{folder} holds another bisect, by its {name}: name another folder")
        if not all(isinstance(there.get(name), dict) for name in FOUND):
            raise BadInput(f"{path} is not complete: remove it, and finished runs beside it are used again")
        self._state = {**there, "most_pairs": question.most_pairs}

    def run(self) -> Answer:
        """Search, and return what was found.

        Raises BadInput if the last value is not worse than the first one, and like `run.measure` if the good end cannot
        be measured.
        """
        values = list(self._question.values)
        good, bad = 0, len(values) - 1
        end = self._step(values[bad])
        if end.word == gate.NOT_WORSE:
            raise BadInput(
                f"{end.value} is not worse than {values[0]}, so there is nothing to find: {end.sentence}"
            )
        if end.word != gate.WORSE:
            why = end.sentence if len(values) == 2 else f"the last value cannot be judged: {end.sentence}"
            return self._unclear(values[0], values[1:], why, end.word)
        while open_ := [value for value in values[good + 1 : bad] if value not in self._steps]:
            # As in `git bisect`: where the middle cannot be judged, the value next to it is tried.
            middle = min(open_, key=lambda value: abs(2 * values.index(value) - good - bad))
            step = self._step(middle)
            good = values.index(middle) if step.word == gate.NOT_WORSE else good
            bad = values.index(middle) if step.word == gate.WORSE else bad
        left = values[good + 1 : bad + 1]
        if len(left) > 1:
            whys = "; ".join(f"{one}: {self._steps[one].sentence}" for one in left[:-1])
            return self._unclear(values[good], left, whys, gate.UNCLEAR)
        return self._answer(values[good], values[bad])

    def ends(self) -> Answer:
        """Judge the last value against the first one alone. Raises Failed if it cannot be measured."""
        first, last = self._question.values[0], self._question.values[-1]
        step = self._step(last)
        if step.word == SKIPPED:
            raise Failed(f"{last} cannot be measured: {step.sentence}")
        bad = last if step.word == gate.WORSE else None
        sentence = f"{last} against {first}: {step.word}; {step.sentence}"
        return Answer([step], first, bad, [last], sentence, [])

    def _unclear(self, last_good: str, left: list[str], why: str, word: str) -> Answer:
        """Say which values are left, and why; with one of them, what would help by the word about it."""
        sentence = (
            f"{left[0]} is the only candidate after {last_good}, and could not be confirmed: {why}{HELP.get(word, '')}"
            if len(left) == 1
            else f"cannot tell the first bad one: it is after {last_good}, one of {', '.join(left)}; {why}"
        )
        return Answer(list(self._steps.values()), last_good, None, left, sentence, [])

    def _answer(self, good: str, bad: str) -> Answer:
        """Compare the last good with the first bad value themselves, and explain their difference."""
        step = self._steps[bad]
        if good != self._question.values[0]:
            step, _ = self._judged(self._folder / "answer", good, bad)
            if step.word != gate.WORSE:
                first = self._question.values[0]
                why = (
                    f"{bad} is worse than {first}, but not than {good} beside it, which is not worse either: the"
                    f" change is gradual, or the verdicts contradict each other ({step.sentence})"
                    if step.word == gate.NOT_WORSE
                    else f"{bad} is worse than {first}, and {good} is not, but {good} and {bad} beside each other:"
                    f" {step.word} ({step.sentence})"
                )
                return self._unclear(good, [bad], why, step.word)
        sentence = f"the first bad one is {bad}, the last good one {good}: {step.sentence}"
        return Answer(list(self._steps.values()), good, bad, [bad], sentence, self._why(good, bad, step.arm))

    def _step(self, value: str) -> Step:
        """Measure a value until it is judged, or up to the limit."""
        number = self._question.values.index(value)
        name = f"{number:02}-{re.sub(r'[^A-Za-z0-9.+-]+', '_', value)[:40]}"
        step, again = self._judged(self._folder / name, self._question.values[0], value)
        self._steps[value] = step
        self._state["words"][value] = step.word
        if step.word == SKIPPED:
            self._state["skipped"][value] = step.sentence
        self._write()
        pairs = units.counted(step.pairs, "pair")
        self._say(f"{value}: {step.word} after {pairs} of runs{again}; {step.sentence}")
        return step

    def _judged(self, folder: Path, good: str, value: str) -> tuple[Step, str]:
        """Return the word about a value against a good one, and where its runs are from."""
        if why := self._state["skipped"].get(value):
            return Step(value, SKIPPED, 0, str(why)), ""
        sides = [folder / side for side in SIDES]
        pairs = 0
        again = ", found in the folder" if (sides[1] / "sweep.json").exists() else ""
        while True:
            pairs += 1
            if (failed := self._pair(sides, pairs - 1, (good, value))) is not None:
                return Step(value, SKIPPED, pairs - 1, failed), ""
            if pairs < min(FIRST_PAIRS, self._question.most_pairs):
                continue
            judged = self._judge(*sides)
            word, worst = gate.overall(judged), judged[0]
            if word != gate.UNCLEAR or pairs >= self._question.most_pairs:
                said = worst.sentence if word == gate.UNCLEAR else f"{worst.name} {worst.size}, at 99 %"
                return Step(value, word, pairs, said, worst.arm), again

    def _judge(self, left: Path, right: Path) -> list[gate.Judged]:
        how = {"in_turn": True, "but": None if self._question.over == KERNELS else self._question.over}
        table, _ = compare_runs.compare(left, right, **how)  # type: ignore[arg-type]
        judged = gate.judge_runs(left, right, table, self._conditions, **how)
        if self._question.over != CHANGE:
            return judged
        # The unchanged arms are the same on both sides: their noise would only delay the answer, or be one.
        changed = [one for one in judged if ARM in re.split(r"[+ ]", one.arm)]
        why = "the changed arm has no valid measurement on both sides"
        return changed or [gate.Judged(ARM, gate.UNCLEAR, 1.0, 1.0, 1.0, why, ARM)]

    def _pair(self, sides: Sequence[Path], number: int, values: tuple[str, str]) -> str | None:
        """Measure a run of both sides, unless they are there; return why the second one cannot be measured, or None."""
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            try:
                self._run(sides[at] / str(number), values[at], retries=number > 0)
            except LabkitError as error:
                if at == 0:  # the good end: nothing can be compared without it
                    raise
                return str(error)
        for side in sides:
            run_folder.write_json(side / "sweep.json", {"points": list(map(str, range(number + 1)))})
        return None

    def _run(self, run: Path, value: str, *, retries: bool) -> None:
        """Measure a run of a value, with `retries` once more after an error. Raises as `_measure` does."""
        try:
            self._measure(run, value)
        except LabkitError as error:
            if not retries:
                raise
            # It was measured before, and an emulated kernel sometimes panics.
            self._say(f"{value}: {error}; it is measured again")
            self._measure(run, value)

    def _measure(self, run: Path, value: str) -> None:
        """Measure a run of a value. Raises a LabkitError if it has no valid row."""
        running.measure(self._question.experiment, self._question.of(value), run, self._watch)
        rows = run_folder.read_rows(run)
        if not any(row["status"] == "ok" for row in rows):
            raise BadInput(next((row["reason"] for row in rows if row.get("reason")), "it has no rows"))

    def _why(self, good: str, bad: str, arm: str) -> list[str]:
        """Return what `labkit why` says of the last good and the first bad value, from profiled runs of both."""
        names = experiments.find(self._question.experiment).parameters.help()
        if not OBSERVED.keys() <= names.keys():
            return [f"{self._question.experiment} has no observers, so `labkit why` has nothing to explain"]
        more = {
            **OBSERVED,
            **{name: value for name, value in self._question.parameters.items() if name in OBSERVED},
        }
        try:
            folders = [
                running.measure(
                    self._question.experiment,
                    {**self._question.of(value), **more},
                    self._folder / f"answer/why-{side}",
                    self._watch,
                )
                for side, value in zip(SIDES, (good, bad), strict=True)
            ]
            left, right = (self._side(one, arm) for one in folders)
            return [shlex.join(["labkit", "why", left, right]), *why.explain(left, right).sentences()]
        except LabkitError as error:
            return [f"no explanation: {error}"]

    def _side(self, folder: Path, arm: str) -> str:
        """Return a run's arm as `labkit why` names it; topologies that are exchanged have other names."""
        rows = load.profiles(folder)
        arms = rows.loc[~rows["again"], "arm"].tolist()
        if not arms:
            raise BadInput(f"{folder} has no profiles")
        name, over = arm if arm in arms else arms[-1], self._question.over
        values = list(rows[over].dropna().unique()) if over in why.selection.POINT else []
        value = f",{over}={load.value_text(values[0])}" if len(values) == 1 else ""
        return f"{run_folder.display_path(folder)}:{name}{value}"

    def _write(self) -> None:
        run_folder.write_json(self._folder / FILE, self._state)


def kernels_of(path: Path) -> list[str]:
    """Return the kernels of a folder of images, in the order of their releases, or of a file with one in each line.

    Raises BadInput if nothing is there; a file of the folder that is no kernel for this machine is left out.
    """
    if not path.is_dir():
        lines = (line.strip() for line in safe_files.text_lines(path))
        return [line for line in lines if line and not line.startswith("#")]
    images = {}
    for one in path.absolute().iterdir():
        with contextlib.suppress(BadInput):
            images[str(one)] = kernels.release_of(one)
    return sorted(images, key=lambda image: (kernels.order(images[image]), image))


def ordered(values: Sequence[str], good: str | None, bad: str | None) -> tuple[str, ...]:
    """Return the values from the good to the bad one, by default the first and the last. Raises BadInput."""
    ends = (values[0] if good is None else good, values[-1] if bad is None else bad)
    for name, end in zip(SIDES, ends, strict=True):
        if end not in values:
            raise BadInput(f"--{name} {end} is none of the values of --over: {choose(end, values)}")
    first, last = (values.index(end) for end in ends)
    return tuple(values[first : last + 1] if first <= last else reversed(values[last : first + 1]))
