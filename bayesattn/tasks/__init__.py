"""What a network learns: each task makes a dataset of token sequences and the heads that attend to them."""

from bayesattn.tasks.dataset import Dataset
from bayesattn.tasks.hidden_markov import HiddenMarkov
from bayesattn.tasks.images import load_images
from bayesattn.tasks.one_shot import OneShot

__all__ = ["Dataset", "HiddenMarkov", "OneShot", "load_images"]
