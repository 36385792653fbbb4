"""What a network learns: each task makes a dataset of token sequences and the heads that attend to them."""

from bayesattn.tasks.dataset import Dataset
from bayesattn.tasks.digits import Digits
from bayesattn.tasks.hidden_markov import HiddenMarkov
from bayesattn.tasks.images import load_images
from bayesattn.tasks.one_shot import OneShot
from bayesattn.tasks.splice import Splice

__all__ = ["Dataset", "Digits", "HiddenMarkov", "OneShot", "Splice", "load_images"]
