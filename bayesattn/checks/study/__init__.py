"""Studies behind `bayesattn validate`, `prune` and `calibrate`: one function call runs a study and returns its result.

Each result has a figure and plain values for JSON.
"""

from bayesattn.checks.study.calibration import CalibrationStudy, calibrate
from bayesattn.checks.study.pruning import PruningStudy, prune
from bayesattn.checks.study.validation import ValidationStudy, validate

__all__ = ["CalibrationStudy", "PruningStudy", "ValidationStudy", "calibrate", "prune", "validate"]
