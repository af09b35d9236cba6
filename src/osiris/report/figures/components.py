"""Figures of single choices: the encoder's normalisation, and extra storage."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from osiris.evaluation.statistics import deviation
from osiris.framework.storage import Storage
from osiris.report.figure import Figure, add_legend, panels, study_figure
from osiris.report.studies import NORMS, Study
from osiris.report.style import INK, legend_of, order_of, style_of


def normalisations(study: Study) -> Figure | None:
    """Fig. 2: A of the methods that ran with both normalisations, BatchNorm hatched."""
    protocol = study.protocols[0]
    values: dict[tuple[str, str], list[float]] = {}
    for run in study.runs:
        if (accuracy := run.metrics[protocol].A) is not None:
            values.setdefault((run.label, run.norm), []).append(accuracy)
    methods = sorted({label for label, _ in values if all((label, norm) in values for norm in NORMS)}, key=order_of)
    if not methods:
        return None
    canvas, (axes,) = panels(1, 1, max(5.5, 1.3 * len(methods)), 2.9)
    for position, label in enumerate(methods):
        for norm, place in (("bn", position - 0.2), ("gn", position + 0.2)):
            centre, spread = fmean(values[label, norm]), deviation(values[label, norm]) or 0.0
            colour, hatched = style_of(label).colour, norm == "bn"
            look: dict[str, Any] = {"color": "none" if hatched else colour, "hatch": "////" if hatched else ""}
            axes.bar(place, centre, 0.36, edgecolor=colour, linewidth=1, **look)
            if spread:
                axes.errorbar(place, centre, spread, color=INK, linewidth=1, capsize=2)
            above: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            axes.annotate(f"{NORMS[norm][:5]}\n{centre:.1f}", (place, centre + spread), fontsize=7.5, **above)
    axes.set_xticks(range(len(methods)), methods, color=INK)
    axes.set(ylim=(0, 1.25 * max(fmean(group) + (deviation(group) or 0) for group in values.values())), ylabel="A (%)")
    gains = [f"{fmean(values[label, 'gn']) - fmean(values[label, 'bn']):+.1f} ({label})" for label in methods]
    caption = f"Hatched bars are BatchNorm, filled ones GroupNorm. GroupNorm minus BatchNorm: {', '.join(gains)}."
    runs = [run for run in study.runs if run.label in methods]
    title = "BatchNorm against GroupNorm"
    return study_figure(study, "norms", title, caption, canvas, runs, f"{protocol} KNN")


def storage(study: Study, sizes: dict[str, Storage]) -> Figure | None:
    """Fig. 6, as the paper counts and as stored here."""
    protocol = study.protocols[0]
    methods = {label: values for label in sizes if label in study.plain and (values := study.final(label, protocol))}
    if len(methods) < 2:
        return None
    canvas, every = panels(2, 2, 5.5, 3.0)
    for axes, field, title in zip(every, ("paper", "stored"), ("As the paper counts", "As stored here")):
        for label, values in methods.items():
            style, size = style_of(label), getattr(sizes[label], field) / 1e6
            look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "markersize": 7}
            axes.errorbar(size, fmean(values), deviation(values), linewidth=1, capsize=2, **look)
        axes.grid(visible=True, axis="x")
        axes.margins(x=0.16, y=0.12)
        axes.set(xlabel="extra storage (MB)", ylabel="A (%)", title=title)
    add_legend(canvas, legend_of(methods))
    caption = (
        "Further up and to the left is better. The paper counts every extra parameter and every pixel channel in the "
        "memory as 64 bits; on disk a pixel channel takes 8 bits and a parameter 32."
    )
    title = "Accuracy against extra storage"
    return study_figure(study, "storage", title, caption, canvas, methods, f"{protocol} KNN")
