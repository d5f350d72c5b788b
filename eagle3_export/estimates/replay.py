"""The acceptance length that a server will report, counted by walking validation text as a server walks it.

A mean over positions weighs every position alike. A server averages over its verify steps: it accepts `a` drafted
tokens, goes on `a + 1` further, and starts the next chain there. Hard stretches of text start many chains, easy ones
few. The walk does the same on text that exists: a draft counts as right where it equals the text's own next token.

Nothing here reads a file or imports a trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from eagle3_export.estimates.accuracies import IN_DOCUMENTS, Z95, Count, Depth, Interval, Length, Share
from eagle3_export.estimates.per_document import (
    MAX_DOCUMENTS,
    NOT_TOLD_APART,
    TOO_MANY,
    DocumentCounts,
    added,
    summed,
)

Integers = NDArray[np.int64]

DEEPEST = 16  # walked at every depth up to here, so that a depth to deploy can be chosen
VALIDATION = "the run's validation"
TRAINERS_PASS = "It was walked in the trainer's own validation pass."
NO_FIRST_CHOICES = "The verifier's first choices were not seen."
TOO_FEW_DOCUMENTS = "The interval is over documents, and there is only one."


@dataclass(frozen=True, slots=True)
class DepthReplay:
    """What a replay counted at one draft depth."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    num_steps: Depth
    """Draft depth: SGLang's --speculative-num-steps, with top-k 1."""
    acceptance_length: Length
    """Tokens per verify step, bonus token included: 1 + accepted drafts / verify steps."""
    extrapolated: bool
    """True where chains of that depth were not computed: one that held goes on as those that start later do."""
    interval: Interval | None
    """95 % interval, with documents as the independent unit; null with a single document."""
    documents: int
    """Documents walked."""
    verify_steps: Count
    """Verify steps of all walks."""
    histogram: list[Count]
    """Verify steps that accepted 0, 1, … num_steps drafts."""
    accepted_per_position: list[Share]
    """Share of verify steps in which at least k + 1 drafts were accepted, k < num_steps."""


@dataclass(frozen=True, slots=True)
class ReplayedData:
    """The data that `eagle3-export estimate` walked."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    path: str
    """Directory of the data set."""
    first_row: int
    """Its row that was read first, counted from 0."""
    documents: int
    """Rows that were read from there on."""
    left_out: int
    """Further rows there, of which the data hold no hidden states."""
    limit: int | None
    """The --limit; null without one."""
    run_validation: bool
    """True for the text that the run itself validates on, all of it."""
    digest: str
    """sha256:… of the tokens and which of them are responses. The same text has the same, wherever it lies."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a walk over text counted that went as a server's verify steps go."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    text: str
    """What was walked: the run's validation, or the data that was given."""
    num_steps: Depth
    """The trained depth, which is that of the headline."""
    documents: int
    """Documents with a response of two tokens or more."""
    spans: int
    """Responses in them."""
    response_tokens: int
    """Tokens of the responses that are in the draft vocabulary."""
    first_choices: int
    """Those of them that are the verifier's first choice within the draft vocabulary."""
    first_choice_share: Share | None
    """first_choices / response_tokens: near 1 for text that the verifier wrote greedily."""
    depths: list[DepthReplay]
    """The walks, by depth."""
    data: ReplayedData | None = None
    """What `eagle3-export estimate` walked; null for a validation of the trainer's own."""
    per_document: DocumentCounts | None = None
    """The counts of each document, to compare exports document by document."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a value here is null, by its name; `deeper` for a pass deeper than trained that was asked for."""

    def at(self, num_steps: int) -> DepthReplay | None:
        """Returns the walk at one depth, or None if there was none."""
        return next((walk for walk in self.depths if walk.num_steps == num_steps), None)

    @property
    def computed_steps(self) -> int:
        """The deepest chains that were computed."""
        return max((walk.num_steps for walk in self.depths if not walk.extrapolated), default=self.num_steps)


@dataclass(frozen=True, slots=True)
class Span:
    """One response in a document, seen from each of its tokens.

    Attributes:
        document: number of the document it belongs to; any integer.
        accepted: entry i is the number of drafts in a row that equal the text, for the chain that starts once token i
            of the response is known. It is at most the trained depth and at most the number of tokens that follow.
    """

    document: int
    accepted: Integers


@dataclass
class DepthCounts:
    """What the walks at one depth counted. Counts of other documents can be added.

    Attributes:
        histogram: entry a is the number of verify steps that accepted `a` drafts, a = 0 … depth.
        documents: documents walked.
        accepted_squared: over the documents, the sum of (accepted drafts)².
        accepted_times_steps: over the documents, the sum of accepted drafts · verify steps.
        steps_squared: over the documents, the sum of (verify steps)².
    """

    histogram: list[int]
    documents: int = 0
    accepted_squared: int = 0
    accepted_times_steps: int = 0
    steps_squared: int = 0

    def add(self, other: DepthCounts) -> None:
        """Adds the counts of other documents at the same depth."""
        self.histogram = [a + b for a, b in zip(self.histogram, other.histogram, strict=True)]
        self.documents += other.documents
        self.accepted_squared += other.accepted_squared
        self.accepted_times_steps += other.accepted_times_steps
        self.steps_squared += other.steps_squared

    @property
    def verify_steps(self) -> int:
        """Verify steps of all walks."""
        return sum(self.histogram)

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step, bonus token included: 1 + accepted drafts / verify steps."""
        return 1.0 + sum(a * count for a, count in enumerate(self.histogram)) / self.verify_steps

    @property
    def accepted_per_position(self) -> list[float]:
        """Share of verify steps in which at least k + 1 drafts were accepted, for every k below the depth."""
        reached = np.cumsum(self.histogram[::-1])[::-1]
        return [int(count) / self.verify_steps for count in reached[1:]]

    def interval(self) -> Interval | None:
        """95 % interval of the acceptance length, with documents as the independent unit; None below two of them.

        The variance of a ratio of two sums over documents, by linearisation (cluster-robust), with Student's t.
        """
        if self.documents < 2:
            return None
        mean = self.acceptance_length - 1.0
        squares = self.accepted_squared - 2 * mean * self.accepted_times_steps + mean**2 * self.steps_squared
        variance = max(0.0, squares) * self.documents / (self.documents - 1)
        half = student_t95(self.documents - 1) * math.sqrt(variance) / self.verify_steps
        depth = len(self.histogram) - 1
        return Interval(max(1.0, 1.0 + mean - half), min(1.0 + depth, 1.0 + mean + half))


@dataclass
class ReplayCounts:
    """The counts of a replay of some documents, at several depths. Counts of other documents can be added.

    Attributes:
        trained_steps: draft steps that were computed; depths beyond it are extrapolated.
        depths: counts by depth.
        documents: documents with a response that could be walked.
        spans: responses in them.
        response_tokens: tokens that were compared with the verifier's first choice: those of the responses that are in
            the draft vocabulary.
        first_choices: those of them that are the verifier's first choice within the draft vocabulary.
        per_document: verify steps and accepted drafts at the trained depth, by a digest of the document's text; None
            where they are too many or not told apart.
    """

    trained_steps: int
    depths: dict[int, DepthCounts] = field(default_factory=dict)
    documents: int = 0
    spans: int = 0
    response_tokens: int = 0
    first_choices: int = 0
    per_document: dict[str, tuple[int, int]] | None = field(default_factory=dict)

    def add(self, other: ReplayCounts) -> None:
        """Adds the counts of other documents.

        Raises:
            ValueError: the other replay computed another number of draft steps.
        """
        if other.trained_steps != self.trained_steps:
            raise ValueError(f"{other.trained_steps} draft steps cannot be added to {self.trained_steps}.")
        for depth, counts in other.depths.items():
            self.depths.setdefault(depth, DepthCounts([0] * (depth + 1))).add(counts)
        self.documents += other.documents
        self.spans += other.spans
        self.response_tokens += other.response_tokens
        self.first_choices += other.first_choices
        self.per_document = added(self.per_document, other.per_document)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON-ready values, for `from_dict`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTS, "per_document")}
        values["depths"] = {
            str(depth): {name: getattr(counts, name) for name in DepthCounts.__dataclass_fields__}
            for depth, counts in self.depths.items()
        }
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReplayCounts:
        """The counts that `as_dict` wrote."""
        depths = {int(depth): DepthCounts(**counts) for depth, counts in values["depths"].items()}
        each = values["per_document"]
        return cls(
            depths=depths,
            per_document=None
            if each is None
            else {name: (counts[0], counts[1]) for name, counts in each.items()},
            **{name: int(values[name]) for name in _COUNTS},
        )


_COUNTS = ("trained_steps", "documents", "spans", "response_tokens", "first_choices")


def replay(
    spans: Iterable[Span],
    trained_steps: int,
    depths: Iterable[int],
    identities: Mapping[int, str] | None = None,
) -> ReplayCounts:
    """Walks every response as a server would, once for each depth.

    Args:
        spans: the responses. One of fewer than two tokens takes no verify step and is left out.
        trained_steps: draft steps that were computed, so the most that a chain in `spans` can have accepted.
        depths: draft depths to walk at. Beyond `trained_steps` a chain that held to its end goes on as the chain that
            starts one token later does: see `continued`.
        identities: a digest of the text of each document, by its number; None keeps no counts of single documents.
    """
    walked, wanted = [span for span in spans if len(span.accepted) > 1], set(depths)
    documents = [span.document for span in walked]
    counts = ReplayCounts(trained_steps, documents=len(set(documents)), spans=len(walked))
    every = sorted({*wanted, trained_steps})
    # All depths side by side: a walk takes as many rounds as its longest response has verify steps.
    lengths = [lengths_at(span.accepted, trained_steps, depth) for depth in every for span in walked]
    found = _walk_all(lengths, every[-1]).reshape(len(every), len(walked), every[-1] + 1)
    for depth, deepest in zip(every, found, strict=True):
        histograms = deepest[:, : depth + 1]
        if depth in wanted:
            counts.depths[depth] = _depth_counts(histograms, documents, depth)
        if depth == trained_steps and walked:
            names = None if identities is None else [identities[document] for document in documents]
            counts.per_document = None if names is None else _by_document(histograms, names)
    return counts


def _by_document(histograms: Integers, names: Sequence[str]) -> dict[str, tuple[int, int]] | None:
    """Verify steps and accepted drafts by document; None where the documents are too many."""
    steps, accepted = histograms.sum(axis=1), histograms @ np.arange(histograms.shape[1])
    return summed(zip(names, zip(steps.tolist(), accepted.tolist(), strict=True), strict=True))


def lengths_at(accepted: Integers, trained_steps: int, depth: int) -> Integers:
    """Accepted drafts of every chain of a response at one depth.

    Args:
        accepted: as in `Span`, counted with chains of `trained_steps` drafts.
        trained_steps: see there.
        depth: draft depth; chains are cut or, beyond `trained_steps`, continued.
    """
    return (
        np.minimum(accepted, depth)
        if depth <= trained_steps
        else np.minimum(continued(accepted, trained_steps), depth)
    )


def continued(accepted: Integers, trained_steps: int) -> Integers:
    """Accepted drafts of every chain of a response if chains had no end but that of the response.

    What a chain does beyond the trained depth was not computed. It is taken to hold on for as long as the chains that
    start one, two, … tokens later hold over their whole trained depth: their last drafts are for the same tokens.
    So easy stretches stay easy and hard ones hard.

    Args:
        accepted: as in `Span`.
        trained_steps: see there.
    """
    following = np.arange(len(accepted))[::-1]
    holds = accepted >= np.minimum(trained_steps, following)
    positions = np.arange(len(accepted))
    # for every position the next one, itself included, whose chain broke
    broken = np.where(holds, len(accepted), positions)
    run = np.minimum.accumulate(broken[::-1])[::-1] - positions
    return np.where(holds, np.minimum(following, trained_steps - 1 + run), accepted)


def _walk_all(lengths: Sequence[Integers], depth: int) -> Integers:
    """Histograms of accepted drafts [responses, depth + 1], for responses whose chains accept `depth` at most."""
    histograms = np.zeros((len(lengths), depth + 1), dtype=np.int64)
    if not lengths:
        return histograms
    sizes = np.array([len(each) for each in lengths])
    flat = np.concatenate(lengths)
    ends = np.cumsum(sizes)
    at = ends - sizes
    who = np.arange(len(lengths))
    while len(who):
        accepted = flat[at]
        histograms[who, accepted] += 1
        at = at + accepted + 1
        goes_on = at < ends[who] - 1  # a chain needs a token to be compared with
        at, who = at[goes_on], who[goes_on]
    return histograms


def _depth_counts(histograms: Integers, documents: Sequence[int], depth: int) -> DepthCounts:
    counts = DepthCounts(histograms.sum(axis=0).tolist())
    if not len(histograms):
        return counts
    _, document = np.unique(np.asarray(documents), return_inverse=True)
    steps = np.bincount(document, weights=histograms.sum(axis=1)).astype(np.int64)
    accepted = np.bincount(document, weights=histograms @ np.arange(depth + 1)).astype(np.int64)
    counts.documents = len(steps)
    counts.accepted_squared = int(accepted @ accepted)
    counts.accepted_times_steps = int(accepted @ steps)
    counts.steps_squared = int(steps @ steps)
    return counts


def replay_record(
    counts: ReplayCounts,
    deeper: ReplayCounts | None = None,
    *,
    text: str = VALIDATION,
    data: ReplayedData | None = None,
    no_deeper: str | None = None,
) -> Replay:
    """Returns counts as a document holds them.

    Args:
        counts: of chains of the trained depth; at least one verify step.
        deeper: of longer chains, perhaps of fewer documents; depths beyond the trained one are taken from it.
        text: what was walked.
        data: where it lies; None for a validation of the trainer's own.
        no_deeper: why there is no `deeper` though it was asked for.
    """
    depths = []
    for depth in sorted({*counts.depths, *(deeper.depths if deeper else ())}):
        source = deeper if deeper is not None and depth > counts.trained_steps else counts
        if depth in source.depths and source.depths[depth].verify_steps:
            depths.append(_depth_replay(source.depths[depth], depth, depth > source.trained_steps))
    share = counts.first_choices / counts.response_tokens if counts.response_tokens else None
    reasons = {} if share is not None else {"first_choice_share": NO_FIRST_CHOICES}
    if data is None:
        reasons["data"] = TRAINERS_PASS
    if any(walk.interval is None for walk in depths):
        reasons["interval"] = TOO_FEW_DOCUMENTS
    if counts.per_document is None:
        reasons["per_document"] = TOO_MANY if counts.documents > MAX_DOCUMENTS else NOT_TOLD_APART
    if no_deeper is not None:
        reasons["deeper"] = no_deeper
    return Replay(
        text=text,
        num_steps=counts.trained_steps,
        documents=counts.documents,
        spans=counts.spans,
        response_tokens=counts.response_tokens,
        first_choices=counts.first_choices,
        first_choice_share=share,
        depths=depths,
        data=data,
        per_document=None
        if counts.per_document is None
        else DocumentCounts.of(counts.per_document, counts.trained_steps),
        reasons=reasons,
    )


def _depth_replay(counts: DepthCounts, depth: int, extrapolated: bool) -> DepthReplay:
    return DepthReplay(
        num_steps=depth,
        acceptance_length=counts.acceptance_length,
        extrapolated=extrapolated,
        interval=counts.interval(),
        documents=counts.documents,
        verify_steps=counts.verify_steps,
        histogram=list(counts.histogram),
        accepted_per_position=counts.accepted_per_position,
    )


def student_t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t (Abramowitz and Stegun, 26.7.5; exact values below four degrees)."""
    exact = {1: 12.706205, 2: 4.302653, 3: 3.182446}
    if degrees in exact:
        return exact[degrees]
    z, n = Z95, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
