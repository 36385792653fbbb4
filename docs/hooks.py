"""Pages of the site that are made: of notebooks as executed, of commands from their help, of both papers from results."""

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from traitlets.config import Config
from typer.cli import get_docs_for_click
from typer.main import get_command

from bayesattn.jobs.cli import app
from bayesattn.jobs.plots.style import png
from reproductions.figures import figure
from reproductions.page import markdown
from reproductions.stored import file_of, read

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
RESULTS = Path(__file__).parent / "papers"
"""Results of `python -m reproductions`, copied here."""
TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours, and movements of the cursor (ECMA-48)."""
FORMATS = ["image/png", "text/plain"]


def on_files(files: Files, config: Any) -> Files:
    """Adds one page per notebook, with its figures, and the command reference."""
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        for path, content in _notebook(notebook).items():
            files.append(File.generated(config, f"notebooks/{path}", content=content))
    files.append(File.generated(config, "commands.md", content=_commands()))
    for path, content in _papers().items():
        files.append(File.generated(config, path, content=content))
    return files


def _notebook(file: Path) -> dict[str, str | bytes]:
    """A page and its figures by their paths."""
    exporter = MarkdownExporter(config=Config(NbConvertBase={"display_data_priority": FORMATS}))
    names = {"unique_key": file.stem, "output_files_dir": file.stem}
    page, resources = exporter.from_filename(str(file), resources=names)
    page = _answer_first(TERMINAL_CODES.sub("", page), nbformat.read(file, 4))
    return {f"{file.stem}.md": page.replace("![png]", "![figure]"), **resources["outputs"]}


def _answer_first(page: str, notebook: Any) -> str:
    """The page with the figure of the cell that has the tag "answer" under the introduction too."""
    (number,) = (k for k, cell in enumerate(notebook.cells) if "answer" in cell.metadata.get("tags", []))
    figure = re.search(rf"!\[png\]\(\S*_{number}_\d+\.png\)", page)
    introduction = notebook.cells[0].source
    return page.replace(introduction, f"{introduction}\n\n{figure[0]}\n\n*The figure that answers it.*", 1)


def _papers() -> dict[str, str | bytes]:
    """The page of both papers, and a figure of each experiment, by their paths."""
    results, pages, images = read(RESULTS), {}, {}
    for name, result in results.items():
        if (drawn := figure(result)) is not None:
            images[name] = f"papers/{file_of(name)}.png"
            pages[images[name]] = png(drawn, resolution=110)
            plt.close(drawn)
    return pages | {"papers.md": markdown(results, images)}


def _commands() -> str:
    """What `typer utils docs` writes, of commands that are imported when they are called."""
    group: Any = get_command(app)
    context = group.make_context("bayesattn", [], resilient_parsing=True)
    pages = ["# Commands"]
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        page = get_docs_for_click(obj=command, ctx=context, indent=1, name=name, call_prefix="bayesattn")
        pages.append(page.replace("* `--help`: Show this message and exit.\n", ""))
    return "\n\n".join(pages)
