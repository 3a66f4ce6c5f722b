"""A panel for the parameters of an experiment: `labkit.panel("datapaths")` in a notebook.

The panel checks the parameters while they are edited, estimates the duration, and starts, stops and resumes a run. The
finished run is `panel.run`.
"""

import html
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets

from labkit import notebook
from labkit.commands import arguments
from labkit.common import run_folder, units
from labkit.common.errors import BadInput, Failed, LabkitError, choose
from labkit.jupyter.progress_bar import NotebookBar
from labkit.measure import experiments
from labkit.runner import run as running
from labkit.runner import yaml_files

WIDE = {"description_width": "10em"}
ERROR_COLOR = "#e0301e"  # has a contrast of 4.5:1 on white and on black
USUAL = ("topology", "protocol", "pairs", "rounds", "duration_s")  # parameters that are not folded


class _Bar(NotebookBar):
    """Shows the progress in the widgets of a panel, and ends the run at the first event after `stop`."""

    def __init__(self, share: ipywidgets.FloatProgress, text: ipywidgets.HTML, stop: threading.Event) -> None:
        super().__init__()
        self._share_widget, self._text, self._stop = share, text, stop
        self._show()

    def see(self, event: Mapping[str, Any]) -> None:
        super().see(event)
        if self._stop.is_set() and event["event"] != "finished":
            raise Failed("stopped: finished rows are kept, and Start resumes")

    def stopping(self) -> None:
        """Show that the run will end: between two measurements, because a part of one would be worth nothing."""
        self._what, self._left = "stopping after the measurement that is under way", ""
        self._show()

    def _show(self, now: bool = False) -> None:
        self._share_widget.value = self._share
        self._text.value = "<br>".join(map(html.escape, self._lines()))


class Panel:
    """The panel of an experiment. values: the initial values of parameters, by name, instead of the experiment's."""

    def __init__(self, experiment: str = "datapaths", **values: Any) -> None:
        self._name, self._experiment = experiment, experiments.find(experiment)
        defaults = self._experiment.parameters().asdict()
        if unknown := values.keys() - defaults.keys():
            name = sorted(unknown)[0]
            raise BadInput(f"there is no parameter {name}: {choose(name, defaults)}")
        self.run: notebook.Run | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: _Bar | None = None
        self.fields: dict[str, ipywidgets.Text] = {}
        for name, value in (defaults | dict(self._experiment.panel_values) | values).items():
            about = self._experiment.help[name]
            known = self._experiment.parameters.known_values(name)
            field = ipywidgets.Combobox if known else ipywidgets.Text
            self.fields[name] = field(
                value=arguments.typed(value), description=name, tooltip=about,
                continuous_update=True, style=WIDE, layout={"width": "28em"},
            )  # fmt: skip
            self.fields[name].observe(self._check, "value")
        self._defaults = {name: arguments.typed(value) for name, value in defaults.items()}
        self.verdict, self.text = ipywidgets.HTML(), ipywidgets.HTML()
        self.start = ipywidgets.Button(description="Start", button_style="success")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.share = ipywidgets.FloatProgress(min=0.0, max=1.0, layout={"width": "45em"})
        self.start.on_click(self._start)
        self.stop.on_click(self._stop)
        self._begun: tuple[dict[str, str], Path] | None = None
        usual = [name for name in USUAL if name in self.fields]
        more = [name for name in self._experiment.help if name not in usual]
        others = ipywidgets.VBox(list(map(self._line, more)))
        folded = ipywidgets.Accordion([others], titles=["all other parameters"])
        about = f": {self._experiment.about}" if self._experiment.about else ""
        title = ipywidgets.HTML(f"<b>{html.escape(experiment)}</b>{html.escape(about)}")
        buttons = ipywidgets.HBox([self.start, self.stop])
        first = map(self._line, usual)
        self.box = ipywidgets.VBox([title, *first, folded, self.verdict, buttons, self.share, self.text])
        self._check()

    def _line(self, name: str) -> ipywidgets.HBox:
        """Return the field of a parameter with its meaning, which is below the field on a narrow page."""
        about = html.escape(self._experiment.help[name])
        words = f"<div style='line-height: 1.3'><small>{about}</small></div>"
        meaning = ipywidgets.HTML(words, layout={"flex": "1 1 18em", "width": "auto"})
        layout = {"flex_flow": "row wrap", "align_items": "center"}
        return ipywidgets.HBox([self.fields[name], meaning], layout=layout)

    def given(self) -> dict[str, str]:
        """Return the parameters that differ from their defaults, as typed."""
        typed = {name: field.value for name, field in self.fields.items()}
        return {name: value for name, value in typed.items() if value != self._defaults[name]}

    def _check(self, _change: Any = None) -> None:
        """Show why the parameters are invalid, or how long the run takes, and offer the known values."""
        for name, field in self.fields.items():
            if isinstance(field, ipywidgets.Combobox):  # for a list: the values after those that are there
                before, comma, _last = field.value.rpartition(",")
                known = self._experiment.parameters.known_values(name)
                field.options = [f"{before}{comma}{value}" for value in known]
        try:
            given = yaml_files.with_files(self.given(), Path.cwd(), run_folder.project_root())
            seconds = self._experiment.planned_s(self._experiment.parameters.of(given))
        except LabkitError as error:
            self.verdict.value = f"<b style='color: {ERROR_COLOR}'>{html.escape(str(error))}</b>"
            self.start.disabled = True
            return
        self.verdict.value = f"It takes about {units.duration(seconds)}."
        self.start.disabled = self._thread is not None and self._thread.is_alive()

    def _start(self, _button: Any) -> None:
        given = self.given()
        if self._begun is None or self._begun[0] != given:  # changed parameters need a new run folder
            self._begun = given, run_folder.new_run(self._name)
        self._ending.clear()
        self.start.disabled, self.stop.disabled = True, False
        self._bar = bar = _Bar(self.share, self.text, self._ending)
        self._thread = threading.Thread(target=self._measure, args=(*self._begun, bar), daemon=True)
        self._thread.start()

    def _stop(self, _button: Any) -> None:
        self.stop.disabled = True
        self._ending.set()
        if self._bar is not None and self._thread is not None and self._thread.is_alive():
            self._bar.stopping()

    def _measure(self, given: dict[str, str], folder: Path, bar: _Bar) -> None:
        try:
            self.run = notebook.Run(running.measure(self._name, given, folder, bar.see))
            self._begun = None
            bar.end("measured: panel.run is the run, and panel.run.verdicts compares")
        except LabkitError as error:
            bar.end(str(error))
        except Exception as error:  # otherwise the panel would show nothing
            bar.end(f"the run failed ({type(error).__name__}: {error})")
            raise
        finally:
            self.stop.disabled, self.start.disabled = True, False

    def wait(self) -> None:
        """Wait until the run has ended."""
        if self._thread is not None:
            self._thread.join()

    def _repr_mimebundle_(self, **words: Any) -> Any:
        return self.box._repr_mimebundle_(**words)
