r"""The zoo: Table 1 of the paper as code (Sec. 3.3).

    L = L_current(X) + lambda_1 L_cross(X, Y) + lambda_2 L_past(X, Y, f*, g*)

A method is a choice of terms and of the space that each acts on. The first task of every method is plain ft.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from osiris.errors import UserError, unknown
from osiris.framework.objectives import Ntxent, Objective
from osiris.framework.terms import (
    AlignAverage,
    AlignStored,
    Contrast,
    Cross,
    CrossMix,
    Distil,
    Elastic,
    Expert,
    Match,
    Mixed,
    Negatives,
    Predict,
    Project,
    PseudoContrast,
    PseudoDistil,
    Revisit,
    Snapshot,
    Storyboard,
    Term,
    Y,
)

Learns = Literal["continual", "joint", "first-task"]
Role = Literal["current", "cross", "past"]
ROLES: tuple[Role, ...] = ("current", "cross", "past")


@dataclass(frozen=True)
class RoleTerms:
    """The terms of one role, with the weight of the role."""

    role: Role
    terms: tuple[Term, ...]
    weight: float | None


@dataclass(frozen=True)
class Method:
    """Terms by role. Several terms in one role are summed; `cross_weight` and `past_weight` are lambda_1, lambda_2."""

    current: tuple[Term, ...]
    cross: tuple[Term, ...] = ()
    past: tuple[Term, ...] = ()
    cross_weight: float = 1.0
    past_weight: float | None = 1.0
    """None: the default weight of each term, which is 1, or for ewc depends on the number of tasks (Appendix B)."""
    objective: Objective = field(default_factory=Ntxent)
    """L^SSL in the space of g, in every task. The space of h always uses NT-Xent."""
    replay: float = 0.75
    """|Y| / |X|."""
    replay_limit: int | None = None
    """The largest |Y|."""
    replay_count: int | None = None
    """|Y|, whatever |X| is; None: by the share."""
    boundaries: Literal["known", "none", "detect"] = "none"
    """In a stream: whether it is told where a task begins."""
    past_model: str | None = None
    """In a stream: what f* is (osiris.framework.past)."""
    memory: Literal["reservoir", "fifo", "minred", "quota", "equal"] = "reservoir"
    """Which images the memory keeps (osiris.memory)."""
    second_space: Literal["copy", "fresh"] = "copy"
    """How h starts in task 2: a copy of g (the authors' released code) or fresh."""
    learns: Learns = "continual"
    """`joint`: all tasks shuffled together; `first-task`: the first task alone. Both have as many steps as a continual
    run."""
    sums: Literal["readout", "manifold"] | None = None
    """What is learned by sums over images (`summed.py`), in place of terms and gradients; one pass."""
    length: float = 1.0
    """Steps in each later task, as a multiple of the steps that its epochs have."""
    name: str = ""

    def __or__(self, new: RoleTerms) -> Method:
        """The same method with one role replaced."""
        weight = {} if new.role == "current" else {f"{new.role}_weight": new.weight}
        return replace(self, **{new.role: new.terms, **weight})  # pyright: ignore[reportArgumentType]

    def weighted(self, task_count: int) -> list[tuple[str, Term, float]]:
        """(logged name, term, weight) of every term; a role of weight 0 is not computed."""
        weighted = []
        for role, terms, weight in (
            ("current", self.current, 1.0),
            ("cross", self.cross, self.cross_weight),
            ("past", self.past, self.past_weight),
        ):
            if weight != 0:
                weights = [term.default_weight(task_count) if weight is None else weight for term in terms]
                weighted += list(zip(_names(role, terms), terms, weights))
        return weighted

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.current + self.cross + self.past

    def with_option(self, option: str, value: object, roles: tuple[Role, ...] = ROLES) -> Method:
        """The same method with one option changed in every term that has it."""
        changed = {
            role: tuple(replace(term, **{option: value}) if option in term.options else term for term in terms)
            for role, terms in ((role, getattr(self, role)) for role in roles)
        }
        return replace(self, **changed)

    @property
    def copies_g(self) -> bool:
        """Whether h starts as a copy of g: not if the objective gives g another shape."""
        return self.second_space == "copy" and type(self.objective).projector is Objective.projector

    def replayed(self, images: int) -> int:
        """|Y| for |X| images: a fraction of them, rounded down, up to the limit; or a fixed number."""
        if self.replay_count is not None:
            return self.replay_count
        return min(int(images * self.replay), self.replay_limit or images)

    @property
    def uses_past(self) -> bool:
        """Whether any term needs a model of the past."""
        return any(term.needs_past for _, term, _ in self.weighted(0))

    @property
    def reads_memory(self) -> bool:
        return any(Y in term.reads for _, term, _ in self.weighted(0))


def _names(role: str, terms: tuple[Term, ...]) -> list[str]:
    """`past`, or `past.contrast` and `past.distil` where a role has several terms; numbered where kinds repeat."""
    if len(terms) == 1:
        return [role]
    kinds = [term.kind for term in terms]
    return [
        f"{role}.{kind}{kinds[:i].count(kind) + 1 if kinds.count(kind) > 1 else ''}" for i, kind in enumerate(kinds)
    ]


def current(*terms: Term) -> RoleTerms:
    return RoleTerms("current", terms, None)


def cross(*terms: Term, weight: float = 0.5) -> RoleTerms:
    return RoleTerms("cross", terms, weight)


def past(*terms: Term, weight: float | None = 1.0) -> RoleTerms:
    return RoleTerms("past", terms, weight)


FT = Method(current=(Contrast("X", space="g"),))
ER_PLUS = FT | current(Negatives(space="g"))
ER_PLUS_PLUS = FT | current(Contrast("X+Y", space="g"))
OSIRIS_R = FT | cross(Cross(space="h"), weight=0.5) | past(Contrast("Y", space="h"), weight=0.5)
OSIRIS_D = OSIRIS_R | past(Distil(space="h"), weight=0.5)

ZOO: dict[str, Method] = {
    "ft": FT,
    "er": FT | past(Contrast("Y", space="g")),
    "er+": ER_PLUS,
    "er++": ER_PLUS_PLUS,
    "der": FT | past(Match(space="g")),
    "lump": replace(FT, replay=1.0) | current(Mixed(alpha=0.4, space="g")),
    "osiris-r": OSIRIS_R,
    "ewc": FT | past(Elastic(normaliser="sum"), weight=None),
    "cassle": FT | past(Predict()),
    "pocon": FT | current(Expert()) | past(Snapshot()),
    "osiris-d": OSIRIS_D,
    "pfr": FT | past(Project()),
    "pnr": FT | current(PseudoContrast()) | past(PseudoDistil()),
    "cromo": replace(FT, memory="quota", replay=1.0, replay_limit=64)
    | cross(CrossMix(), weight=1.0)
    | past(Predict(paired=True)),
    "minred": replace(FT, memory="minred") | current(Revisit()),
    "cla-e": replace(ER_PLUS_PLUS, memory="fifo") | past(AlignAverage("Y")),
    "cla-r": replace(ER_PLUS_PLUS, memory="fifo") | past(AlignStored()),
    "cla-b": FT | past(AlignAverage("X")),
    "storyboard": ER_PLUS_PLUS | past(Storyboard()),
    "readout": Method(current=(), sums="readout"),
    "smt": Method(current=(), sums="manifold"),
    "offline": replace(FT, learns="joint"),
    "d1-only": replace(FT, learns="first-task"),
}
TRAINED = tuple(name for name, method in ZOO.items() if method.sums is None)
"""The methods that learn with terms and gradients."""
OWN: dict[str, Method] = {}
"""Compositions of the user's own that this process knows, by name (osiris.own)."""
READINGS: dict[str, Method] = {
    "er+/plus-replay": ER_PLUS | past(Contrast("Y", space="g")),
    "er+/plus-current": FT | current(Contrast("X", space="g"), Negatives(space="g")),
}
"""Other readings of er+ (the paper has three); `er+` itself is the formula alone."""


def _shared_space(method: Method) -> Method:
    """h is g: every loss acts on the one projector (Table 4, `w/o isolated space`)."""
    return method.with_option("space", "g", roles=("cross", "past"))


def _renormalised(method: Method) -> Method:
    """The weights of the remaining roles sum to 1; ewc keeps the default weight of its term."""
    alone = None if method.past_weight is None else 1.0
    return replace(method, cross_weight=0.5 if method.past else 1.0, past_weight=0.5 if method.cross else alone)


def _equal_work(method: Method) -> Method:
    """More steps in the later tasks, so that the encoder does as much work as in osiris-d."""
    from osiris.framework.cost import later_cost  # imports this module

    return replace(method, length=later_cost(OSIRIS_D).work / later_cost(method).work)


VARIANTS = {
    "shared-space": _shared_space,
    "no-cross": lambda method: replace(method, cross=()),
    "no-past": lambda method: replace(method, past=()),
    "renormalised": _renormalised,
    "equal-work": _equal_work,
}
"""`osiris-d/no-cross` and so on. The remaining role keeps weight 1/2; `/renormalised` makes the weights sum to 1.
`NAME/equal-work` learns from the later tasks for as much encoder work as osiris-d, not for as many steps."""


def find_method(name: str) -> Method:
    """`osiris-d`, `er+/plus-replay`, `osiris-d/no-cross`, `osiris-d/no-cross/no-past`."""
    base, *variants = (name,) if name in OWN else name.split("/")
    if base not in ZOO and base not in OWN:
        known = str(unknown("method", name, [*ZOO, *READINGS])).rstrip(".")
        raise UserError(f"{known}, or one of your own, --method module:name.")
    method = ZOO[base] if base in ZOO else OWN[base]
    readings = [reading.split("/")[1] for reading in READINGS if reading.startswith(f"{base}/")]
    if variants and variants[0] in readings:
        base, variants = f"{base}/{variants[0]}", variants[1:]
        method = READINGS[base]
    for variant in sorted(variants, key=[*VARIANTS, *variants].index):  # equal-work comes last
        if variant not in VARIANTS:
            raise unknown("variant", variant, [*readings, *VARIANTS])
        before, method = method, VARIANTS[variant](method)
        if _written(before) == _written(method):
            raise UserError(f"/{variant} changes nothing in {base}: {name!r} would be the same method without it.")
    return replace(method, name=name)


def _written(method: Method) -> list[tuple]:
    """What the method computes, as values that can be compared: terms are modules, which compare by identity."""
    return [(method.length,), *((name, term.kind, term.options, weight) for name, term, weight in method.weighted(0))]
