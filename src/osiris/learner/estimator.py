"""The conventions of scikit-learn, without depending on it: `Pipeline`, `clone` and pickle work with a learner."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np

from osiris.config import with_options
from osiris.errors import UserError
from osiris.presets import configure
from osiris.runs.directory import LOCK, RunDirectory

FIELDS = ("path", "method", "preset", "seed", "encoder")


class Estimator:
    """Parameters are stored as given. A learner without a path has a temporary state, which goes with the object."""

    path: str | Path | None
    options: dict[str, Any]

    def __init__(self) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """Of the state."""
        if self.path is not None:
            return Path(self.path)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="osiris-learner-")
        return Path(self._temporary.name)

    def observe(self, images: Any) -> Self:
        raise NotImplementedError

    def embed(self, images: Any) -> np.ndarray:
        raise NotImplementedError

    def fit(self, images: Any, y: object = None) -> Self:
        """Learn from one episode, from the beginning. A state that exists is never discarded: `partial_fit` continues,
        and `sklearn.frozen.FrozenEstimator(learner)` is used as it is."""
        if self.path is None:
            self._temporary = None
        elif RunDirectory(self.folder).config.exists():
            raise UserError(
                f"fit starts from the beginning, but {self.path} holds a state. Call partial_fit to continue, wrap the "
                "learner in sklearn.frozen.FrozenEstimator to use it as it is, or choose another path."
            )
        return self.observe(images)

    def partial_fit(self, images: Any, y: object = None) -> Self:
        """Learn from one more episode."""
        return self.observe(images)

    def transform(self, images: Any) -> np.ndarray:
        """The features of images, float32 [N, D]."""
        return self.embed(images)

    def fit_transform(self, images: Any, y: object = None) -> np.ndarray:
        return self.fit(images).transform(images)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS} | self.options

    def set_params(self, **parameters: Any) -> Self:
        base = configure("", "fast")
        self.__dict__.pop("_encoder_name", None)
        for name, value in parameters.items():
            if name in FIELDS:
                setattr(self, name, value)
            else:
                with_options(base, {name: value})  # an unknown name is an error
                self.options[name] = value
        return self

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not None]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        return RunDirectory(self.folder).metrics.exists()

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def __getstate__(self) -> dict[str, Any]:
        """A pickle names the path of the state; a temporary state is part of it."""
        attributes = {name: getattr(self, name) for name in (*FIELDS, "options")}
        if self._temporary is None:
            return attributes
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != LOCK]
        return attributes | {"files": {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        files = attributes.pop("files", {})
        self.__init__(**{name: attributes[name] for name in FIELDS}, **attributes["options"])
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
