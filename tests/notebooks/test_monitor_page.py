"""The page of `labkit monitor --serve` in a real browser, while traffic runs."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from conftest import ROOT
from example_frames import ip
from sandbox import MARK, marked, until

from labkit import live
from labkit.common import packets
from labkit.common.packets import pcapng
from labkit.jupyter import monitor_hub, monitor_page
from labkit.system import machine

pytestmark = pytest.mark.needs("chromium", "namespaces", "veth", "bridge", "ping")
PAGE_S = 60_000  # ms, for a loaded machine


SEND = """
import sys
from labkit.measure.traffic.packet_sender import FrameAddresses, Mix, Sender
Sender(FrameAddresses("eth0", *sys.argv[1:5]), Mix((64,), 1000)).send(100_000, 60)
"""
# The time between two frames of the page, and how often the counts change meanwhile.
WATCH = """
() => new Promise((done) => {
  const gaps = [], counts = document.querySelector(".labkit-monitor .counts");
  let last = performance.now(), updates = 0;
  const begun = last, seen = new MutationObserver(() => updates++);
  seen.observe(counts, { childList: true });
  const step = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - begun < 4000) requestAnimationFrame(step);
    else done({ gaps, updates });
  };
  requestAnimationFrame(step);
})
"""


# How many points of the line of the first class each chart has; its legend is above.
DRAWN = """
() => [...document.querySelectorAll(".labkit-monitor canvas")].map((canvas) => {
  const top = 24 * devicePixelRatio;
  const { data } = canvas.getContext("2d").getImageData(0, top, canvas.width, canvas.height - top);
  let count = 0;
  for (let at = 0; at < data.length; at += 4)
    count += data[at] < 60 && data[at + 1] > 80 && data[at + 2] > 150 && data[at + 3] > 200;
  return count;
})
"""
# The texts in the charts of a widget that gets two reports about nine classes, each with more than the one before.
LEGENDS = """
async (source) => {
  const { default: widget } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
  const texts = new Set(), handlers = {};
  CanvasRenderingContext2D.prototype.fillText = (text) => texts.add(text);
  const known = { interfaces: ["eth0"], choice: {}, is_page: true };
  const model = { get: (name) => known[name], on: (what, act) => { handlers[what] = act; }, send: () => {} };
  widget.render({ model, el: document.body });
  for (const time_s of [1, 2]) {
    const each = [...Array(9).keys()].map((at) => [`class ${at}`, [time_s * at, time_s * at]]);
    const classes = Object.fromEntries(each);
    handlers["msg:custom"]({
      do: "report", time_s, classes, counts: { selected_count: 1 }, packets: [], talkers: [], conversations: [],
    });
    await new Promise((done) => setTimeout(done, 200));
  }
  return [...texts].filter((text) => text.includes("class"));
}
"""
ROWS = "document.querySelector('.labkit-monitor .packets tbody').innerText"
# What a page with the token may still not do: let the kernel execute code, or start another kernel.
EXECUTE = """
([url, code]) => new Promise((done, fail) => {
  const replies = [], socket = new WebSocket(url);
  const send = (kind, content) => socket.send(JSON.stringify({
    header: {
      msg_id: kind, msg_type: kind, username: "", session: "test", version: "5.3", date: new Date().toISOString(),
    },
    parent_header: {}, metadata: {}, content, channel: "shell", buffers: [],
  }));
  socket.onmessage = ({ data }) => {
    const { msg_type, parent_header } = JSON.parse(data);
    if (parent_header.session !== "test") return;
    if (msg_type.endsWith("_reply")) replies.push(msg_type);
    if (msg_type !== "kernel_info_reply") return;
    socket.close();
    done(replies);
  };
  socket.onerror = fail;
  socket.onopen = () => {
    send("execute_request", { code, silent: false, store_history: false, user_expressions: {}, allow_stdin: false });
    send("kernel_info_request", {});
  };
})
"""
OTHER_INTERFACE = """
name => document.querySelector(".labkit-monitor select").append(new Option(name, name))
"""
NEW_KERNEL = """
async () => (await fetch("api/kernels", { method: "POST", body: "{}" })).status
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    argv = [sys.executable, "-P", "-m", "labkit.cli", "monitor", "veth_bridge", "--serve", "--ping"]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        running = subprocess.Popen(argv, stdout=out, stderr=err)
        try:
            deadline = time.monotonic() + 60
            while not (there := re.search(r"page: (\S+)", (folder / "out").read_text())) or not answers(
                there[1]
            ):
                assert running.poll() is None, (folder / "err").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield there[1]
        finally:
            running.terminate()
            running.wait(30)
    assert "Traceback" not in (folder / "err").read_text()


@contextlib.contextmanager
def serving(folder: Path, *prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a page that keeps its files in `folder`."""
    folder.chmod(0o700)
    argv = [*prefix, sys.executable, "-P", "-m", "labkit.cli", "monitor", "veth_bridge", "--serve"]
    environment = {**os.environ, MARK: str(folder), "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=quiet, env=environment) as running:
        try:
            yield running
        finally:
            running.kill()


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(("voila_", "labkit-page-"))]


def test_charts_name_the_classes_that_share_a_colour(tmp_path: Path) -> None:
    with chromium(tmp_path / "browser") as browser:
        legends = browser.new_page().evaluate(LEGENDS, (ROOT / "labkit/jupyter/monitor_panel.js").read_text())
    assert legends == [*(f"class {at}" for at in (8, 7, 6, 5, 4, 3)), "3 other classes"]


NOHUP = ("env", "--ignore-signal=HUP")


@pytest.mark.parametrize(
    ("prefix", "numbers"),
    [((), (signal.SIGINT,)), ((), (signal.SIGHUP, signal.SIGTERM)), (NOHUP, (signal.SIGHUP, signal.SIGTERM))],
)
def test_page_leaves_no_file(prefix: Sequence[str], numbers: Sequence[int], tmp_path: Path) -> None:
    """Connection files, the notebook and the hub's socket go with the command, however it is asked to end.

    A closing terminal sends a second signal while the first one is obeyed. The kernel of the page has just been
    started: it would make the folder of its connection file again. Under nohup(1), the page survives its terminal.
    """
    with serving(tmp_path, *prefix) as running:
        assert running.stdout is not None
        address = running.stdout.readline().decode().removeprefix("page: ").strip()
        urllib.request.urlopen(address, timeout=60).close()  # it answers at once
        for number in numbers:
            running.send_signal(number)
            time.sleep(0.002)
            assert not prefix or number != signal.SIGHUP or answers(address)
        running.wait(30)
        assert (left(tmp_path), marked(str(tmp_path))) == ([], {})


def test_page_that_ends_before_it_answers_leaves_no_file(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        while not left(tmp_path):
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        running.wait(30)
    assert left(tmp_path) == []


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address.partition("?")[0], timeout=30).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def refused(page: Any, field: str, text: str) -> None:
    """Give a field a text that is not possible, and see that the page says so."""
    entry = page.locator(f".labkit-monitor [name={field}]")
    usual = entry.input_value()
    fill = entry.select_option if field == "interface" else entry.fill
    fill(text)
    page.get_by_role("button", name="apply").click()
    page.wait_for_function("document.querySelector('.labkit-monitor .problem').textContent.length > 0")
    fill(usual)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def test_without_the_token_nothing_answers(address: str) -> None:
    opener = urllib.request.build_opener(NoRedirect)
    for path in ("", "api/kernels", "api/contents", "voila/render/monitor.ipynb", "voila/files/hub"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            opener.open(f"{address.partition('?')[0]}{path}", timeout=60)
        assert raised.value.code in (302, 403, 404), path
        raised.value.close()


def test_no_other_page_may_frame_it(address: str) -> None:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"].split("; ")


def test_used_in_a_browser(address: str, tmp_path: Path) -> None:
    here = address.partition("?")[0]
    with chromium(tmp_path / "profile") as browser:
        page = browser.new_page()
        page.set_default_timeout(PAGE_S)
        urls: list[str] = []
        dialogs: list[str] = []
        sockets: list[str] = []
        page.on("websocket", lambda one: sockets.append(one.url))
        # A request that the page's policy forbids has no response.
        page.on("response", lambda response: urls.append(response.url))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        counts = page.locator(".labkit-monitor .counts")
        page.wait_for_selector(".labkit-monitor .packets tbody tr")
        assert "dropped 0" in counts.inner_text()
        first = page.locator(".labkit-monitor .packets tbody tr").first
        assert "ICMP echo" in first.inner_text()
        page.wait_for_function(f"({DRAWN})().every((count) => count > 20)")
        page.wait_for_function(
            "/icmp.*10\\.1\\.0\\.1.*10\\.2\\.0\\.1/.test(document.querySelector('.conversations').innerText)"
        )
        page.get_by_role("button", name="pause").click()
        shown = page.evaluate(ROWS)
        page.locator(".labkit-monitor .packets tbody tr").first.click()
        detail = page.locator(".labkit-monitor .detail").inner_text()
        assert "Ethernet (14 of 98 bytes)" in detail
        assert re.search(r"^0000  ([0-9a-f]{2} ){16}", detail, re.MULTILINE)
        before = counts.get_attribute("data-selected")
        page.wait_for_function(
            "old => document.querySelector('.labkit-monitor .counts').dataset.selected > Number(old) + 60",
            arg=before,
        )
        assert page.evaluate(ROWS) == shown, "the table goes on in a pause"
        page.get_by_role("button", name="go on").click()
        page.wait_for_function(f"old => {ROWS} !== old", arg=shown)

        file = tmp_path / "executed"
        fields = page.locator(".labkit-monitor input").evaluate_all("all => all.map((one) => one.name)")
        assert {"source", "port", "expression", "display", "fields", "sample"} <= set(fields)
        page.evaluate(OTHER_INTERFACE, f"$(touch {file})")
        refused(page, "interface", f"$(touch {file})")
        page.wait_for_function(
            "old => document.querySelector('.labkit-monitor .counts').dataset.selected !== old",
            arg=counts.get_attribute("data-selected"),
        )
        assert "choose one of them" in page.locator(".labkit-monitor .problem").inner_text(), (
            "a report hides it"
        )
        refused(page, "source", "<img src=x onerror=alert(1)>")
        for field in fields:
            refused(page, field, f"$(touch {file})")
        assert page.locator(".labkit-monitor img").count() == 0
        kernel = next(
            re.sub("session_id=[^&]*", "session_id=test", url) for url in sockets if "/channels" in url
        )
        code = f"open({str(file)!r}, 'w').close()"
        assert page.evaluate(EXECUTE, [kernel, code]) == ["kernel_info_reply"]
        assert page.evaluate(NEW_KERNEL) in (403, 404, 405)
        assert not file.exists()
        page.locator(".labkit-monitor [name=source]").fill("10.1.0.1")
        page.get_by_role("button", name="apply").click()
        page.wait_for_selector(".labkit-monitor .packets tbody tr")
        assert page.locator(".labkit-monitor .packets tbody tr", has_text="echo reply").count() == 0

        hosts = page.locator(".labkit-monitor .talkers").inner_text()
        assert "top talkers" in hosts
        assert "10.1.0.1" in hosts
        row = "Number(document.querySelector('.labkit-monitor .talkers td.number')?.textContent)"
        page.wait_for_function(f"{row} > 200")
        page.get_by_role("button", name="clear").click()
        page.wait_for_function(f"{row} < 200")  # totals only grow, and an empty table has no number

        with page.expect_download() as download:
            page.get_by_role("button", name="save pcapng").click()
        download.value.save_as(tmp_path / "saved.pcapng")
        frames = pcapng.read((tmp_path / "saved.pcapng").read_bytes()).frames
        assert frames
        assert {packets.stack(packets.layers(frame.data)) for frame in frames} == {
            "Ethernet / IP 10.1.0.1 > 10.2.0.1 / ICMP echo request"
        }
        page.set_viewport_size({"width": 700, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 700
        page.close()
    assert not dialogs
    assert [url for url in urls if not url.startswith((here, "data:", "blob:"))] == []


# A browser slows down the timers of a page that nobody has seen for some minutes; here there is no such timer at all.
NO_BEAT = """
const real = window.setInterval;
window.setInterval = (act, ms, ...more) => (ms === 1000 ? 0 : real(act, ms, ...more));
"""
SEND_FRAME = """
import socket, sys
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
end.bind(("eth0", 0))
end.send(bytes.fromhex(sys.argv[1]))
"""
SCRIPT = b"<script>alert(1)</script><img src=x onerror=alert(2)>"


@contextlib.contextmanager
def stopped_browser() -> Iterator[None]:
    """Stop all processes of the browser that this process started, during the block."""
    pids = []
    for pid in machine.descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().strip() == "chromium":
                pids.append(pid)
    assert pids
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.alone
def test_pages_at_100_kpps_share_a_capture_while_they_read(tmp_path: Path) -> None:
    """Frames of 1,000 flows, without a filter: the page updates several times a second and does what is clicked.

    A second page shares the capture. It ends when a browser stops reading and when the last page leaves.
    """
    with live.build("veth") as net:
        macs = [
            json.loads(end.run("ip", "-j", "link", "show", "eth0"))[0]["address"]
            for end in (net.client0, net.server0)
        ]
        # The server drops what is not for its address.
        wire = (*macs, net.client0.address, "10.99.0.1")
        sender = net.client0.start("env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-c", SEND, *wire)
        choice = {"interface": "server0:eth0"}
        argv, environment, page_address = monitor_page.prepared(
            tmp_path, str(tmp_path / "hub"), ["server0:eth0"], choice, None
        )
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        dialogs: list[str] = []
        beats: list[str | bytes] = []
        with monitor_hub.Hub(net, ["server0:eth0"], str(tmp_path / "hub")) as hub:
            server = subprocess.Popen(argv, env=environment, **quiet)
            try:
                assert until(lambda: server.poll() is not None or answers(page_address), 60, 0.2)
                assert server.poll() is None
                with chromium(tmp_path / "profile") as browser:
                    browser.set_default_timeout(PAGE_S)
                    page = browser.new_page()
                    page.add_init_script(NO_BEAT)
                    page.on("websocket", lambda one: one.on("framesent", lambda text: beats.append(text)))
                    page.goto(page_address)
                    page.wait_for_selector(".labkit-monitor .packets tbody tr")
                    before = int(page.locator(".labkit-monitor .counts").get_attribute("data-selected"))
                    begun, times = time.monotonic(), machine.cpu_times()
                    watched = page.evaluate(WATCH)
                    passed_s = time.monotonic() - begun
                    after = int(page.locator(".labkit-monitor .counts").get_attribute("data-selected"))
                    begun = time.monotonic()
                    page.get_by_role("button", name="pause").click()
                    page.get_by_role("button", name="go on").click()
                    clicked_s = time.monotonic() - begun
                    taken_s = (machine.cpu_times() - times).steal_s
                    assert sender.is_running
                    sender.stop()

                    other = browser.new_page()
                    other.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
                    other.goto(page_address)
                    first = other.locator(".labkit-monitor .packets tbody tr").first
                    first.wait_for()
                    assert hub.captures_count == 1
                    page.goto("about:blank")  # it leaves, and the other one goes on
                    frame = bytes.fromhex("ffffffffffff 020000000001 0800")
                    frame += ip(SCRIPT, "10.9.0.1 > 10.9.0.2", 253)
                    net.client0.run(sys.executable, "-P", "-c", SEND_FRAME, frame.hex())
                    row = other.locator(".labkit-monitor .packets tbody tr", has_text="10.9.0.1 > 10.9.0.2")
                    row.click()
                    assert "<script>" in other.locator(".labkit-monitor .detail").inner_text()
                    assert other.locator(".labkit-monitor img").count() == 0
                    assert hub.captures_count == 1
                    with stopped_browser():
                        assert until(lambda: hub.captures_count == 0, 60)
                    assert until(lambda: hub.captures_count == 1, 60)  # it reads again
                    other.goto("about:blank")
                    assert until(lambda: hub.captures_count == 0, 60)
            finally:
                server.terminate()
                server.wait(30)
    assert sum(b'"alive"' in (one.encode() if isinstance(one, str) else one) for one in beats) >= 3
    assert not dialogs
    assert after > before
    if not machine.stolen(taken_s, passed_s + clicked_s):  # the hypervisor left it the CPUs
        assert (after - before) / passed_s > 50_000
        assert watched["updates"] / passed_s > 3
        assert sorted(watched["gaps"])[len(watched["gaps"]) // 2] < 100  # ms
        assert clicked_s < 2
