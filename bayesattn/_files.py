"""Files that are there as a whole or not at all."""

import os
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, file)
