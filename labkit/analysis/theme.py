"""The appearance of figures: the plotly template `labkit`, which becomes the default when this module is imported.

Figures must be readable on white paper and on a dark screen, and for people with red-green colour blindness. The
background is transparent. The text has a grey with a contrast of 4.5:1 on both white and black (WCAG 2.2, 1.4.3), and
where labkit knows the page, its ink: reports by their own style, notebooks by STYLE, pictures on paper by `on_paper`.
Every colour has 3:1 on both (1.4.11). No arm is identified by colour alone; each has its own symbol and dash. The
colours are those of Okabe and Ito, "Color Universal Design" (2008), darkened where white paper required it. Green and
purple are shifted away from the grey of the baseline as seen with deuteranopia.

External texts (error messages of tools, names of arms) enter a figure through `plain`, because plotly renders a subset
of HTML.
"""

import html
import re
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

GREY = "#767676"
INK, LIGHT_INK = "#1f2328", "#e6e9ec"  # of text on light and on dark pages
TEXTS = ".js-plotly-plot .main-svg text:not(.hoverlayer text, .bartext)"
# The text of figures in JupyterLab and VS Code, whose pages say which theme they have. Bars have colours of their own.
STYLE = f"""<style>
{TEXTS} {{ fill: {INK} !important; }}
:is(body[data-jp-theme-light="false"], .vscode-dark, .vscode-high-contrast) {TEXTS} {{ fill: {LIGHT_INK} !important; }}
</style>"""
_BLUE, _VERMILLION, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#1F9D38", "#BC54BC"
_OCHRE, _SKY, _OLIVE, _BROWN, _VIOLET = "#B98300", "#2F97D3", "#8C8200", "#9A6A3A", "#8A6BBE"
PALETTE = (_BLUE, _VERMILLION, _GREEN, _PURPLE, _OCHRE, _SKY, _OLIVE, _BROWN, _VIOLET)

MARGIN_LEFT_PX, MARGIN_TOP_PX, TITLE_PAD_PX = 65, 95, 14
NOTE_LINE_PX = 16
LEGEND_LINE_PX, LEGEND_ENDS_PX = 20, 12
LEGEND_LETTERS = 24  # of a name in a legend beside the plots; a longer one would leave them no room
LEGEND_BELOW_LETTERS = 78  # of a line of a legend below the plots of a figure 680 px wide
LEGEND_SYMBOL_LETTERS = 7  # as wide as a name's symbol
LONGEST_TEXT = 300  # characters of a text in a figure
_TITLE_LETTERS, TITLE_LINE_PX = 72, 22  # of a 17 px font between the margins of a figure 680 px wide
_SUBTITLE_LETTERS = 96  # the same for the 12 px font of the subtitle
_NOTE_LETTERS = 92  # the same for notes, whose names of arms have wide letters
_NOTE_LINES = 14


@dataclass(frozen=True)
class ArmStyle:
    """The style of an arm in all figures: plotly's colour, marker symbol and line dash."""

    color: str
    symbol: str
    dash: str


BASELINE = ArmStyle(GREY, "square", "solid")
CONTROL = ArmStyle(GREY, "square-open", "dot")

# A topology has the same style in all figures. Families of topologies share a colour as far as possible. No symbol is
# an arrow: plotly draws those with their tips, not their middles, at the value.
ARMS = {
    "loopback": ArmStyle(_OLIVE, "star", "dot"),
    "veth": ArmStyle(_SKY, "triangle-up", "dash"),
    "veth_bridge": ArmStyle(_BROWN, "pentagon", "solid"),
    "veth_routed": ArmStyle(_VIOLET, "triangle-down", "dashdot"),
    "veth_published_proxy": ArmStyle(_VIOLET, "star-triangle-down", "longdash"),
    "veth_published_nat": ArmStyle(_SKY, "diamond-cross", "longdashdot"),
    "veth_redirect": ArmStyle(_OCHRE, "hourglass", "solid"),
    "veth_redirect_peer": ArmStyle(_GREEN, "octagon", "dash"),
    "veth_redirect_neigh": ArmStyle(_BLUE, "star-square", "dashdot"),
    "veth_xdp": ArmStyle(_PURPLE, "triangle-left", "solid"),
    "veth_xdp_generic": ArmStyle(_PURPLE, "triangle-left-open", "dot"),
    "netkit": ArmStyle(_OLIVE, "square-cross", "longdash"),
    "netkit_l3": ArmStyle(_OLIVE, "square-x", "solid"),
    "netkit_l2_redirect": ArmStyle(_VERMILLION, "triangle-nw-open", "dashdot"),
    "netkit_redirect": ArmStyle(_VERMILLION, "triangle-nw", "dash"),
    "netkit_redirect_peer": ArmStyle(_VERMILLION, "triangle-sw", "dot"),
    "pasta": ArmStyle(_BLUE, "circle-cross", "dot"),
    "slirp4netns": ArmStyle(_BROWN, "circle-x", "longdashdot"),
    "pasta_published": ArmStyle(_BLUE, "circle-cross-open", "dashdot"),
    "rootlesskit": ArmStyle(_BROWN, "circle-x-open", "dash"),
    "rootlesskit_builtin": ArmStyle(_SKY, "square-cross-open", "solid"),
    "rootlesskit_slirp4netns": ArmStyle(_BROWN, "square-x-open", "dot"),
    "macvlan_bridge": ArmStyle(_VERMILLION, "diamond", "solid"),
    "macvlan_private": ArmStyle(_BROWN, "diamond-tall", "dot"),
    "macvlan_vepa": ArmStyle(_OCHRE, "diamond-wide", "dash"),
    "macvlan_passthru": ArmStyle(_OLIVE, "hexagon", "dashdot"),
    "ipvlan_l2": ArmStyle(_BLUE, "circle", "solid"),
    "ipvlan_l3": ArmStyle(_PURPLE, "cross", "dash"),
    "ipvlan_l3s": ArmStyle(_GREEN, "x", "dashdot"),
    "vxlan": ArmStyle(_GREEN, "triangle-right", "longdash"),
    "geneve": ArmStyle(_PURPLE, "hexagram", "solid"),
    "gre": ArmStyle(_BLUE, "hexagon2", "dash"),
    "gretap": ArmStyle(_OCHRE, "triangle-se", "dot"),
    "ipip": ArmStyle(_VIOLET, "bowtie", "longdashdot"),
    "vxlan_gre": ArmStyle(_VERMILLION, "star-triangle-up", "dashdot"),
    "wireguard": ArmStyle(_BLUE, "star-open", "solid"),
    "esp_transport": ArmStyle(_OCHRE, "triangle-up-open", "dash"),
    "esp_tunnel": ArmStyle(_VERMILLION, "triangle-down-open", "dot"),
    "macsec": ArmStyle(_GREEN, "hexagon-open", "dashdot"),
    "vxlan_wireguard": ArmStyle(_BLUE, "diamond-x", "longdash"),
    "vxlan_esp_transport": ArmStyle(_OCHRE, "diamond-wide-open", "longdashdot"),
    "vxlan_esp_tunnel": ArmStyle(_VERMILLION, "diamond-tall-open", "longdash"),
    "vxlan_macsec": ArmStyle(_GREEN, "hexagram-open", "longdashdot"),
}
_SYMBOLS = (
    "triangle-ne", "star-diamond", "bowtie-open", "pentagon-open", "star-triangle-up-open", "diamond-cross-open",
)  # fmt: skip
_DASHES = ("dash", "dot", "longdash", "dashdot")

# Styles of kinds of endpoints in figures that compare nothing else, and of published values.
ENDS = {
    "namespace": BASELINE,
    "container": ArmStyle(_BLUE, "diamond", "dash"),
    "guest": ArmStyle(_VERMILLION, "circle", "solid"),
    "shared_guest": ArmStyle(_GREEN, "triangle-up", "longdash"),
}
# Styles of programs that read an interface, in a figure that compares nothing else.
READERS = {
    "socket": ArmStyle(GREY, "square", "dot"),
    "tcpdump": ArmStyle(_OCHRE, "triangle-up", "dash"),
    "dumpcap": ArmStyle(_PURPLE, "diamond", "dashdot"),
    "tshark": ArmStyle(_VERMILLION, "x", "longdash"),
    "monitor": ArmStyle(_BLUE, "circle", "solid"),
    "monitor_sampled": ArmStyle(_SKY, "circle-open", "dot"),
    "monitor_all": ArmStyle(_GREEN, "hexagon", "dash"),
}
PUBLISHED = {
    "symbol": "star-diamond-open", "size": 12, "color": _PURPLE, "line": {"color": _PURPLE, "width": 1.5},
}  # fmt: skip
# Styles of topology drawings: boxes of namespaces and interfaces, and the lines between interfaces.
NAMESPACE = {
    "fillcolor": "rgba(118,118,118,0.05)", "opacity": 1, "line": {"color": "rgba(118,118,118,0.8)", "width": 1},
}  # fmt: skip
INTERFACE = {"fillcolor": "rgba(0,0,0,0)", "opacity": 1, "line": {"color": GREY, "width": 1.2}}
JOINS = {
    "veth": {"color": _BLUE, "dash": "solid", "width": 2},
    "port": {"color": _BROWN, "dash": "dot", "width": 2},
    "lower": {"color": _VERMILLION, "dash": "6px,4px", "width": 2},
    "tunnel": {"color": _GREEN, "dash": "solid", "width": 5},
    "mirror": {"color": _PURPLE, "dash": "dashdot", "width": 2},
    "published": {"color": _PURPLE, "dash": "dot", "width": 2},
    "redirect": {"color": _OCHRE, "dash": "solid", "width": 3},
}

# Colours of packet headers. Opaque pale fills with a border keep dark text readable on white and dark pages.
LAYERS = {
    "Ethernet": GREY, "IP": _BLUE, "UDP": _SKY, "TCP": _BROWN, "GRE": _VERMILLION, "VXLAN": _GREEN, "Geneve": _PURPLE,
    "ICMP": _OCHRE, "ARP": _OLIVE,
}  # fmt: skip
LAYER_TEXT = {"color": "#15181c", "size": 9.5}
SMALL_PX = 11
# Styles of a timeline of probes and of the time of a failure.
BAND = {"fillcolor": GREY, "opacity": 0.22}
ANSWERED = {"color": _BLUE, "symbol": "circle", "size": 4}
LOST = {"color": _VERMILLION, "symbol": "x-thin", "size": 6, "line": {"color": _VERMILLION, "width": 1.2}}


def layer_colors(name: str) -> tuple[str, str]:
    """Return the fill and border colours of a header; payload and unknown headers are paper-coloured."""
    words = [re.sub(r"v?[46]$", "", word) for word in name.split()]
    color = next((LAYERS[word] for word in words if word in LAYERS), None)
    if color is None:
        return "#f2f2f2", GREY
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.3 * (255 - part)):02x}" for part in parts), color


def cell(stands_out: bool) -> dict[str, Any]:
    """Return the shape of a cell of a drawn table, highlighted if `stands_out`."""
    if stands_out:
        line = {"color": _VERMILLION, "width": 2.5}
        return {"fillcolor": "rgba(213,94,0,0.12)", "opacity": 1, "line": line}
    return NAMESPACE


# Frames of flame graphs have their own text colour, so that they are readable on any background.
FRAMES = {
    "kernel": "#E9A368", "module": "#6FC2A6", "user": "#7DB7DD", "process": "#B9BDC2",
    "more": _VERMILLION, "more_faint": "#F6D9C4", "less": _BLUE, "less_faint": "#C9DFF0", "same": "#C4C7CB",
    "hit": "#A0307A",
}  # fmt: skip
FRAME_FONT = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'


def arm_style(name: str, role: str = "variant") -> ArmStyle:
    """Return the style of an arm. `role` is the row's; a baseline and its control are always neutral.

    An unknown name gets a style from its checksum, so it is the same in all figures and runs.
    """
    if role == "control" or name.endswith(" (again)"):
        return CONTROL
    if role == "baseline":
        return BASELINE
    if name in ARMS:
        return ARMS[name]
    # Quotients instead of three remainders of one number: 9 colours and 6 symbols would otherwise give 18 pairs only.
    rest, color = divmod(zlib.crc32(name.encode()), len(PALETTE))
    rest, symbol = divmod(rest, len(_SYMBOLS))
    return ArmStyle(PALETTE[color], _SYMBOLS[symbol], _DASHES[rest % len(_DASHES)])


def nth_style(place: int) -> ArmStyle:
    """Return the style of a line by its place among others, from 0. The first nine colours differ."""
    symbols = ("circle", "diamond", "triangle-up", "x", "star", "hexagon")
    symbol, dash = (some[place % len(some)] for some in (symbols, ("solid", *_DASHES)))
    return ArmStyle(PALETTE[place % len(PALETTE)], symbol, dash)


def arm_order(name: str) -> tuple[int, str]:
    """Return a sort key for arms: the order of the table of styles, then unknown arms by name."""
    known = list(ARMS)
    return (known.index(name) if name in known else len(known), name)


def plain(text: object) -> str:
    """Return `text` so that plotly shows it literally: tags escaped, no line breaks, at most LONGEST_TEXT
    characters."""
    words = " ".join(str(text).split())
    if len(words) > LONGEST_TEXT:
        words = words[: LONGEST_TEXT - 1] + "…"
    return html.escape(words, quote=False)


def folded(text: object, width: int) -> str:
    """Return `plain` text wrapped to lines of at most `width` characters."""
    return "<br>".join(plain(line) for line in textwrap.wrap(str(text), width))


def titled(figure: go.Figure, title: str, subtitle: str = "", emulated: str = "") -> None:
    """Put title and subtitle above the figure. `emulated` is added to the title in brackets (METHOD rule 12)."""
    text = folded(f"{title} ({emulated})" if emulated else title, _TITLE_LETTERS)
    lines = [
        part for line in subtitle.split("<br>") for part in textwrap.wrap(line, _SUBTITLE_LETTERS) or [""]
    ]
    room = NOTE_LINE_PX * (len(lines) - 1 - subtitle.count("<br>")) + TITLE_LINE_PX * text.count("<br>")
    if room:
        top = figure.layout.margin.t
        figure.update_layout(margin_t=(MARGIN_TOP_PX if top is None else top) + room)
        figure.update_layout(height=(figure.layout.height or 450) + room)
    # plotly centres lines of the title around the place of the first one.
    pad = {"t": TITLE_PAD_PX + TITLE_LINE_PX / 2 * text.count("<br>")}
    figure.update_layout(title={"text": text, "pad": pad, "subtitle": {"text": "<br>".join(lines)}})


def add_notes(figure: go.Figure, notes: Sequence[str], below_px: int) -> None:
    """Put sentences (not yet `plain`) under the plots, `below_px` below the lowest axis, and make room for them."""
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_LETTERS)]
    if len(lines) > _NOTE_LINES:
        lines[_NOTE_LINES - 1 :] = ["… and more: see the table of rows."]
    room = below_px + NOTE_LINE_PX * len(lines) + 12
    bottom = figure.layout.margin.b or 0
    figure.update_layout(margin_b=room, height=(figure.layout.height or 450) + room - bottom)
    shift = {"xshift": 10 - (figure.layout.margin.l or MARGIN_LEFT_PX), "yshift": -below_px}
    at = {"xref": "paper", "yref": "paper", "x": 0, "y": 0, "xanchor": "left", "yanchor": "top"}
    if lines:
        text = "<br>".join(plain(line) for line in lines)
        figure.add_annotation(name="notes", text=text, showarrow=False, align="left", **at, **shift)


def legend_below() -> dict[str, Any]:
    """Return a legend in lines at the lower end of the figure. `legend_fits` makes room for it."""
    # plotly scrolls a horizontal legend that is higher than half of the figure, unless it may be as high as all of it.
    return {
        "orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom",
        "maxheight": 1,
    }  # fmt: skip


def legend_fits(figure: go.Figure) -> None:
    """Break long names of the legend, and make the figure high enough for it.

    A legend that does not fit would scroll, and would be cut in images.
    """
    shown = [one for one in figure.data if one.showlegend is not False and one.name]
    if figure.layout.showlegend is False or not shown:
        return
    margin, height = figure.layout.margin, figure.layout.height or 450
    below = figure.layout.legend.orientation == "h"
    for one in shown:
        one.name = wrapped(one.name, LEGEND_BELOW_LETTERS if below else LEGEND_LETTERS)
    if below:
        room = LEGEND_LINE_PX * _lines_below([one.name for one in shown]) + LEGEND_ENDS_PX
        figure.update_layout(height=height + room, margin_b=(margin.b or 0) + room)
    else:
        lines = sum(one.name.count("<br>") + 1 for one in shown)
        plots_px = height - (margin.t or 0) - (margin.b or 0)
        lacks = max(0, LEGEND_LINE_PX * lines + LEGEND_ENDS_PX - plots_px)
        figure.update_layout(height=height + lacks)


def _lines_below(names: list[str]) -> int:
    """Return the number of lines that plotly needs for a legend below the plots."""
    lines, left, high = 0, 0, 0  # before this line; letters that it has left; its own lines of text
    for name in names:
        parts = name.split("<br>")
        letters = max(map(len, parts)) + LEGEND_SYMBOL_LETTERS
        if letters > left:
            lines, left, high = lines + high, LEGEND_BELOW_LETTERS + LEGEND_SYMBOL_LETTERS, 0
        left, high = left - letters, max(high, len(parts))
    return lines + high


def wrapped(name: str, letters: int) -> str:
    """Break a name before `+` and `/` and at spaces into lines of at most this many letters, if its parts let it."""
    lines = [""]
    for part in re.split(r"(?=[+/])|(?<= )", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > letters:
            lines.append(part)
        else:
            lines[-1] += part
    return "<br>".join(line.rstrip() for line in lines)


def explained(figure: go.Figure, text: str) -> go.Figure:
    """Make a figure carry a text that says how to read it, for below the figure."""
    return figure.update_layout(meta={"explained": text})


def explanation(figure: go.Figure) -> str:
    """Return how to read a figure, or an empty text."""
    return str((figure.layout.meta or {}).get("explained", ""))


def add_notes_once(figure: go.Figure, seen: set[str]) -> None:
    """Remove notes that an earlier figure already has, and add this figure's notes to `seen`."""
    for note in [one for one in figure.layout.annotations if one.name == "notes"]:
        if note.text in seen:
            room = NOTE_LINE_PX * (note.text.count("<br>") + 1)
            figure.layout.annotations = [one for one in figure.layout.annotations if one is not note]
            figure.update_layout(margin_b=figure.layout.margin.b - room, height=figure.layout.height - room)
        seen.add(note.text)


def _template() -> go.layout.Template:
    axis = {
        "gridcolor": "rgba(118,118,118,0.22)", "linecolor": GREY, "tickcolor": GREY, "zeroline": False,
        "showline": True, "ticks": "outside", "ticklen": 4, "automargin": True,
        "title": {"standoff": 8, "font": {"size": 13}},
        "exponentformat": "SI",  # By default plotly writes 1e9 as 1B.
    }  # fmt: skip
    layout = {
        "autosize": True,
        "colorway": list(PALETTE),
        "font": {"family": "system-ui, 'Liberation Sans', Arial, 'DejaVu Sans', sans-serif", "size": 13, "color": GREY},
        "title": {
            "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": TITLE_PAD_PX, "l": 10}, "font": {"size": 17}, "subtitle": {"font": {"size": 12.5}},
        },
        "margin": {"l": MARGIN_LEFT_PX, "r": 20, "t": MARGIN_TOP_PX, "b": 55},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": "#20242a", "bordercolor": GREY, "font": {"color": "#f2f2f2"}, "align": "left"},
        "hovermode": "closest",
        # By default it is half opaque, even over a transparent paper: a grey slab on a phone, where nothing hovers.
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": f"{GREY}99", "activecolor": GREY},
        "legend": {
            "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)", "tracegroupgap": 0,
        },
        "annotationdefaults": {"font": {"size": 12.5, "color": GREY}},
        # Figures draw no shapes but bands and rules behind the data.
        "shapedefaults": {"fillcolor": GREY, "opacity": 0.25, "line": {"color": GREY, "width": 0}, "layer": "below"},
        "xaxis": axis,
        "yaxis": axis,
    }  # fmt: skip
    scatter = {"marker": {"size": 8, "line": {"width": 0}}, "line": {"width": 2}}
    scatter["error_y"] = {"thickness": 1.5, "width": 3}
    return go.layout.Template(layout=layout, data={"scatter": [scatter]})


pio.templates["labkit"] = _template()
pio.templates.default = "labkit"
# plotly's own bar of a figure has a button that uploads the figure's data to plotly's cloud.
CONFIG = {"showSendToCloud": False, "displaylogo": False}


def on_paper(figure: go.Figure, ink: str = INK) -> go.Figure:
    """Return a copy of a figure for a picture on white paper: opaque, with text in this colour."""
    copy = go.Figure(figure)
    copy.update_layout(paper_bgcolor="#ffffff", font_color=ink)
    copy.update_layout(template={"layout": {"annotationdefaults": {"font": {"color": ink}}}})
    return copy


def configure_renderers() -> None:
    """Let notebooks show figures with CONFIG, in a kernel also with STYLE.

    Only they pay for it: plotly's renderers import IPython and kaleido.
    """
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    for name in pio.renderers:
        renderer = pio.renderers[name]
        if hasattr(renderer, "config"):
            renderer.config = {**(renderer.config or {}), **CONFIG}
    if hasattr(get_ipython(), "kernel"):
        display({"text/html": STYLE}, raw=True)
