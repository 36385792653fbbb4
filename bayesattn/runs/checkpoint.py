"""Checkpoints: the state of a sampler in an .npz without pickles, which identifies its run.

The checksums of the zip format reveal damage.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from bayesattn._util.files import replace_file
from bayesattn._util.plain import PlainDict, PlainMapping

UNREADABLE = (Exception,)
"""Errors when reading a damaged file: after one flipped bit, a zip file may seem encrypted or of another version."""


def write(file: Path, about: PlainMapping, arrays: PlainMapping) -> None:
    """Write a checkpoint of arrays, with a description in plain values for JSON; replaces an existing one."""
    content = io.BytesIO()
    described = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(content, allow_pickle=False, about=described, **arrays)
    replace_file(file, content.getvalue())


def read(file: Path) -> tuple[PlainDict, dict[str, np.ndarray]]:
    """Description and arrays of a checkpoint; raises one of UNREADABLE."""
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return _described(stored), {name: stored[name] for name in stored.files if name != "about"}


def read_description(file: Path) -> PlainDict:
    """Description of a checkpoint, without reading its arrays; raises one of UNREADABLE."""
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return _described(stored)


def _described(stored: Any) -> PlainDict:
    return dict(json.loads(stored["about"].tobytes()))
