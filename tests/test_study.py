"""Studies in Python, which commands print; what their parts say is tested where they are."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.checks.ranks import least_tail, uniform_probability
from bayesattn.jobs import study
from bayesattn.questions import calibration
from tests.posteriors import tiny_model

SETTINGS = {"chains": 2, "warmup": 100, "draws": 200, "seed": 3}


@pytest.fixture(scope="module")
def model():
    rng, network = np.random.default_rng(5), tiny_model(temperature=0.5, heads=(2,), widths=(8, 8))
    # More test examples than diagnostics look at.
    return network.replace(test_path_inputs=rng.normal(size=(30, 2, 4)), test_labels=rng.choice([-1.0, 1.0], 30))


@pytest.fixture(scope="module")
def found(model):
    told = []
    made = study.validate(
        model,
        (8, 40),
        theory_widths=(1000,),
        margin=0.3,
        solving=told.append,
        sampling=lambda width: told.append(width) or (lambda _: None),
        **SETTINGS,
    )
    # All theory of the curve comes first; each width is drawn in the order asked for, then held against its theory.
    assert told == [8, 40, 1000, 8, 8, 40, 40]
    return made


def test_progress_is_that_of_each_sampling(model, monkeypatch):
    told = []

    def sampled(*_, progress, **__):
        told.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(study.validation, "sample", sampled)
    for begin in (
        lambda: study.validate(model, (8,), progress=False),
        lambda: study.validate(model, (8,), progress=False, sampling=str),
    ):
        with pytest.raises(KeyboardInterrupt):
            begin()
    assert told == [False, "8"]


def test_each_width_is_validated_as_it_would_be_alone(model, found):
    draws = ba.sample(model.replace(width=40), **SETTINGS)
    alone = ba.validate(model.replace(width=40), draws, margin=0.3, level=0.005)
    np.testing.assert_array_equal(found.validations[1].order_parameter, alone.order_parameter)
    assert found.validations[1].verdict == alone.verdict
    assert found.validations[1].bound == alone.bound
    # Predictions of fewer examples may round otherwise.
    ours, theirs = found.validations[1].diagnostics.to_dict(), alone.diagnostics.to_dict()
    assert ours == {key: pytest.approx(value) if isinstance(value, float) else value for key, value in theirs.items()}


def test_it_knows_what_the_command_prints(found):
    content = found.to_dict()
    assert content["bound"] == max(each.bound for each in found.validations)
    assert content["verdict"] == found.verdict == "holds"
    assert [each["width"] for each in content["theory"]] == [8, 40, 1000]
    assert content["results"][0]["widths"] == [8, 8]
    json.dumps(content, allow_nan=True)
    assert len(found.figure().axes) > 1


@pytest.mark.parametrize(
    ("power", "said"),
    [(-2, "as the next order does"), (-3, "as the next order does"), (-1, "slower than the next order")],
)
def test_it_says_whether_the_remainder_falls_as_the_next_order_would(found, power, said):
    def with_remainder(size):
        made = (
            SimpleNamespace(width=n, relative_remaining=size * n**power, relative_deviation=0.0) for n in (10, 20, 40)
        )
        validations = [SimpleNamespace(relative_error=1e-5, **vars(each)) for each in made]
        return dataclasses.replace(found, validations=validations).remainder()

    sentence = with_remainder(1.0)
    assert said in sentence
    assert f"misses falls as N^({power}." in sentence
    assert with_remainder(1e-9) is None


def test_temperatures_are_chosen_by_evidence_at_each_width(model):
    found = study.validate(model, (8,), choose_temperature=True, **SETTINGS)
    best = max(found.curve[8], key=lambda each: each.log_evidence)
    assert found.validations[0].model.temperature == best.temperature != model.temperature


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": ()}, "widths must hold at least one width, got none"),
        ({"widths": (8, 0.5)}, r"widths\[1\] must be a whole number of at least 1, got 0.5"),
        ({"widths": 8}, "widths must be a list of widths, got 8"),
        ({"widths": "8"}, "widths must be a list of widths, got '8'"),
        ({"widths": (8, 40, 8)}, "widths must differ, got 8, 40, 8"),
        ({"theory_widths": None}, "theory_widths must be a list of widths, got None"),
        ({"theory_widths": ["30"]}, r"theory_widths\[0\] must be a whole number of at least 1, got '30'"),
        ({"model": "hidden_markov"}, "model must be a bayesattn.Model, got 'hidden_markov'"),
        ({"keep": ["prediction"]}, "keep must hold 'order_parameter', which the theory predicts, got prediction"),
        ({"margin": 0}, "margin must be a finite number above 0, got 0"),
        ({"sampler": "gibbs"}, "sampler must be one of"),
        ({"step": 3}, "setting of a job must be one of"),
    ],
)
def test_bad_input_is_named(model, change, message):
    with pytest.raises(ValueError, match=message):
        study.validate(**{"model": model, "widths": (8,), "sampling": lambda _: pytest.fail("drawn")} | change)


@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_what_is_not_finite_is_none(model):
    """Chains that do not vary have no R-hat."""
    stuck = {"options": {"step_size": 1e-300, "adapt_step_size": False}}
    found = study.validate(model, np.array([8]), theory_widths=np.array([30]), **SETTINGS | stuck)
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert found.verdict == "cannot tell"
    assert [each["width"] for each in content["theory"]] == [8, 30]


def test_samplers_are_calibrated_on_each_network(model, monkeypatch):
    """Each with its own data, at the level that all tests together have; the tests themselves stand for results here."""
    told, tests, narrow = [], [], calibration.narrow_model()

    def calibrated(network, simulated, *, sampler, level, progress, **settings):
        assert settings == {"draws": 7, "thin": 2, "seed": 1, "warmup": 50}
        progress(len(simulated.labels))
        ranks = np.zeros((20, 1), int) if network is narrow else np.arange(20)[:, None] % 8
        p_values = uniform_probability(least_tail(ranks, 7), 20, 7)
        return calibration.Calibration(("U",), ranks, 7, p_values, np.ones(1), None, level)

    def tested(network, *, sampler, chains, level, **_):
        assert chains == 100
        assert tests[-1] == ("narrow" if network is narrow else "tiny", sampler)
        return calibration.JointTest(("U",), np.zeros(1), level)

    monkeypatch.setattr(calibration, "calibrate", calibrated)
    monkeypatch.setattr(calibration, "joint_test", tested)
    networks = {"tiny": (model, 20), "narrow": (narrow, 30)}
    settings = {"draws": 7, "thin": 2, "chains": 100, "warmup": 50, "seed": 1}
    settings |= {"progress": lambda *event: told.append(event), "testing": lambda *event: tests.append(event)}
    found = study.calibrate(networks, ["nuts", "hmc"], **settings)
    assert len(tests) == 4
    assert told == [
        (network, sampler, count) for network, count in (("tiny", 20), ("narrow", 30)) for sampler in ("nuts", "hmc")
    ]
    levels = {each.level for of in found.results.values() for pair in of.values() for each in pair}
    assert levels == {calibration.LEVEL / 8}
    assert found.holds is False
    said = " ".join(repr(found).split())
    assert said.startswith("CalibrationStudy: does not hold")
    assert "20 simulations; nuts: ranks uniform, joint law holds, hmc: ranks uniform, joint law holds" in said
    assert found.to_dict()["narrow"]["samplers"]["hmc"]["calibrated"] is False
    assert found.to_dict()["tiny"]["samplers"]["nuts"]["calibrated"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samplers": []}, r"samplers must be a list of at least one sampler, got \[\]"),
        ({"samplers": "hmc"}, "samplers must be a list of at least one sampler, got 'hmc'"),
        ({"samplers": ["hmc", "hmc"]}, r"samplers must differ, got \['hmc', 'hmc'\]"),
        ({"samplers": ["hmc", "nutz"]}, "samplers must be one of .* got 'nutz'; did you mean 'nuts'"),
        ({"samplers": ["hmc", "sgld"]}, "sampler 'sgld' serves parameterisations"),
        ({"networks": {}}, "networks must be, by name, a model and a number of simulations, got {}"),
        ({"networks": {"tiny": tiny_model()}}, "networks must be, by name, .* for 'tiny'"),
        ({"networks": {"tiny": (tiny_model(), 1)}}, r"networks\['tiny'\]\[1\] must be a whole number of at least 20"),
        ({"draws": 2}, "draws must be a whole number of at least 7, got 2"),
        ({"draws": "7"}, "draws must be a whole number of at least 7, got '7'"),
        ({"thin": 0}, "thin must be a whole number of at least 1, got 0"),
        ({"chains": 1}, "chains must be a whole number of at least 100, got 1"),
        ({"level": 0.5}, "setting of a calibration must be one of .* got 'level'"),
        ({"warmpu": 3}, "setting of a calibration must be one of .*did you mean 'warmup'"),
        ({"keep": ["prediction"]}, "keep must hold 'order_parameter'"),
        ({"parameterisation": "latent"}, "parameterisation must be one of 'token', 'path', 'collapsed', got 'latent'"),
    ],
)
def test_calibrations_that_make_no_sense(model, monkeypatch, change, message):
    monkeypatch.setattr(calibration, "simulate", lambda *_: pytest.fail("simulated"))
    with pytest.raises(ValueError, match=message):
        study.calibrate(**{"networks": {"tiny": (model, 20)}, "samplers": ["hmc"]} | change)
