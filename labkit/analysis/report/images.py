"""Draw figures as files, and as still pictures in an executed notebook for readers without plotly.

A file is always HTML, and PNG and SVG if there is a browser to draw them (through kaleido).
"""

import asyncio
import base64
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.report import notebook_cells as notebooks
from labkit.common import packages, run_folder, safe_files
from labkit.common.errors import BadInput, Failed
from labkit.common.printable import printable

WIDTH_PX = 900
SCALES = {"png": 2, "svg": 1}
# An opacity of 1 is the default, and no group of a figure sets another. Plotly writes it at thousands of points, which
# takes a tenth of a file.
OPAQUE = re.compile(rb"(?<=[\" ])(?:fill-|stroke-)?opacity: 1; ?")
STILL_BYTES = 256 << 10  # a larger SVG has more points than anybody sees, and a PNG takes its place
# The browser would look for updates and the like, and kaleido cannot switch that off. With a proxy that does not exist
# (port 9 is "discard"), it reaches nobody, not even a name server.
NOWHERE = "127.0.0.1:9"


def images(of: go.Figure | Path, stem: Path, deadline_s: float = 60.0) -> list[Path]:
    """Write a figure as STEM.html, STEM.png and STEM.svg, or all figures of an executed notebook into the folder STEM.

    Return the paths written. Without a browser, or if it exceeds the deadline (for all images together), only the HTML
    is written, and a sentence goes to standard error. Raises Failed if a file cannot be written.
    """
    stem = Path(stem)
    if stem.is_symlink():
        raise BadInput(f"{stem} is a link, which may lead anywhere: remove it")
    figures = figures_in(Path(of), stem) if isinstance(of, str | Path) else {stem: of}
    for path, figure in figures.items():
        page = figure.to_html(include_plotlyjs=True, include_mathjax=False, config=theme.CONFIG)
        run_folder.write(_ending(path, "html"), page.encode())
    written = [_ending(path, "html") for path in figures]
    try:
        done = drawn(figures, deadline_s, SCALES)
    except Failed as error:  # the HTML is complete, however the browser fails
        print(printable(f"no PNG and SVG, only HTML: {error}"), file=sys.stderr)
        return written
    for path, content in done.items():
        run_folder.write(path, content)
    return written + list(done)


def svgs(figures: Mapping[str, go.Figure], deadline_s: float = 60.0) -> dict[str, bytes]:
    """Return SVGs of figures, all drawn by one browser. Raises Failed without a browser, or after the deadline."""
    paths = {Path(name): figure for name, figure in figures.items()}
    done = drawn(paths, deadline_s, {"svg": 1})
    return {
        name: OPAQUE.sub(b"", done[_ending(path, "svg")]) for name, path in zip(figures, paths, strict=True)
    }


def add_stills(notebook: Path, deadline_s: float = 60.0) -> None:
    """Add still pictures to the file of an executed notebook (`draw_stills`). Raises Failed if it cannot be written."""
    document = notebooks.read(notebook)
    if draw_stills(document, deadline_s):
        run_folder.write(notebook, nbformat.writes(document).encode())  # type: ignore[no-untyped-call]


def draw_stills(document: nbformat.NotebookNode, deadline_s: float = 60.0) -> bool:
    """Add a still picture, an SVG or PNG, beside each figure of an executed notebook that has none; return whether any
    was added.

    Viewers without plotly (nbconvert, GitHub, a page without scripts) show it. Without a browser, or with a figure that
    plotly does not know, the notebook stays as it is, and a sentence goes to standard error.
    """
    outputs = {
        Path(str(number)): output
        for number, output in enumerate(_figure_outputs(document))
        if not notebooks.STILLS & output.data.keys()
    }
    if not outputs:
        return False
    try:
        figures = {path: theme.on_paper(_figure(output)) for path, output in outputs.items()}
        done = drawn(figures, deadline_s, {"svg": 1})
        large = {path: figures[path] for path in figures if len(done[_ending(path, "svg")]) > STILL_BYTES}
        done |= drawn(large, deadline_s, {"png": 1}) if large else {}
    except (Failed, KeyError, TypeError, ValueError) as error:
        why = printable(" ".join(str(error).split())[:200])
        print(f"figures need JavaScript, without still pictures: {why}", file=sys.stderr)
        return False
    for path, output in outputs.items():
        if path in large:
            output.data["image/png"] = base64.b64encode(done[_ending(path, "png")]).decode()
        else:
            output.data["image/svg+xml"] = done[_ending(path, "svg")].decode()
    return True


def _ending(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def figures_in(path: Path, folder: Path) -> dict[Path, go.Figure]:
    """Return the figures of an executed notebook, by a path made of their number and title."""
    result: dict[Path, go.Figure] = {}
    for output in _figure_outputs(notebooks.read(path)):
        figure = _figure(output)
        words = re.findall(r"[a-z0-9]+", str(figure.layout.title.text or "").lower())
        result[folder / "-".join([f"{len(result) + 1:02}", *words])] = figure
    return result


def _figure_outputs(document: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    for cell in document.cells:
        yield from (one for one in cell.get("outputs", []) if notebooks.PLOTLY in one.get("data", {}))


def _figure(output: nbformat.NotebookNode) -> go.Figure:
    content = output.data[notebooks.PLOTLY]
    return go.Figure({name: content.get(name) for name in ("data", "layout")}, skip_invalid=True)


def drawn(
    figures: dict[Path, go.Figure],
    deadline_s: float,
    scales: Mapping[str, float],
    width_px: int | None = None,
) -> dict[Path, bytes]:
    """Return figures as files, by path with ending, all drawn by one browser in the formats that `scales` names.

    width_px: of the page; none: at least WIDTH_PX. Raises Failed, with the reason, however kaleido or the
    browser fails.
    """
    try:
        with ThreadPoolExecutor(1) as thread:  # in a notebook, this thread's event loop is already running
            return thread.submit(asyncio.run, _draw_all(figures, deadline_s, scales, width_px)).result()
    except Exception as error:
        raise Failed(f"no figure was drawn: {_why(error, deadline_s)}") from None


async def _draw_all(
    figures: dict[Path, go.Figure], deadline_s: float, scales: Mapping[str, float], width_px: int | None
) -> dict[Path, bytes]:
    import kaleido  # takes half a second, so only those who want images pay for it

    with _private_folder():
        browser = kaleido.Kaleido(
            timeout=deadline_s, mathjax=False, proxy_server=NOWHERE, enable_extensions=False
        )
        # kaleido has no deadline for the browser's start, and a browser that hangs would keep this process from ending.
        alarm = threading.Timer(deadline_s, _kill, [browser])
        alarm.start()
        try:
            drawn = {}
            async with browser:
                for path, figure in figures.items():
                    width = width_px or max(WIDTH_PX, figure.layout.width or 0)
                    size = {"width": width, "height": figure.layout.height or 450}
                    for ending, scale in scales.items():
                        wanted = {"format": ending, "scale": scale, **size}
                        drawn[_ending(path, ending)] = await browser.calc_fig(figure, opts=wanted)
            return drawn
        finally:
            alarm.cancel()
            _kill(browser)  # its processes may write to their folder after kaleido has removed it


@contextlib.contextmanager
def _private_folder() -> Iterator[None]:
    """Let the browser and kaleido keep all their files in a folder that goes with them, not in the user's home."""
    names = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR")
    before, usual = {name: os.environ.get(name) for name in names}, tempfile.tempdir
    with safe_files.own_folder(safe_files.runtime_folder(), "labkit-browser-") as (folder, *_):
        os.environ.update(dict.fromkeys(names, str(folder)))  # the only way to a browser that kaleido starts
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = usual
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _kill(browser: Any) -> None:
    """Kill the browser and all processes that it started. kaleido makes it the leader of its own session."""
    started = getattr(browser, "subprocess", None)
    if started is not None:
        with contextlib.suppress(ProcessLookupError):  # nobody is left of its group
            os.killpg(started.pid, signal.SIGKILL)


def _why(error: Exception, deadline_s: float) -> str:
    if isinstance(error, ImportError):
        return "the Python package kaleido is not installed: pip install 'labkit[images]'"
    if type(error).__name__ == "ChromeNotFoundError":
        return f"there is no browser to draw them: {packages.install('chromium')}"
    words = " ".join(str(error.args[0] if error.args else error).split()) or type(error).__name__
    return f"the browser drew no image within {deadline_s:.0f} s: {words[:200]}"
