"""A run that learns by a method or with parts of the user's own continues by the same ones."""

from __future__ import annotations

import json

from osiris.config import Config
from osiris.console import notice
from osiris.errors import UserError
from osiris.files import read_json, write_json
from osiris.framework.methods import Method
from osiris.framework.source import SOURCE, sources
from osiris.own import composition_of
from osiris.runs.directory import RunDirectory


def refuse_another_method(directory: RunDirectory, config: Config, method: Method, new_source: bool = False) -> None:
    """Refuse to continue a run by a method of the same name whose terms or parts, or their source, are others.
    `new_source`: the source may differ, and is recorded."""
    if not directory.config.exists():
        return
    record, ours = read_json(directory.config), json.loads(json.dumps(composition_of(config, method)))
    theirs = record.get("composition")
    if theirs is None or theirs == ours:
        return
    if _without_source(theirs) != _without_source(ours):
        raise UserError(
            f"{directory.path} already holds a run of another method named {method.name!r}. Choose another directory."
        )
    before, after = sources(theirs), sources(ours)
    changed = ", ".join(kind for kind in after if before.get(kind) != after[kind])
    if not new_source:
        raise UserError(
            f"the source of {changed} has changed since {directory.path} began: its steps would be of two methods. "
            "Restore it, choose another directory, or continue all the same with --new-source (new_source=True)."
        )
    if directory.owner:
        write_json(directory.config, record | {"composition": ours})
        notice(f"{directory.path} goes on with the changed source of {changed}.")


def _without_source(part: object) -> object:
    """Of a composition, what its options say."""
    if isinstance(part, dict):
        return {key: _without_source(value) for key, value in part.items() if key != SOURCE}
    return [_without_source(value) for value in part] if isinstance(part, list) else part
