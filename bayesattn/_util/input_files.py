"""Readers of untrusted files, which may be damaged or malicious: they read within limits, or refuse in one sentence.

They use a size that a file declares only after comparing it with the limits and with the file itself.
"""

import math
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bayesattn._util.checks import memory_limit, shown
from bayesattn._util.files import user_path
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError

MOST_TOML_BYTES = 2**20
MOST_TOML_DEPTH = 20
"""Limits on a TOML file: bytes, and levels of nested tables and arrays."""
MOST_ZIP_MEMBERS = 200_000
"""Limit on the number of files in a zip archive."""


@contextmanager
def decoding(expected: str) -> Iterator[None]:
    """Turn any error of a decoder on a damaged file into one sentence, which begins with `expected`.

    Decoders raise errors of a dozen types, and the types do not distinguish the causes.
    """
    try:
        yield
    except BayesattnError as error:
        raise BayesattnError(f"{expected}: {error}") from error
    except Exception as error:
        # Later lines of the message give advice, for example to allow pickles.
        [reason, *_] = str(error).splitlines() or [type(error).__name__]
        raise BayesattnError(f"{expected}: {reason}") from error


def regular_file(key: str, file: str | Path, expected: str) -> Path:
    """Path of a file that exists and is not a folder, pipe or device.

    Raises:
        FileNotFoundError: no such file.
        ValueError: something else.
    """
    path = user_path(key, file)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{key} must be {expected}, got {shown(str(file))}, which is not there") from None
    except (OSError, ValueError) as error:
        raise BayesattnError(
            f"{key} must be {expected}, got {shown(str(file))}: {error.strerror if isinstance(error, OSError) else error}"
        ) from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise BayesattnError(f"{key} must be {expected}, got {shown(str(file))}, which is {kind}")
    return path


def read_toml(key: str, file: str | Path) -> PlainDict:
    """Content of a TOML file in UTF-8; `key` names the argument or the entry that named the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not TOML, or larger or more deeply nested than any file that a person writes.
    """
    path = regular_file(key, file, "a .toml file")
    if (size := path.stat().st_size) > MOST_TOML_BYTES:
        raise BayesattnError(f"{file} is not valid TOML: expected at most {MOST_TOML_BYTES} bytes, got {size}")
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    # Numbers with thousands of digits raise a ValueError that is not a TOMLDecodeError.
    except ValueError as error:
        raise BayesattnError(f"{file} is not valid TOML: {error}") from None
    except RecursionError:
        raise BayesattnError(f"{file} is not valid TOML: it is nested too deeply") from None
    layer: list[dict | list] = [content]
    for _ in range(MOST_TOML_DEPTH):
        layer = [part for parent in layer for part in (parent.values() if isinstance(parent, dict) else parent)]
        layer = [part for part in layer if isinstance(part, dict | list)]
    if layer:
        raise BayesattnError(f"{file} must not be nested deeper than {MOST_TOML_DEPTH} tables and arrays")
    return content


def read_arrays(key: str, file: str | Path) -> dict[str, np.ndarray]:
    """Arrays of a .npz file.

    Nothing is unpickled, and no more is read than fits into memory.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that cannot be read.
    """
    path = regular_file(key, file, "a .npz file")
    with decoding(f"{key} must be a .npz file of plain arrays, got {file}"):
        if (size := path.stat().st_size) > memory_limit():
            raise BayesattnError(f"its {size / 2**30:.3g} GiB do not fit into memory")
        with path.open("rb") as start:
            if start.read(6) == b"\x93NUMPY":
                raise BayesattnError(
                    "it is a single array, such as numpy.save writes; numpy.savez writes several with their names"
                )
        with zipfile.ZipFile(path) as packed:
            files = [member for member in packed.infolist() if not member.is_dir()]
            if len(files) > MOST_ZIP_MEMBERS:
                raise BayesattnError(f"it holds {len(files)} files, expected at most {MOST_ZIP_MEMBERS}")
            if (size := sum(member.file_size for member in files)) > memory_limit():
                raise BayesattnError(f"it unpacks to {size / 2**30:.3g} GiB, which do not fit into memory")
            return {member.filename.removesuffix(".npy"): _array(packed, member) for member in files}


def _array(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Array in a zip member; NumPy's own reader would allocate what the header declares before checking the file's size."""
    with packed.open(member) as content:
        major, _ = np.lib.format.read_magic(content)
        header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = header(content)
        if dtype.hasobject:
            raise BayesattnError(f"{member.filename} in it holds Python objects, expected numbers")
        needed = math.prod(shape) * dtype.itemsize
        available = member.file_size - content.tell()
        if needed != available:
            raise BayesattnError(
                f"{member.filename} in it should hold {needed} bytes by its header, but holds {available}"
            )
        array = np.frombuffer(content.read(), dtype)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)
