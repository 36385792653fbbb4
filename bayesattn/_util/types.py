"""Types of arguments, from which functions make arrays or numbers themselves."""

from collections.abc import Iterable, Mapping, Sequence

from numpy.typing import ArrayLike

Classes = ArrayLike | Sequence[str] | Sequence[int]
"""Class of each example, or all classes."""
Examples = tuple[ArrayLike, ArrayLike]
"""Path inputs and labels of some examples."""
Batches = Iterable[Examples] | Examples | Mapping[str, ArrayLike]
"""Examples batch by batch, or as one pair of arrays, which may be on disk or of Dask."""
LayersOfHeads = Sequence[ArrayLike | tuple[ArrayLike, ArrayLike]]
"""Heads of each layer: bilinear forms (H_l, N_0, N_0), or queries and keys, each of shape (H_l, G, N_0)."""
