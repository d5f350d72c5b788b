"""The questions that a report is opened for, answered for one run."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_export.compatibility.text_rules import OTHER_TEXT_ID
from eagle3_export.documents.depth import recommend_depth
from eagle3_export.documents.measurements import headline_measurement
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.estimates.acceptance import estimate_origin, estimate_terms
from eagle3_export.report.neighbours import measured_neighbours, outside_interval
from eagle3_export.report.runs import Run, estimate_at, listed
from eagle3_export.report.ties import Advice, advised


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        question: as a person asks it.
        answer: a few words.
        detail: where it comes from.
        warning: what speaks against it, or None.
    """

    question: str
    answer: str
    detail: str
    warning: str | None = None


def answers(run: Run) -> list[Answer]:
    """Returns which epoch to deploy, at what depth, how sure that is, and whether it was true on the server."""
    advice = advised(run)
    if advice is None:
        newest = run.exports[-1]
        why = newest.reasons.get("estimated_acceptance_length", "It has no estimate from validation.")
        return [Answer("Which epoch do I deploy?", "not known yet", f"Newest export {newest.name}: {why}")]
    export = advice.export
    return [_which(run, advice), _depth(export), _sure(run, export), _true(run, export)]


def _which(run: Run, advice: Advice) -> Answer:
    if advice.why:
        return Answer("Which epoch do I deploy?", _name(advice.export), advice.why)
    best = advice.export
    compared, ties = len(run.compared), run.ties
    detail = (
        f"Highest estimated acceptance length of {compared} rated export{'s' * (compared != 1)}:"
        f" {best.estimated_acceptance_length:.2f} ({estimate_terms(best.acceptance)},"
        f" {estimate_origin(best.acceptance)})."
    )
    depths = {export.acceptance.num_steps for export in run.compared}
    if run.basis is not None and len(depths) > 1:
        detail += (
            f" They were trained for different depths and are compared at {run.basis.num_steps} draft steps:"
            f" {run.basis.length(best.acceptance):.2f}."
        )
    if ties:
        detail += (
            f" A tie with {listed(ties)}: the difference{'s are' if len(ties) > 1 else ' is'} smaller than"
            " their 95 % intervals can tell."
        )
    return Answer("Which epoch do I deploy?", _name(best), detail)


def _name(export: ExportMetadata) -> str:
    if str(export.epoch) == export.name:
        return f"epoch {export.name}"
    return export.name if export.epoch is None else f"{export.name} (epoch {export.epoch})"


def _depth(best: ExportMetadata) -> Answer:
    advice = recommend_depth(best)
    steps = f"{advice.num_steps} draft step{'s' * (advice.num_steps != 1)}"
    return Answer("At what depth?", steps, advice.reason, advice.warning)


def _sure(run: Run, best: ExportMetadata) -> Answer:
    acceptance = best.acceptance
    interval = acceptance.interval
    spread = f"{interval.low:.2f} to {interval.high:.2f}" if interval else "no interval"
    why = (
        f"95 % interval of the estimate, from {estimate_origin(acceptance)}; a server sees other text."
        if interval
        else f"{acceptance.reasons.get('interval', '')} From {estimate_origin(acceptance)}."
    )
    bound = (
        " Words outside the draft vocabulary count as misses."
        if acceptance.method == "replay"
        else f" {acceptance.adjusted_acceptance_length:.2f} when words outside the draft vocabulary are counted."
        if acceptance.adjusted_acceptance_length is not None
        else " Words outside the draft vocabulary are not counted."
    )
    outside, both = outside_interval(run)
    measured = (
        f"{outside} of {both} measured export{'s' * (both != 1)} came out outside the interval of the estimate:"
        " expect the same here."
    )
    warnings = [measured] if outside else []
    warnings += [found.cause for found in best.sglang.findings if found.id == OTHER_TEXT_ID]
    return Answer("How sure am I?", spread, why + bound, " ".join(warnings) or None)


def _true(run: Run, best: ExportMetadata) -> Answer:
    question = "Was it true on the server?"
    measured = headline_measurement(best)
    if measured is None:
        return _true_of_others(question, run, best)
    estimate = estimate_at(best, measured.num_steps)
    against = f", estimated {estimate:.2f}" if estimate is not None else ""
    faster = f" {measured.speedup:.2f} times as fast as without a draft." if measured.speedup else ""
    server = " ".join(filter(None, (measured.server, measured.server_version)))
    return Answer(
        question,
        f"{measured.acceptance_length:.2f} measured{against}",
        f"At {measured.num_steps} draft steps, {measured.prompts} prompts, {server}.{faster}",
        " ".join(measured.differences) or None,
    )


def _true_of_others(question: str, run: Run, best: ExportMetadata) -> Answer:
    others = measured_neighbours(run, best)
    if others is None:
        return Answer(question, "not measured", best.reasons.get("measured", ""))
    came_out = [f"{_apart(ratio)} for export {name}" for name, ratio in others.ratios.items()]
    told = f"Measured at {others.num_steps} draft steps against the estimate: {listed(came_out)}."
    if others.expected is None:
        return Answer(question, "not measured", told)
    low, high = (f"{length:.2f}" for length in others.expected)
    expected = low if low == high else f"{low} to {high}"
    return Answer(
        question,
        f"not measured, expect {expected}",
        f"{told} In the same proportion this export comes to {expected} at that depth.",
    )


def _apart(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.0f} % {'below' if ratio < 1 else 'above'}"
