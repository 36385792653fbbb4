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
    "network": Experiment("sum over paths, order parameter, kernel and predictor, exactly", network.run, (0.4, 0.6)),
    "limit": Experiment("fixed load, and widths far above P", limit.run, (0.5, 2.0)),
    "hidden_markov": Experiment("hidden Markov chains, draws against theory", chains.hidden_markov, (0.5, 4.0)),
    "noise": Experiment("noisy chains, draws against theory, and theory over noise", _noise, (0.6, 4.5)),
    "load": Experiment("theory over load and temperature", maps.load, (0.4, 5.0)),
    "deep": Experiment("three layers of 2, 3 and 1 heads, draws against theory", chains.deep, (0.5, 2.5)),
}
