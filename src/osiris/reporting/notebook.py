"""What `Run`, `Learner` and `Table` show of themselves in a notebook."""

from __future__ import annotations

import base64
import io

import matplotlib
from markupsafe import Markup

from osiris.reporting.comparison import comparison_table
from osiris.reporting.figure import Figure
from osiris.reporting.figures import accuracy, episodes, training
from osiris.reporting.studies import Study
from osiris.reporting.style import SETTINGS
from osiris.reporting.tables import Table
from osiris.reporting.writer import render_template
from osiris.runs.run import Run, load_runs
from osiris.runs.untrusted import safe_name


def table_html(table: Table) -> str:
    return str(render_template("table.html", table=table, name=safe_name(table.title), files={}))


def run_html(run: Run) -> str:
    """The table of each protocol and the curve; without labels, what each episode did."""
    (run,) = load_runs([run.path])
    with matplotlib.rc_context(fname=SETTINGS):
        study = Study("run", [run])
        tables = [table_html(comparison_table([run], protocol)) for protocol in study.protocols]
        if study.protocols:
            figure = accuracy.through_training(study)
        else:
            figure = (
                episodes.reference_accuracy(study) or episodes.memory_movement(study) or training.health_curves(study)
            )
        return "".join(tables) + ("" if figure is None else _figure_html(figure))


def _figure_html(figure: Figure) -> str:
    pixels = io.BytesIO()
    figure.canvas.savefig(pixels, format="png")
    code = base64.b64encode(pixels.getvalue()).decode()
    text = Markup(
        '<figure><img src="data:image/png;base64,{}" alt="{}" style="max-width:100%"><figcaption>{}</figcaption>'
    )
    return f"{text.format(code, figure.title, figure.caption)}</figure>"
