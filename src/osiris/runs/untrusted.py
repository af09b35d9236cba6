"""Text from files that other people may have written: printable, short, and safe as a file name.

A run directory may be received from anybody. Templates escape HTML and figures escape their own text. What remains are
control characters, endless strings, and names that would become paths.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from osiris.console import printable
from osiris.errors import UserError
from osiris.files import read_json

LONGEST = 2000
"""Characters of any string."""
LONGEST_NAME = 80
"""Characters of a file name, without its ending."""


def harmless(value: Any) -> Any:
    """The same JSON value with strings (keys too) of limited length, on one line and without control characters."""
    if isinstance(value, str):
        return printable(value[:LONGEST].replace("\n", " "))
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    return value


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def safe_name(text: str) -> str:
    """A name for a file or an anchor: letters, digits, dots and dashes. Names that are cut get a hash."""
    name = re.sub(r"[^A-Za-z0-9.+-]+|\.{2,}", "-", text).strip("-.") or "unnamed"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def read_received(path: Path, kind: type) -> Any:
    """The content of a JSON file, made harmless; an empty `kind` if there is no such file."""
    if not path.exists():
        return kind()
    try:
        value = harmless(read_json(path))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {str(error)[:100]}).") from None
    if not isinstance(value, kind):
        raise UserError(f"{path} should hold a JSON {kind.__name__}, not a {type(value).__name__}.")
    return value
