"""Studies behind `bayesattn validate`, `prune` and `calibrate`: one function call runs a study and returns its result.

Each result has a figure and plain values for JSON.
"""

from bayesattn.jobs.study.calibration import CalibrationStudy, calibrate
from bayesattn.jobs.study.validation import ValidationStudy, validate

__all__ = ["CalibrationStudy", "ValidationStudy", "calibrate", "validate"]
