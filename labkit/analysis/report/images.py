"""Figures as files: HTML always, PNG and SVG where a browser is there to draw them (kaleido finds and drives it)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from labkit.analysis.report import notebook_cells as notebooks
from labkit.common import run_folder
from labkit.common.printable import printable

WIDTH_PX = 900
# The browser would look for updates and the like, and kaleido has no switch against it. It may ask a proxy that is not
# there (port 9 is "discard"), and so asks nobody, not even for a name.
NOWHERE = "127.0.0.1:9"


def images(of: go.Figure | Path, stem: Path, deadline_s: float = 60.0) -> list[Path]:
    """Write a figure as STEM.html, STEM.png and STEM.svg; of an executed notebook all figures, into the folder STEM.

    Returns the paths written. Without a browser, or when it does not draw within the deadline (of all images together),
    that is the HTML, and a sentence on standard error. Raises Failed when a file cannot be written.
    """
    stem = Path(stem)
    figures = _of_notebook(Path(of), stem) if isinstance(of, str | Path) else {stem: of}
    for path, figure in figures.items():
        page = figure.to_html(include_plotlyjs=True, include_mathjax=False, config={"displaylogo": False})
        run_folder.write(_ending(path, "html"), page.encode())
    written = [_ending(path, "html") for path in figures]
    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook's own event loop, if there is one, is busy
            drawn = thread.submit(asyncio.run, _drawn(figures, deadline_s)).result()
    except Exception as error:  # whatever a browser dies of, the HTML is there
        print(printable(f"no PNG and SVG, only HTML: {_why(error, deadline_s)}"), file=sys.stderr)
        return written
    for path, content in drawn.items():
        run_folder.write(path, content)
    return written + list(drawn)


def _ending(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _of_notebook(path: Path, folder: Path) -> dict[Path, go.Figure]:
    """The figures of an executed notebook, each with a name: its number and its title."""
    result: dict[Path, go.Figure] = {}
    for cell in notebooks.read(path).cells:
        for output in cell.get("outputs", []):
            if content := output.get("data", {}).get(notebooks.PLOTLY):
                figure = go.Figure({name: content[name] for name in ("data", "layout")}, skip_invalid=True)
                words = re.findall(r"[a-z0-9]+", str(figure.layout.title.text or "").lower())
                result[folder / "-".join([f"{len(result) + 1:02}", *words])] = figure
    return result


async def _drawn(figures: dict[Path, go.Figure], deadline_s: float) -> dict[Path, bytes]:
    """PNG and SVG of all figures, by one browser."""
    import kaleido  # half a second of imports, for those alone who want images

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
                size = {
                    "width": max(WIDTH_PX, figure.layout.width or 0),
                    "height": figure.layout.height or 450,
                }
                for ending, scale in (("png", 2), ("svg", 1)):
                    wanted = {"format": ending, "scale": scale, **size}
                    drawn[_ending(path, ending)] = await browser.calc_fig(figure, opts=wanted)
        return drawn
    finally:
        alarm.cancel()


def _kill(browser: Any) -> None:
    """Kill the browser with all that it started; kaleido makes it the leader of a session of its own."""
    started = getattr(browser, "subprocess", None)
    if started is not None and started.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def _why(error: Exception, deadline_s: float) -> str:
    if isinstance(error, ImportError):
        return "the Python package kaleido is not installed: pip install 'labkit[images]'"
    if type(error).__name__ == "ChromeNotFoundError":
        return "there is no browser to draw them (Debian package chromium)"
    words = " ".join(str(error.args[0] if error.args else error).split()) or type(error).__name__
    return f"the browser drew none within {deadline_s:.0f} s: {words[:200]}"
