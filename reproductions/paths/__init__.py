"""Experiments on attention paths (arXiv:2405.15926)."""

from reproductions.experiment import Experiment, Findings, Settings
from reproductions.paths import chains, images, limit, maps, network


def _noise(settings: Settings) -> Findings:
    """Draws at one strength of the noise, and theory at several."""
    drawn, theory = chains.noise(settings), maps.noise_strengths(settings)
    return Findings(drawn.claims + theory.claims, drawn.panels + theory.panels)


EXPERIMENTS: dict[str, Experiment] = {
    "one_shot": Experiment("one-shot images", images.one_shot),
    "network": Experiment("sum over paths, order parameter, kernel and predictor, exactly", network.run),
    "limit": Experiment("fixed load, and widths far above P", limit.run),
    "hidden_markov": Experiment("hidden Markov chains, draws against theory", chains.hidden_markov),
    "noise": Experiment("noisy chains, draws against theory, and theory over noise", _noise),
    "load": Experiment("theory over load and temperature", maps.load),
    "deep": Experiment("three layers of 2, 3 and 1 heads, draws against theory", chains.deep),
}
"""Experiments by the names in the registry's rows, the longest first."""
