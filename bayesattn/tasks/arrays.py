"""Data of a model file from an .npz: path inputs, or tokens with the attention matrices of each layer, and labels."""

from pathlib import Path

import numpy as np

from bayesattn._util.checks import shown, suggestion
from bayesattn._util.input_files import read_arrays, regular_file
from bayesattn._util.plain_values import PlainDict
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.fixed_attention import EVERY_POSITION, paths_from_matrices
from bayesattn.models.tokens import Tokens
from bayesattn.tasks.tables import ArraysTable

CONTENT = "an .npz of path inputs and labels"
PARTS = ("", "test_", "validation_")


def data_of(path: Path, task: ArraysTable, arch: Architecture) -> PlainDict:
    """Data of a `bayesattn.Model` from a file; training data, which the file must hold, are refused beside `statistics`.

    In place of `path_inputs` it may hold tokens, `inputs` of shape (P, T, N_0), with `matrices_1`, .., `matrices_L` of shape
    (P, H_l, T, T) and perhaps `mask` of shape (P, T); names of other parts begin with "test_" or "validation_".

    Raises ValueError for other arrays, or arrays that do not fit.
    """
    path, training = regular_file("task.file", path, CONTENT), task.statistics is None
    if path.suffix != ".npz":
        raise BayesattnError(f"task.file must be {CONTENT}, got {path}")
    arrays = read_arrays("task.file", path)
    matrices = [f"matrices_{layer}" for layer in range(1, len(arch.heads) + 1)]
    of_part = ["path_inputs", "labels", "inputs", *matrices, "mask"]
    known = [part + name for part in (PARTS if training else PARTS[1:]) for name in of_part]
    for key in sorted(arrays.keys() - set(known)):
        beside = "" if training or key not in of_part else " beside task.statistics"
        raise BayesattnError(
            f"task.file may hold {', '.join(known)}{beside}, got {shown(key)} in {path}{suggestion(key, known)}"
        )
    data: PlainDict = {name: array for name, array in arrays.items() if name.endswith(("path_inputs", "labels"))}
    for part in PARTS:
        names = [part + name for name in ("inputs", *matrices)]
        given = {name for name in (*names, f"{part}mask") if name in arrays}
        if given and (f"{part}path_inputs" in arrays or not given >= set(names)):
            raise BayesattnError(
                f"task.file must hold either {part}path_inputs or all of {', '.join(names)}, got {sorted(arrays)} in {path}"
            )
        if given:
            _require_heads(names[1:], arrays, arch.heads)
            inputs, *attention = (arrays[name] for name in names)
            mask, skips = arrays.get(f"{part}mask"), [strength > 0 for strength in arch.skips]
            try:
                data[f"{part}path_inputs"] = np.asarray(
                    paths_from_matrices(inputs, attention, task.readout, mask, skips, renormalise=task.renormalise)
                )
            except BayesattnError as error:
                raise BayesattnError(f"task.file, with matrices[0] for {names[1]} and so on: {error}") from None
            if not part and task.readout != EVERY_POSITION:
                data["tokens"] = Tokens(inputs, attention, task.readout, mask, task.renormalise)
    unread = {"readout": task.readout != "last", "renormalise": task.renormalise is not None}
    if not any(f"{part}inputs" in arrays for part in PARTS) and any(unread.values()):
        name = next(name for name, given in unread.items() if given)
        raise BayesattnError(
            f"task.{name} is for tokens with their attention matrices, got it with {path}, which holds path inputs"
        )
    for key in ("path_inputs", "labels") if training else ():
        if key not in data:
            raise BayesattnError(f"task.file must hold {key}, got only {sorted(arrays)} in {path}")
    return data


def _require_heads(names: list[str], arrays: PlainDict, heads: tuple[int, ...]) -> None:
    """Raise ValueError unless the attention of each layer has the heads of the architecture."""
    for name, count in zip(names, heads, strict=True):
        if np.ndim(arrays[name]) == 4 and np.shape(arrays[name])[1] != count:
            raise BayesattnError(
                f"{name} in task.file must have {count} heads, as architecture.heads says, got {np.shape(arrays[name])[1]}"
            )
