"""A CUDA device that is not there: tensors that say `cuda:0` and compute on the CPU.

It depends on private parts of torch and lives outside the repository, in the folder OSIRIS_PRETEND_CUDA or in
`../shared/tools/pretend-cuda` beside the repository. Its library must be loaded before torch, in a process of its own,
so torch is not imported here.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = Path(os.environ.get("OSIRIS_PRETEND_CUDA") or ROOT.parent / "shared/tools/pretend-cuda")
TORCH = "2.13.0"


def missing() -> str | None:
    """Why there is no such device here."""
    if not (PLACE / "core.py").exists():
        return f"there is no pretend CUDA device in {PLACE}: set OSIRIS_PRETEND_CUDA"
    if metadata.version("torch").split("+")[0] != TORCH:
        return f"the pretend CUDA device is for torch {TORCH}, and this is {metadata.version('torch')}"
    places = getattr(importlib.util.find_spec("torch"), "submodule_search_locations", None) or ()
    if any((Path(place) / "lib" / "libtorch_cuda.so").exists() for place in places):
        return "the pretend CUDA device is for a build of torch without CUDA"
    return None if shutil.which("g++") else "the pretend CUDA device needs g++"


def build(folder: Path) -> None:
    """The module `core` and its library, ready to be imported from this folder."""
    shutil.copy(PLACE / "core.py", folder)
    subprocess.run(["bash", PLACE / "build", sys.executable, folder / "libstub.so"], check=True)
