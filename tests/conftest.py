import gc
import itertools
import os
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax._src.lax import lax

import bayesattn as ba
from bayesattn._util import random
from bayesattn._util.compiled import processor
from bayesattn.jobs import cli
from bayesattn.samplers.program import program
from reproductions.compiled import compile_quickly
from tests.costs import Costs

# For the test processes that begin after this one: BLAS threads of two processes on two cores hinder each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# OpenBLAS has code of its own for each kind of processor, which rounds differently, and then a chain takes other steps. All
# processors that can run this one code use it.
if b"avx2" in processor():
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
# Most of the time goes into compiling: all test processes, and later runs, share what they compiled.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / "programs")
    # With a limit JAX locks the folder and looks at all files whenever it writes one. Without, a process that reads what
    # another has half written says so, and compiles itself.
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = "-1"
COMPILED = os.environ["JAX_COMPILATION_CACHE_DIR"]
SECONDS = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
LONGEST = [
    "test_one_posterior.py",
    "test_langevin.py",
    "test_dense.py",
    "test_attention_model.py",
    "test_coefficient.py",
    "test_external.py",
]
"""Files of tests that take longest, those that compile most of them."""
ROOM = 2**32
"""Free bytes that a disk in memory must have; tests leave some 300 MB behind."""
jax.config.update("jax_compilation_cache_dir", COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", float(SECONDS))
jax.config.update("jax_compilation_cache_max_size", int(os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")))
if SHIFT := int(os.environ.get("BAYESATTN_TEST_SEED", "0")):
    # Other chains and estimates of the same posteriors, in this process and its workers: `stream` finds the name here.
    random.first_key = lambda seed: random.key_of([(seed >> 32) ^ SHIFT, seed & 0xFFFFFFFF])
DATA = Path(__file__).parent / "data"
OMNIGLOT_FOLDER = Path(__file__).parents[2] / "shared" / "data" / "omniglot"
"""Omniglot's small sets, which are not part of the repository."""
READOUTS = {"last_token": "last", "first_token": "first", "average_pooling": "mean"}


MARKS = os.environ.setdefault(
    "BAYESATTN_TEST_MARKS", " ".join(marks for option, marks in itertools.pairwise(sys.argv) if option == "-m")
)
"""Marks asked for on the command line; processes that test read them from the environment."""
HEAVY = "heavy" in MARKS.replace("not heavy", "")
# Half of the time without a cache is XLA's. Before anything is compiled, also by what tests import: runs begun here and in
# other processes have the same bits. Long chains would lose more by slow functions than is won.
compile_quickly(1 if HEAVY else 0)
if hasattr(lax, "stage_p"):
    # To place an array, JAX 0.10 compiles a program for each shape; tests have a thousand shapes.
    lax.stage_p.def_impl(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x))


def pytest_configure(config):
    asked = "heavy" in config.option.markexpr.replace("not heavy", "")
    if "PYTEST_XDIST_WORKER" not in os.environ and asked != HEAVY:
        raise pytest.UsageError(
            f"write marks as -m {config.option.markexpr!r}, got {MARKS!r} before anything was compiled"
        )
    config.pluginmanager.register(Costs(judged="not pages" in config.option.markexpr))
    gc.set_threshold(50_000, 10, 10)  # JAX's tracing makes millions of objects, hardly any of which are garbage.
    # Thousands of small files are brought onto the disk one by one; where there is one in memory, nobody waits for it.
    memory = Path("/dev/shm")
    if not HEAVY and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_modifyitems(items):
    """The longest files first, so that both workers finish together."""
    gc.collect()
    gc.freeze()  # What libraries made when they were imported is there until the end.
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def relative_error(value, reference):
    value, reference = np.asarray(value), np.asarray(reference)
    return float(np.max(np.abs(value - reference)) / np.max(np.abs(reference)))


def model_of(path_inputs, labels, arch, temperature, **others):
    """The posterior of arrays, without the warnings that labels of odd size get."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ba.Model(path_inputs=path_inputs, labels=labels, architecture=arch, temperature=temperature, **others)


def load_layers(name):
    """A random network of tests/data with its reference values."""
    stored = np.load(DATA / f"{name}.npz", allow_pickle=False)
    depth = len(stored["heads"])
    arch = ba.Architecture(*(tuple(stored[key].tolist()) for key in ("heads", "widths", "variances")))
    weights = [stored[f"attention_weights_{layer + 1}"] for layer in range(depth)]
    case = SimpleNamespace(
        stored=stored,
        arch=arch,
        temperature=float(stored["temperature"]),
        inputs=stored["x"].transpose(0, 2, 1),
        weights=weights,
        labels=stored["y"],
        readout=READOUTS[str(stored["readout"])],
        order_parameters=[stored[f"order_parameter_{layer + 1}"] for layer in range(depth)],
    )
    options = {"readout": case.readout, "nonlinearity": str(stored["nonlinearity"])}
    case.path_inputs = np.asarray(ba.attention.path_inputs(case.inputs, weights, **options))
    case.test_path_inputs = np.asarray(
        ba.attention.path_inputs(stored["x_test"].transpose(0, 2, 1), weights, **options)
    )
    case.model = model_of(case.path_inputs, case.labels, arch, case.temperature, test_path_inputs=case.test_path_inputs)
    return case


def few_memory_maps():
    """Whether this process has used less than four fifths of the memory maps that Linux grants it; a file takes a tenth."""
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
        return len(Path("/proc/self/maps").read_bytes().splitlines()) < 0.8 * most
    except OSError:
        return False


@pytest.fixture(scope="module", autouse=True)
def _close_figures():
    """Matplotlib warns of more than 20 open figures, whichever files one process tests."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="function" if HEAVY else "module", autouse=True)
def _forget_compiled_functions():
    """Each compiled function takes memory maps: a run of all tests in one process aborted in XLA's compiler without this.

    The heavy tests of one file compile enough of them.
    """
    yield
    if not few_memory_maps():
        program.cache_clear()
        jax.clear_caches()


@pytest.fixture(scope="session", params=["one_layer", "two_layer", "three_layer"])
def layers(request):
    return load_layers(request.param)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder of this run of the tests, one for all of its processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def zoo(shared_folder):
    """Draws of shared posteriors (tests/zoo.py), made by whichever process asks first."""
    from tests.zoo import Zoo  # Here, because modules imported before the tests are not checked for shapes.

    return Zoo(shared_folder)


@pytest.fixture(scope="session")
def two_layers():
    return load_layers("two_layer")


@pytest.fixture(scope="session")
def hidden_markov():
    """The reference hidden Markov task: path inputs, labels, saddle points and predictors."""
    return np.load(DATA / "hidden_markov.npz", allow_pickle=False)


@pytest.fixture(scope="session")
def hidden_markov_model(hidden_markov):
    stored = hidden_markov

    def build(width):
        return ba.Model(
            path_inputs=stored["path_inputs"],
            labels=stored["labels"],
            test_path_inputs=stored["test_path_inputs"],
            test_labels=stored["test_labels"],
            architecture=ba.Architecture((2, 2), (width,) * 3, (1.0,) * 4),
            temperature=float(stored["temperature"]),
        )

    return build


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Exit status, output and errors of the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["bayesattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return run
