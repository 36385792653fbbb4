from tests import shapes as shapes  # The import hook of pyproject.toml takes its checker from here.
