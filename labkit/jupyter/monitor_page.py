"""Serve the page of `labkit monitor --serve`: Voilà on loopback, with a token, and with the panel as its only
content."""

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from labkit.common.errors import BadInput, Unsupported
from labkit.jupyter.monitor_hub import HubClient
from labkit.jupyter.monitor_panel import MonitorPanel
from labkit.system import process

VARIABLE = "LABKIT_MONITOR_PAGE"  # tells the page's kernels where the hub is, and what it watches
ADDRESS = "127.0.0.1"
ANSWER_POLL_S = 0.1
# Other pages may not embed this page, and it may fetch only from its own server: Voilà's template would request its
# icons from a server on the internet.
POLICY = (
    "default-src 'self'",
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self' data:",
    f"connect-src 'self' ws://{ADDRESS}:* blob: data:",
    "worker-src 'self' blob:",
    "frame-ancestors 'none'",
)
HEADERS = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "; ".join(POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
SOURCE = "from labkit.jupyter import monitor_page\n\nmonitor_page.panel()"


class _Page(msgspec.Struct):
    socket: str
    interfaces: list[str]
    choice: dict[str, str]


def panel() -> MonitorPanel:
    """Return the panel, in a kernel of the page."""
    page = msgspec.json.decode(os.environ[VARIABLE], type=_Page)
    made = MonitorPanel(HubClient(page.socket), page.interfaces, page.choice)
    made.is_page = True
    return made


def _free_port(wanted: int | None) -> int:
    """Return a free port of loopback. Raises BadInput if the wanted one is taken."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((ADDRESS, wanted or 0))
        except OSError as error:
            why = f"{ADDRESS} cannot give it ({error.strerror})"
            raise BadInput(f"--port {wanted}: {why}: choose another, or leave --port out") from None
        return int(one.getsockname()[1])


@contextlib.contextmanager
def answering(address: str, then: Callable[[], None]) -> Iterator[None]:
    """Call `then` from a thread as soon as the server of the page answers, unless the block ends before."""
    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(ANSWER_POLL_S):
            with contextlib.suppress(OSError), socket.create_connection((ADDRESS, urlsplit(address).port)):
                then()
                return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def prepared(
    folder: Path, hub: str, interfaces: Sequence[str], choice: Mapping[str, str], wanted_port: int | None
) -> tuple[list[str], dict[str, str], str]:
    """Write the page's notebook and Voilà's configuration to a private folder.

    Returns the command line, the environment, and the address with its token. The command line does not contain the
    token. Raises Unsupported without Voilà, BadInput for a port that is taken.
    """
    if importlib.util.find_spec("voila") is None:
        raise Unsupported(
            "--serve needs the Python package voila, which is not installed: pip install 'labkit[serve]'"
        )
    port, token = _free_port(wanted_port), secrets.token_urlsafe(24)
    settings: dict[str, Any] = {
        "token": token, "ip": ADDRESS, "port": port, "port_retries": 0, "open_browser": False,
        "autoreload": False, "connection_dir_root": str(folder), "tornado_settings": {"headers": HEADERS},
    }  # fmt: skip
    cell: dict[str, Any] = {
        "cell_type": "code", "id": "panel", "metadata": {}, "source": SOURCE, "outputs": [],
        "execution_count": None,
    }  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "monitor.ipynb").write_text(json.dumps(notebook))
    configuration = {
        "Voila": settings,
        # The page shows no flame graphs. In a clone their extension is a link, which Voilà refuses to serve, with a
        # traceback.
        "VoilaConfiguration": {"extension_denylist": ["labkit"]},
        # The server would drop a file of packets that is larger than what it allows a cell to print.
        "ZMQChannelsWebsocketConnection": {"limit_rate": False},
        # Every user of the machine can connect to the ports of the page's kernels; packets are for the token's owner
        # alone.
        "KernelManager": {"transport_encryption": "required"},
    }
    (folder / "voila.json").write_text(json.dumps(configuration))
    page = msgspec.json.encode(_Page(hub, list(interfaces), dict(choice))).decode()
    environment = {**os.environ, VARIABLE: page, "JUPYTER_CONFIG_PATH": str(folder)}
    # Voilà would read a configuration in the current folder, which is not trusted.
    argv = ["env", "-C", str(folder), *process.python("-m", "voila", "monitor.ipynb")]
    return argv, environment, f"http://{ADDRESS}:{port}/?token={token}"
