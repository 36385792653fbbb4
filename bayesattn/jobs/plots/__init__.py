"""Figures of runs, and of theory against draws."""

from bayesattn.jobs.plots.influence import influence_figure
from bayesattn.jobs.plots.questions import calibration_figure, grade_figure, heads_figure, learning_coefficient_figure
from bayesattn.jobs.plots.run import KINDS, run_figure
from bayesattn.jobs.plots.style import literal, save
from bayesattn.jobs.plots.sweep import width_figure
from bayesattn.jobs.plots.validation import validation_figure

__all__ = [
    "KINDS",
    "calibration_figure",
    "grade_figure",
    "heads_figure",
    "influence_figure",
    "learning_coefficient_figure",
    "literal",
    "run_figure",
    "save",
    "validation_figure",
    "width_figure",
]
