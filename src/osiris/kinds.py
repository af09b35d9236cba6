"""Classes that are known by a name, on the command line and in files: those of osiris, and the user's own."""

from __future__ import annotations

from typing import ClassVar, Self

from osiris.errors import UserError


class Named:
    """`kind` is the name of a class. A base class without one is not a choice."""

    kind: ClassVar[str] = ""

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Every subclass by name, including those of a user's own modules."""
        classes = {cls.kind: cls} if vars(cls).get("kind") else {}
        for subclass in cls.__subclasses__():
            for name, inner in subclass.kinds().items():
                known = classes.get(name, inner)
                places = {(one.__module__, one.__qualname__) for one in (known, inner)}
                if len(places) > 1:
                    raise UserError(f"two classes are called {name!r}: {known}, {inner}. Give yours another `kind`.")
                classes[name] = inner  # of a class that was defined again, the last one
        return classes
