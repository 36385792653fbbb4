"""Statistics of any number of examples: the same posterior as by the examples themselves."""

import itertools
import json
import os
import signal
import threading
import time
import tracemalloc
import zipfile
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import bayesattn as ba
from bayesattn import gather as gather_module
from bayesattn import runs
from bayesattn._util import checks
from bayesattn.compressed import COUNTS, Compressed
from bayesattn.gather import gather
from bayesattn.kernels.conditionals import conditional_moments, is_singular
from bayesattn.kernels.expansions import expansion
from bayesattn.kernels.forms import FORMS, gaussian_process
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.kernels.path_inputs import scaled_features
from bayesattn.models import Tokens, collapsed
from tests.conftest import relative_error

ARCH = ba.Architecture((2, 2), (30, 40, 20), (1.1, 0.9, 1.2, 0.8))
TEMPERATURE = 0.3
EXAMPLES, FEATURES = 90, 3
POSTERIOR = {"architecture": ARCH, "temperature": TEMPERATURE}
SETTINGS = {"sampler": "hmc", "warmup": 100, "progress": False}
KEY, SOME_U = jax.random.key(0), np.diag([1.0, 2.0, 0.5, 1.5])


@jax.jit
def log_density_of(process, u):
    return process.log_density_of(u)


@jax.jit
def energy_of(process, factor):
    """The energy, and whether it is lost in rounding."""
    return process.energy(factor), is_singular(process, factor)


@jax.jit
def known(process, factor, new):
    """By factor, by U, to second order, and what the network sees of V_0: its mean, and a draw of it."""
    u = factor @ factor.T
    found = [jax.value_and_grad(function)(factor) for function in (process.energy, process.log_density)]
    found += [expansion(process, factor), jax.grad(lambda t: process.at(t).energy(factor))(TEMPERATURE)]
    found += [process.energy_of(u), conditional_moments(process, u, new), process.readout_of(u)]
    found = [*jax.tree.leaves(found), process.projection(factor, process.flat_labels)]
    return found, process.sample_projection(KEY, factor)


@pytest.fixture(scope="module")
def data():
    """Path inputs, labels and test inputs: more examples than 4 paths of 3 features."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(EXAMPLES, 4, FEATURES)) * [[[1.0], [2.0], [0.5], [1.0]]]
    labels = np.tanh(inputs[:, 0] @ [0.5, -1.0, 0.3] + inputs[:, 1, 0]) + 0.1 * rng.normal(size=EXAMPLES)
    return inputs, labels, rng.normal(size=(7, 4, FEATURES))


@pytest.fixture(scope="module")
def gathered(data):
    return gather(data[:2], ARCH)


@pytest.fixture(scope="module")
def models(data, gathered):
    """The same posterior by examples and by statistics."""
    settings = POSTERIOR | {"test_path_inputs": data[2]}
    return ba.Model(path_inputs=data[0], labels=data[1], **settings), ba.Model(compressed=gathered, **settings)


def test_densities_of_weights_count_the_labels_that_no_feature_explains(models):
    densities = [model.log_density("path") for model in models]
    weights = densities[0].initial(jax.random.key(0))
    found = [float(density.function(weights)) for density in densities]
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def same(one, other, tolerance=1e-12):
    alike = all(getattr(one, name) == getattr(other, name) for name in COUNTS)
    return alike and relative_error(one.triangle, other.triangle) < tolerance


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("examples", [5, 12, 13, EXAMPLES])
def test_they_are_the_sums_over_examples_and_restored_of_what_runs_store(data, tmp_path, examples, outputs):
    """Of fewer examples than columns of X, as many, and more."""
    inputs, labels = data[0][:examples], np.stack([data[1], data[1] ** 2], axis=1)[:examples, :outputs]
    flat, held = inputs.reshape(examples, -1), gather((inputs, labels), ARCH)
    columns = held.triangle[:, : flat.shape[1]]
    assert relative_error(columns.T @ columns, flat.T @ flat) < 1e-13
    assert relative_error(columns.T @ held.triangle[:, flat.shape[1] :], flat.T @ labels) < 1e-13
    assert relative_error(held.square, np.sum(labels**2)) < 1e-13
    assert held.path_inputs.shape == (min(examples, 12), 4, 3)
    assert held.residual.examples == max(0, examples - 12)
    unexplained = labels - flat @ np.linalg.lstsq(flat, labels, rcond=None)[0]
    np.testing.assert_allclose(held.residual.square, np.sum(unexplained**2), rtol=1e-12, atol=1e-20)
    restored = Compressed.restored(held.path_inputs, held.labels, held.residual)
    assert restored.triangle.shape == held.triangle.shape
    assert outputs > 1 or same(restored, held)
    np.testing.assert_allclose(restored.residual.square, held.residual.square, rtol=1e-12)
    restored.save(tmp_path / "restored")
    assert same(Compressed.open(tmp_path / "restored"), restored, 1e-300)
    if outputs == 1:
        both = ba.Model(path_inputs=inputs, labels=labels, **POSTERIOR), ba.Model(compressed=restored, **POSTERIOR)
        assert relative_error(*(log_density_of(model.gaussian_process, SOME_U) for model in both)) < 1e-12


@pytest.mark.parametrize("cuts", [[], [1], [30, 31, 60], list(range(7, 90, 7))])
def test_batches_of_any_size_give_the_same(data, gathered, cuts):
    batches = list(zip(np.split(data[0], cuts), np.split(data[1], cuts), strict=True))
    assert same(gather(iter(batches), ARCH), gathered)
    parts = [gather([batch], ARCH) for batch in batches]
    assert same(sum(parts), gathered)
    assert same(sum(reversed(parts)), gathered)


@pytest.mark.parametrize("columns", [3, 6])
def test_every_form_gives_the_numbers_of_the_examples_and_the_same_draws(data, models, columns):
    held = models[1]
    arrays, residual = (held.path_inputs, held.labels, ARCH, TEMPERATURE), held.compressed.residual
    factor = jnp.asarray(np.random.default_rng(columns).normal(size=(4, columns)))
    test = scaled_features(data[2], 1.0)
    expected, _ = known(gaussian_process(data[0], data[1], ARCH, TEMPERATURE, form="features"), factor, test)
    forms = [gaussian_process(*arrays, form=form, residual=residual) for form in FORMS]
    found, drawn = zip(*(known(process, factor, test) for process in forms), strict=True)
    for numbers in found:
        for value, exact in zip(numbers, expected, strict=True):
            assert relative_error(value, exact) < 1e-10
    assert all(relative_error(other, drawn[0]) < 1e-10 for other in drawn[1:])


def test_theory_is_that_of_the_examples(models):
    by_examples, by_statistics = models
    saddle, other = (ba.theory.solve(model) for model in models)
    assert relative_error(other.order_parameter, saddle.order_parameter) < 1e-9
    assert relative_error(other.energy, saddle.energy) < 1e-10
    assert relative_error(*(ba.theory.gp_evidence(model) for model in models)) < 1e-10
    for one, two in zip(*(ba.theory.predict(saddle.order_parameter, model) for model in models), strict=True):
        assert relative_error(two, one) < 1e-10
    assert relative_error(*(ba.theory.finite_width(model).order_parameter for model in models)) < 1e-7
    assert by_statistics.examples == by_examples.examples == EXAMPLES
    assert by_statistics.replace(width=3).examples == EXAMPLES


def test_what_is_asked_of_another_network_is_so_of_all_examples(models):
    """One of another s_0, whose kernels have to be made anew."""
    by_examples, by_statistics = models
    other = ba.Architecture(ARCH.heads, ARCH.widths, (2.0, *ARCH.variances[1:]))
    assert relative_error(*(ba.theory.gp_evidence(model.replace(architecture=other)) for model in models)) < 1e-10
    for arch in (other, other.with_width(9)):
        assert relative_error(*(ba.theory.solve(model, arch=[arch]).energy for model in models)) < 1e-9
    warmer = by_statistics.replace(temperature=0.6)
    assert relative_error(ba.theory.gp_evidence(warmer), ba.theory.gp_evidence(by_examples, temperature=0.6)) < 1e-10


def test_what_is_unseen_is_part_of_the_identity(gathered, models, tmp_path):
    """Draws of U would be the same, evidence would not."""
    model, settings = models[1], SETTINGS | {"chains": 1, "draws": 5}
    other = Compressed.restored(gathered.path_inputs, gathered.labels, ResidualExamples(1000, 5.0))
    assert model.fingerprint != model.replace(compressed=other).fingerprint
    assert model.replace(compressed=other).gaussian_process.residual.examples == 1000
    runs.sample(model, tmp_path / "run", **settings)
    with pytest.raises(runs.RunError, match="a run with statistics"):
        runs.sample(model.replace(compressed=other), tmp_path / "run", **settings)


def test_another_order_of_the_examples_has_the_same_random_numbers(data, models, gathered):
    """R has then other last digits, as on another processor."""
    path_inputs, labels = (array[::-1] for array in data[:2])
    other = Compressed.of(path_inputs, labels)
    assert not np.array_equal(other.triangle, gathered.triangle)
    model = models[1].replace(compressed=other)
    assert model.fingerprint == models[1].fingerprint
    one, two = (ba.sample(each, **SETTINGS, chains=1, draws=3, seed=1) for each in (model, models[1]))
    assert relative_error(*(tree["posterior"]["order_parameter"].values for tree in (one, two))) < 1e-9
    for factor in (1 + 1e-7, 2.0):
        changed = models[1].replace(compressed=Compressed.of(path_inputs, factor * labels))
        assert changed.fingerprint != model.fingerprint


def test_digits_are_kept_at_low_temperature(data):
    """Against the Gaussian law in 60 digits, where differences of squares would have none left."""
    inputs, labels = data[0][:20, :2], data[1][:20]
    arch = ba.Architecture((2,), (5, 6), (1.0, 1.0, 1.0))
    held = gather([(inputs, labels)], arch)
    factor = np.array([[1.0, 0.3], [-0.4, 0.8]])

    def exact(factor, temperature):
        """log det (K + T I) + y^T (K + T I)^-1 y by elimination."""
        with localcontext() as context:
            context.prec = 60
            decimals = np.vectorize(Decimal, otypes=[object])
            mixed = (decimals(inputs.swapaxes(1, 2)) @ decimals(factor)).reshape(len(inputs), -1)
            regularised = mixed @ mixed.T / 6 + Decimal(temperature) * decimals(np.eye(len(inputs)))
            rows, energy = np.column_stack([regularised, decimals(labels)]), 0
            for i, row in enumerate(rows):
                energy += row[i].ln() + row[-1] ** 2 / row[i]
                rows[i + 1 :] -= np.outer(rows[i + 1 :, i] / row[i], row)
            return float(energy)

    def energy(form, temperature, factor):
        arrays = held.path_inputs, held.labels, arch, temperature
        return energy_of(gaussian_process(*arrays, form=form, residual=held.residual), factor)

    for temperature, form in itertools.product((1e-2, 1e-6, 1e-10), FORMS):
        found = energy(form, temperature, factor)[0]
        assert relative_error(found, exact(factor, temperature)) < 1e-10
    # Of rank 3 for 6 rows: six digits at least, as long as K + T I does not count as singular. With one column of F the
    # matrix in feature space is the smaller one.
    for columns, form in itertools.product((2, 1), FORMS):
        flat = (factor * [1.0, 0.0])[:, :columns]
        refused = []
        for temperature in 10.0 ** -np.arange(8, 18):
            found, singular = energy(form, float(temperature), flat)
            refused.append(bool(singular))
            if not refused[-1]:
                assert relative_error(found, exact(flat, float(temperature))) < 1e-6
        assert refused == sorted(refused)
        assert 0 < sum(refused) < len(refused)


def test_draws_of_a_run_are_those_of_the_model_that_it_stores(models, tmp_path):
    model = models[1]
    run = runs.sample(model, tmp_path / "run", **SETTINGS, chains=2, draws=50, seed=1)
    assert run.model.examples == EXAMPLES
    assert same(run.model.compressed, model.compressed)
    draws = run.draws()
    assert np.isfinite(draws["posterior"]["order_parameter"]).all()
    weights = ba.weights(draws, model=model)
    assert weights["V_0"].shape == (2, 50, 30, 3)
    assert ba.validate(draws, model=model).alignment is None
    assert "prior" in ba.with_groups(draws, model=model, prior_draws=10)
    with pytest.raises(ValueError, match="holds no single examples, got 'log_likelihood'"):
        ba.with_groups(draws, "log_likelihood", model=model)
    with pytest.raises(ValueError, match="'sgld' takes minibatches"):
        ba.sample(model, sampler="sgld", parameterisation="path", chains=1, warmup=1, draws=1)


def test_chains_of_many_plain_examples_look_at_as_few_rows_unless_they_are_classes(monkeypatch):
    inputs, looked, condensed = np.random.default_rng(2).normal(size=(1600, 4, FEATURES)), [], collapsed.compressed
    model = ba.Model(path_inputs=inputs, labels=np.sign(inputs[:, 0, 0] + inputs[:, 1, 1]), **POSTERIOR)
    monkeypatch.setattr(collapsed, "compressed", lambda model: looked.append(condensed(model)) or looked[-1])
    ba.sample(model, **SETTINGS, chains=1, draws=3)
    [few] = looked
    assert len(few.labels) == 12
    assert relative_error(*(log_density_of(process, SOME_U) for process in (few, model.gaussian_process))) < 1e-12
    arch, classes = ba.Architecture((2, 2), (6, 6, 6), outputs=2), ba.one_hot(inputs[:, 0, 0] > 0)
    model = ba.Model(path_inputs=inputs, labels=classes, architecture=arch, likelihood=ba.Categorical(1.0))
    assert condensed(model).labels.size == 3200


def test_arrays_on_disk_are_read_block_by_block(data, gathered, tmp_path, monkeypatch):
    monkeypatch.setattr(gather_module, "BLOCK_BYTES", 1000)
    inputs, labels, _ = data
    np.save(tmp_path / "inputs.npy", inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    assert same(gather((mapped, labels), ARCH), gathered)
    assert same(gather([inputs.tolist(), labels.tolist()], ARCH), gathered)
    np.savez(tmp_path / "examples.npz", path_inputs=inputs, labels=labels)
    group = zarr.create_group(tmp_path / "data.zarr")
    for name, array in (("path_inputs", inputs), ("labels", labels)):
        group.create_array(name, data=array, chunks=(20, *array.shape[1:]))
    for given in ((group["path_inputs"], group["labels"]), group, np.load(tmp_path / "examples.npz")):
        assert same(gather(given, ARCH), gathered)


def test_dask_gathers_its_arrays_and_bags(data, gathered):
    array, bag = pytest.importorskip("dask.array"), pytest.importorskip("dask.bag")
    import dask

    inputs, labels, _ = data
    with dask.config.set(scheduler="synchronous"):
        pair = array.from_array(inputs, chunks=(13, 2, 3)), array.from_array(labels, chunks=20)
        assert same(gather(pair, ARCH), gathered)
        assert same(gather([pair[0], labels], ARCH), gathered)
        columns = array.from_array(np.stack([labels, labels], axis=1), chunks=(20, 1))
        assert gather((pair[0], columns), ARCH).outputs == 2
        classes = ba.one_hot(["cat", "dog"] * 45)
        assert gather((pair[0], classes), ARCH).output_names == ("cat", "dog")
        with pytest.raises(ValueError, match="Dask arrays of known shapes"):
            gather((pair[0][pair[1] > 0], pair[1][pair[1] > 0]), ARCH)
        batches = [(inputs[i : i + 9], labels[i : i + 9]) for i in range(0, EXAMPLES, 9)]
        assert same(gather(bag.from_sequence(batches, npartitions=4), ARCH), gathered)
        shards = [(inputs[:2], ba.one_hot(["cat", other])) for other in ("dog", "emu")]
        with pytest.raises(ValueError, match="datasets to be added must have the same classes"):
            gather(bag.from_sequence(shards, npartitions=2), ARCH)
        with pytest.raises(ValueError, match="store must be None with Dask"):
            gather(pair, ARCH, store="there")


def slow_batch(seed):
    """A batch that takes a while, so that a worker is killed in the midst of it."""
    time.sleep(0.2)
    inputs = np.random.default_rng(seed).normal(size=(50, 4, FEATURES))
    return inputs, inputs[:, 0, 0] + inputs[:, 3, 1] ** 2


@pytest.mark.heavy
@pytest.mark.parametrize("after", [1.0, 2.5, 4.0])
def test_a_killed_worker_costs_time_alone(after):
    """Of two, in the midst of work: every example counts once."""
    bag, distributed = pytest.importorskip("dask.bag"), pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        processes = list(client.run(os.getpid).values())
        killer = threading.Timer(after, os.kill, (processes[0], signal.SIGKILL))
        killer.start()
        found = gather(bag.from_sequence(range(60), npartitions=30).map(slow_batch), ARCH)
        assert processes[0] not in client.run(os.getpid).values()
    killer.join()
    assert found.examples == 3000
    assert same(found, gather(map(slow_batch, range(60)), ARCH))


def test_an_interrupted_gathering_goes_on(data, gathered, tmp_path, monkeypatch):
    monkeypatch.setattr(gather_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(gather_module, "STORE_SECONDS", 0.0)
    inputs, labels, _ = data
    batches = [(inputs[i : i + 9], labels[i : i + 9]) for i in range(0, EXAMPLES, 9)]
    store = tmp_path / "statistics.zarr.zip"

    def interrupted():
        yield from batches[:8]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(interrupted(), ARCH, store=store)
    part = Compressed.open(store)
    assert 0 < part.examples < EXAMPLES
    other_batches = [(inputs[i : i + 7], labels[i : i + 7]) for i in range(0, EXAMPLES, 7)]
    assert same(gather(other_batches, ARCH, store=store), gathered)
    assert same(Compressed.open(store), gathered)
    assert same(gather(batches, ARCH, store=store), gathered)
    others = [(inputs, np.where(np.arange(EXAMPLES) < 80, labels, -labels))], [(inputs[:30], labels[:30])], batches[1:]
    for other in others:
        with pytest.raises(ValueError, match="store must hold what was gathered of these batches"):
            gather(other, ARCH, store=store)
    assert same(Compressed.open(store), gathered)
    gathered.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"which was saved: open it, and add by \+"):
        gather(batches, ARCH, store=tmp_path / "saved")


def test_what_is_saved_is_opened_and_nothing_else_is(gathered, tmp_path, monkeypatch):
    file = tmp_path / "statistics.zarr.zip"
    gathered.save(file)
    assert same(Compressed.open(file), gathered, 1e-300)
    with monkeypatch.context() as patch:
        patch.setattr(checks, "memory_limit", lambda: 100)
        with pytest.raises(MemoryError, match=r"^the triangle of .*statistics.zarr.zip must fit into"):
            Compressed.open(file)
    with pytest.raises(FileExistsError, match="file must not exist yet"):
        gathered.save(file)
    with pytest.raises(FileNotFoundError):
        Compressed.open(tmp_path / "none")
    content = file.read_bytes()
    (tmp_path / "half.zip").write_bytes(content[: len(content) // 2])
    np.savez(tmp_path / "other.npz", triangle=gathered.triangle)
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(tmp_path / "less.zip", "w") as less:
        for name in whole.namelist():
            if "c/0" not in name:
                less.writestr(name, whole.read(name))
    for damaged in ("half.zip", "other.npz", "less.zip"):
        with pytest.raises(ValueError, match="must be a dataset that was saved"):
            Compressed.open(tmp_path / damaged)


def test_a_model_file_names_statistics(data, gathered, command, tmp_path):
    gathered.save(tmp_path / "statistics.zarr.zip")
    np.savez(tmp_path / "test.npz", test_path_inputs=data[2])
    file = tmp_path / "model.toml"
    table = 'temperature = 0.3\n[architecture]\nheads = [2, 2]\nwidth = 5\n[task]\nname = "arrays"\n'
    file.write_text(table + 'statistics = "statistics.zarr.zip"\nfile = "test.npz"')
    model = ba.load_model(file)
    assert (model.examples, len(model.test_path_inputs)) == (EXAMPLES, 7)
    [row] = json.loads(command("theory", "model.toml", "--json")[1])
    by_examples = ba.Model(path_inputs=data[0], labels=data[1], architecture=model.architecture, temperature=0.3)
    assert relative_error(row["order_parameter"], ba.theory.solve(by_examples).order_parameter) < 1e-9
    np.savez(tmp_path / "test.npz", labels=data[1])
    with pytest.raises(ValueError, match=r"beside task\.statistics, got 'labels'"):
        ba.load_model(file)
    file.write_text(table)
    with pytest.raises(ValueError, match="needs file or statistics"):
        ba.load_model(file)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches must hold at least one example"),
        ([1], r"batches\[0\] must be a pair"),
        ({"inputs": 1, "labels": 2}, "batches must hold path_inputs and labels by these names, got inputs, labels"),
        (None, r"batches must be pairs \(path_inputs, labels\), got None"),
        ([(1.0, 2.0)], r"path_inputs of batches\[0\] must have shape \(examples, paths, features\), got \(\)"),
        ([(np.ones((2, 4, 3)), np.ones(3))], r"labels of batches\[0\] must be as many as its path_inputs, 2"),
        ([(np.ones((2, 3, 3)), np.ones(2))], r"path_inputs of batches\[0\] must have 4 paths"),
        ([(np.ones((2, 4, 3)), [1.0, np.nan])], r"labels of batches\[0\] must be finite"),
        ([(np.ones((2, 4, 3)), np.ones(2)), (np.ones((2, 4, 2)), np.ones(2))], r"batches\[1\] must have 3 features"),
    ],
)
def test_bad_batches_are_named(batches, message):
    with pytest.raises(ValueError, match=message):
        gather(batches, ARCH)


def test_what_does_not_go_together_is_refused(data, models, gathered):
    inputs, labels, _ = data
    model, both = models[1], gather((inputs, np.stack([labels] * 2, axis=1)), ARCH)
    assert model.replace(compressed=None, path_inputs=inputs, labels=labels).examples == EXAMPLES
    tokens = Tokens(np.ones((12, 5, 3)), [np.ones((12, 2, 5, 5)) / 5] * 2, "last")
    for changes, message in (
        ({"path_inputs": inputs}, "path_inputs must not be given for a compressed dataset"),
        ({"tokens": tokens}, "tokens must not be given for a compressed dataset"),
        ({"compressed": 3}, r"compressed must be made by Dataset\.gather, got int"),
        ({"compressed": None}, "compressed may be None only where path_inputs and labels are given"),
        ({"labels": labels}, r"labels of a compressed dataset must have shape \(12,\), got \(90,\)"),
        ({"compressed": both}, r"labels must have shape \(12,\), got \(12, 2\): an architecture"),
    ):
        with pytest.raises(ValueError, match=message):
            model.replace(**changes)
    with pytest.raises(ValueError, match=r"arch must be a bayesattn\.Architecture"):
        gather([(inputs, labels)], 3)
    with pytest.raises(ValueError, match="same paths, features and outputs to be added"):
        gathered + gather([(inputs[:, :, :2], labels)], ARCH)
    with pytest.raises(TypeError):
        gathered + 1


def test_gathering_holds_a_block_at_a_time(tmp_path, monkeypatch):
    """Whatever the number of batches: examples that were taken in are let go."""
    monkeypatch.setattr(gather_module, "BLOCK_BYTES", 2**18)

    def batches(count):
        for seed in range(count):
            inputs = np.random.default_rng(seed).normal(size=(1000, 4, FEATURES))
            yield inputs, inputs[:, 0, 0]

    def peak(count, **store):
        tracemalloc.start()
        gather(batches(count), ARCH, **store)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few = peak(10)
    assert few < 200 * 8 * 12 * 1000 / 5
    assert peak(200) < 1.2 * few
    # What the store holds already is let go too.
    for _ in range(2):
        assert peak(200, store=tmp_path / "statistics.zarr.zip") < 1.2 * few
