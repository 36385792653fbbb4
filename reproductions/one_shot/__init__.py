"""One-shot images: episodes, training of queries and keys, and removal of heads of trained networks (THEORY section 7)."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bayesattn.models.model import Model
from reproductions.one_shot.episodes import OneShot
from reproductions.one_shot.training import Progress, Training, cached

READY = {
    "one_shot_digits": (OneShot("digits[0-6]", "digits[7-9]", examples=200), Training(steps=1000)),
    "one_shot_omniglot": (
        OneShot("omniglot:images_background_small1", "omniglot:images_background_small2", examples=600),
        Training(steps=8000),
    ),
}
"""Task and training of each network by name; the trained weights of seed 0, of Omniglot 0 to 4, are in `trained`."""


def load(
    name: str,
    *,
    width: int = 10,
    temperature: float = 0.1,
    progress: Callable[[Progress], None] | None = None,
    **task: Any,
) -> Model:
    """Posterior of the values of a network of `READY`, whose queries and keys are trained first where that is not done.

    Args:
        name: name in `READY`.
        width: all widths.
        temperature: T.
        progress: function called with the progress of training.
        task: fields of `OneShot` that replace the network's, such as seed or examples.
    """
    ready, training = READY[name]
    maker = dataclasses.replace(ready, **task)
    if maker.attention is None:
        maker = dataclasses.replace(maker, attention=str(cached(maker, training, progress)))
    depth = len(maker.heads)
    model = Model.from_tokens(maker.dataset(), [width] * (depth + 1), [1.0] * (depth + 2), temperature, name=name)
    return model.replace(task=dataclasses.asdict(maker))
