"""Where fetched models and what belongs to them lie."""

import os
import pathlib


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
                        "vericache")


def find_model(name, die):
    """The file of a model by its name, or by its path; die(text) if it is not there."""
    path = pathlib.Path(name)
    if not name.endswith(".gguf"):
        path = cache_folder() / "models" / f"{name}.gguf"
    if not path.is_file():
        die(f"no model at {path}; fetch it with scripts/fetch_model.sh {path.stem}")
    return path
