"""Files that are damaged, of another kind or made to do harm: each is used rightly, or refused in one sentence, soon."""

import io
import os
import struct
import zipfile
from functools import partial

import numpy as np
import pytest

import bayesattn as ba
from tests.attacks import conftest

GOOD = 'temperature = 0.1\n[architecture]\nwidth = 3\n[task]\nname = "hidden_markov"\n'
ARRAYS = (
    'temperature = 0.1\n[architecture]\nheads = [2]\nwidth = 3\n[task]\nname = "arrays"\nfile = "{}"\n'
    'head_names = [["left", "right"]]\n'
)
RNG = np.random.default_rng(0)
XI, Y = RNG.normal(size=(6, 2, 3)), np.array([1.0, -1.0] * 3)


def refused(call, *expected):
    return conftest.refused(call, *expected, errors=(ValueError, FileNotFoundError), lines=3)


def npy(array=XI, *, shape=None, dtype=None, version=1):
    """A .npy file whose header may claim another shape or type than the array has."""
    text = repr({"descr": dtype or array.dtype.str, "fortran_order": False, "shape": shape or array.shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + array.tobytes()


def zipped(**contents):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in contents.items():
            packed.writestr(f"{name}.npy", content)
    return file.getvalue()


def changed(content, place, value):
    """A zip with other bytes at a place of each member's entry in its directory."""
    content, at = bytearray(content), 0
    while (at := content.find(b"PK\x01\x02", at) + place) >= place:
        content[at : at + len(value)] = value
    return bytes(content)


def savez(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


WHOLE = savez(path_inputs=XI, labels=Y)
LARGE = zipped(**{f"x{number}": npy() for number in range(20)})
NPZ = {
    "text": (b"path_inputs, labels", "not a zip"),
    "a .npy": (npy(), "single array", "numpy.savez"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "not a zip"),
    "garbled": (WHOLE.replace(XI.tobytes(), (-XI).tobytes()), "CRC"),
    "encrypted": (changed(WHOLE, 8, b"\1\0"), "encrypted"),
    "pickled objects": (savez(path_inputs=np.array([XI, None], object), labels=Y), "Python objects"),
    "a header of 10 to the 15 numbers": (zipped(path_inputs=npy(shape=(10**5, 10**5, 10**5)), labels=npy(Y)), "header"),
    "a header of negative sizes": (zipped(path_inputs=npy(shape=(-6, -2, 3)), labels=npy(Y)),),
    "a header of code": (zipped(path_inputs=npy().replace(b"(6, 2, 3)", b"exit(0)  "), labels=npy(Y)), "task.file"),
    "a header of 1 MB": (zipped(path_inputs=npy(dtype="<f8" + " " * 10**6, version=2), labels=npy(Y)), "task.file"),
    "misspelt name": (savez(path_inputs=XI, label=Y), "got 'label'", "did you mean 'labels'?"),
    "NaN": (savez(path_inputs=XI * np.nan, labels=Y), "path_inputs must be finite"),
    "members of 4 GiB": (changed(LARGE, 24, struct.pack("<I", 2**32 - 2)), "task.file", "unpacks to 80 GiB"),
}


@pytest.mark.parametrize("name", NPZ)
def test_arrays_of_a_stranger(tmp_path, name):
    content, *expected = NPZ[name]
    (tmp_path / "mine.npz").write_bytes(content)
    (tmp_path / "model.toml").write_text(ARRAYS.format("mine.npz"))
    message = refused(lambda: ba.load_model(tmp_path / "model.toml"), *expected)
    assert "allow_pickle" not in message


NO_FILES = {
    "none.npz": "not there",
    "folder.npz": "folder",
    "pipe.npz": "no regular file",
    "../../../../dev/zero": "",
    "text.csv": ".npz",
    "x" * 5000: "",
}


@pytest.mark.parametrize("file", NO_FILES, ids=lambda file: file[:30])
def test_a_file_of_arrays_that_is_none(tmp_path, file):
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "text.csv").write_text("1,2")
    (tmp_path / "model.toml").write_text(ARRAYS.format(file))
    refused(lambda: ba.load_model(tmp_path / "model.toml"), "task.file", NO_FILES[file])


def test_arrays_of_another_layout_are_taken_as_they_are(tmp_path):
    np.savez(tmp_path / "mine.npz", path_inputs=np.asfortranarray(XI), labels=Y.astype(">f8"))
    (tmp_path / "model.toml").write_text(ARRAYS.format("mine.npz"))
    model = ba.load_model(tmp_path / "model.toml")
    np.testing.assert_array_equal(model.path_inputs, XI)
    np.testing.assert_array_equal(model.labels, Y)


TOML = {
    "no TOML": ("temperature = ", "is not valid TOML"),
    "10 MB": ("# " + "x" * 10**7, "is not valid TOML", "at most 1048576 bytes"),
    "arrays nested 100,000 deep": ("a = " + "[" * 10**5, "is not valid TOML", "nested"),
    "arrays nested 50 deep": ("a = " + "[" * 50 + "]" * 50, "nested deeper than 20"),
    "a number of 10,000 digits": (GOOD + f"tokens = {'9' * 10_000}\n", "is not valid TOML"),
    "no task": ("temperature = 0.1\n[architecture]\nwidth = 3\n", "task"),
    "no temperature": (GOOD.replace("temperature = 0.1", ""), "needs temperature, or priors.temperature in its place"),
    "a task without a name": (GOOD.replace('name = "hidden_markov"', "tokens = 5"), "task.name", "got none"),
    "a misspelt task": (GOOD.replace("hidden", "hiden"), "task.name must be one of", "did you mean 'hidden_markov'?"),
    "a misspelt key": (GOOD + "tokenz = 3\n", "task.tokenz is unknown", "got 3", "did you mean 'tokens'?"),
    "a misspelt table": (GOOD + "[validat]\ndraws = 3\n", "validat is unknown", "did you mean 'validate'?"),
    "a misspelt key of a table": (GOOD + "[validate]\nwidth = [3]\n", "validate.width is unknown", "'widths'?"),
    "temperature NaN": (GOOD.replace("0.1", "nan"), "temperature", "nan"),
    "tokens 3.5": (GOOD + "tokens = 3.5\n", "task.tokens must be a whole number of at least 1", "got 3.5"),
    "an odd number of examples": (GOOD + "examples = 7\n", "examples must be even, got 7"),
    "width and widths": (GOOD.replace("width = 3", "width = 3\nwidths = [3, 3, 3]"), "either width or widths"),
    "heads of a ready task": (
        GOOD.replace("width", "heads = [4]\nwidth"),
        "architecture.heads must be [2, 2], those of",
    ),
    "too few widths": (GOOD.replace("width = 3", "widths = [3, 3]"), "widths must have 3 entries"),
    "arrays without heads": (ARRAYS.format("x.npz").replace("heads = [2]\n", ""), "architecture.heads must be given"),
    "width 10^14": (GOOD.replace("width = 3", f"width = {10**14}"), "widths[0]", "1000000000000"),
    "width 2.0": (GOOD.replace("width = 3", "width = 2.0"), "architecture.width", "got 2.0"),
    "seed 2^63": (GOOD + f"seed = {2**63}\n", "task.seed", "9223372036854775807"),
    "noise NaN": (GOOD + "noise_sum = nan\n", "noise_sum", "nan"),
    "dimension 10^6": (GOOD + f"dimension = {10**6}\nexamples = 2\ntest_examples = 2\n", "must fit into"),
    "a layer that is empty": (GOOD + "layers = [[]]\n", "layers"),
    "a misspelt head": (GOOD + 'layers = [["unifrom"]]\n', "layers[0]", "did you mean 'uniform'?"),
}


@pytest.mark.parametrize("name", TOML)
def test_a_model_file_of_a_stranger(tmp_path, name):
    content, *expected = TOML[name]
    file = tmp_path / "model.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: ba.load_model(file), *expected)


ARGUMENTS = [
    ({"width": -3}, ("architecture.width", "greater than or equal to 1", "got -3")),
    ({"temperature": "hot"}, ("temperature", "got 'hot'")),
    ({"seed": -1}, ("task.seed", "got -1")),
    ({"task": {"tokenz": 3}}, ("task.tokenz is unknown", "did you mean 'tokens'?")),
]


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS, ids=str)
def test_arguments_of_load_model_read_like_those_of_the_command_line(arguments, expected):
    refused(partial(ba.load_model, "hidden_markov", **arguments), *expected)


def test_arguments_over_a_file_whose_tables_are_none(tmp_path):
    (tmp_path / "model.toml").write_text("temperature = 0.1\narchitecture = 3\ntask = 3\n")
    for arguments in ({"seed": 1}, {"width": 3}, {"task": {"tokens": 3}}):
        refused(partial(ba.load_model, tmp_path / "model.toml", **arguments), "must be a table")


@pytest.mark.parametrize("name", ["none.toml", "folder.toml", "pipe.toml", "hidden_markow", "", "a\0b"])
def test_a_model_that_is_not_there(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    refused(lambda: ba.load_model(name), "model must be")


def test_a_model_file_of_another_editor_is_read(tmp_path):
    """Some begin a file with a byte order mark, and end lines in two characters."""
    text = GOOD.replace("width = 3", "heads = [2, 2]\nwidth = 3 # grüße") + "examples = 4\ntest_examples = 4\n"
    (tmp_path / "model.toml").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert ba.load_model(tmp_path / "model.toml").architecture.widths == (3, 3, 3)
