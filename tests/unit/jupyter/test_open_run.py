"""`labkit.open` returns a run as an object that displays its tables and figures."""

import pydoc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic_rows
from conftest import ROOT
from nbconvert.filters import markdown2html
from synthetic_why_run import run as profiled_run

import labkit
from labkit import notebook
from labkit.analysis import displays
from labkit.common.errors import BadInput, Unsupported
from labkit.measure.observers import registry
from labkit.notebook import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    rows = synthetic_rows.rows(whole=2)
    return labkit.open(synthetic_rows.save(tmp_path / "run", rows, experiment="datapaths"))


def test_import_stays_light() -> None:
    """The measuring process imports labkit, so labkit must not import pandas."""
    program = "import labkit, sys; assert 'open' in dir(labkit); sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_rows_display_what_varies(run: Run) -> None:
    html = run.rows._repr_html_()
    assert "throughput_bps [bit/s]" in html
    assert "mtu_bytes</th>" not in html
    assert "mtu_bytes=1500" in html
    assert type(run.rows[run.rows["status"].eq("ok")]) is pd.DataFrame


def test_help_of_along_names_its_choices(run: Run) -> None:
    text = pydoc.plain(pydoc.render_doc(run.figures.along))
    assert "along(name: str, of: str = 'throughput', panel: str | None = None" in " ".join(text.split())
    assert "panel: the parameter whose values stand side by side. colour: the one with a line" in text
    assert run.figures.along("arm").layout.xaxis.ticktext == ("veth_bridge", "macvlan_bridge")


HOSTILE = (
    "<img src=x onerror=alert(1)> <script>alert(2)</script> ![a](http://there/x) [b](javascript:alert(3))"
)


def test_display_of_a_strangers_run_is_inert(tmp_path: Path) -> None:
    """JupyterLab runs scripts in the Markdown output of an executed cell."""
    rows = synthetic_rows.rows(reason=HOSTILE, kernel=HOSTILE, doubts=HOSTILE)
    definitions = ("[c]: javascript:alert(4)", "1) [c]: javascript:alert(4)", "[c\\]d]: javascript:alert(4)")
    why = {"1": "\r\r".join([HOSTILE, *definitions, "[c]", "[x][c]", "![x][c]", "[x][c\\]d]"])}
    run = labkit.open(
        synthetic_rows.save(tmp_path / "run", rows, experiment="datapaths", why_stopped=why, parameters={})
    )
    shown = [run._repr_mimebundle_()["text/markdown"], run.headline().data, run.doubts().data]
    assert "onerror" in shown[0], "its texts are shown"
    for table in (run.rows, run.verdicts):
        assert not re.search(r"<(img|script)\b", table._repr_html_())
    for text in shown:
        page = str(markdown2html(text))
        assert not re.search(r"<(img|script)\b", page), page
        # An address that the reader sees may become a link to it.
        assert all(address == text for address, text in re.findall(r'<a href="(.*?)">(.*?)</a>', page)), page


def test_inert_text_reads_as_before() -> None:
    plain = "p < 0.05, cs1 > cs5, ratio 1.2 [1.1, 1.3]: **faster**, `a<b`"
    assert displays.inert(plain) == plain.replace("a<b", "a&lt;b")
    assert displays.inert(displays.inert(HOSTILE)) == displays.inert(HOSTILE)


def test_verdicts_are_displayed_and_printed_alike(run: Run) -> None:
    [line] = run.verdicts.to_dict("records")
    html = run.verdicts._repr_html_()
    assert f"{line['ratio']:.4g}" in html
    assert "faster" in html
    assert f"| {line['ratio']:.3f} |" in run._repr_mimebundle_()["text/markdown"]
    lines = str(run.verdicts).splitlines()
    heads = "topology baseline protocol pairs mtu_bytes ratio 95 % interval verdict"
    assert lines[1].split() == heads.split()
    assert lines[-1] == f"A DataFrame of {len(run.verdicts.columns)} columns, which .columns names."
    assert "control_low" in run.verdicts, "the data has all columns"
    assert str(run.verdicts[["ratio"]]) == str(pd.DataFrame(run.verdicts)[["ratio"]])


def test_tables_are_readable(run: Run) -> None:
    """A count has no decimals, also beside missing values, and a reason names its point if there are several."""
    rows = displays.Rows.of(run.rows.assign(slice=[None, *([2.0] * (len(run.rows) - 1))]))
    html = rows._repr_html_()
    assert ">2</td>" in html
    assert ">2.0</td>" not in html
    assert ">–</td>" in html
    assert "NA" not in html
    assert 'style="white-space: nowrap"' in html
    verdicts = displays.Verdicts.of(pd.concat([run.verdicts, run.verdicts.assign(pairs=77)]))
    verdicts["word"] = "no evidence"
    verdicts["sentence"] = [f"reason {number}" for number in range(len(verdicts))]
    assert re.search(r"<li>reason \d+ \([^<]*77 pairs[^<]*\)</li>", verdicts._repr_html_())


def test_figures_by_name(run: Run) -> None:
    assert set(run.figures) >= {"forest", "throughput", "slices"}
    assert run.figures.forest is run.figures["forest"]
    assert run.figures.forest.data
    with pytest.raises(AttributeError, match="there is no figure fores: choose forest"):
        _ = run.figures.fores


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what is displayed."""
    result: list[Any] = []
    monkeypatch.setattr(notebook, "display", result.append)
    return result


def test_why_needs_profiles(run: Run) -> None:
    assert "observe=perf_record" in run.profiles._repr_html_()
    for arm in ("macvlan_bridge", ""):
        with pytest.raises(BadInput, match="they were not profiled: measure with observe=perf_record"):
            run.why(arm)


def test_a_run_of_one_arm_has_its_own_flame_graph(
    tmp_path: Path, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled = Run(profiled_run(tmp_path / "run"))
    profiled.profiles = displays.Profiles.of(profiled.profiles[profiled.profiles["role"].eq("baseline")])
    profiled.rows = displays.Rows.of(profiled.rows[profiled.rows["role"].eq("baseline")])
    profiled.causes()
    [graph] = shown
    assert graph.data["title"].startswith("veth_bridge, udp")
    assert graph.data["unit_words"] == "CPU time per packet that arrived"
    flames = profiled.flames()
    monkeypatch.setattr("IPython.display.display", shown.append)
    flames._ipython_display_()
    assert shown[1:] == list(flames)
    assert len(flames) == 1


def test_causes_without_profiles(run: Run, shown: list[Any]) -> None:
    run.causes()
    [line] = shown
    assert "observe=perf_record,counters" in line.data
    run.causes("macvlan_bridge", against="veth_bridge")
    assert len(shown) == 1
    notebook.open_run(ROOT / "data/results/mtu").causes()
    assert "Profiles are not published" in shown[1].data
    assert len(shown) == 2


def test_causes_of_a_published_run(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    published = notebook.open_run(ROOT / "data/results/datapaths_of_today")
    monkeypatch.setattr(published, "why", lambda *sides: sides)
    published.causes()
    assert ("veth_redirect_peer", None) in shown
    shown.clear()
    published.causes("veth_redirect_peer", against="veth_redirect")
    published.causes("veth_redirect_peer", against="netkit")
    assert shown[0].data == "### veth_redirect_peer against veth_redirect"
    assert shown[1:] == [("veth_redirect_peer", "veth_redirect")]


def test_names_of_a_notebook_are_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter's own name wins over the dictionary, because papermill sets names."""
    given: list[Any] = []
    monkeypatch.setattr(notebook, "run_experiment", lambda *words: given.append(words))
    names = {"topology": ["veth"], "slices": 3, "details": {"slices": 12, "seed": 9}, "rows": None}
    notebook.measure("datapaths", names)
    assert given == [("datapaths", {"topology": ["veth"], "slices": 3, "seed": 9}, None)]
    given.clear()
    names = {"topology": ["veth"], "profile": "64b", "folder": "one", "details": {"ramp_s": 9}}
    own = {"stateful_profile": "http_simple", "stateful_folder": "", "stateful_details": {"test_s": 3}}
    notebook.measure("trex_stateful", names | own, "stateful_")
    assert given == [("trex_stateful", {"topology": ["veth"], "profile": "http_simple", "test_s": 3}, None)]


def test_observers_that_cannot_be_used_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_parameters: object) -> None:
        raise Unsupported("no perf here")

    monkeypatch.setitem(
        registry.TABLE.loaded, "perf_record", replace(registry.TABLE["perf_record"], check=refuse)
    )
    assert notebook.possible_observers("perf_record,counters") == ["counters"]
    with pytest.raises(BadInput, match="observe"):
        notebook.possible_observers(["perf"])


def test_report_shows_a_run_whatever_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its notebook may lack parameters that the command line has, and its change may need a permission."""
    about = synthetic_rows.FINISHED | {"parameters": {"streams": 7}, "points": ["1-r0"]}
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows(), **about)
    names = {"folder": str(folder), "topology": ["veth"]}
    with pytest.raises(BadInput, match="holds a run with other parameters"):
        notebook.measure("datapaths", names)
    monkeypatch.setenv("LABKIT_KEEP_FAILED", "1")  # as `labkit report` has it
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress"))
    assert len(notebook.measure("datapaths", names).rows) == 180


def test_points_that_left_a_sweep_are_not_in_its_headline(tmp_path: Path) -> None:
    for name, why in (("tcp", "all 5 rounds were measured"), ("gone", "every interval is narrow")):
        rows = synthetic_rows.rows(run=name)
        synthetic_rows.save(tmp_path / name, rows, why_stopped={"1": why}, parameters={"protocol": "tcp"})
    (tmp_path / "sweep.json").write_text('{"points": ["tcp"]}')
    shown = Run(tmp_path).headline().data
    assert "1 pair: all 5 rounds were measured (tcp)" in shown
    assert "narrow" not in shown
