"""What a network learns: each task makes a dataset of token sequences and the heads that attend to them."""

from bayesattn.tasks.dataset import TokenDataset
from bayesattn.tasks.digits import Digits
from bayesattn.tasks.hidden_markov import HiddenMarkov
from bayesattn.tasks.images import load_images
from bayesattn.tasks.one_shot import OneShot
from bayesattn.tasks.splice import Splice

__all__ = ["Digits", "HiddenMarkov", "OneShot", "Splice", "TokenDataset", "load_images"]
