"""The page of `labkit monitor --serve` in a real browser, while traffic runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from conftest import ROOT

from labkit import live
from labkit.common import packets
from labkit.jupyter import monitor_hub, monitor_page

pytestmark = [pytest.mark.needs("chromium", "namespaces", "veth", "bridge", "ping"), pytest.mark.long]
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


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address.partition("?")[0], timeout=30).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize(
    "path", ["", "api/kernels", "api/contents", "voila/render/monitor.ipynb", "voila/files/hub"]
)
def test_without_the_token_nothing_answers(address: str, path: str) -> None:
    opener = urllib.request.build_opener(NoRedirect)
    with pytest.raises(urllib.error.HTTPError) as raised:
        opener.open(f"{address.partition('?')[0]}{path}", timeout=60)
    assert raised.value.code in (302, 403, 404)
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
        # A request that the page's policy forbids has no response.
        page.on("response", lambda response: urls.append(response.url))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        counts = page.locator(".labkit-monitor .counts")
        page.wait_for_selector(".labkit-monitor .packets tr")
        assert "dropped 0" in counts.inner_text()
        first = page.locator(".labkit-monitor .packets tr").first
        assert "ICMP echo" in first.inner_text()
        page.get_by_role("button", name="pause").click()
        page.locator(".labkit-monitor .packets tr").first.click()
        detail = page.locator(".labkit-monitor .detail").inner_text()
        assert "Ethernet (14 of 98 bytes)" in detail
        assert re.search(r"^0000  ([0-9a-f]{2} ){16}", detail, re.MULTILINE)
        before = counts.get_attribute("data-selected")
        page.wait_for_function(
            "old => document.querySelector('.labkit-monitor .counts').dataset.selected > Number(old)",
            arg=before,
        )
        page.get_by_role("button", name="go on").click()

        for field, text in (
            ("source", "<img src=x onerror=alert(1)>"),
            ("expression", "$(touch /tmp/x)"),
            ("sample", "some"),
        ):
            entry = page.locator(f".labkit-monitor [name={field}]")
            entry.fill(text)
            page.get_by_role("button", name="apply").click()
            page.wait_for_function(
                "document.querySelector('.labkit-monitor .problem').textContent.length > 0"
            )
            entry.fill("")
        assert page.locator(".labkit-monitor img").count() == 0
        page.locator(".labkit-monitor [name=source]").fill("10.1.0.1")
        page.get_by_role("button", name="apply").click()
        page.wait_for_selector(".labkit-monitor .packets tr")
        assert page.locator(".labkit-monitor .packets tr", has_text="echo reply").count() == 0

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
        frames = packets.read((tmp_path / "saved.pcapng").read_bytes()).frames
        assert frames
        assert {packets.stack(packets.layers(frame.data)) for frame in frames} == {
            "Ethernet / IP 10.1.0.1 > 10.2.0.1 / ICMP echo request"
        }
        page.screenshot(path=str(tmp_path / "page.png"))
        page.close()
    assert not dialogs
    assert [url for url in urls if not url.startswith((here, "data:", "blob:"))] == []


@pytest.mark.alone
def test_page_stays_responsive_at_100_kpps(tmp_path: Path) -> None:
    """Frames of 1,000 flows, without a filter: the page updates several times a second and does what is clicked."""
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
            tmp_path, str(tmp_path / "hub"), ["server0:eth0"], choice, monitor_page.free_port()
        )
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with monitor_hub.Hub(net, ["server0:eth0"], str(tmp_path / "hub")):
            server = subprocess.Popen(argv, env=environment, **quiet)
            try:
                deadline = time.monotonic() + 60
                while not answers(page_address):
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                with chromium(tmp_path / "profile") as browser:
                    page = browser.new_page()
                    page.set_default_timeout(PAGE_S)
                    page.goto(page_address)
                    page.wait_for_selector(".labkit-monitor .packets tr")
                    before = int(page.locator(".labkit-monitor .counts").get_attribute("data-selected"))
                    begun = time.monotonic()
                    watched = page.evaluate(WATCH)
                    passed_s = time.monotonic() - begun
                    after = int(page.locator(".labkit-monitor .counts").get_attribute("data-selected"))
                    begun = time.monotonic()
                    page.get_by_role("button", name="pause").click()
                    page.get_by_role("button", name="go on").click()
                    clicked_s = time.monotonic() - begun
                    page.close()
            finally:
                server.terminate()
                server.wait(30)
        assert sender.is_running
    assert (after - before) / passed_s > 50_000
    assert watched["updates"] / passed_s > 3
    assert sorted(watched["gaps"])[len(watched["gaps"]) // 2] < 100  # ms
    assert clicked_s < 2
