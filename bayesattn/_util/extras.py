"""Optional libraries, which an installation may lack."""

from importlib.util import find_spec

from bayesattn.errors import MissingLibrary

EXTRAS = {
    "images": {"sklearn": "scikit-learn"},
    "sweep": {"distributed": "distributed", "pyarrow": "pyarrow"},
    "cluster": {"dask_jobqueue": "dask-jobqueue"},
    "report": {"jinja2": "jinja2"},
    "transformers": {"torch": "torch", "transformers": "transformers"},
    "netcdf": {"h5netcdf": "h5netcdf", "h5py": "h5py"},
}
"""Modules of each extra, and the names of the packages that contain them."""


def require(extra: str, work: str) -> None:
    """If a library that `work` needs is missing, raise ImportError with the command that installs it."""
    missing = [name for module, name in EXTRAS[extra].items() if find_spec(module) is None]
    if missing:
        raise MissingLibrary(f"{work} needs {', '.join(missing)}: pip install 'bayesattn[{extra}]'")
