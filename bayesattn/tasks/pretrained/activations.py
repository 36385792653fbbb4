"""What is read of a pretrained transformer: hidden states and attention, in memory or in files."""

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.checks import require_kind, require_memory, truth
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.fixed_attention import (
    ROW_TOLERANCE,
    are_swapped,
    cause_of_sums,
    checked_matrices,
    checked_tokens,
    paths_from_matrices,
)
from bayesattn.tasks.pretrained.projection import Projection

CHUNK_BYTES = 2**26
"""Approximate memory of the attention whose path inputs are computed at a time."""
Attention = Float[np.ndarray, "example _ query key"]


@dataclass(frozen=True, eq=False, repr=False)
class TransformerActivations(Described):
    """Hidden states and attention of chosen layers and heads of a transformer; unpacks into `inputs, matrices, mask`.

    Args:
        inputs: hidden states before the first of the layers, shape (P, T, N_0), float32.
        matrices: attention of each layer, shape (P, H_l, T, T), float32; rows of tokens sum to 1, and padding attends to
            itself.
        mask: True for tokens and False for padding, shape (P, T).
        head_names: layer and number of each head, such as "5.0".
    """

    inputs: Float[np.ndarray, "example token feature"]
    matrices: list[Attention]
    mask: Bool[np.ndarray, "example token"]
    head_names: tuple[tuple[str, ...], ...]
    _skips: tuple[float, ...] | None

    @property
    def skips(self) -> tuple[float, ...]:
        """rho of each layer: least-squares factor from the hidden states before it to those after it, over all tokens.

        It is 0 if negative. To model the residual stream, use these as the skips of the architecture. Raises ValueError
        if the hidden states after a layer were not given.
        """
        if self._skips is None:
            raise BayesattnError("skips need the hidden states after each layer, got a cache without resid_post of one")
        return self._skips

    def __iter__(self) -> Iterator[Any]:
        return iter((self.inputs, self.matrices, self.mask))

    def path_inputs(
        self, readout: str = "mean", skips: bool | None = None
    ) -> Float[np.ndarray, "example path feature"]:
        """Path inputs xi of shape (P, Pi, N_0), in float64.

        Args:
            readout: "mean" over tokens, the "first" token or the "last" one; choose the readout of the transformer.
            skips: whether the layers have skip connections (the residual stream); one truth value for all layers. If they
                are not given, there are none, which is warned of if there are several layers.

        Raises:
            ValueError: another readout, or skips that are not true or false.
        """
        if skips is None and len(self.matrices) > 1:
            warnings.warn(
                "skips were not given, so a head of a later layer reads heads below it alone, not the residual stream: pass"
                " skips=True here and the skips of this object to the architecture, or skips=False to leave the stream out",
                stacklevel=2,
            )
        flags = [skips is not None and truth("skips", skips)] * len(self.matrices)
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

    def projected(self, projection: Projection) -> "TransformerActivations":
        """Copy with inputs projected to fewer features."""
        require_kind("projection", projection, Projection)
        return replace(self, inputs=projection(self.inputs, self.mask))

    def _described(self) -> tuple[str, dict[str, str]]:
        examples, tokens, features = self.inputs.shape
        layers = [f"{len(names)} of layer {names[0].partition('.')[0]}" for names in self.head_names]
        return "Attention of a transformer", {
            "sequences": f"{examples} of {tokens} tokens, {self.mask.mean():.0%} of them not padding; {features} features"
            + ("; give mask= if they differ in length" if self.mask.all() else ""),
            "heads": ", ".join(layers),
            "skips": "not known, as a layer has no resid_post"
            if self._skips is None
            else ", ".join(f"{rho:.3g}" for rho in self._skips) + " (least squares)",
        }


def _normalised(matrix: Attention) -> np.ndarray:
    """Rows divided by their sums in float64; in float32 they sum to 1 only up to rounding."""
    wide = np.asarray(matrix, float)
    return wide / wide.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Store:
    """Arrays that are filled batch by batch, in memory or in files, and the sums from which rho is computed."""

    chosen: dict[int, list[int]]
    inputs: np.ndarray
    attention: list[np.ndarray]
    mask: np.ndarray
    products: np.ndarray
    sums: np.ndarray

    @classmethod
    def new(cls, examples: int, shape: tuple[int, ...], chosen: dict[int, list[int]], folder: Path | None) -> "Store":
        """Store without entries, of the chosen heads of layers whose states have a shape (T, N_0)."""
        tokens, features = shape
        shapes = {"inputs": (examples, tokens, features)} | {
            f"attention_{layer}": (examples, len(kept), tokens, tokens) for layer, kept in chosen.items()
        }
        if folder is None:
            needed = 4 * sum(map(math.prod, shapes.values()))
            require_memory("the attention", needed, "give a folder, or use fewer layers, heads or tokens")
        else:
            folder.mkdir(parents=True)

        def empty(name: str, size: tuple[int, ...], kind: Any = np.float32) -> np.ndarray:
            if folder is None:
                return np.empty(size, kind)
            return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=size)

        inputs, *attention = (empty(name, size) for name, size in shapes.items())
        mask = empty("mask", (examples, tokens), bool)
        return cls(chosen, inputs, attention, mask, np.zeros((len(chosen), 2)), np.ones(2))

    def put(
        self,
        part: slice | np.ndarray,
        states: list[tuple[np.ndarray, np.ndarray | None]],
        attention: list[np.ndarray],
        mask: np.ndarray,
        renormalise: float,
    ) -> None:
        """Check and keep one batch: hidden states before and, if known, after each layer, and attention."""
        examples, tokens = mask.shape
        shape = (examples, tokens, self.inputs.shape[2])
        for each in (each for each in itertools.chain(*states) if each is not None):
            checked_tokens("hidden states", each, mask, shape)
        for each in attention:
            if each.shape != (wanted := (examples, each.shape[1], tokens, tokens)):
                raise BayesattnError(f"attention must have shape {wanted}, got {each.shape}")
        itself = np.eye(tokens, dtype=bool)
        attention = [np.where(mask[:, None, :, None], each, itself) for each in attention]
        ends = np.array([(sums.min(), sums.max()) for sums in (each.sum(-1, dtype=float) for each in attention)])
        lowest, highest = ends[:, 0].min(), ends[:, 1].max()
        worst = np.maximum(1 - lowest, highest - 1)
        if not worst <= renormalise:
            scores = any(each.min() < 0 for each in attention)
            cause = "scores before the softmax are not attention" if scores else cause_of_sums(lowest, highest)
            if all(are_swapped(each, mask, renormalise) for each in attention):
                cause = "sums over queries are 1: the axes of queries and keys are swapped"
            raise BayesattnError(
                f"attention of each token must sum to 1 within renormalise = {renormalise:g}, got a sum that is off by"
                f" {worst:.2g}{cause and f' ({cause})'}"
            )
        self.sums[:] = np.minimum(self.sums[0], lowest), np.maximum(self.sums[1], highest)
        attention = checked_matrices([_normalised(each) for each in attention], examples, tokens, mask)
        self.inputs[part], self.mask[part] = np.where(mask[..., None], states[0][0], 0), mask
        for kept, each in zip(self.attention, attention, strict=True):
            kept[part] = each
        for sums, (start, end) in zip(self.products, states, strict=True):
            if end is None:
                sums[:] = np.nan
                continue
            start, end = (np.asarray(each[mask], float) for each in (start, end))
            sums += np.sum(start * end), np.sum(start**2)

    def result(self) -> TransformerActivations:
        """Hidden states, attention, mask and skips of all batches; warns of attention sinks."""
        lowest, highest = self.sums
        if highest <= 1 + ROW_TOLERANCE and lowest < 1 - ROW_TOLERANCE:
            warnings.warn(
                f"attention was divided by its sums, which are as small as {lowest:.3g} and never above 1: a share, as that"
                " of attention sinks, is left out",
                stacklevel=3,
            )
        rho = tuple(max(0.0, float(together / own)) if own else 0.0 for together, own in self.products)
        names = tuple(tuple(f"{layer}.{head}" for head in kept) for layer, kept in self.chosen.items())
        known = None if np.isnan(self.products).any() else rho
        return TransformerActivations(self.inputs, list(self.attention), self.mask, names, known)
