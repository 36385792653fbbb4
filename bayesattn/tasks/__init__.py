"""Tasks: each creates a dataset of token sequences and the heads that attend to them."""

from bayesattn.models.tokens import TokenDataset
from bayesattn.tasks.digits import Digits
from bayesattn.tasks.hidden_markov import HiddenMarkov
from bayesattn.tasks.splice import Splice

Task = Digits | HiddenMarkov | Splice
"""A dataclass of `TASKS`."""
TASKS = {"hidden_markov": HiddenMarkov, "digits": Digits, "splice": Splice}
"""Dataclasses of the tasks by their names in model files; a new one is registered only here, and in `Task`."""

__all__ = ["TASKS", "Digits", "HiddenMarkov", "Splice", "TokenDataset"]
