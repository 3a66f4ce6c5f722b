"""A flame graph of thousands of frames in a real browser: in a report (under its policy) and as a page of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import synthetic_profiles as made
from browser import chromium, watched
from nbformat import v4
from sandbox import until

from labkit.analysis import flame, report

pytestmark = pytest.mark.needs("chromium")

PLANTED = "process1;function3_[k];planted_[k];<b>deep</b>"
FRAMES = 5500


@pytest.fixture(scope="module")
def why() -> flame.Difference:
    left = made.arm("veth", 1, frames=FRAMES, samples=100_000)
    return flame.difference(
        left, made.arm("macvlan", 2, frames=FRAMES, samples=100_000, planted={PLANTED: 1e-4})
    )


@pytest.fixture(scope="module")
def pages(why: flame.Difference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write the same two graphs in a report and on pages of their own."""
    folder = tmp_path_factory.mktemp("flames")
    there = [flame.draw_difference(why), flame.graph(why.left)]
    outputs = [v4.new_output("display_data", data=one._repr_mimebundle_()) for one in there]
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell("show", outputs=outputs)]), folder / "n.ipynb")
    return {
        "report": report.html(folder / "n.ipynb", folder / "report.html").as_uri(),
        "own": there[0].write(folder / "own.html").as_uri(),
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as context:
        yield context


@pytest.fixture
def page(browser: Any, pages: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open the page. At the end, check that it made no network request and that its scripts had no error."""
    with watched(browser, pages[getattr(request, "param", "report")]) as page:
        page.wait_for_selector(".labkit-flame svg g")
        yield page


def frame(page: Any, name: str) -> Any:
    """Return the first frame with this label in the first graph."""
    return page.locator(".labkit-flame").first.locator("svg g", has_text=name).first


@pytest.mark.parametrize("page", ["report", "own"], indirect=True)
def test_search_and_zoom(page: Any, why: flame.Difference) -> None:
    graph = page.locator(".labkit-flame").first
    assert len(flame.draw_difference(why).data["name"]) > 5000
    # reddish: more time; grey: no significant difference
    fill = "it => getComputedStyle(it).fill.match(/\\d+/g).map(Number)"
    red, _, blue = frame(page, "planted").locator("rect").evaluate(fill)
    assert red - blue > 100
    red, green, blue = frame(page, "process2").locator("rect").evaluate(fill)
    assert max(red, green, blue) - min(red, green, blue) < 20

    search, result = graph.locator("input"), graph.locator(".bar")
    search.fill("^PLANTED$")
    result.get_by_text("nothing matches").wait_for()
    search.fill("^planted$|deep")
    graph.locator("svg rect[stroke]").first.wait_for()
    table = why.functions(inclusive=True)
    row = table[table["function"] == "planted"].iloc[0]
    share = f"{100 * row['right_s'] / table['right_s'].iloc[-1]:.0f} %"
    assert graph.locator("output").text_content().startswith("2 frames: 0.0 %, 0 ns → " + share)
    search.fill("(")
    result.get_by_text("not a valid regular expression").wait_for()
    search.fill("")
    assert until(lambda: graph.locator("output").text_content() == "", 30)

    all_of_it = frame(page, "all").bounding_box()["width"]
    before = frame(page, "function3").bounding_box()["width"]
    assert before < 0.9 * all_of_it
    frame(page, "planted").click()
    assert frame(page, "planted").bounding_box()["width"] == pytest.approx(all_of_it, rel=0.01)
    assert frame(page, "<b>deep</b>").is_visible(), "its name is shown as it is"
    assert graph.locator("svg b").count() == 0
    page.keyboard.press("Escape")
    assert frame(page, "function3").bounding_box()["width"] == pytest.approx(before, rel=0.01)
    frame(page, "planted").click()
    graph.locator("button", has_text="all").click()
    assert frame(page, "function3").bounding_box()["width"] == pytest.approx(before, rel=0.01)

    graph.locator("select").select_option("left")
    assert graph.locator("svg g", has_text="planted").count() == 0, "the left side has no such function"


def test_hover_and_click_show_both_sides(page: Any) -> None:
    numbers = ("planted", "veth: 0 ns", "macvlan: ", "difference +", "stands out")
    frame(page, "planted").hover()
    tip = page.locator(".labkit-flame .tip").first
    tip.wait_for(state="visible")
    words = tip.text_content()
    assert [part for part in (*numbers, "kernel", "itself ") if part not in words] == []
    frame(page, "planted").click()
    words = page.locator(".labkit-flame .numbers").first.text_content()
    assert [part for part in numbers if part not in words] == []


def test_drawing_time_svg_export_and_narrow_screen(page: Any, tmp_path: Path) -> None:
    """Drawing all frames again takes a fraction of a second. The best of five counts, because other programs may
    run."""
    took = page.evaluate("""() => ['right', 'left', 'right', 'left', 'right'].map(side => {
        const select = document.querySelector('.labkit-flame select'), begun = performance.now();
        select.value = side;
        select.dispatchEvent(new Event('change'));
        document.querySelector('.labkit-flame svg').getBoundingClientRect();
        return performance.now() - begun;
    })""")
    assert min(took) < 2000

    with page.expect_download() as download:
        page.locator(".labkit-flame button", has_text="save").first.click()
    download.value.save_as(tmp_path / "flame.svg")
    saved = (tmp_path / "flame.svg").read_text()
    assert saved.startswith("<svg")
    assert "planted" in saved
    assert "&lt;b&gt;deep" in saved

    graph = page.locator(".labkit-flame svg").first
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    assert until(lambda: graph.evaluate("it => it.viewBox.baseVal.width") < 400, 30)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
