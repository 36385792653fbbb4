"""Both papers, row by row: every figure, claim and equation, what checks it here, what came out, and the verdict."""

from bayesattn.papers.experiment import Experiment
from bayesattn.papers.registry import PAPERS, ROWS, Row
from bayesattn.papers.results import (
    MISSING,
    NOT_REPRODUCED,
    OPEN,
    QUALIFIED,
    REPRODUCED,
    VERDICTS,
    Outcome,
    Stand,
    check,
    chosen,
    experiments,
    outcomes,
)
from bayesattn.papers.stored import code, file_of, folder_of, load, read

__all__ = [
    "MISSING",
    "NOT_REPRODUCED",
    "OPEN",
    "PAPERS",
    "QUALIFIED",
    "REPRODUCED",
    "ROWS",
    "VERDICTS",
    "Experiment",
    "Outcome",
    "Row",
    "Stand",
    "check",
    "chosen",
    "code",
    "experiments",
    "file_of",
    "folder_of",
    "load",
    "outcomes",
    "read",
]
