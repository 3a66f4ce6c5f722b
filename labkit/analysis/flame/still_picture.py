"""Draw a flame graph as a still SVG image, for places where no script runs. Frames too narrow to see are left out."""

from __future__ import annotations

import html
from typing import Any

# In pixels: image width, row height, letter width, narrowest frame.
WIDTH, ROW, TEXT, MIN_WIDTH = 900, 17, 6.5, 1.0


def svg(data: dict[str, Any]) -> str:
    """Return the SVG of a flame graph (`Flame.data`). Widths are those of the left side, or the means of both sides."""
    left = data["left"]
    values = [(one + other) / 2 for one, other in zip(left, data.get("right", left), strict=True)]
    scale = WIDTH / values[0] if values[0] else 0.0
    begins: list[float] = []  # x of the next frame, by depth
    shapes, rows = [], 0
    for at, depth in enumerate(data["depth"]):
        width = values[at] * scale
        x = begins[depth] if depth < len(begins) else 0.0
        del begins[depth:]
        begins += [x + width, x]  # the next sibling starts at the frame's end, its first child at its start
        if width < MIN_WIDTH:
            continue
        rows = max(rows, depth + 1)
        name = data["names"][data["name"][at]]
        y = depth * ROW
        place = f'x="{x:.1f}" y="{y}" width="{max(width - 0.6, 0.4):.1f}" height="{ROW - 1}"'
        shapes.append(f'<rect {place} fill="{_color(data, at)}"/>')
        letters = int((width - 6) / TEXT)
        if letters >= 3:
            text = name if len(name) <= letters else f"{name[: letters - 1]}…"
            shapes.append(f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(text)}</text>')
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {rows * ROW}" font-size="11"'
    return f'<svg {head} font-family="{html.escape(data["font"])}">{"".join(shapes)}</svg>'


def _color(data: dict[str, Any], at: int) -> str:
    colors = data["colors"]
    if "right" not in data:
        return str(colors.get(data["kinds"][data["name"][at]], colors["same"]))
    if not data["stands_out"][at]:
        return str(colors["same"])
    return str(colors["more" if data["right"][at] > data["left"][at] else "less"])
