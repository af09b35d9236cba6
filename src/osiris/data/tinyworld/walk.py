"""A film of tinyworld: a camera that walks from object to object, with labels for evaluation alone.

Blocks take turns indoors, in the city and in the wild, each with one background. In a block the camera stays at some
stations, each with an object of its own, for a random time and pans from one to the next. Neighbouring frames are
almost alike: a mini-batch of them shows one or two objects.

Every number comes from Philox keyed by (VERSION, purpose, index), so a longer film begins with the shorter one
(`ordered` films divide their length among the tasks).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from osiris.data.tinyworld import objects, painting
from osiris.data.tinyworld import shapes as s
from osiris.data.tinyworld.painting import NOISE_WORDS, PARAMETERS, between, colour, covered, mix
from osiris.data.tinyworld.shapes import Field

VERSION = 1
FRAMES = 20_000
DISTANCE = 2.4
"""Between stations; the camera sees a width of 2."""
PAN = 8
"""Frames from one station to the next."""
STAY = (48, 16, 160)
"""Frames at a station: mean of the geometric distribution, and its limits."""
STATIONS = 6
"""Mean number of stations in a block, beyond the first."""
REVISITED = 0.3
"""The probability that an object of an earlier station of its class is met again."""
PURPOSES = ("block", "station", "camera", "noise")
CAMERA: tuple[tuple[float, float], ...] = ((0.9, 0.12), (0.9, 0.10), (0.95, 0.15), (0.95, 0.15), (0.97, 0.25))
"""AR(1), as correlation and deviation: position across and up, logarithm of the zoom, roll in radians, exposure."""


def _words(purpose: str, index: int, count: int) -> np.ndarray:
    bits = np.random.Philox(key=[VERSION + 1000, (PURPOSES.index(purpose) << 40) + index])
    return bits.random_raw(count)


def _uniform(words: np.ndarray) -> np.ndarray:
    """float64 above 0 and below 1."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52


def _normal(words: np.ndarray) -> np.ndarray:
    first, second = _uniform(words).reshape(2, -1)
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)


def _geometric(uniform: float, mean: float) -> int:
    """1, 2, ... with this mean."""
    return 1 + int(np.log(uniform) / np.log1p(-1 / mean))


@dataclass(frozen=True)
class Station:
    """A stay at one object, with the pan to the next one of its block."""

    number: int
    block: int
    environment: int
    label: int
    look: int
    """The station whose object this one has: its own number, or an earlier one's."""
    x: float
    start: int
    stay: int
    pan: int
    """0 at the end of a block."""

    @property
    def end(self) -> int:
        return self.start + self.stay + self.pan


@lru_cache(maxsize=4)
def stations(frames: int, ordered: bool = False) -> tuple[Station, ...]:
    """The stations of a film; the last one is cut off at its end."""
    environments = _environments()
    if not ordered:
        places = [[label for label, one in enumerate(environments) if one == place] for place in range(3)]
        return tuple(_visit(0, frames, places, 0, 0))
    share, made = -(-frames // len(objects.TASKS)), list[Station]()
    for start in range(0, frames, share):
        labels = list(range(4 * (start // share), 4 * (start // share) + 4))
        block = made[-1].block + 1 if made else 0
        made += _visit(start, min(start + share, frames), [labels], len(made), block)
    return tuple(made)


def _environments() -> list[int]:
    """That of each class."""
    names = [environment.name for environment in painting.ENVIRONMENTS]
    return [names.index(task.environment) for task in objects.TASKS for _ in task.kinds]


def _visit(start: int, end: int, places: list[list[int]], number: int, block: int) -> list[Station]:
    """The stations from frame `start` to `end`, in blocks that take turns among `places` (the classes of each)."""
    environments, made, looks, last = _environments(), list[Station](), dict[int, list[int]](), -1
    mean, low, high = STAY
    while start < end:
        here = places[block % len(places)]
        count = _geometric(float(_uniform(_words("block", block, 1))[0]), 1 + STATIONS)
        for at in range(count):
            drawn = _uniform(_words("station", number, 4 + PARAMETERS)[:4])
            free = [label for label in here if label != last]
            last = free[int(drawn[0] * len(free))]
            known = looks.setdefault(last, [])
            look = known[int(drawn[3] * len(known))] if known and drawn[2] < REVISITED else number
            known += [number] * (look == number)
            stay = min(int(np.clip(_geometric(float(drawn[1]), mean), low, high)), end - start)
            pan = min(PAN if at + 1 < count else 0, end - start - stay)
            made.append(Station(number, block, environments[last], last, look, DISTANCE * at, start, stay, pan))
            start, number = made[-1].end, number + 1
            if start >= end:
                break
        block += 1
    return made


def nearest_stations(frames: int, ordered: bool = False) -> np.ndarray:
    """int64 [frames]: the station that the camera is nearest to; the first half of a pan is of the one it leaves."""
    number = np.empty(frames, np.int64)
    for station in stations(frames, ordered):
        middle = station.start + station.stay + station.pan // 2
        number[station.start : station.end] = station.number
        if station.pan == PAN and station.end < frames:
            number[middle : station.end] = station.number + 1
    return number


def walk_labels(frames: int, ordered: bool = False) -> np.ndarray:
    """int64 [frames]: the class of the nearest station."""
    return np.array([station.label for station in stations(frames, ordered)])[nearest_stations(frames, ordered)]


@lru_cache(maxsize=2)
def _camera(frames: int) -> np.ndarray:
    """float64 [frames, 5]: the AR(1) processes of CAMERA."""
    length = -(-frames // 1000) * 1000  # a longer film begins with the shorter one
    parts = [_normal(_words("camera", part, 2 * 1000 * len(CAMERA))) for part in range(length // 1000)]
    noise, states = np.concatenate([part.reshape(1000, -1) for part in parts]), np.empty((frames, len(CAMERA)))
    keep = np.array([correlation for correlation, _ in CAMERA])
    spread = np.array([deviation for _, deviation in CAMERA])
    state = noise[0]
    for frame in range(frames):
        state = noise[0] if frame == 0 else keep * state + np.sqrt(1 - keep**2) * noise[frame]
        states[frame] = state
    return states * spread


def render_walk(frames: int, ordered: bool = False, start: int = 0, end: int | None = None) -> np.ndarray:
    """uint8 [end - start, 3, 32, 32]: a part of the film."""
    end = frames if end is None else end
    made = stations(frames, ordered)
    parts = []
    for at, station in enumerate(made):
        low, high = max(start, station.start), min(end, station.end)
        following = made[at + 1] if at + 1 < len(made) and made[at + 1].block == station.block else station
        for first in range(low, high, CHUNK):
            parts.append(_shots(station, following, np.arange(first, min(first + CHUNK, high)), _camera(frames)))
    return np.concatenate(parts)


CHUNK = 16
"""Frames painted at a time."""


def _shots(station: Station, following: Station, number: np.ndarray, camera: np.ndarray) -> np.ndarray:
    """Some frames of one station and the pan that follows, uint8 [n, 3, 32, 32]."""
    environment = painting.ENVIRONMENTS[station.environment]
    block = painting.uniforms(_words("block", station.block, 1 + PARAMETERS)[None, 1:])
    across, up, zoom, roll, exposure = camera[number].T
    done = np.clip((number - station.start - station.stay + 1) / (PAN + 1), 0, 1)
    place = station.x + DISTANCE * done**2 * (3 - 2 * done) + across  # smoothstep

    def each(values: np.ndarray) -> Field:
        return values.astype(np.float32)[:, None, None]

    x, y = painting.grid()
    cosine, sine, scale = each(np.cos(roll)), each(np.sin(roll)), each(np.exp(zoom))
    x, y = (cosine * x - sine * y) * scale + each(place), (sine * x + cosine * y) * scale + each(up)
    light = between(block(), 0, 2 * np.pi)
    slope = s.in_double(np.cos, light) * (x - each(place)) + s.in_double(np.sin, light) * y
    wrapped = (x + 1) % 2 - 1 if environment.name == "city" else x  # a street repeats
    picture = environment.background(wrapped.astype(np.float32), y, block)
    for one in (station, following) if following is not station and done.max() > 0 else (station,):
        picture = _with_object(picture, one, environment, x - np.float32(one.x), y, slope)
    tint = np.array(environment.tint, np.float32).reshape(1, 3, 1, 1)
    gain = each(np.clip(0.9 + exposure, 0.65, 1.15))
    picture = painting.reduced(picture * gain[:, None] * tint)
    strength = (_words("block", station.block, 1 + PARAMETERS)[-1:]).repeat(len(number))[:, None]
    noise = np.stack([_words("noise", int(frame), NOISE_WORDS) for frame in number])
    return painting.photograph(picture, strength, noise)


def _with_object(
    picture: Field, station: Station, environment: painting.Environment, x: Field, y: Field, slope: Field
) -> Field:
    """The picture with the object of a station at x = 0, and what stands before it."""
    task = objects.TASKS[station.label // 4]
    draw = list(task.kinds.values())[station.label % 4]
    r = painting.uniforms(_words("station", station.look, 4 + PARAMETERS)[None, 4:])
    body, marks = painting.placed(draw, task.turn, x, y, r)
    fill = colour(between(r(), *environment.hues), between(r(), *environment.saturations), between(r(), 0.8, 1.0))
    ink = colour(between(r(), *environment.hues), between(r(), 0.1, 0.4), between(r(), 0.15, 0.35))
    picture = painting.stood(picture, body, marks, fill, ink, slope, between(r(), 0.02, 0.1))
    near = (np.abs(x) < 1.2).astype(np.float32)  # a cover belongs to its station, not to the next one
    cover = covered(environment.occluder(x, y, r)) * near * (r() < 0.4)
    hue = np.full((1, 1, 1), environment.occluder_hue, np.float32)
    return mix(picture, colour(hue, between(r(), 0.2, 0.5), between(r(), 0.2, 0.5)), cover)
