"""Reports, read as the text that a browser gets: their content, escaping, and that they fetch nothing."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import synthetic_report
import synthetic_rows
from nbconvert.exporters import MarkdownExporter
from nbformat import v4
from plotly.offline import get_plotlyjs
from synthetic_report import EVIL

from labkit.analysis import displays, figures, report
from labkit.analysis.report import notebook_cells
from labkit.common.errors import BadInput

images = importlib.import_module("labkit.analysis.report.images")  # the package has a function of its name
RUN = {
    "experiment": "datapaths",
    "run": "20261121-091200-ab12",
    "parameters": {
        "topology": ["veth_bridge", "macvlan_bridge"],
        "pairs": [1, 8],
        "note": EVIL,
        "rate_bps": None,
    },
    "seed": 42,
    "created": "2026-11-21T09:12:00Z",
    "finished": "2026-11-21T09:15:00Z",
    "measuring_s": 183.2,
    "why_stopped": {"8": "half-width 1.9 % is below 2 %"},
}
SYSCTLS = {f"net.core.{n}": str(n) for n in range(20)}
ENVIRONMENT = {"kernel": "6.18.5", "accelerator": "kvm", "sysctls": SYSCTLS}


def run_folder(folder: Path, run: dict[str, Any] = RUN, environment: dict[str, Any] = ENVIRONMENT) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def reported(folder: Path, document: nbformat.NotebookNode) -> str:
    """Return the page without plotly.js."""
    nbformat.write(document, folder / "notebook.ipynb")
    page = report.html(folder / "notebook.ipynb", folder / "report.html").read_text()
    assert page.count(get_plotlyjs()) == 1
    return page.replace(get_plotlyjs(), "")


def showing(folder: Path, *bundles: dict[str, Any]) -> str:
    """Return the page of a notebook whose only cell shows these."""
    outputs = [v4.new_output("display_data", data=bundle) for bundle in bundles]
    return reported(folder, v4.new_notebook(cells=[v4.new_code_cell("f", outputs=outputs)]))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = run_folder(tmp_path_factory.mktemp("data") / "run")
    return reported(folder, synthetic_report.notebook(synthetic_report.rows()))


def test_page_has_header_outputs_code_and_provenance(page: str) -> None:
    assert "<title>How do veth and macvlan compare?</title>" in page
    top = page[page.index("<header>") : page.index("</header>")]
    end = page[page.index("<footer>") :]
    shown, _, code = page.partition('<details class="code"><summary>the code of this page</summary>')
    for part, facts in (
        (top, ["<h1>How do veth and macvlan compare?</h1>", "2026-11-21 09:12:00 UTC", "kernel 6.18.5", "kvm"]),
        (shown, ["<strong>question</strong>", 'class="dataframe"', 'src="data:image/png;base64,iVBORw0KGgo="',
                 "<strong>ZeroDivisionError</strong>", "100 %\nred"]),  # of an overwritten line the last state counts
        (code, ["<p>parameters and their defaults</p>", "<p>parameters of this run</p>"]),
        (end, ["Parameters", "veth_bridge, macvlan_bridge", "1, 8", "Provenance", "6.18.5", "net.core.19",
               "half-width 1.9 % is below 2 %", "3 min 3 s"]),
    ):  # fmt: skip
        assert [fact for fact in facts if fact not in part] == []
    assert page.count("<h1>") == 1
    assert "emulated" not in top
    assert "plain table" not in page
    assert code.partition("</details>")[0].count("<pre>") == 4 + len(synthetic_report.FIGURES) + 4
    assert "<details open" not in page
    assert "labkit.open" not in shown
    assert page.count("<pre class=") == 1, "blank output is none"


def test_figures_are_data(page: str) -> None:
    result = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(result) == len(synthetic_report.FIGURES)
    for text in result:
        assert {"data", "layout"} <= json.loads(text).keys()
    assert "big()" not in page
    assert len(page.encode()) < 300_000


def test_page_fetches_and_runs_nothing_of_others(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy[1].startswith("default-src 'none'")
    assert "http" not in policy[1]
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?+(?!data:|#)""", page)
    assert "example.org" not in page
    assert "MathJax" not in page
    assert "require" not in page
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", page)
    scripts = re.findall(r"<script[^>]*>", page)
    assert set(scripts) == {'<script type="application/json">', f'<script nonce="{nonce[1]}">'}
    # This covers parameters, errors, tracebacks, computed prose, standard error, and a figure's data.
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert "red &lt;b&gt;bold&lt;/b&gt;" in page
    assert "\x1b" not in page


def test_figures_cannot_end_their_script_or_upload(tmp_path: Path) -> None:
    evil = f"</script>{EVIL}<!--"
    page = showing(tmp_path, {notebook_cells.PLOTLY: {"data": [], "layout": {"title": {"text": evil}}}})
    [text] = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert json.loads(text)["layout"]["title"]["text"] == evil
    assert "alert" not in page.replace(text, "")
    config = {"plotlyServerURL": "https://example.net", "showSendToCloud": True, "displayModeBar": False}
    page = showing(tmp_path, {notebook_cells.PLOTLY: {"data": [], "layout": {}, "config": config}})
    [text] = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert json.loads(text)["config"] == {"displayModeBar": False}


NAVIGATES = [
    '<meta http-equiv="refresh" content="0;url=https://example.net/">',
    '<META HTTP-EQUIV=refresh CONTENT="0;url=//example.net">',
    '<base href="https://example.net/">',
    '<form action="https://example.net/"><button>send</button></form>',
    '<iframe src="https://example.net/"></iframe>',
    '<object data="https://example.net/"></object>',
    '<embed src="https://example.net/">',
    '<link rel="preconnect" href="https://example.net/">',
    '<svg><use href="https://example.net/a.svg#x"/></svg>',
    '<svg><a xlink:href="javascript:example.net"><text>x</text></a></svg>',
    '<a href="javascript:example.net">x</a>',
    '<a href=" JaVaScRiPt:example.net">x</a>',
    '<a href="data:text/html,example.net">x</a>',
    '<img src="https://example.net/x.png" onerror="example.net">',
    '<p style="background: url(https://example.net/)">x</p>',
    '<style>@import "https://example.net/";</style>',
    '<math><maction actiontype="statusline" xlink:href="javascript:example.net">x</maction></math>',
]


def test_outputs_cannot_navigate(tmp_path: Path) -> None:
    cells = []
    for html in NAVIGATES:
        shown = [v4.new_output("display_data", data={kind: html}) for kind in ("text/html", "text/markdown")]
        cells += [v4.new_code_cell("f", outputs=shown), v4.new_markdown_cell(html)]
    page = reported(tmp_path, v4.new_notebook(cells=cells))
    assert re.findall(r"<[^>]*example\.net[^>]*>", page) == []
    for tag, count in (("meta", 4), ("link", 1), ("base", 0)):  # only those of the page itself
        assert len(re.findall(f"(?i)<{tag}", page)) == count


def test_tables_images_links_and_headings_are_kept(tmp_path: Path) -> None:
    page = showing(tmp_path, {"text/html": (
        '<table border="1" class="dataframe"><tr style="text-align: right;"><td colspan="2"><b>1</b></td></tr></table>'
        '<img src="data:image/png;base64,AAAA"><a href="https://example.net/paper">paper</a>'
    )})  # fmt: skip
    for kept in (
        '<table class="dataframe">', '<tr style="text-align:right">', '<td colspan="2"><b>1</b></td>',
        '<img src="data:image/png;base64,AAAA">', '<a href="https://example.net/paper"',
    ):  # fmt: skip
        assert kept in page
    # A heading of the page and a page elsewhere can be linked. A file beside the notebook is not beside the report.
    words = "[there](#ip_rcv-5-) [paper](https://example.net/paper) [METHOD](../docs/METHOD.md)\n\n### `ip_rcv`: 5 %"
    page = showing(tmp_path, {"text/markdown": words})
    assert re.findall(r'<a href="([^"]+)"', page) == ["#ip_rcv-5-", "https://example.net/paper"]
    assert "METHOD</p>" in page
    assert '<h3 id="ip_rcv-5-">' in page
    # An element with an id is a variable of the page's scripts.
    page = showing(
        tmp_path, {"text/html": '<h2 id="MathJax">a</h2><p id="plotly">b</p><h2 id="found">c</h2>'}
    )
    assert '<h2>a</h2><p>b</p><h2 id="found">c</h2>' in page


@pytest.mark.parametrize("of", [{"accelerator": "tcg"}, {"peer": {"machine": {"accelerator": "tcg"}}}])
def test_emulation_is_in_the_header(tmp_path: Path, of: dict[str, Any]) -> None:
    folder = run_folder(tmp_path / "run", environment=ENVIRONMENT | of)
    assert "<strong>emulated CPU" in reported(folder, v4.new_notebook(cells=[v4.new_markdown_cell("x")]))


def test_kernel_from_rows(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", environment={})
    (folder / "rows").mkdir()
    (folder / "rows" / "1-r0.jsonl").write_text('{"kernel": "6.1.0", "accelerator": "tcg"}\n')
    page = reported(folder, v4.new_notebook())
    assert "kernel 6.1.0" in page
    assert "<strong>emulated CPU" in page


def test_runs_of_one_name_in_two_folders_are_both_there(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / name / "run", RUN | {"seed": seed}) for name, seed in (("a", 41), ("b", 97))
    ]
    page = report.page([v4.new_notebook()], folders, tmp_path / "report.html", "x").read_text()
    for folder, seed in zip(folders, (41, 97), strict=True):
        assert re.search(rf"{folder}\W.*?\b{seed}\b", page, re.DOTALL)


def test_several_notebooks_on_one_page(tmp_path: Path) -> None:
    page = reported(tmp_path, v4.new_notebook(cells=[v4.new_markdown_cell("no heading")]))
    assert "<title>notebook</title>" in page
    assert "parameters and provenance are not known" in page
    paths = [run_folder(tmp_path / name) / "n.ipynb" for name in ("one", "two")]
    for path in paths:
        words = f"# {path.parent.name}\n\nthe {path.parent.name}"
        nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell(words)]), path)
    page = report.html(paths, tmp_path / "report.html").read_text()
    for words in ("<title>one</title>", "the one", '<h1 id="two">two</h1>'):
        assert words in page


@pytest.mark.parametrize(
    "content", [None, "{}", '{"cells": 3, "nbformat": 4}', "\x00", '{"cells": ["x"], "nbformat": 4}']
)
def test_invalid_notebook_is_one_sentence(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x.ipynb").write_text(content)
    with pytest.raises(BadInput, match=r"x\.ipynb"):
        report.html(tmp_path / "x.ipynb", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


# --- images ---


@pytest.mark.long
@pytest.mark.needs("chromium")
def test_images_with_a_browser(tmp_path: Path) -> None:
    nbformat.write(synthetic_report.notebook(synthetic_report.rows(pairs=(1,))), tmp_path / "notebook.ipynb")
    written = report.images(tmp_path / "notebook.ipynb", tmp_path / "figures")
    assert len(written) == 3 * len(synthetic_report.FIGURES)
    name = "01-throughput-of-each-arm"
    assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "macvlan_bridge" in (tmp_path / "figures" / f"{name}.svg").read_text()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {path.name for path in written}


def test_lesser_doubts_are_folded(tmp_path: Path) -> None:
    shown = displays.folded([f"doubt {number} <b>{EVIL}</b>" for number in range(6)]).data
    page = showing(tmp_path, {"text/markdown": shown})
    prose = page[page.index('class="prose"') : page.index("<footer>")]
    first, rest = prose.split("<details><summary>3 lesser doubts</summary>")
    assert re.findall(r"doubt (\d)", first) == ["0", "1", "2"]
    assert "doubt 5" in rest.partition("</details>")[0]
    assert "<b>" not in prose


def general(folder: Path, tags: list[str], **columns: Any) -> str:
    rows = synthetic_rows.rows({"veth": 1.0, "vxlan": 1.5, "veth (again)": 1.0}, **columns)
    synthetic_rows.save(folder, rows, parameters={})
    bundle = {notebook_cells.PLOTLY: {"data": [], "layout": {"title": {"text": "the forest"}}}}
    outputs = [
        v4.new_output("display_data", data=each) for each in (bundle, {"text/markdown": "how to read it"})
    ]
    heading = v4.new_markdown_cell("# Any question\n\nsome prose", metadata={"tags": tags})
    return reported(folder, v4.new_notebook(cells=[heading, v4.new_code_cell("f", outputs=outputs)]))


def test_a_report_asks_what_its_run_asked(tmp_path: Path) -> None:
    page = general(tmp_path / "run", [notebook_cells.GENERAL], protocol="ping")
    assert "<h1>Which is faster for ping (median round-trip time): veth or vxlan?</h1>" in page
    assert "Any question" not in page
    order = [page.index(words) for words in ('class="answer"', "the forest", "how to read it", "some prose")]
    assert order == sorted(order), "the answer, the figure that shows it, and the rest"
    assert "<h1>Any question</h1>" in general(tmp_path / "own", [])


@pytest.mark.long
@pytest.mark.needs("chromium")
def test_figures_have_still_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notebook.ipynb"
    document = synthetic_report.notebook(synthetic_report.rows(pairs=(1,)))
    for output in images._figure_outputs(document):
        output.data.pop("text/html", None)
    nbformat.write(document, path)
    monkeypatch.setattr(images, "STILL_BYTES", 30_000)
    report.add_stills(path)
    shown = [output.data for output in images._figure_outputs(notebook_cells.read(path))]
    assert len(shown) == len(synthetic_report.FIGURES)
    kinds = [kind for data in shown for kind in notebook_cells.STILLS & data.keys()]
    assert len(kinds) == len(shown)
    assert set(kinds) == {"image/svg+xml", "image/png"}, "the latter of a figure whose SVG is too large"
    assert all(len(data.get("image/svg+xml", "")) <= images.STILL_BYTES for data in shown)
    page = report.html(path, tmp_path / "report.html").read_text()
    assert page.count('<noscript><img alt="" src="data:image/') == len(shown)
    assert "need JavaScript" not in page
    text, _ = MarkdownExporter().from_filename(str(path))
    assert text.count("![svg]") + text.count("![png]") == len(shown) + 1, (
        "nbconvert shows them, and a picture"
    )
    monkeypatch.setattr(images, "drawn", None)  # nothing is drawn a second time
    report.add_stills(path)


def test_figures_without_a_browser_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notebook.ipynb"
    nbformat.write(synthetic_report.notebook(synthetic_report.rows(pairs=(1,))), path)
    before = path.read_bytes()
    monkeypatch.setenv("BROWSER_PATH", "/nowhere")
    report.add_stills(path)
    assert path.read_bytes() == before
    assert len(capfd.readouterr().err.splitlines()) == 1
    assert "figures need JavaScript" in report.html(path, tmp_path / "report.html").read_text()


def test_a_sweep_shows_what_is_common_once_and_what_its_file_says(tmp_path: Path) -> None:
    for mtu, share in ((1500, 0.12), (9000, 0.37)):
        others = {"others": [{"name": "cc1", "cpu_share": share}]}
        given = RUN | others | {"parameters": RUN["parameters"] | {"mtu_bytes": mtu}}
        run_folder(tmp_path / f"tcp-{mtu}", given)
    about = {"points": ["tcp-1500", "tcp-9000", "not-yet"], "about": f"Ours. {EVIL}"}
    (tmp_path / "sweep.json").write_text(json.dumps(about))
    page = reported(tmp_path, v4.new_notebook(cells=[v4.new_markdown_cell("# A sweep")]))
    words = " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<footer>") :]).split())
    assert re.search(r"mtu_bytes tcp-1500: 1500 tcp-9000: 9000", words)
    assert words.count("veth_bridge, macvlan_bridge") == 1
    assert "not-yet" not in words
    assert "other programs, at most cc1 37 %" in words
    assert words.count("cc1") == 1
    [about] = re.findall('<p class="about">(.*?)</p>', page)
    assert about.startswith("Ours. ")
    assert EVIL not in about


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "there is no browser"),
        pytest.param("exec sleep 600", "drew no image", marks=pytest.mark.long),
    ],
)
def test_images_without_a_browser(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str | None,
    why: str,
) -> None:
    program = tmp_path / "browser"
    if script:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(program))
    figure = figures.throughput(synthetic_report.rows(pairs=(1,)))
    written = report.images(figure, tmp_path / "figures" / "throughput.v1", deadline_s=1.5)
    assert written == [tmp_path / "figures" / "throughput.v1.html"]
    assert figure.layout.title.text in written[0].read_text()
    assert why in capfd.readouterr().err
