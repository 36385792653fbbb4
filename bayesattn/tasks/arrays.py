"""Data of a model file from an .npz: path inputs, or tokens with the attention matrices of each layer, and labels."""

from pathlib import Path

import numpy as np

from bayesattn._util.checks import shown, suggestion
from bayesattn._util.input_files import read_arrays, regular_file
from bayesattn._util.plain_values import PlainDict
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.fixed_attention import paths_from_matrices

CONTENT = "an .npz of path inputs and labels"
PARTS = ("", "test_", "validation_")


def data_of(path: Path, arch: Architecture, readout: str, *, training: bool) -> PlainDict:
    """Arrays of a `bayesattn.Model` from a file; training data, which must be there if `training`, are refused if not.

    In place of `path_inputs` it may hold tokens, `inputs` of shape (P, T, N_0), with `matrices_1`, .., `matrices_L` of shape
    (P, H_l, T, T) and perhaps `mask` of shape (P, T); names of other parts begin with "test_" or "validation_".

    Raises ValueError for other arrays, or arrays that do not fit.
    """
    path = regular_file("task.file", path, CONTENT)
    if path.suffix != ".npz":
        raise BayesattnError(f"task.file must be {CONTENT}, got {path}")
    arrays = read_arrays("task.file", path)
    matrices = [f"matrices_{layer}" for layer in range(1, len(arch.heads) + 1)]
    of_part = ["path_inputs", "labels", "inputs", *matrices, "mask"]
    known = [part + name for part in (PARTS if training else PARTS[1:]) for name in of_part]
    for key in arrays.keys() - set(known):
        beside = "" if training or key not in of_part else " beside task.statistics"
        raise BayesattnError(
            f"task.file may hold {', '.join(known)}{beside}, got {shown(key)} in {path}{suggestion(key, known)}"
        )
    for part in PARTS:
        tokens = [part + name for name in ("inputs", *matrices)]
        given = {name for name in (*tokens, f"{part}mask") if name in arrays}
        if given and (f"{part}path_inputs" in arrays or not given >= set(tokens)):
            raise BayesattnError(
                f"task.file must hold either {part}path_inputs or all of {', '.join(tokens)}, got {sorted(arrays)} in {path}"
            )
        if given:
            inputs, *attention = (arrays.pop(name) for name in tokens)
            mask, skips = arrays.pop(f"{part}mask", None), [strength > 0 for strength in arch.skips]
            try:
                made = paths_from_matrices(inputs, attention, readout, mask, skips)
            except BayesattnError as error:
                raise BayesattnError(f"task.file, with matrices[0] for {tokens[1]} and so on: {error}") from None
            arrays[f"{part}path_inputs"] = np.asarray(made)
    for key in ("path_inputs", "labels") if training else ():
        if key not in arrays:
            raise BayesattnError(f"task.file must hold {key}, got only {sorted(arrays)} in {path}")
    return arrays
