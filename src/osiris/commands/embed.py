"""`osiris embed`: the features of images, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Args:
    """Compute the features of all images below a folder with the newest encoder of a state or run.

    Examples:
      osiris embed state photos --out features.parquet
      osiris embed runs/x photos
    """

    state: Annotated[Path, tyro.conf.Positional]
    """The directory of a state or of a finished run."""
    folder: Annotated[Path, tyro.conf.Positional]
    """A folder of images, at any depth, or one image file."""
    out: Path = Path("features.parquet")
    """A Parquet file with the columns path and vector. Files that cannot be decoded are left out and reported."""


def run(args: Args) -> int:
    import pyarrow
    import pyarrow.parquet

    from osiris.console import notice, say
    from osiris.files import require_writable, write_atomically
    from osiris.learner import Learner

    require_writable(args.out.parent)
    paths, features, notices = Learner(args.state).embed_files(args.folder)
    notice(*notices)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
    table = pyarrow.table({"path": [str(path) for path in paths], "vector": vectors})
    write_atomically(args.out, lambda temporary: pyarrow.parquet.write_table(table, temporary))
    say(f"{len(paths)} vectors of {features.shape[1]} numbers in {args.out}")
    return 0
