"""Notebooks: committed with outputs, and executed again in fast mode to the same conclusions."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MOST_BYTES = 2**20
MOST_LINES = 25


def conclusions(notebook):
    """What cells with the tag "conclusion" printed."""
    tagged = [cell for cell in notebook.cells if "conclusion" in cell.metadata.get("tags", [])]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in tagged]


def test_there_are_twelve():
    assert len(NOTEBOOKS) == 12


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_committed_with_outputs(file):
    assert file.stat().st_size < MOST_BYTES
    notebook = nbformat.read(file, 4)
    assert notebook.cells[0].cell_type == "markdown"
    assert all(conclusions(notebook))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count
            assert len(cell.source.splitlines()) <= MOST_LINES
            assert not any(output.output_type == "error" for output in cell.outputs)
            assert "Traceback" not in str(cell.outputs)


@pytest.mark.notebook
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_fast_mode_concludes_the_same(file, monkeypatch):
    monkeypatch.setenv("BAYESATTN_FAST", "1")
    notebook = nbformat.read(file, 4)
    committed = conclusions(notebook)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(file.parent)}}).execute()
    assert conclusions(notebook) == committed
