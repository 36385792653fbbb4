"""Singular learning theory: the learning coefficient, its limit at small T, and the capacity that single heads use."""

from bayesattn.questions.singular.best_fit import BestFit
from bayesattn.questions.singular.coefficient import learning_coefficient
from bayesattn.questions.singular.heads import HeadCapacities, head_capacities, without_head
from bayesattn.questions.singular.law import Law, attention_law, deep_linear_law
from bayesattn.questions.singular.limit import Interval, Limit
from bayesattn.questions.singular.result import Differences, Estimates, LearningCoefficient

__all__ = [
    "BestFit",
    "Differences",
    "Estimates",
    "HeadCapacities",
    "Interval",
    "Law",
    "LearningCoefficient",
    "Limit",
    "attention_law",
    "deep_linear_law",
    "head_capacities",
    "learning_coefficient",
    "without_head",
]
