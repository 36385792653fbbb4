"""Gradient descent on the one-shot task, which gives queries and keys, and the network whose heads are pruned.

The network is the one whose posterior is sampled (THEORY section 1): the attention of each layer is a function of the
tokens, and the output is computed from path inputs. All weights, queries and keys minimise the mean squared error of labels
+1 and -1, with new episodes in each batch.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from jaxtyping import Array, Float, Key
from safetensors import safe_open
from safetensors.numpy import load_file, save

from bayesattn import fixed_attention
from bayesattn._util.files import replace_file
from bayesattn._util.plain_values import PlainMapping
from bayesattn._util.random import first_key
from bayesattn._util.settings import with_own_settings
from bayesattn.network import Weights, network, path_readouts
from bayesattn.theory.predictor import right
from reproductions.one_shot.episodes import OneShot, embedded
from reproductions.one_shot.images import is_named

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
    """

    steps: int = 3000
    batch: int = 128
    learning_rate: float = 1e-3
    width: int = 128
    weight_decay: float = 0.0
    seed: int = 0


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
    task: OneShot, training: Training, progress: Callable[[Progress], None] | None = None
) -> dict[str, np.ndarray]:
    """Weights of the trained network: V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,), Q_l and K_l (H_l, G, N_0).

    Raises:
        FloatingPointError: the loss is not finite.
    """
    weights = initial_weights(first_key(training.seed), task, training.width)
    begin, block = _compiled(training.learning_rate, training.steps, training.weight_decay)
    state, done = (weights, begin(weights)), 0
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
    return {name: np.asarray(value) for name, value in state[0].items()}


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


def weights_of(file: str | Path) -> dict[str, np.ndarray]:
    """Weights in a file of `cached`, complete or compacted by `compact`."""
    return load_file(file)


def cached(task: OneShot, training: Training, progress: Callable[[Progress], None] | None = None) -> Path:
    """File of the trained weights of a task: beside this module, or in the user's cache, where they are trained once."""
    wanted = _settings(task, training)
    if is_named(task.train_images):
        for file in sorted(FOLDER.glob("*.safetensors")):
            with safe_open(file, "numpy") as stored:
                about = stored.metadata()
            if all(about.get(name) == value for name, value in wanted.items()):
                return file
    images = task.classes["train"]
    # The images instead of their path, because another file may have the same name later.
    wanted["images"] = hashlib.sha256(images.pixels.tobytes() + images.classes.tobytes()).hexdigest()
    wanted["versions"] = json.dumps({"training": TRAINING_VERSION} | {name: version(name) for name in LIBRARIES})
    name = f"one_shot-{hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]}.safetensors"
    file = Path(platformdirs.user_cache_dir("bayesattn")) / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, save(train(task, training, progress), wanted))
    return file


def _settings(task: OneShot, training: Training) -> dict[str, str]:
    """Everything on which trained weights depend but the images and the code, as JSON."""
    about = {
        "task": {name: getattr(task, name) for name in FIELDS_OF_TRAINING},
        "training": dataclasses.asdict(training),
    }
    if is_named(task.train_images):
        about["task"]["train_images"] = task.train_images
    return {name: json.dumps(value, sort_keys=True) for name, value in about.items()}
