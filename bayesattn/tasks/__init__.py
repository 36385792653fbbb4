"""What a network learns: each task makes a dataset of token sequences and the heads that attend to them."""

from bayesattn.tasks.dataset import Dataset
from bayesattn.tasks.hidden_markov import HiddenMarkov

__all__ = ["Dataset", "HiddenMarkov"]
