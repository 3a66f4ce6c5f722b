"""The page of `labkit monitor --serve` in a real browser, while traffic runs."""

from __future__ import annotations

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

from labkit.common import packets

pytestmark = [pytest.mark.needs("chromium", "namespaces", "veth", "bridge", "ping"), pytest.mark.long]
PAGE_S = 60_000  # ms, for a loaded machine


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
