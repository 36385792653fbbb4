"""What an experiment gets and what it returns, for either paper."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bayesattn import runs
from bayesattn.models import Model
from bayesattn.samplers import sample
from reproductions.claims import Findings


class Settings(NamedTuple):
    """How an experiment is run: the seed of all draws, whether in minutes instead of hours, and a callback for its progress.

    Draws that take long are kept as runs in `folder`, where an interrupted experiment continues them.
    """

    seed: int = 0
    fast: bool = False
    progress: Callable[[str], None] = lambda message: None
    folder: Path | None = None

    def sample(self, model: Model, name: str, **settings: Any) -> Any:
        """Draws of this seed, stored under a name if there is a folder."""
        if self.folder is None:
            return sample(model, seed=self.seed, progress=False, **settings)
        return runs.sample(model, self.folder / name, seed=self.seed, progress=False, **settings).draws()


class Experiment(NamedTuple):
    """What is done for some rows."""

    title: str
    run: Callable[[Settings], Findings]
