"""Hidden states and attention of a pretrained transformer, as tokens and attention of a network.

The hidden states before the first chosen layer are the tokens, and the transformer's attention patterns are the attention.
The transformer's values are not read. The posterior learns its own values, so it judges the information that attention
routes (EXTENSIONS section 7).
Layers and heads are counted from 0, as Hugging Face and TransformerLens count them: `hidden_states[layer]` is the input of
layer `layer`.
"""

import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.checks import (
    Checked,
    entries,
    positive_integer,
    readable,
    real_array,
    require_kind,
    require_memory,
    shown,
    truth,
)
from bayesattn._util.errors import BayesattnError
from bayesattn._util.extras import require
from bayesattn._util.files import require_new, user_path
from bayesattn._util.text import Described
from bayesattn._util.watched import watched
from bayesattn.attention.paths import (
    HALF_PRECISION_DEVIATION,
    checked_mask,
    checked_matrices,
    checked_tokens,
    checked_tolerance,
    paths_from_matrices,
)
from bayesattn.attention.projection import Projection
from bayesattn.attention.pytorch import evaluated

BATCH_SIZE = 32
"""Sequences that a transformer reads at a time."""
CHUNK_BYTES = 2**26
"""Approximate memory of the attention whose path inputs are computed at a time."""
Attention = Float[np.ndarray, "example _ query key"]


@dataclass(frozen=True, eq=False, repr=False)
class Read(Described):
    """Hidden states and attention of chosen layers and heads of a transformer; unpacks into `inputs, matrices, mask`.

    Args:
        inputs: hidden states before the first of the layers, shape (P, T, N_0), float32.
        matrices: attention of each layer, shape (P, H_l, T, T), float32; rows of tokens sum to 1, and padding attends to
            itself.
        mask: True for tokens and False for padding, shape (P, T).
        skips: rho of each layer: least-squares factor from the hidden states before the layer to those after it, over
            all tokens, or 0 if negative. To model the residual stream, use these as the skips of the architecture.
        head_names: layer and number of each head, such as "5.0".
    """

    inputs: Float[np.ndarray, "example token feature"]
    matrices: list[Attention]
    mask: Bool[np.ndarray, "example token"]
    skips: tuple[float, ...]
    head_names: tuple[tuple[str, ...], ...]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.inputs, self.matrices, self.mask))

    def path_inputs(self, readout: str = "mean", skips: Checked = False) -> Float[np.ndarray, "example path feature"]:
        """Path inputs xi of shape (P, Pi, N_0), in float64.

        Args:
            readout: "mean" over tokens, the "first" token or the "last" one; choose the readout of the transformer.
            skips: whether the layers have skip connections (the residual stream); one truth value for all layers.

        Raises:
            ValueError: another readout, or skips that are not true or false.
        """
        flags = [truth("skips", skips)] * len(self.matrices)
        heads = sum(len(names) for names in self.head_names)
        chunk = max(1, CHUNK_BYTES // (8 * heads * self.inputs.shape[1] ** 2))
        chunks = [slice(start, start + chunk) for start in range(0, len(self.inputs), chunk)]
        return np.concatenate(
            [
                np.asarray(
                    paths_from_matrices(
                        self.inputs[part],
                        [_normalised(matrix[part]) for matrix in self.matrices],
                        readout,
                        self.mask[part],
                        flags,
                    )
                )
                for part in watched(chunks, "path inputs", "batches")
            ]
        )

    def projected(self, projection: Projection) -> "Read":
        """Copy with inputs projected to fewer features."""
        require_kind("projection", projection, Projection)
        return replace(self, inputs=projection(self.inputs, self.mask))

    def _described(self) -> tuple[str, dict[str, str]]:
        examples, tokens, features = self.inputs.shape
        layers = [f"{len(names)} of layer {names[0].partition('.')[0]}" for names in self.head_names]
        return "Attention of a transformer", {
            "sequences": f"{examples} of {tokens} tokens, {self.mask.mean():.0%} of them not padding; {features} features",
            "heads": ", ".join(layers),
            "skips": ", ".join(f"{rho:.3g}" for rho in self.skips) + " (least squares)",
        }


def from_transformers(
    model: Any,
    batch: Checked,
    layers: Sequence[int],
    heads: Checked = None,
    *,
    batch_size: int = BATCH_SIZE,
    renormalise: float = 1e-3,
    folder: str | Path | None = None,
) -> Read:
    """Hidden states and attention of chosen layers of a Hugging Face transformer: an encoder, or a causal model.

    The model is run in evaluation mode, without gradients, on its own device. The model needs eager attention, because
    other implementations do not return attention: `AutoModel.from_pretrained(name, attn_implementation="eager")`.

    Args:
        model: the transformer (needs PyTorch: `pip install 'bayesattn[transformers]'`).
        batch: its arguments by name, as a tokeniser returns them: input_ids of shape (P, T), attention_mask, .. If
            sequences are padded on the left, positions begin with the first token, unless position_ids are given.
        layers: the layers, from 0, ascending; negative numbers count from the last.
        heads: heads of each layer, from 0: one list for all layers, or a list for each; by default all.
        batch_size: sequences read at a time.
        renormalise: largest accepted deviation of the sum of a token's attention from 1; attention is divided by this
            sum. Half precision needs about 0.02.
        folder: new folder for arrays that do not fit into memory: inputs.npy, mask.npy and attention_<layer>.npy, opened
            as memory maps.

    Raises:
        ValueError: a model that returns no attention, layers or heads that it does not have, attention to padding, sums
            that are off by more than `renormalise`, values that are not finite; not enough memory.
        FileExistsError: the folder exists.
        ImportError: PyTorch is not installed.
    """
    place = None if folder is None else user_path("folder", folder)
    if place is not None:
        require_new("folder", place)
    require("transformers", "from_transformers")
    if not isinstance(batch, Mapping) or not batch:
        raise BayesattnError(
            f"batch must be the arguments of the model by name, as a tokeniser returns them, got {shown(batch)}"
        )
    sizes = {name: _examples(name, value) for name, value in batch.items()}
    if len(set(sizes.values())) != 1:
        raise BayesattnError(f"batch must hold arrays of equally many sequences, got {sizes or shown(batch)}")
    examples, size = next(iter(sizes.values())), positive_integer("batch_size", batch_size)
    tolerance = checked_tolerance(renormalise)
    store: _Store | None = None
    with evaluated(model) as run, _removed_if_refused(place):
        for part in watched([slice(at, at + size) for at in range(0, examples, size)], "transformer", "batches"):
            piece = {name: value[part] for name, value in batch.items()}
            states, attention = run(piece)
            chosen = _chosen(layers, heads, [each.shape[1] for each in attention])
            mask = piece.get("attention_mask")
            mask = np.ones(states[0].shape[:2], bool) if mask is None else np.asarray(readable(mask)) > 0
            if store is None:
                store = _Store.new(examples, states[0].shape[1:], chosen, place)
            pairs = [(states[layer], states[layer + 1]) for layer in chosen]
            picked = [attention[layer][:, kept] for layer, kept in chosen.items()]
            store.put(part, pairs, picked, mask, tolerance)
    if store is None:
        raise BayesattnError("batch must hold at least one sequence, got none")
    return store.result()


def from_cache(
    cache: Checked, layers: Sequence[int], heads: Checked = None, *, mask: Checked = None, renormalise: float = 1e-3
) -> Read:
    """Hidden states and attention from a TransformerLens cache: `cache["pattern", layer]`, `cache["resid_pre", layer]`.

    Args:
        cache: the `ActivationCache` that `HookedTransformer.run_with_cache` returns, or any mapping with its names:
            patterns of shape (P, H, T, T), and residual streams before and after each layer ("resid_pre", "resid_post"),
            of shape (P, T, N_0).
        layers: the layers, from 0, ascending.
        heads: heads of each layer, from 0: one list for all layers, or a list for each; by default all.
        mask: True for tokens and False for padding, shape (P, T); by default there is no padding.
        renormalise: as for `from_transformers`.

    Raises:
        ValueError: an entry that is not there, or as for `from_transformers`.
    """
    numbers, tolerance = _ascending(layers), checked_tolerance(renormalise)

    def entry(name: str, layer: int) -> np.ndarray:
        try:
            found = cache[name, layer]
        except (KeyError, IndexError, TypeError):
            raise BayesattnError(
                f"cache must hold {(name, layer)!r}, got none: from_cache reads cache[{name!r}, {layer}], as an"
                " ActivationCache has it; patterns, resid_pre and resid_post of each layer are needed"
            ) from None
        axes = ("examples", "heads", "tokens", "tokens") if name == "pattern" else ("examples", "tokens", "features")
        return real_array(f"cache[{name!r}, {layer}]", found, axes)

    patterns = {layer: entry("pattern", layer) for layer in numbers}
    most = [patterns[layer].shape[1] if layer in patterns else 0 for layer in range(max(numbers) + 1)]
    chosen = _chosen(numbers, heads, most)
    pairs = [(entry("resid_pre", layer), entry("resid_post", layer)) for layer in numbers]
    examples, tokens = pairs[0][0].shape[:2]
    checked = checked_mask(mask, examples, tokens)
    store = _Store.new(examples, pairs[0][0].shape[1:], chosen, None)
    picked = [patterns[layer][:, kept] for layer, kept in chosen.items()]
    store.put(
        slice(0, examples),
        pairs,
        picked,
        np.ones((examples, tokens), bool) if checked is None else checked,
        tolerance,
    )
    return store.result()


@contextmanager
def _removed_if_refused(folder: Path | None) -> Iterator[None]:
    """Context that removes the new folder if its block fails, so that the same call can be repeated."""
    try:
        yield
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _examples(name: str, value: Any) -> int:
    """Number of sequences of an argument of the model."""
    try:
        shape = tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    except ValueError:
        raise BayesattnError(
            f"batch[{name!r}] must be an array, got sequences of different lengths: let the tokeniser pad them"
        ) from None
    if len(shape) < 2 or (name == "attention_mask" and len(shape) != 2):
        raise BayesattnError(f"batch[{name!r}] must have shape (sequences, tokens), got {shape}")
    return shape[0]


def _ascending(layers: Checked) -> list[int]:
    expected = "ascending numbers of layers, from 0"
    numbers = [
        positive_integer(f"layers[{at}]", each, 0) for at, each in enumerate(entries("layers", layers, expected))
    ]
    if not numbers or numbers != sorted(set(numbers)):
        raise BayesattnError(f"layers must be {expected}, got {shown(layers)}")
    return numbers


def _chosen(layers: Checked, heads: Checked, counts: Sequence[int]) -> dict[int, list[int]]:
    """Heads of each chosen layer; raises ValueError for layers and heads that are not there."""
    given = entries("layers", layers, "ascending numbers of layers, from 0")
    for layer in given:
        if (
            isinstance(layer, bool)
            or not isinstance(layer, int | np.integer)
            or not -len(counts) <= layer < len(counts)
        ):
            raise BayesattnError(
                f"layers must be below {len(counts)}, the model's number of layers, got {shown(layers)}"
            )
    numbers = _ascending([int(layer) % len(counts) for layer in given])
    if heads is None:
        return {layer: list(range(counts[layer])) for layer in numbers}
    lists = entries("heads", heads, "a list of heads, from 0, or a list for each layer", most_axes=2)
    nested = [np.ndim(each) > 0 for each in lists]
    if any(nested) and not (all(nested) and len(lists) == len(numbers)):
        raise BayesattnError(
            f"heads must be one list of heads, or a list for each of {len(numbers)} layers, got {shown(heads)}"
        )
    chosen = {}
    for at, layer in enumerate(numbers):
        kept = [positive_integer("heads", head, 0) for head in (lists[at] if any(nested) else lists)]
        if not kept or len(set(kept)) != len(kept) or max(kept) >= counts[layer]:
            raise BayesattnError(
                f"heads of layer {layer} must be different numbers below {counts[layer]}, at least one, got {kept}"
            )
        chosen[layer] = kept
    return chosen


def _normalised(matrix: Attention) -> np.ndarray:
    """Rows divided by their sums in float64; in float32 they sum to 1 only up to rounding."""
    wide = np.asarray(matrix, float)
    return wide / wide.sum(-1, keepdims=True)


@dataclass(frozen=True)
class _Store:
    """Arrays that are filled batch by batch, in memory or in files, and the sums from which rho is computed."""

    chosen: dict[int, list[int]]
    inputs: np.ndarray
    attention: list[np.ndarray]
    mask: np.ndarray
    products: np.ndarray

    @classmethod
    def new(cls, examples: int, shape: tuple[int, ...], chosen: dict[int, list[int]], folder: Path | None) -> "_Store":
        tokens, features = shape
        shapes = {"inputs": (examples, tokens, features)} | {
            f"attention_{layer}": (examples, len(kept), tokens, tokens) for layer, kept in chosen.items()
        }
        if folder is None:
            needed = 4 * sum(map(math.prod, shapes.values()))
            require_memory("the attention", needed, "give a folder, or use fewer layers, heads or tokens")
            inputs, *attention = (np.empty(size, np.float32) for size in shapes.values())
            return cls(chosen, inputs, attention, np.empty((examples, tokens), bool), np.zeros((len(chosen), 2)))
        folder.mkdir(parents=True)

        def mapped(name: str, size: tuple[int, ...], kind: Any = np.float32) -> np.ndarray:
            return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=size)

        inputs, *attention = (mapped(name, size) for name, size in shapes.items())
        return cls(chosen, inputs, attention, mapped("mask", (examples, tokens), bool), np.zeros((len(chosen), 2)))

    def put(
        self,
        part: slice,
        states: list[tuple[np.ndarray, np.ndarray]],
        attention: list[np.ndarray],
        mask: np.ndarray,
        renormalise: float,
    ) -> None:
        """Check and keep one batch: hidden states before and after each layer, and attention."""
        examples, tokens = mask.shape
        checked_mask(mask, examples, tokens)
        for each in itertools.chain(*states):
            if each.shape != (wanted := (examples, tokens, self.inputs.shape[2])):
                raise BayesattnError(f"hidden states must have shape {wanted}, got {each.shape}")
        for each in attention:
            if each.shape != (wanted := (examples, each.shape[1], tokens, tokens)):
                raise BayesattnError(f"attention must have shape {wanted}, got {each.shape}")
        itself = np.eye(tokens, dtype=bool)
        attention = [np.where(mask[:, None, :, None], each, itself) for each in attention]
        worst = max(np.abs(each.sum(-1, dtype=float) - 1).max() for each in attention)
        if not worst <= renormalise:
            halved = " (half precision explains this)" if worst <= HALF_PRECISION_DEVIATION else ""
            raise BayesattnError(
                f"attention of each token must sum to 1 within renormalise = {renormalise:g}, got a sum that is off by"
                f" {worst:.2g}{halved}"
            )
        attention = checked_matrices([_normalised(each) for each in attention], examples, tokens, mask)
        before, _ = checked_tokens("hidden states", states[0][0], mask)
        for _, after in states:
            checked_tokens("hidden states", after, mask)
        self.inputs[part], self.mask[part] = before, mask
        for kept, each in zip(self.attention, attention, strict=True):
            kept[part] = each
        for sums, (start, end) in zip(self.products, states, strict=True):
            start, end = (np.asarray(each[mask], float) for each in (start, end))
            sums += np.sum(start * end), np.sum(start**2)

    def result(self) -> Read:
        """Hidden states, attention, mask and skips of all batches."""
        rho = tuple(max(0.0, float(together / own)) if own else 0.0 for together, own in self.products)
        names = tuple(tuple(f"{layer}.{head}" for head in kept) for layer, kept in self.chosen.items())
        return Read(self.inputs, list(self.attention), self.mask, rho, names)
