"""Gradient descent on the one-shot task, which gives queries and keys, and the network whose heads are pruned.

The network is the one whose posterior is sampled (THEORY section 1): the attention of each layer is a function of the
tokens, and the output is computed from path inputs. All weights, queries and keys minimise the mean squared error of labels
+1 and -1, with new episodes in each batch.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from jaxtyping import Array, Float, Key
from safetensors.numpy import save

from bayesattn import fixed_attention
from bayesattn._util.checks import positive, positive_integer, seed_number
from bayesattn._util.errors import BayesattnError
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, user_path
from bayesattn._util.input_files import read_arrays
from bayesattn._util.plain import PlainMapping
from bayesattn._util.random import first_key
from bayesattn._util.settings import with_own_settings
from bayesattn.network import Weights, network, path_readouts
from bayesattn.tasks.images import is_named
from bayesattn.tasks.one_shot import OneShot, embedded
from bayesattn.theory.predictor import right

STEPS_PER_BLOCK = 50
"""Steps between two calls of the progress callback."""
FIELDS_OF_TRAINING = ("side", "patch", "width", "key_width", "heads", "turned", "seed")
"""Fields of a task on which training depends, besides the training images."""
TRAINING_VERSION = 1
"""Increase this when trained weights change beyond rounding: networks of other versions are then trained again."""
LIBRARIES = ("jax", "jaxlib", "optax", "numpy")
"""Libraries whose versions affect the last bits of trained weights."""
FOLDER = Path(__file__).parent / "trained"
"""Folder of the trained networks in the package, compacted by `compact`."""
BLOCKS_PER_CHECKPOINT = 10
"""Blocks between two checkpoints."""
State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the optimiser: Adam (Kingma & Ba 2015) with a cosine schedule after a linear warm-up.

    Args:
        steps: number of gradient steps.
        batch: number of episodes of each step.
        learning_rate: largest learning rate.
        width: N_1 = .. = N_a of the trained network.
        weight_decay: each step shrinks weights by weight_decay x learning rate (Loshchilov & Hutter 2019); 0: none.
        seed: seed of initial weights and episodes.

    Raises:
        ValueError: a count below 1, a learning rate that is not above 0, a weight decay below 0.
    """

    steps: int = 3000
    batch: int = 128
    learning_rate: float = 1e-3
    width: int = 128
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self):
        for name in ("steps", "batch", "width"):
            positive_integer(name, getattr(self, name))
        positive("learning_rate", self.learning_rate)
        if self.weight_decay:
            positive("weight_decay", self.weight_decay)
        seed_number("seed", self.seed)


class Progress(NamedTuple):
    """Argument of a progress callback: steps done, steps in total, mean loss and accuracy on the last block's batches."""

    done: int
    total: int
    loss: float
    accuracy: float


def initial_weights(key: Key[Array, ""], task: OneShot, width: int) -> Weights:
    """Initial V_0, V_l, a from a prior of variance 1, and queries equal to keys, so that tokens attend to similar ones."""
    shapes: dict[str, tuple[int, ...]] = {"V_0": (width, task.width), "a": (width,)}
    for layer, count in enumerate(task.heads, 1):
        shapes |= {f"V_{layer}": (count, width, width), f"Q_{layer}": (count, task.key_width, task.width)}
    keys = jax.random.split(key, len(shapes))
    drawn = {
        name: jax.random.normal(subkey, shape, jnp.float32)
        for subkey, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    # Scaled to logits of order 1.
    queries = {name: value / float(np.sqrt(task.width)) for name, value in drawn.items() if name[0] == "Q"}
    return drawn | queries | {name.replace("Q", "K"): value for name, value in queries.items()}


def values_of(weights: PlainMapping) -> Weights:
    """All weights except queries and keys."""
    return {name: jnp.asarray(value) for name, value in weights.items() if name[0] not in "QK"}


@with_own_settings
def output(weights: Weights, tokens: Float[Array, "episode token feature"]) -> Float[Array, " episode"]:
    """Output f of the network on tokens."""
    depth = sum(name.startswith("Q_") for name in weights)
    heads = tuple((weights[f"Q_{layer}"], weights[f"K_{layer}"]) for layer in range(1, depth + 1))
    return network(values_of(weights), fixed_attention.traced_path_inputs(tokens, heads, "mean", "softmax"))


@with_own_settings
def train(
    task: OneShot,
    training: Training,
    out: str | Path,
    progress: Callable[[Progress], None] | None = None,
    small: bool = False,
) -> dict[str, np.ndarray]:
    """Train the network and write its weights to a .safetensors file.

    Interrupted training continues from its last checkpoint, `out` with ".checkpoint" appended, and ends with the same
    weights as uninterrupted training. The checkpoint is removed at the end.

    Args:
        task: task with the training classes.
        training: settings of the optimiser.
        out: the file, which must not exist yet.
        progress: function called every 50 steps.
        small: write the weights compacted by `compact`, in a tenth of the bytes.

    Returns:
        V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,), Q_l and K_l (H_l, G, N_0).

    Raises:
        FileExistsError: the file exists.
        BlockingIOError: another process is training to the same file.
        ValueError: a file name with another ending, a checkpoint of other settings or code (unreadable ones are ignored).
        FloatingPointError: the loss is not finite.
    """
    out = user_path("out", out)
    _require_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(out, 0):
        _require_new(out)
        return _train(task, training, out, progress, small)


def _require_new(out: Path) -> None:
    if out.suffix != ".safetensors":
        raise BayesattnError(f"out must end in .safetensors, got {out}")
    if os.path.lexists(out):
        raise FileExistsError(f"out must be a new file, got {out}, which is there")


@contextmanager
def _locked(out: Path, timeout: float) -> Iterator[None]:
    """Context in which only one process trains to a file; the lock file is removed when the file exists."""
    file = out.with_name(out.name + ".lock")
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=timeout)
    except filelock.Timeout:
        raise BlockingIOError(
            f"{out} is being trained by another process: wait for it, or choose another out"
        ) from None
    try:
        yield
        file.unlink(missing_ok=True)  # A process that waits for the lock finds the weights.
    finally:
        lock.release()


def _train(
    task: OneShot, training: Training, out: Path, progress: Callable[[Progress], None] | None, small: bool = False
) -> dict[str, np.ndarray]:
    require("images", "training")
    about = description(task, training)
    checkpoint = out.with_name(out.name + ".checkpoint")
    weights = initial_weights(first_key(training.seed), task, training.width)
    begin, block = _compiled(training.learning_rate, training.steps, training.weight_decay)
    state, done = (weights, begin(weights)), 0
    if checkpoint.exists():
        state, done = _restored(checkpoint, state, about)
    images = task.classes["train"]
    embedding = {name: jnp.asarray(value, jnp.float32) for name, value in task.embedding.items()}
    data = jnp.asarray(task.patches(images), jnp.float32), embedding

    while done < training.steps:
        count = min(STEPS_PER_BLOCK, training.steps - done)
        rng = np.random.default_rng([training.seed, done])
        episodes = task.episodes(images, count * training.batch, rng)
        shape = (count, training.batch)
        state, (losses, hits) = block(
            state,
            data,
            jnp.asarray(episodes.shown.reshape(*shape, -1)),
            jnp.asarray(episodes.labels.reshape(shape), jnp.float32),
        )
        done += count
        if not np.isfinite(losses).all():
            raise FloatingPointError(
                f"the loss is not finite at step {done}; a smaller learning_rate than {training.learning_rate:g} may help"
            )
        if progress is not None:
            progress(Progress(done, training.steps, float(losses.mean()), float(hits.mean())))
        if done % (STEPS_PER_BLOCK * BLOCKS_PER_CHECKPOINT) == 0 and done < training.steps:
            leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
            _write(checkpoint, leaves, about | {"done": str(done)})
    trained = {name: np.asarray(value) for name, value in state[0].items()}
    _write(out, compact(trained) if small else trained, about)
    checkpoint.unlink(missing_ok=True)
    return trained


@lru_cache(maxsize=8)
def _compiled(learning_rate: float, steps: int, weight_decay: float) -> tuple[Callable, Callable]:
    """Functions for the initial state and for a block of steps, compiled once for all networks of one shape."""
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, steps // 20, steps)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=weight_decay))

    def loss(weights, data, shown, labels):
        patches, embedding = data
        outputs = output(weights, embedded(patches[shown], **embedding))
        return jnp.mean((outputs - labels) ** 2), jnp.mean(right(outputs, labels))

    @jax.jit
    def block(state, data, shown, labels):
        def step(state, batch):
            weights, moments = state
            loss_and_hits, gradient = jax.value_and_grad(loss, has_aux=True)(weights, data, *batch)
            updates, moments = optimiser.update(gradient, moments, weights)
            return (optax.apply_updates(weights, updates), moments), loss_and_hits

        return jax.lax.scan(step, state, (shown, labels))

    return optimiser.init, block


@with_own_settings
def accuracy(task: OneShot, weights: PlainMapping, part: str) -> float:
    """Share of "train", "validation" or "test" episodes that a trained network gets right."""
    tokens, labels = task.sample(part)
    outputs = output({name: jnp.asarray(value) for name, value in weights.items()}, jnp.asarray(tokens, jnp.float32))
    return float(np.mean(right(np.asarray(outputs), labels)))


def compact(weights: PlainMapping) -> dict[str, np.ndarray]:
    """Queries and keys in half precision, and the quantities that pruning needs of all other weights.

    Returns:
        Q_l and K_l (H_l, G, N_0); "readout" (Pi, N_0), the coefficients of the path inputs in the output; and "magnitude_l"
        (H_l,), the norm of the values of each head.
    """
    heads = {name: np.asarray(value, np.float16) for name, value in weights.items() if name[0] in "QK"}
    norms = {
        name.replace("V", "magnitude"): np.linalg.norm(np.asarray(value), axis=(1, 2))
        for name, value in weights.items()
        if name[0] == "V" and name != "V_0"
    }
    return heads | norms | {"readout": np.asarray(path_readouts(values_of(weights)), np.float32)}


def weights_of(file: str | Path | None) -> dict[str, np.ndarray] | None:
    """Weights in a file of attention, complete or compacted by `compact`; None if it contains only queries and keys."""
    if file is None or user_path("file", file).suffix != ".safetensors":
        return None
    weights, _ = read_arrays("task.attention", file)
    return weights if {"V_0", "readout"} & weights.keys() else None


def cached(task: OneShot, training: Training, progress: Callable[[Progress], None] | None = None) -> Path:
    """File of weights written by `train` for a task, in the package or in the user's cache folder.

    The network is trained now if there is no such file.
    """
    if (ready := _ready(task, training)) is not None:
        return ready
    about, file = description(task, training), _cache_file(task, training)
    if not _is_trained(file, about):
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file, -1):
            if not _is_trained(file, about):
                _train(task, training, file, progress)
    return file


def is_cached(task: OneShot, training: Training) -> bool:
    """Whether `cached` returns the weights without training."""
    return _ready(task, training) is not None or _is_trained(_cache_file(task, training), description(task, training))


def _ready(task: OneShot, training: Training) -> Path | None:
    """File in the package for a task on images of a known name, regardless of the code that trained it; else None."""
    if not is_named(task.train_images):
        return None
    wanted = _settings(task, training)
    for file in sorted(FOLDER.glob("*.safetensors")):
        try:
            about = read_arrays("weights", file)[1]
        except (ValueError, OSError):  # A damaged file is skipped.
            continue
        if all(about.get(name) == value for name, value in wanted.items()):
            return file
    return None


@contextmanager
def untrained(task: OneShot, training: Training) -> Iterator[Path]:
    """Context with a temporary file of the initial weights of training."""
    with tempfile.TemporaryDirectory() as folder:
        weights = initial_weights(first_key(training.seed), task, training.width)
        file = Path(folder) / "untrained.safetensors"
        _write(file, {name: np.asarray(value) for name, value in weights.items()}, {})
        yield file


def _cache_file(task: OneShot, training: Training) -> Path:
    about = json.dumps(description(task, training), sort_keys=True)
    name = f"one_shot-{hashlib.sha256(about.encode()).hexdigest()[:16]}.safetensors"
    return Path(platformdirs.user_cache_dir("bayesattn")) / name


def _is_trained(file: Path, about: Mapping[str, str]) -> bool:
    """Whether a file contains the weights with a description; False for a damaged file, which is trained again."""
    try:
        return read_arrays("weights", file)[1] == about
    except (OSError, ValueError):
        return False


def description(task: OneShot, training: Training) -> dict[str, str]:
    """Description stored in a file of weights: everything on which they depend, as JSON."""
    images = task.classes["train"]
    # The images instead of their path, because another file may have the same name later.
    digest = hashlib.sha256(images.pixels.tobytes() + images.classes.tobytes()).hexdigest()
    versions = {"training": TRAINING_VERSION} | {name: version(name) for name in LIBRARIES}
    return _settings(task, training) | {"images": digest, "versions": json.dumps(versions, sort_keys=True)}


def _settings(task: OneShot, training: Training) -> dict[str, str]:
    about = {
        "task": {name: getattr(task, name) for name in FIELDS_OF_TRAINING},
        "training": dataclasses.asdict(training),
    }
    if is_named(task.train_images):
        about["task"]["train_images"] = task.train_images
    return {name: json.dumps(value, sort_keys=True) for name, value in about.items()}


def _restored(checkpoint: Path, like: State, about: Mapping[str, str]) -> tuple[State, int]:
    """State and steps done of a checkpoint; those of the start if it is unreadable, since seeds reproduce the rest."""
    leaves, tree = jax.tree.flatten(like)
    try:
        arrays, metadata = read_arrays("checkpoint of the training", checkpoint)
        done, stored = int(metadata["done"]), [arrays[str(number)] for number in range(len(leaves))]
        if [(a.shape, a.dtype) for a in stored] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise BayesattnError("arrays of other shapes")
    except (OSError, ValueError, KeyError):
        return like, 0
    for name, value in about.items():
        if metadata.get(name) != value:
            raise BayesattnError(
                f"{checkpoint} is of another {name}: remove it, or choose another out;"
                f" expected {value}, got {metadata.get(name)}"
            )
    return jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in stored]), done


def _write(file: Path, arrays: dict[str, np.ndarray], about: Mapping[str, str]) -> None:
    replace_file(file, save(arrays, dict(about)))
