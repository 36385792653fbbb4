"""Studies in Python, which commands print; what their parts say is tested where they are."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.jobs import study
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

    monkeypatch.setattr(study, "sample", sampled)
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
