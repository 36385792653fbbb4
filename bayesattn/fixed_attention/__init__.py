"""Fixed attention as arrays: attention matrices from queries and keys, and path inputs from matrices."""

from bayesattn.fixed_attention.paths import (
    EVERY_POSITION,
    READOUTS,
    allowed_keys,
    attention_matrices,
    checked_heads,
    checked_mask,
    checked_matrices,
    checked_tokens,
    matrices,
    one_layer_back,
    path_inputs,
    paths_from_matrices,
    readout_rows,
    traced_path_inputs,
)

__all__ = [
    "EVERY_POSITION",
    "READOUTS",
    "allowed_keys",
    "attention_matrices",
    "checked_heads",
    "checked_mask",
    "checked_matrices",
    "checked_tokens",
    "matrices",
    "one_layer_back",
    "path_inputs",
    "paths_from_matrices",
    "readout_rows",
    "traced_path_inputs",
]
