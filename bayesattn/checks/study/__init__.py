"""Whole studies, each one call with one result: what `bayesattn validate`, `prune` and `calibrate` do and print.

Each result has a figure, and plain values for JSON.
"""

from bayesattn.checks.study.calibration import CalibrationStudy, calibrate
from bayesattn.checks.study.pruning import PruningStudy, prune
from bayesattn.checks.study.validation import ValidationStudy, validate

__all__ = ["CalibrationStudy", "PruningStudy", "ValidationStudy", "calibrate", "prune", "validate"]
