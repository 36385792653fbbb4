"""Experiments on attention paths (arXiv:2405.15926): what is done for the rows of that paper, images aside."""

from bayesattn.papers.experiment import Experiment, Findings, Settings
from bayesattn.papers.paths import chains, limit, maps, network


def _noise(settings: Settings) -> Findings:
    """Draws at one strength of the noise, and theory at several."""
    findings, more = chains.noise(settings), maps.noise_strengths(settings)
    for row, claims in more.claims.items():
        findings.add(row, *claims)
    findings.panels |= more.panels
    return findings


EXPERIMENTS: dict[str, Experiment] = {
    "network": Experiment("sum over paths, order parameter, kernel and predictor, exactly", network.run),
    "limit": Experiment("fixed load, and widths far above P", limit.run),
    "hidden_markov": Experiment("hidden Markov chains, draws against theory", chains.hidden_markov),
    "noise": Experiment("noisy chains, draws against theory, and theory over noise", _noise),
    "load": Experiment("theory over load and temperature", maps.load),
    "deep": Experiment("three layers of 2, 3 and 1 heads, draws against theory", chains.deep),
}
