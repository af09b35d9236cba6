"""The files of an index: what belongs to it, what is refused, and what is left after a kill."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest

from killed import killed_at
from osiris.errors import UserError
from osiris.index import store
from osiris.index.records import Version
from osiris.index.store import Index

FIRST = Version(episode=1, digest="1" * 32)
SECOND = Version(episode=2, digest="2" * 32)


def vectors(count: int, seed: int = 0, size: int = 8) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def add(index: Index, names: list[str], version: Version = FIRST, seed: int = 0) -> np.ndarray:
    given = vectors(len(names), seed)
    with index:
        index.append(version, names, np.stack([np.arange(len(names)), np.arange(len(names)) + 7], axis=1), given)
    return given


def content(folder: Path) -> dict[str, np.ndarray]:
    """Path -> vector, as a reader that knows only Arrow and the manifest sees it."""
    found: dict[str, np.ndarray] = {}
    for part in json.loads((folder / "manifest.json").read_text())["parts"]:
        with pyarrow.memory_map(str(folder / part["name"])) as file:
            table = pyarrow.ipc.open_file(file).read_all()
        dead = {row for start, stop in part.get("superseded", []) for row in range(start, stop)}
        rows = zip(table["path"].to_pylist(), table["vector"].to_pylist())
        found |= {path: np.array(vector, np.float32) for row, (path, vector) in enumerate(rows) if row not in dead}
    return found


def test_rows_come_back_as_they_were_given(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    assert not index.exists and not index.parts
    given = add(index, ["/a/1.png", "/a/ü.png"])
    (part,) = Index(tmp_path / "index").parts
    np.testing.assert_array_equal(part.rows.vectors, given)
    assert part.rows.paths.to_pylist() == ["/a/1.png", "/a/ü.png"] and part.rows.mtime.tolist() == [7, 8]
    assert part.version == FIRST and not part.rows.vectors.flags.owndata, "memory-mapped"
    table = pyarrow.ipc.open_file(str(tmp_path / "index" / part.name)).read_all()
    assert table.column_names == [
        *("path", "size", "mtime", "digest", "hash", "width", "height", "taken", "thumbnail", "vector")
    ]


def test_a_newer_row_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    old = add(index, [f"/{n}" for n in range(6)])
    new = add(index, ["/4", "/5"], SECOND, seed=1)
    assert [(len(part.rows), int(part.live.sum())) for part in Index(index.folder).parts] == [(6, 4), (2, 2)]
    found = content(index.folder)
    np.testing.assert_array_equal(found["/4"], new[0])
    np.testing.assert_array_equal(found["/3"], old[3])
    add(index, [f"/{n}" for n in range(4)], SECOND, seed=2)
    assert {part.version for part in Index(index.folder).parts} == {SECOND}, "a part without rows that count is gone"
    assert len(list(index.folder.glob("*.arrow"))) == 1, "and small parts of one version are one"


def test_many_updates_leave_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MERGED", 16)
    index = Index(tmp_path / "index")
    expected = {}
    for number in range(50):
        expected |= zip([f"/{number}"], add(index, [f"/{number}"], seed=number))
    assert len(Index(index.folder).parts) <= 6
    found = content(index.folder)
    assert found.keys() == expected.keys() and all((found[name] == expected[name]).all() for name in found)


def test_what_the_manifest_does_not_name_does_not_exist(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    add(index, ["/a"])
    before = sorted(index.folder.iterdir())
    (index.folder / "part-000099.arrow").write_bytes(b"half a pa")
    (index.folder / ".manifest.json.abc.tmp").write_bytes(b"{")
    assert len(Index(index.folder).parts) == 1
    with index:
        pass
    assert sorted(index.folder.iterdir()) == before


def test_old_parts_stay_until_the_manifest_names_the_new_ones(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    add(index, [f"/{n}" for n in range(6)])
    gone = f"unlink {next(index.folder.glob('*.arrow')).name}"
    with killed_at(0) as operations:
        add(index, [f"/{n}" for n in range(7)], SECOND)
    manifest = next(at for at, what in enumerate(operations) if what.startswith("replace .manifest"))
    assert gone in operations[manifest:] and gone not in operations[:manifest]


def test_files_that_are_gone_stay_gone_when_parts_are_written_again(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    add(index, [f"/{n}" for n in range(8)])
    with index:
        index.parts[0].gone[[6, 7]] = True
        index.commit()
    add(index, [f"/{n}" for n in range(4)], SECOND)
    with index:
        assert index.forget(["/4"]) == 1  # writes the part again
        index.commit()
    gone = {path for part in Index(index.folder).parts for path in np.array(part.rows.paths)[part.gone]}
    assert gone == {"/6", "/7"}


def test_a_reader_keeps_what_it_has_opened(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    given = add(index, [f"/{n}" for n in range(20)])
    reader = Index(index.folder)
    with index:
        index.forget(["/3"])
        index.commit()
    np.testing.assert_array_equal(reader.parts[0].rows.vectors, given)
    assert "/3" not in content(index.folder) and len(content(index.folder)) == 19


def test_forgotten_rows_are_in_no_file(tmp_path: Path) -> None:
    """Also those that a newer row has taken the place of, and all below a folder."""
    index = Index(tmp_path / "index")
    add(index, ["/secret/1", "/a", "/b", "/c"])
    add(index, ["/secret/1"], SECOND)
    with index:
        assert index.forget(["/secret"]) == 1
        index.commit()
    assert content(index.folder).keys() == {"/a", "/b", "/c"}
    assert not any(b"secret" in file.read_bytes() for file in index.folder.iterdir())


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    with Index(tmp_path / "index"), pytest.raises(UserError, match=f"is in use by process {os.getpid()}"):
        add(Index(tmp_path / "index"), ["/a"])


def manifest(change: dict[str, object], part: dict[str, object] | None = None):
    def edit(folder: Path) -> None:
        record = json.loads((folder / "manifest.json").read_text())
        record |= change
        record["parts"][0] |= part or {}
        (folder / "manifest.json").write_text(json.dumps(record))

    return edit


def rewritten(**columns: pyarrow.Array):
    def edit(folder: Path) -> None:
        table = pyarrow.ipc.open_file(str(folder / "part-000001.arrow")).read_all()
        for name, column in columns.items():
            table = table.set_column(table.column_names.index(name), name, column)
        with pyarrow.ipc.new_file(str(folder / "part-000001.arrow"), table.schema) as writer:
            writer.write_table(table)

    return edit


def linked(folder: Path) -> None:
    (folder / "part-000001.arrow").rename(folder.parent / "elsewhere")
    (folder / "part-000001.arrow").symlink_to(folder.parent / "elsewhere")


def with_offsets_out_of_bounds(folder: Path) -> None:
    path, ends = folder / "part-000001.arrow", np.arange(0, 10, 2, dtype=np.int32)
    content = path.read_bytes()
    assert content.count(ends.tobytes()) == 1, "where the names end"
    path.write_bytes(content.replace(ends.tobytes(), np.array([*ends[:4], 1 << 30], dtype=np.int32).tobytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (manifest({"format": 1}), "another version of osiris"),
        (manifest({"dimension": 9}), "it has other columns"),
        (manifest({"counter": -1}), "does not hold Manifest"),
        (manifest({}, {"name": "../../secret.arrow"}), "does not hold Manifest"),
        (manifest({}, {"rows": 5}), "it has 4 rows, not 5"),
        (manifest({}, {"superseded": [[3, 9]]}), "rows 3 to 9 of 4"),
        (manifest({}, {"version": SECOND.plain()}), "another version of the encoder"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "is not readable as JSON"),
        (lambda folder: (folder / "part-000001.arrow").write_bytes(b"x" * 99), "is damaged"),
        (lambda folder: os.truncate(folder / "part-000001.arrow", 400), "is damaged"),
        (lambda folder: (folder / "part-000001.arrow").unlink(), "a part of the index is missing"),
        (linked, "it is a link"),
        (with_offsets_out_of_bounds, "is damaged"),
        (rewritten(size=pyarrow.array([1, None, 1, 1])), "some are empty"),
        (rewritten(size=pyarrow.array([1.0, 1, 1, 1])), "it has other columns"),
    ],
)
def test_a_damaged_or_hostile_index_is_one_sentence(change, message: str, tmp_path: Path) -> None:
    add(Index(tmp_path / "index"), ["/a", "/b", "/c", "/d"])
    change(tmp_path / "index")
    with pytest.raises(UserError, match=message):
        Index(tmp_path / "index")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "state" / "index").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="is a link"):
        Index(tmp_path / "state" / "index")
    (tmp_path / "state" / "index").unlink()
    index = Index(tmp_path / "state" / "index")
    (tmp_path / "state" / "index").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "state" / "index" / "manifest.json").symlink_to(tmp_path / "mine" / "file")
    with pytest.raises(UserError, match="outside"):
        add(index, ["/a"])
    assert (tmp_path / "mine" / "file").read_text() == "mine"
