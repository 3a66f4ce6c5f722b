"""`labkit report`: write the report of a run or a sweep."""

import argparse
import contextlib

from labkit.commands import arguments
from labkit.commands.messages import json_text
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.common.printable import printable
from labkit.runner import sweep
from labkit.runner.progress import Bar

NOTES = """\
`--images` needs the extra labkit[images]. The images are written to figures/RUN of the project.

    labkit report data/datapaths/RUN --images
    labkit report data/datapaths/RUN --images pdf

Plain `jupyter nbconvert --to html` or `--to markdown` shows the figures of a notebook that you
ran as pictures. For GitHub and VS Code, `jupyter nbconvert --to notebook --inplace FILE.ipynb`
adds them to the notebook.

In Python, one figure with a column's width, own names and colours:

    run = labkit.open("data/datapaths/RUN")
    labkit.paper(run.figures.forest, "ratios.pdf", width_cm=8.5, names={"veth_bridge": "bridge"})
"""

PAGE_CM = 17.5  # between the margins of A4

JSON = {"report": "the path of the HTML report", "figures": "with --images, the paths of the images"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    parser.add_argument(
        "--images",
        nargs="?",
        const="png",
        choices=("png", "pdf"),
        help="also write the figures into figures/RUN of the project (needs a browser): as PNG and SVG, or as PDF for a"
        " paper: black on white, 17.5 cm wide, without titles",
    )
    arguments.add_percentile(parser)
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    notebook = given.run / "notebook.ipynb"
    run_folder.check_there(given.run)
    from labkit.analysis import report  # takes seconds, and a wrong name is answered without it

    if given.percentile and (given.run / "sweep.json").exists():
        raise BadInput(
            "--percentile makes the report of a run again, not that of a sweep: use labkit.open(…, percentile=…)"
        )
    with contextlib.ExitStack() as stack:
        if given.percentile:
            # The next report is about the run's own percentile.
            stack.callback(notebook.unlink, missing_ok=True)
        if given.percentile or not notebook.is_file():
            sweep.show(given.run, Bar())
        report.add_stills(notebook)
        page = report.html(notebook, given.run / "report.html")
        figures = run_folder.project_root() / "figures" / given.run.resolve().name
        images = report.images(notebook, figures) if given.images == "png" else []
        if given.images == "pdf":
            each = report.figures_in(notebook, figures).items()
            images = [report.paper(one, path.with_suffix(".pdf"), width_cm=PAGE_CM) for path, one in each]
    if given.json:
        print(json_text({"report": str(page), "figures": list(map(str, images))}))
        return 0
    print(f"report: {printable(run_folder.display_path(page))}")
    for path in images:
        print(f"figure: {printable(run_folder.display_path(path))}")
    return 0
