"""What the text of a validation says about the estimate that is made from it."""

from __future__ import annotations

from eagle3_export.compatibility.findings import Finding

# Of the response tokens; text that the verifier wrote greedily has nearly all, rounding aside.
OWN_TEXT = 0.9
OTHER_TEXT_ID = "text-not-the-verifiers"


def other_text(first_choice_share: float | None) -> Finding | None:
    """Returns the finding that a text is not the verifier's own, or None if it is or that is not known.

    Args:
        first_choice_share: share of response tokens that are the verifier's first choice within the draft vocabulary.
    """
    if first_choice_share is None or first_choice_share >= OWN_TEXT:
        return None
    return Finding(
        OTHER_TEXT_ID,
        "info",
        f"Only {first_choice_share:.0%} of the response tokens in the validation are the verifier's first choice: the"
        " text was sampled, or somebody else wrote it. The estimate speaks for this text; what the verifier writes"
        " greedily may be accepted longer or shorter. One draft had an accuracy of 0.415 on its own split and of 0.280"
        " on the verifier's text.",
        "Have the verifier write the responses again, as it will be served, and train and validate on those.",
    )
