"""The section of claims: what the paper says, and what these runs say to it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from osiris.claims import measure as evidence
from osiris.claims.claims import Judged, all_claims, judge, tally
from osiris.claims.evidence import Outcome
from osiris.report.studies import Study
from osiris.report.tables import Column, Table
from osiris.report.writer import ReportWriter, Section

KINDS = {"holds": "holds", "does not hold": "fails", "not enough runs": "unknown"}
SIGNS = {"holds": "✓ holds", "does not hold": "✗ does not hold", "not enough runs": "? not enough runs"}


def judged_claims(book: ReportWriter, found: Sequence[Study]) -> list[Judged]:
    runs = [
        evidence.from_study(study, book.measured.get(study.identifier, {}))
        for study in found
        if study.labelled and study.protocols
    ]
    paper = evidence.from_paper()
    return [judge(claim, runs, paper) for claim in all_claims()]


def claims_section(book: ReportWriter, found: Sequence[Study]) -> list[Section]:
    """Decided claims in full, open ones as a list of what they wait for."""
    judged = judged_claims(book, found)
    book.table(claims_table(judged), "claims")
    decided = [one for one in judged if one.verdict != "not enough runs"]
    still_open = [one for one in judged if one.verdict == "not enough runs"]
    noisy = {name: sum(one.noise for one in judged if one.verdict == name) for name in KINDS}
    parts = ""
    for name, count in tally(judged).items():
        remark = f" <small>({noisy[name]} within noise)</small>" if noisy[name] and name != "not enough runs" else ""
        parts += f"<span><b>{count}</b> {name}{remark}</span>"
    blocks = [f'<p class="tally">{parts}</p>']
    if decided:
        blocks.append(f'<ol class="claims">{"".join(_item(one) for one in decided)}</ol>')
    if still_open:
        items = "".join(_item(one) for one in still_open)
        title = f"{len(still_open)} claims that these runs cannot decide, and what they wait for"
        blocks.append(f'<details><summary>{title}</summary><ol class="claims">{items}</ol></details>')
    intro = (
        "Every empirical statement of the paper, in our words, put to these runs. Means over at least two seeds on "
        "either side decide; the p of an unpaired t-test (sample deviations, ddof 1) says whether chance could explain "
        "the difference. Runs at another scale than the paper's test the idea, not the published number."
    )
    return [Section("claims", "The paper's claims", "Claims", intro, blocks)]


def _item(one: Judged) -> str:
    noise = " (within noise: p ≥ 0.05)" if one.noise and one.verdict != "not enough runs" else ""
    ours = _outcomes(one.outcomes) or "no run on a benchmark that it speaks of"
    paper = _paper(one.published)
    return (
        f'<li class="{KINDS[one.verdict]}" id="claim-{one.claim.name}">'
        f'<span class="verdict">{SIGNS[one.verdict]}{noise}</span> '
        f'<span class="where">{html.escape(one.claim.where)}</span>'
        f'<p>{html.escape(one.claim.sentence)}</p><p class="why">{html.escape(ours)}{paper}</p></li>'
    )


def _outcomes(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    return " · ".join(f"{name}: {outcome.text}" for name, outcome in outcomes) + ("." if outcomes else "")


def _paper(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """What the published tables say, in short."""
    if not outcomes:
        return ""
    words = [f"{outcome.verdict}{' within noise' if outcome.noise else ''} on {name}" for name, outcome in outcomes]
    return f"<br>In the paper's own tables: {html.escape('; '.join(words))}."


def claims_table(judged: Sequence[Judged]) -> Table:
    rows = tuple(
        (
            one.claim.name,
            one.claim.where,
            one.claim.sentence,
            one.verdict + (" (within noise)" if one.noise and one.verdict != "not enough runs" else ""),
            _outcomes(one.outcomes),
            "; ".join(f"{outcome.verdict} on {name}" for name, outcome in one.published),
        )
        for one in judged
    )
    names = ("claim", "where", "sentence", "verdict", "numbers", "published tables")
    notes = ("means over at least two seeds decide; p of unpaired t-tests with sample deviations (ddof 1)",)
    return Table("claims of the paper, judged by these runs", tuple(Column(name) for name in names), rows, notes)
