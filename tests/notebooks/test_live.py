"""Live topologies in a real Jupyter kernel: cells use, draw and interrupt them, and they end with the kernel."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from sandbox import Sandbox, sandbox, until

from labkit.common import packets
from labkit.common.packets import pcapng

pytestmark = pytest.mark.needs("user namespaces", "ping", "ip", "veth", "bridge")
PLOTLY = "application/vnd.plotly.v1+json"
BUILD = 'from labkit import live; net = live.build("veth_bridge", pairs=2)'


class Notebook:
    """A kernel, started as Jupyter starts it, that executes one cell after the other."""

    def __init__(self, client: NotebookClient, machine: Sandbox) -> None:
        self._client, self._machine = client, machine
        self.pid = int(client.km.provisioner.pid)

    def cell(self, source: str) -> list[Any]:
        """Execute a cell and return its outputs. Raises CellExecutionError."""
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        return list(self._client.execute_cell(cell, len(self._client.nb.cells) - 1).outputs)

    def printed(self, source: str) -> str:
        """Return what a cell prints."""
        return "".join(output["text"] for output in self.cell(source) if output["output_type"] == "stream")

    def shown(self, source: str) -> dict[str, Any]:
        """Return the forms in which a cell's last expression is displayed."""
        shown = [output["data"] for output in self.cell(source) if "data" in output]
        return dict(shown[-1])

    def refused(self, source: str) -> str:
        """Return the error of a cell in one line."""
        with pytest.raises(CellExecutionError) as raised:
            self.cell(source)
        return f"{raised.value.ename}: {raised.value.evalue}"

    def running(self, name: str) -> list[int]:
        """Return the processes with this word that the kernel started, in any namespace."""
        return self._machine.pids(lambda words: name in words)


@contextmanager
def started(folder: Path) -> Iterator[Notebook]:
    with sandbox(folder) as machine:
        client = NotebookClient(nbformat.v4.new_notebook(), timeout=120, kernel_name="python3")
        with client.setup_kernel(env=machine.environment, cwd=str(folder)):
            yield Notebook(client, machine)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with started(tmp_path_factory.mktemp("notebook")) as made:
        made.cell(BUILD)
        yield made


def test_programs_run_at_endpoints(notebook: Notebook) -> None:
    printed = notebook.printed('print(net.client1.run("ping", "-c1", net.server1.address))')
    assert "PING 10.2.0.2" in printed
    assert "1 received, 0% packet loss" in printed
    assert "port3@" in notebook.printed('print(net.between.run("ip", "-br", "link"))')
    refused = notebook.refused
    missing = refused('net.client0.run("ls", "/nonesuch")')
    assert missing.startswith("Failed: ls ended with 2: ls: cannot access '/nonesuch'")
    late = refused('net.client0.run("sleep", "300", timeout_s=0.2)')
    assert late == "Failed: sleep did not end in time and was killed"
    assert refused("net.client9").startswith(
        "AttributeError: this topology has no endpoint client9; it has client0, server0"
    )
    assert refused('live.build("vethh")').startswith("BadInput: vethh is not a topology: choose")
    assert refused('live.build("veth", pairs=[1, 2])').startswith(
        "BadInput: pairs=[1, 2]: one topology has one number of pairs"
    )


def test_display_is_the_current_drawing(notebook: Notebook) -> None:
    shown = notebook.shown("net")
    assert shown[PLOTLY]["layout"]["title"]["text"] == "veth_bridge, 2 pairs"
    words = [text for trace in shown[PLOTLY]["data"] if trace["mode"] == "text" for text in trace["text"]]
    assert "eth0<br>10.2.0.2/8" in words
    assert shown["text/plain"].startswith("veth_bridge, 2 pairs, Linux")
    assert "peer client0/eth0; port of bridge" in shown["text/plain"]
    assert "no carrier" not in shown["text/plain"]
    after = notebook.shown('net.between.run("ip", "link", "set", "port0", "down"); net')
    assert "port of bridge; down" in after["text/plain"]
    assert "peer between/port0; no carrier" in after["text/plain"]
    notebook.cell('net.between.run("ip", "link", "set", "port0", "up")')


def test_interrupt_ends_the_program_only(notebook: Notebook) -> None:
    def interrupt() -> None:
        assert until(lambda: notebook.running("sleep"), 60)
        # The kernel leads its process group, and Jupyter interrupts all of it.
        os.killpg(notebook.pid, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    assert notebook.refused('net.client0.run("sleep", "300", timeout_s=300)').startswith("KeyboardInterrupt")
    interrupting.join()
    assert until(lambda: not notebook.running("sleep"), 10)
    assert "1 received" in notebook.printed('print(net.client0.run("ping", "-c1", net.server0.address))')
    assert notebook.shown("net.state.topology")["text/plain"] == "'veth_bridge'"


def test_capture_as_table_rows(notebook: Notebook, tmp_path: Path) -> None:
    ping = 'net.client0.run("ping", "-c2", "-i0.1", net.server0.address)'
    notebook.cell(f"import pandas as pd\nwith net.capture() as seen:\n    {ping}")
    printed = notebook.printed(
        "table = pd.DataFrame(seen.packets)\n"
        "for packet, rows in table.groupby('packet'):\n"
        "    print(rows.what.iloc[0], *rows.hop, rows['stack'].nunique(), (rows.time_s.diff().dropna() > 0).all())"
    )
    times = notebook.printed(
        "first = table[table.what.str.contains(' echo ')].groupby('packet').first()\n"
        "print(first.what.str.split().str[-1].tolist(), first.time_ns.is_monotonic_increasing,"
        " (first.time_ns.diff().dropna() > 0).all(), first.time_ns.iloc[0] > 1.7e18)"
    )
    assert times == "['request', 'reply', 'request', 'reply'] True True True\n"
    way = ["client0:eth0", "between:port0", "between:port1", "server0:eth0"]
    lines = [line for line in printed.splitlines() if " echo " in line]
    assert lines == [
        f"client0 > server0 echo request {' '.join(way)} 1 True",
        f"server0 > client0 echo reply {' '.join(way[::-1])} 1 True",
    ] * 2  # fmt: skip
    assert "server0:eth0 " in notebook.shown("seen")["text/plain"]
    notebook.cell(f"seen.save({str(tmp_path / 'seen.pcapng')!r})")
    recorded = pcapng.read((tmp_path / "seen.pcapng").read_bytes())
    pings = [frame for frame in recorded.frames if packets.layers(frame.data)[-1].name == "icmp"]
    assert (len(pings), recorded.is_whole) == (16, True)
    notebook.cell(
        f"with net.capture('client0:eth0') as one, net.capture('server0:eth0') as other:\n    {ping}"
    )
    count = "sum(' echo ' in each['what'] for each in {}.packets)".format
    assert notebook.printed(f"print({count('one')}, {count('other')}, one.doubt)") == "4 4 None\n"
    refused = notebook.refused
    place = refused("with net.capture('client9:eth0'): pass")
    assert place.startswith(
        "BadInput: 'client9:eth0' is not a capture point: write NAMESPACE:INTERFACE, with a namespace of client0,"
    )
    assert refused("with net.capture(): net.client0.run('false')") == "Failed: false ended with 1"


def test_second_topology_in_a_block(notebook: Notebook) -> None:
    before = len(notebook.running("labkit.measure.agent.main"))
    source = 'with live.build("veth", family=6) as other:\n    print(other.client0.run("ip", "-br", "addr"), other)'
    printed = notebook.printed(source)
    assert "fd00::1:1/64" in printed
    assert "veth, 1 pair, Linux" in printed
    assert until(lambda: len(notebook.running("labkit.measure.agent.main")) == before, 10)
    assert notebook.shown("other")["text/plain"] == "veth, closed"
    assert (
        notebook.refused('other.client0.run("true")') == "Failed: the topology veth is closed: build it again"
    )


def test_killed_topology_is_reported(notebook: Notebook) -> None:
    notebook.cell('lost = live.build("veth")')
    os.kill(max(notebook.running("labkit.measure.agent.main")), signal.SIGKILL)
    with pytest.raises(
        CellExecutionError, match="the topology's process was killed by signal 9; build the topology again"
    ):
        notebook.cell("lost.state")
    assert notebook.shown("lost")["text/plain"] == "veth, closed"


def test_topology_ends_with_the_kernel(tmp_path: Path) -> None:
    with started(tmp_path) as notebook:
        notebook.cell(BUILD)
        notebook.cell('net.client0.run("sh", "-c", "sleep 300 &")')
        assert until(lambda: bool(notebook.running("sleep")), 10)  # the shell ends before sleep begins
        os.kill(notebook.pid, signal.SIGKILL)
        assert until(
            lambda: not notebook.running("labkit.measure.agent.main") + notebook.running("sleep"), 20
        )


def test_concurrent_threads(notebook: Notebook) -> None:
    """A thread that waited for a program used to block the others, whatever their timeout_s."""
    printed = notebook.printed(
        "import time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "begun = time.monotonic()\n"
        "def late():\n"
        "    try:\n"
        '        net.client0.run("sleep", "60", timeout_s=2)\n'
        "    except Exception as error:\n"
        "        return str(error)\n"
        "with ThreadPoolExecutor() as pool:\n"
        '    found = list(pool.map(lambda n: net.client0.run("echo", str(n)).strip(), range(40)))\n'
        "    waiting = pool.submit(late)\n"
        "    assert net.state.topology\n"
        "    print(found == [str(n) for n in range(40)], waiting.result(), time.monotonic() - begun < 30)\n"
    )
    assert printed == "True sleep did not end in time and was killed True\n"


def test_background_program(notebook: Notebook) -> None:
    printed = notebook.printed(
        'server = net.server0.start("sh", "-c", "echo ready; exec sleep 600")\n'
        "while not server.output:\n"
        "    pass\n"
        'print(net.client0.run("echo", "meanwhile").strip(), server.is_running)\n'
        "print(server.stop().strip(), server.is_running)\n"
    )
    assert printed == "meanwhile True\nready False\n"
    assert notebook.refused('net.client0.start("sleep", "9").wait(timeout_s=0.1)').startswith(
        "Failed: sleep still runs after 0.1 s"
    )
