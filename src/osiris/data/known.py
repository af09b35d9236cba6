"""The hub's data sets that the benchmarks are made of, as plain facts (no torch here: `osiris list` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass

from osiris.data.orders import packaged_order, tiny_imagenet_words


@dataclass(frozen=True)
class KnownDataset:
    """Where a data set lives and what a complete copy of it looks like."""

    name: str
    repository: str
    image_column: str
    label_column: str
    train_split: str
    test_split: str
    size: int
    class_count: int
    train_per_class: int
    test_per_class: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    content: str | None = None
    """sha256 of the decoded images and labels of the complete data set, where decoding is lossless."""


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

TINYWORLD_TRAIN_PER_CLASS = 250
TINYWORLD_TEST_PER_CLASS = 50
TINYWORLD_SIZE = 32

KNOWN: dict[str, KnownDataset] = {
    "cifar100": KnownDataset(
        name="cifar100",
        repository="uoft-cs/cifar100",
        image_column="img",
        label_column="fine_label",
        train_split="train",
        test_split="test",
        size=32,
        class_count=100,
        train_per_class=500,
        test_per_class=100,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        content="d1a34a7f20d4f838e86ed67d73e029c7623992faf37efd1a362563fb4f72b50d",
    ),
    "tiny-imagenet": KnownDataset(
        name="tiny-imagenet",
        repository="zh-plus/tiny-imagenet",
        image_column="image",
        label_column="label",
        train_split="train",
        test_split="valid",  # the labels of its test split were never published (Sec. 4)
        size=64,
        class_count=200,
        train_per_class=500,
        test_per_class=50,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
}


def class_ids(known: KnownDataset) -> tuple[str, ...]:
    """By label, as the hub's label column names them: alphabetical."""
    return tuple(sorted(packaged_order(known.name, "random")))


def class_names(known: KnownDataset) -> tuple[str, ...]:
    """By label, readable: WordNet ids are replaced by the first of their words."""
    words = tiny_imagenet_words() if known.name == "tiny-imagenet" else {}
    return tuple(words.get(name, name) for name in class_ids(known))
