"""Hidden states and attention of a pretrained transformer, as tokens and attention of a network.

The hidden states before the first chosen layer are the tokens, and the transformer's attention patterns are the attention.
The transformer's values are not read. The posterior learns its own values, so it judges the information that attention
routes.
Layers and heads are counted from 0, as Hugging Face and TransformerLens count them: `hidden_states[layer]` is the input of
layer `layer`.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bayesattn._util.checks import Checked, entries, positive_integer, readable, real_array, shown
from bayesattn._util.extras import require
from bayesattn._util.files import require_new, user_path
from bayesattn._util.slow_loops import watched
from bayesattn.errors import BayesattnError
from bayesattn.fixed_attention import checked_mask, checked_tolerance
from bayesattn.tasks.pretrained.activations import Store, TransformerActivations
from bayesattn.tasks.pretrained.padding import at_places, equally_long, padded_ends, warn_if_padded, without_padding
from bayesattn.tasks.pretrained.pytorch import evaluated, pad_token

BATCH_SIZE = 32
"""Sequences that a transformer reads at a time."""


def from_transformers(
    model: Any,
    batch: Checked,
    layers: Sequence[int],
    heads: Checked = None,
    *,
    batch_size: int = BATCH_SIZE,
    renormalise: float = 1e-3,
    folder: str | Path | None = None,
) -> TransformerActivations:
    """Hidden states and attention of chosen layers of a Hugging Face transformer: an encoder, or a causal model.

    The model is run in evaluation mode, without gradients, on its own device. The model needs eager attention, because
    other implementations do not return attention: `AutoModel.from_pretrained(name, attn_implementation="eager")`.

    Args:
        model: the transformer (needs PyTorch: `pip install 'bayesattn[transformers]'`).
        batch: its arguments by name, as a tokeniser returns them: input_ids of shape (P, T), attention_mask, ..
            Padding may be anywhere. Sequences of equally many tokens are read together, without padding, so that
            positions begin with the first token unless position_ids are given.
        layers: the layers, from 0, ascending; negative numbers count from the last.
        heads: heads of each layer, from 0: one list for all layers, or a list for each; by default all.
        batch_size: sequences read at a time.
        renormalise: largest accepted deviation of the sum of a token's attention from 1; attention is divided by this
            sum. Half precision needs about 0.02. A warning says if sums are smaller than 1 only, as attention sinks
            make them, since the share of the sinks is then left out.
        folder: new folder for arrays that do not fit into memory: inputs.npy, mask.npy and attention_<layer>.npy, opened
            as memory maps.

    Raises:
        ValueError: a model that returns no attention, or that does not say which of its layers have attention; layers or
            heads that it does not have; sums that are off by more than `renormalise`, values that are not finite; not
            enough memory.
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
    arrays = {name: _array_of(name, value) for name, value in batch.items()}
    sizes = {name: len(value) for name, value in arrays.items()}
    if len(set(sizes.values())) != 1:
        raise BayesattnError(f"batch must hold arrays of equally many sequences, got {sizes}")
    examples, size = next(iter(sizes.values())), positive_integer("batch_size", batch_size)
    real, tolerance = np.ones((examples, 1), bool), checked_tolerance(renormalise)
    if masked := "attention_mask" in arrays:
        real = np.asarray(readable(arrays["attention_mask"])) > 0
        checked_mask(real, examples, real.shape[1], "batch['attention_mask']")
    store, tokens, unknown_end = None, real.shape[1], False
    with evaluated(model) as run, _removed_if_refused(place):
        for name in () if masked else arrays.keys() & {"input_ids", "inputs_embeds"}:
            warn_if_padded("attention_mask", padded_ends(np.asarray(readable(arrays[name])), pad_token(model)))
        for rows, columns in watched(equally_long(real, size), "transformer", "batches"):
            states, attention, known = run(without_padding(arrays, rows, columns, tokens))
            if masked and states[0].shape[1] != columns.shape[1]:
                raise BayesattnError(
                    "hidden states must have as many tokens as attention_mask has in a sequence,"
                    f" {columns.shape[1]}, got {states[0].shape[1]}"
                )
            counts = [attention[layer].shape[1] if layer in attention else 0 for layer in range(len(states) - 1)]
            chosen = _chosen(layers, heads, counts)
            unknown_end |= not known and len(counts) - 1 in chosen
            before, after = (
                [at_places(states[layer + step], columns, tokens, 1) for layer in chosen] for step in (0, 1)
            )
            picked = [at_places(attention[layer][:, kept], columns, tokens, 2, 3) for layer, kept in chosen.items()]
            if store is None:
                store = Store.new(examples, before[0].shape[1:], chosen, place)
            mask = real[rows] if masked else np.ones(before[0].shape[:2], bool)
            store.put(rows, list(zip(before, after, strict=True)), picked, mask, tolerance)
    if store is None:
        raise BayesattnError("batch must hold at least one sequence, got none")
    if unknown_end:
        warnings.warn(
            "skips of the last layer compare its input with the model's last hidden state, which may have passed a final"
            " norm: the output of the last layer was not found",
            stacklevel=2,
        )
    return store.result()


def from_cache(
    cache: Checked, layers: Sequence[int], heads: Checked = None, *, mask: Checked = None, renormalise: float = 1e-3
) -> TransformerActivations:
    """Hidden states and attention from a TransformerLens cache: `cache["pattern", layer]`, `cache["resid_pre", layer]`.

    Args:
        cache: the `ActivationCache` that `HookedTransformer.run_with_cache` returns, or any mapping with its keys, pairs
            such as ("pattern", 5) or names of hooks such as "blocks.5.attn.hook_pattern":
            patterns of shape (P, H, T, T), and residual streams before and after each layer ("resid_pre", "resid_post"),
            of shape (P, T, N_0). Without "resid_post" of each layer, `skips` of the result raise
            ValueError.
        layers: the layers, from 0, ascending.
        heads: heads of each layer, from 0: one list for all layers, or a list for each; by default all.
        mask: True for tokens and False for padding, shape (P, T); by default there is no padding. A warning says if it
            looks otherwise: tokens that repeat at an end, as far as states show it, or to which no token attends.
        renormalise: as for `from_transformers`.

    Raises:
        ValueError: an entry that is not there, or as for `from_transformers`.
    """
    numbers, tolerance = _ascending(layers), checked_tolerance(renormalise)

    def entry(name: str, layer: int) -> Any:
        hook = f"blocks.{layer}.{'attn.' if name == 'pattern' else ''}hook_{name}"
        for key in ((name, layer), hook):
            with suppress(KeyError, IndexError, TypeError):
                found = cache[key]
                break
        else:
            if name == "resid_post":
                return None
            held = shown([*cache.keys()] if hasattr(cache, "keys") else cache)
            raise BayesattnError(
                f"cache must hold {(name, layer)!r}, or {hook!r}, got {held}: pattern and resid_pre of each layer are needed"
            )
        axes = ("examples", "heads", "tokens", "tokens") if name == "pattern" else ("examples", "tokens", "features")
        return real_array(f"cache[{name!r}, {layer}]", found, axes)

    patterns = {layer: entry("pattern", layer) for layer in numbers}
    most = [patterns[layer].shape[1] if layer in patterns else 0 for layer in range(max(numbers) + 1)]
    chosen = _chosen(numbers, heads, most)
    pairs = [(entry("resid_pre", layer), entry("resid_post", layer)) for layer in numbers]
    examples, tokens = pairs[0][0].shape[:2]
    checked = checked_mask(mask, examples, tokens)
    store = Store.new(examples, pairs[0][0].shape[1:], chosen, None)
    if checked is None:
        unseen = np.all([pattern.sum((1, 2)) == 0 for pattern in patterns.values()], axis=0).any(1)
        warn_if_padded("mask", padded_ends(_embeddings(cache, pairs[0][0])) | unseen)
        checked = np.ones((examples, tokens), bool)
    picked = [patterns[layer][:, kept] for layer, kept in chosen.items()]
    store.put(slice(0, examples), pairs, picked, checked, tolerance)
    return store.result()


def _embeddings(cache: Checked, states: np.ndarray) -> np.ndarray:
    """Embedded tokens, which repeat where tokens do; states of a later layer if the cache has none before the first."""
    for key in ("embed", "hook_embed", ("resid_pre", 0), "blocks.0.hook_resid_pre"):
        with suppress(KeyError, IndexError, TypeError):
            return np.asarray(readable(cache[key]))
    return states


@contextmanager
def _removed_if_refused(folder: Path | None) -> Iterator[None]:
    """Context that removes the new folder if its block fails, so that the same call can be repeated."""
    try:
        yield
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _array_of(name: str, value: Any) -> Any:
    """Argument of the model as an array or tensor, with sequences on its first axis and tokens on its second."""
    try:
        value = value if hasattr(value, "shape") else np.asarray(readable(value))
    except ValueError:
        raise BayesattnError(
            f"batch[{name!r}] must be an array, got sequences of different lengths: let the tokeniser pad them"
        ) from None
    if value.ndim < 2 or (name == "attention_mask" and value.ndim != 2):
        raise BayesattnError(f"batch[{name!r}] must have shape (sequences, tokens), got {tuple(value.shape)}")
    return value


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
    if without := [layer for layer in numbers if not counts[layer]]:
        having = [layer for layer, count in enumerate(counts) if count]
        raise BayesattnError(f"layers must be layers with attention, {having}, got {without}, which have none")
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
