"""Rotary embeddings that both systems compute alike."""

from __future__ import annotations

from eagle3_export.draft import Draft
from eagle3_export.findings import Finding, finding
from eagle3_export.sglang.capabilities import Capabilities

SHARED_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def rope_findings(draft: Draft, known: Capabilities) -> list[Finding]:
    """Findings on positions."""
    findings = []
    rope = draft.rope
    if rope.type not in SHARED_TYPES:
        findings.append(
            finding("rope-type", "incompatible", type=rope.type, why="the two systems do not share")
        )
    if rope.partial_rotary_factor != 1.0:
        why = "training and serving rotate different channels"
        findings.append(finding("partial-rotary", "incompatible", factor=rope.partial_rotary_factor, why=why))
    if rope.mrope_section is not None:
        findings.append(finding("mrope", "info"))
    return findings
