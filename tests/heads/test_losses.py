"""What is lost without heads: against prior draws, the limit of infinite width, and removal by trying all."""

import dataclasses
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import bayesattn as ba
from bayesattn.errors import BayesattnError
from bayesattn.questions.heads import losses
from bayesattn.questions.heads.bridge import bridge, chained, rhat
from bayesattn.questions.heads.fit import at_saddle_point, without_paths
from bayesattn.questions.heads.losses import Losses, predicted_losses
from bayesattn.questions.heads.units import units_of
from bayesattn.questions.singular import without_head
from bayesattn.samplers.smc import anneal
from bayesattn.theory.importance import Evidence
from bayesattn.theory.mode import FlatMode, find_mode
from tests.conftest import model_of
from tests.heads.networks import drawn, two_layers
from tests.posteriors import by_prior_draws, evidence_of, two_modes, weighed_mean
from tests.statistics import agree, likely, near

MAILS = Path(__file__).parents[2] / "notebooks" / "mails.npz"
TEMPERATURE = 0.3


def halves(inputs, labels, examples, arch):
    """So many examples to train with; the others are to test."""
    tests = {"test_path_inputs": inputs[examples:], "test_labels": labels[examples:]}
    return model_of(inputs[:examples], labels[:examples], arch, TEMPERATURE, **tests)


@pytest.fixture(scope="module")
def model():
    """One layer of three heads, of which the labels follow the first most."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(212, 3, 3))
    outputs = inputs[:, 0, 0] + 0.7 * inputs[:, 1, 1]
    labels = np.sign(outputs + 0.3 * rng.normal(size=212))
    return halves(inputs, labels, 12, ba.Architecture((3,), (6, 6), (1.0, 1.0, 1.0)))


JOB = {"sampler": "nuts", "warmup": 200, "keep": ("order_parameter",), "progress": False}
"""As of the chains that `head_losses` draws, in one program with them."""
BRIDGE_DEGREES = 50
"""Degrees of freedom of errors of evidence lost, which are those of some 500 effective draws."""


@pytest.fixture(scope="module")
def draws(model):
    return ba.sample(model, draws=500, **JOB)


@pytest.fixture(scope="module")
def exact(model):
    """The network and those without a head, with prior draws of U."""
    networks = [model, *(without_head(model, 1, head) for head in range(3))]
    return [(each, *by_prior_draws(each, 40_000, seed)) for seed, each in enumerate(networks)]


def test_evidence_lost_is_that_of_prior_draws(exact, draws):
    whole, *rests = (evidence_of(log_likelihoods) for *_, log_likelihoods in exact)
    found = ba.head_losses(draws)
    lost, error = np.array([(whole[0] - rest[0], np.hypot(whole[1], rest[1])) for rest in rests]).T
    near(found.evidence, lost, np.hypot(error, found.evidence_error), BRIDGE_DEGREES, finds=0.55)
    assert np.all(found.rhat < 1.05)
    assert [*found.summary().index] == [(1, "1"), (1, "2"), (1, "3")]


@pytest.mark.heavy
@pytest.mark.parametrize(("width", "skips", "outputs"), [(5, (), 1), (4, (0.8, 0.5), 1), (1, (0.8, 0.5), 2)])
def test_evidence_lost_is_that_of_sequential_monte_carlo(width, skips, outputs):
    """Log evidences of the whole network and of a smaller one, each by particles that move from its prior."""
    model = two_layers(width, skips, outputs)
    found = ba.head_losses(ba.sample(model, warmup=400, draws=1000, progress=False), length=400)
    particles = {"islands": 32, "particles": 512}
    whole = anneal(model, **particles)
    for number, (layer, head) in enumerate(found.names):
        rest = anneal(without_head(model, layer, int(head) - 1), **particles, seed=1)
        error = np.linalg.norm([whole.error, rest.error, found.evidence_error[number]])
        degrees = len(whole.islands) + len(rest.islands) - 2
        near(found.evidence[number], whole.log_evidence - rest.log_evidence, error, degrees, finds=1)


@pytest.mark.heavy
def test_scores_and_evidence_lost_of_a_sentence_encoders_heads_by_two_routes():
    """Spam or not, by the twelve heads of MiniLM's last layer: chains, and another sampler, or annealing from the prior."""
    with np.load(MAILS) as stored:
        inputs, labels = stored["path_inputs"][:80].astype(float), stored["labels"][:80].astype(float)
    arch = ba.Architecture((12,), (10, 10), (1.0, 1.0, 1.0))
    mails = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=0.1)
    job = {"warmup": 200, "draws": 400, "progress": False}
    chains = ba.sample(mails, **job)
    both = [ba.heads(each).drawn for each in (chains, ba.sample(mails, "adjusted_mclmc", seed=5, **job))]
    agree(*(xr.DataArray(scores, dims=("chain", "draw", "head")) for scores in both))
    of = {str(head): [(1, str(head + 1))] for head in (1, 3, 4)}
    found = ba.head_losses(chains, of=of, chains=2, warmup=100, length=400)
    wholes = [ba.theory.evidence(mails, seed=seed) for seed in range(2)]
    for number, head in enumerate((1, 3, 4)):
        rests = [ba.theory.evidence(without_paths(mails, np.arange(12) == head), seed=seed) for seed in (2, 3)]
        lost = np.mean([whole.log_evidence - rest.log_evidence for whole, rest in zip(wholes, rests, strict=True)])
        error = np.linalg.norm([*(each.error / 2 for each in (*wholes, *rests)), found.evidence_error[number]])
        near(found.evidence[number], lost, error, BRIDGE_DEGREES, finds=1)
    assert np.ptp(found.evidence) > 4


def test_accuracy_and_log_score_lost_are_those_of_a_model_without_the_head(model, draws, exact):
    """Of a model without the head's paths, by prior draws, weighed."""
    heads = ba.heads(draws)
    assert "evidence_lost" not in heads.summary()
    assert np.isfinite(heads.losses.evidence).all()
    assert {"evidence_lost", "evidence_lost_error", "accuracy_lost", "log_score_lost"} <= {*heads.summary()}

    def scores(of, order_parameters, log_likelihoods):
        # 200 draws, each as often as its weight says.
        chosen = np.searchsorted(np.cumsum(special.softmax(log_likelihoods)), (np.arange(200) + 0.5) / 200)
        moments = [ba.theory.predict(each, of) for each in order_parameters[chosen]]
        means = np.array([each.mean for each in moments])
        spread = np.sqrt([each.variance + TEMPERATURE for each in moments])
        log_densities = special.logsumexp(stats.norm.logpdf(of.test_labels, means, spread), 0) - np.log(len(moments))
        doubtful = np.abs(means.mean(0)) < 4 * means.std(0) / np.sqrt(len(means))
        return np.mean(np.sign(means.mean(0)) == of.test_labels), np.mean(log_densities), np.mean(doubtful)

    whole, (rest, *of_rest) = exact[0], exact[1]
    rest = rest.replace(test_path_inputs=model.test_path_inputs[:, 1:], test_labels=model.test_labels)
    before, after = scores(*whole), scores(rest, *of_rest)
    # Examples near the boundary may be on either side of it.
    doubtful = before[2] + after[2]
    assert doubtful < 0.1
    assert heads.losses.accuracy[0] == pytest.approx(before[0] - after[0], abs=doubtful)
    assert heads.losses.log_score[0] == pytest.approx(before[1] - after[1], abs=0.03)


def test_a_network_whose_path_inputs_are_zero_has_the_saddle_point_of_one_without_the_head(model):
    """f carries 1 / sqrt(H): U of two heads is two thirds of its block of three. The head's own row is free."""
    rest, zeroed = without_head(model, 1, 1), without_paths(model, np.array([False, True, False]))
    solved, other = ba.theory.solve(zeroed), ba.theory.solve(rest)
    np.testing.assert_allclose(solved.order_parameter[::2, ::2], other.order_parameter * 1.5, atol=1e-9)
    assert float(solved.order_parameter[1, 1]) == pytest.approx(float(other.scalar_order_parameter), rel=1e-9)


def blind_network(width):
    """Two layers of which the first head of the second sees nothing; the model, what sees nothing, and the model without."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(12, 6, 3))
    labels = inputs[:, 0, 0] + 0.3 * inputs[:, -1, 1] + 0.2 * rng.normal(size=12)
    arch = ba.Architecture((2, 3), (width,) * 3, (1.0,) * 4)
    model, nothing = model_of(inputs, labels, arch, 0.2), np.array([True, False, False] * 2)
    return model, nothing, without_paths(model, nothing)


def test_a_narrow_network_has_a_mode_when_a_head_sees_nothing():
    """Rows of that head come last; if its large rows come first, the others turn about them, and modes form a ring."""
    *_, blind = blind_network(4)
    mode, _ = find_mode(blind.gaussian_process, blind.architecture)
    assert np.isfinite(mode.whitening.log_volume())


def test_a_network_whose_modes_form_a_ring_is_sampled_as_without_the_head():
    """Its Laplace covariance is infinite; draws of the visible rows are those of the network without the head."""
    model, nothing, blind = blind_network(2)
    with pytest.raises(FlatMode, match="flat in some direction"):
        find_mode(blind.gaussian_process, blind.architecture)
    ring = ba.sample(blind, draws=1000, **JOB)["posterior"]["order_parameter"]
    logs = np.log(np.diagonal(ring, axis1=2, axis2=3)[..., ~nothing] * 2 / 3)
    order_parameters, log_likelihoods = by_prior_draws(without_head(model, 2, 0), 200_000)
    exact = weighed_mean(log_likelihoods, np.log(np.diagonal(order_parameters, axis1=1, axis2=2)), least=100)
    agree(xr.DataArray(logs, dims=("chain", "draw", "path")), *exact)


def test_at_infinite_width_the_theory_is_that_of_the_gaussian_process(model):
    wide = model.replace(width=10**9)
    found = predicted_losses(wide)
    rests = np.array([ba.theory.gp_evidence(without_head(wide, 1, head)) for head in range(3)])
    assert found.evidence == pytest.approx(ba.theory.gp_evidence(wide) - rests, abs=1e-5)
    assert np.isnan(found.evidence_error).all()


def by_trying_all(model):
    """Order in which heads go if at each step every one is tried, and the log evidence after each step."""
    count = model.architecture.heads[0]
    gone, order, evidences = np.zeros(count, bool), [], []
    for _ in range(count):
        left = np.flatnonzero(~gone)
        tried = [at_saddle_point(without_paths(model, gone | (np.arange(count) == head))).log_evidence for head in left]
        gone[left[np.argmax(tried)]] = True
        order.append((1, str(left[np.argmax(tried)] + 1)))
        evidences.append(max(tried))
    return order, np.array(evidences)


@pytest.mark.parametrize("seed", range(4))
def test_useless_heads_are_removed_in_the_order_that_trying_all_gives(seed):
    """Labels that no head explains: the evidence rises when heads go."""
    rng, arch = np.random.default_rng(seed), ba.Architecture((4,), (4, 4), (1.0,) * 3)
    inputs = 0.7 * rng.normal(size=(10, 1, 3)) + 0.7 * rng.normal(size=(10, 4, 3))
    useless = model_of(inputs, 0.5 * np.sign(rng.normal(size=10)), arch, TEMPERATURE)
    found = ba.remove_heads(useless)
    assert found.names == by_trying_all(useless)[0]
    assert np.isnan(found.lost_error).all()
    for ask in (lambda: found.dispensable, found.statement):
        with pytest.raises(BayesattnError, match="dispensable needs test labels"):
            ask()


def test_heads_are_removed_in_the_order_that_trying_all_gives(model, draws):
    found, (order, evidences) = ba.remove_heads(draws), by_trying_all(model)
    assert found.evidence[1:] == pytest.approx(evidences - at_saddle_point(model).log_evidence)
    assert found.names == order
    assert found.accuracy[-1] == 0.5  # f = 0, a guess.
    lost = found.accuracy[0] - found.accuracy > 0.02
    assert found.dispensable == np.argmax(lost) - 1
    low, high = found.dispensable_interval
    assert low <= found.dispensable <= high
    assert found.lost_error[0] == 0
    assert f"are lost ({low}{'' if low == high else f' to {high}'} within two errors)" in found.statement()
    assert found.total == len(found.names)
    begun = dataclasses.replace(found, names=found.names[:1], accuracy=np.ones(2), lost_error=np.zeros(2))
    assert begun.statement().startswith(f"1 or more of {found.total} can go")
    sure = dataclasses.replace(found, lost_error=0 * found.lost_error)
    assert sure.dispensable_interval == (found.dispensable,) * 2
    assert len(ba.remove_heads(model, most=1).names) == 1


def test_layers_are_groups_and_compressed_data_serve(model):
    tests = {"test_path_inputs": model.test_path_inputs, "test_labels": model.test_labels}
    data = ba.Dataset.gather([(model.path_inputs, model.labels)], model.architecture, **tests)
    compressed = ba.Model(dataset=data, architecture=model.architecture, temperature=TEMPERATURE)
    ours, theirs = (predicted_losses(each, of={"two": [(1, "1"), (1, "2")]}) for each in (model, compressed))
    assert ours.evidence == pytest.approx(theirs.evidence, rel=1e-9)
    assert ours.accuracy == pytest.approx(theirs.accuracy)


def test_bridges_find_the_ratio_of_constants_with_errors_that_are_the_scatter_of_seeds():
    """Five between normal densities, each narrower; every other has fewer draws. Draws between two bridges enter both."""
    deviations, counts, seeds = np.geomspace(1, 0.15, 6), (300, 100) * 3, 250

    def found(seed):
        rng = np.random.default_rng(seed)
        drawn = [rng.normal(0, sd, size=(4, count)) for sd, count in zip(deviations, counts, strict=True)]

        def difference(to, at):
            return drawn[at] ** 2 / 2 * (deviations[at] ** -2 - deviations[to] ** -2)

        return chained([bridge(difference(at + 1, at), difference(at, at + 1)) for at in range(5)])

    log_ratios, errors = np.array([found(seed) for seed in range(seeds)]).T
    near(log_ratios.mean(), np.log(0.15), np.linalg.norm(errors) / seeds, finds=0.06)
    law, total = stats.chi2(seeds), np.sum(((log_ratios - np.log(0.15)) / errors) ** 2)
    likely([law.cdf(total), law.sf(total)])


def losses_of(evidence, error=0.1, r_hat=1.0):
    """Of heads of one layer."""
    names, zero = [(1, str(head)) for head in range(1, len(evidence) + 1)], np.zeros(len(evidence))
    others = dict.fromkeys(("accuracy", "accuracy_error", "log_score", "log_score_error"), zero)
    levels = ["layer", "head"]
    return Losses(names, np.array(evidence), zero + error, rhat=zero + r_hat, levels=levels, **others)


def test_chains_that_cannot_be_compared_are_not_said_to_have_mixed():
    assert rhat(np.ones((2, 10))) == 1
    assert np.isnan(rhat(np.random.default_rng(0).normal(size=(1, 10))))
    said = " ".join(repr(losses_of([1.0], r_hat=np.nan)).split())
    assert "not defined, one chain alone cannot show that it has mixed" in said
    mixed, apart = losses_of([1.0, 2.0]), losses_of([1.0, 2.0], r_hat=np.array([1.0, 1.1]))
    assert (mixed.doubts, len(apart.doubts)) == ([], 1)
    assert "did not mix (R-hat above 1.02) for (1, '2')" in apart.doubts[0]
    for known in (losses_of([1.0]), losses_of([1.0], np.nan, np.nan)):
        assert "not defined" not in repr(known)


def test_accuracy_lost_has_an_error_where_no_example_differs(model):
    whole = at_saddle_point(model)
    same, none = losses._lost(whole, whole, model), losses._lost(whole, whole, model.replace(test_labels=None))
    assert (same["accuracy"], same["accuracy_error"]) == (0, pytest.approx(1 / (1 + len(model.test_labels))))
    assert np.isnan(none["accuracy_error"])


def test_only_labels_of_classes_have_an_accuracy(model):
    """Of several outputs, these have one high value in each row."""
    rng = np.random.default_rng(3)
    inputs, arch = rng.normal(size=(20, 2, 3)), ba.Architecture((2,), (5, 5), (1.0,) * 3, outputs=2)
    values = inputs[:, 0, :2]
    classes = np.where(values == values.max(1, keepdims=True), 1.0, -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_one_output = model.replace(test_labels=np.abs(model.test_labels) + 0.5)
    several = (halves(inputs, labels, 10, arch) for labels in (values, classes))
    for each, known in zip((of_one_output, *several), (False, False, True), strict=True):
        found = predicted_losses(each)
        assert (np.isfinite(found.accuracy) == known).all()
        assert np.isfinite(found.log_score).all()


def test_what_has_no_losses_is_refused(model, draws):
    classes, few = model.replace(likelihood=ba.Categorical(1.0)), draws.isel(draw=slice(3))
    for call, message in (
        (lambda: ba.head_losses(draws, length=3), "length must be a whole number of at least 4, got 3"),
        (lambda: ba.head_losses(few, model=model), "draws must hold at least 4 of each chain, got 3"),
        (lambda: predicted_losses(classes), "Gaussian"),
        (lambda: ba.remove_heads(classes), "Gaussian"),
        (lambda: ba.remove_heads(3), "draws must be the result of bayesattn.sample, a Run or a run's folder, got 3"),
        (lambda: ba.remove_heads(model, most=4), "most must be a whole number of at most 3, got 4"),
    ):
        with pytest.raises(BayesattnError, match=message):
            call()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_losses_where_posteriors_have_modes_apart(seed):
    """Bridges between chains of NUTS, all in one mode, say 2.8 to 23.6 nats with errors of 0.1."""
    model, exact = two_modes()
    lost = ba.head_losses(ba.sample(model, warmup=200, draws=1000, seed=seed, progress=False), seed=seed, length=2000)
    near(lost.evidence[0], exact["loss"][0], np.hypot(lost.evidence_error[0], 0.007), BRIDGE_DEGREES, finds=1)


def test_losses_that_evidences_contradict_are_named(monkeypatch):
    model, _ = two_modes()
    rest = Evidence(-11.0, 0.1, "annealing", True)
    whole, units = rest._replace(log_evidence=-10.0), units_of(model)
    monkeypatch.setattr(losses, "evidence", lambda case, seed: whole if case is model else rest)
    losses._compare_with_evidence(losses_of([1.0, 1.5]), model, units, 0)
    with pytest.warns(UserWarning, match=r"evidence: \(1, '2'\) 3 nats, where the evidences say 1; chains"):
        losses._compare_with_evidence(losses_of([1.0, 3.0]), model, units, 0)
    whole = whole._replace(reliable=False)
    losses._compare_with_evidence(losses_of([1.0, 3.0]), model, units, 0)


def test_losses_of_narrow_networks_are_by_tempered_chains(monkeypatch):
    """Whatever sampler the draws are by."""
    model, sample = two_modes()[0], Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(losses, "sample", sample)
    with pytest.raises(KeyboardInterrupt):
        ba.head_losses(drawn(np.tile(np.eye(model.architecture.rows), (2, 8, 1, 1))), model=model)
    assert {"sampler": "tempered", "warmup": 500, "draws": 1000}.items() <= sample.call_args.kwargs.items()
