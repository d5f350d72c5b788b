"""Which ids in the config make SGLang capture the layers that a draft was trained on.

Id i of a draft is the input of the target's layer i, the number of layers its final hidden state. What a target
class makes of configured ids differs by class and release; `aux_layer_table.py` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from eagle3_export.sglang.aux_layer_table import TARGET_CLASSES
from eagle3_export.sglang.capabilities import NEWEST, RELEASES, parse_version


def plus_one(ids: Sequence[int], num_layers: int | None) -> list[int]:
    """Configured ids name layer outputs."""
    return [i + 1 for i in ids]


def plus_one_if_first_is_one(ids: Sequence[int], num_layers: int | None) -> list[int]:
    """sglang 0.5.13 on, `DeepseekV2ForCausalLM.set_eagle3_layers_to_capture` and its relatives."""
    return [i + 1 for i in ids] if ids[:1] == [1] else list(ids)


def as_is_if_largest_is_final(ids: Sequence[int], num_layers: int | None) -> list[int]:
    """sglang 0.5.17 on, `GptOssForCausalLM.set_eagle3_layers_to_capture`."""
    return list(ids) if ids and max(ids) == num_layers else [i + 1 for i in ids]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one target class captures in one release.

    Attributes:
        rule: configured ids -> layers whose input is captured.
        embedding: the input of layer 0 can be captured (else adding its absent residual raises).
        final: the final hidden state can be captured.
        default_shift: added to [2, n // 2, n - 3] where the config names no ids.
    """

    rule: Callable[[Sequence[int], int | None], list[int]]
    embedding: bool = True
    final: bool = False
    default_shift: int = 0

    def captured(self, ids: Sequence[int] | None, num_layers: int | None) -> tuple[int, ...] | None:
        """The layers captured, in SGLang's order (ascending); None where some of `ids` are not."""
        if ids is None:
            if num_layers is None:
                return None
            layers = [i + self.default_shift for i in (2, num_layers // 2, num_layers - 3)]
        else:
            layers = self.rule(list(ids), num_layers)
        lowest = 0 if self.embedding else 1
        highest = (num_layers if self.final else num_layers - 1) if num_layers is not None else None
        distinct = sorted(set(layers))
        if len(distinct) != len(layers) or distinct[0] < lowest:
            return None
        if highest is not None and distinct[-1] > highest:
            return None
        return tuple(distinct)


BEHAVIOURS: Mapping[str, Behaviour] = MappingProxyType(
    {
        "plain": Behaviour(plus_one),
        "plain, no embedding": Behaviour(plus_one, embedding=False),
        "plain, final": Behaviour(plus_one, final=True),
        "plain, final, no embedding": Behaviour(plus_one, embedding=False, final=True),
        "plain, final, default + 1": Behaviour(plus_one, final=True, default_shift=1),
        "plain, default + 1": Behaviour(plus_one, default_shift=1),
        "first is one": Behaviour(plus_one_if_first_is_one),
        "first is one, no embedding": Behaviour(plus_one_if_first_is_one, embedding=False),
        "largest is final": Behaviour(as_is_if_largest_is_final, final=True),
        "largest is final, no embedding": Behaviour(as_is_if_largest_is_final, embedding=False, final=True),
    }
)
# For a target whose class is not known: what most classes do in every release.
_ASSUMED = BEHAVIOURS["plain, no embedding"]


def behaviour(architecture: str | None, release: str) -> Behaviour | None:
    """How `architecture` captures in `release`; None where it cannot. Unknown (None): as most classes do."""
    if architecture is None:
        return _ASSUMED
    version = min(parse_version(release), parse_version(NEWEST))
    found = None
    for since, name in TARGET_CLASSES.get(architecture, ()):
        if parse_version(since) <= version:
            found = name
    return BEHAVIOURS[found] if found is not None else None


@dataclass(frozen=True, slots=True)
class AuxEncoding:
    """The ids to write, and whether they work.

    Attributes:
        ids: for `eagle_aux_hidden_state_layer_ids`; None leaves SGLang's default in place.
        class_supported: the target's class captures aux hidden states in this release.
        exact: it then captures exactly the trained layers; `problem` says why not.
    """

    ids: tuple[int, ...] | None
    class_supported: bool
    exact: bool
    problem: str
    trained: tuple[int, ...] | None
    architecture: str | None
    num_layers: int | None

    def works_in(self, release: str) -> bool:
        """Whether the same ids capture the same layers in another release."""
        found = behaviour(self.architecture, release)
        if found is None:
            return False
        if self.trained is None:
            return found.default_shift == 0
        return found.captured(self.ids, self.num_layers) == self.trained


def first_supporting(architecture: str) -> str | None:
    """The first known release in which `architecture` captures aux hidden states."""
    return next((since for since, name in TARGET_CLASSES.get(architecture, ()) if name is not None), None)


def encode_aux_layer_ids(
    trained: tuple[int, ...] | None, architecture: str | None, num_layers: int | None, release: str
) -> AuxEncoding:
    """Finds ids that make `architecture` capture the trained layers in `release`, and in as many others as may be.

    Args:
        trained: ids trained on, in the order of `fc`'s inputs; None: the default, [2, n // 2, n - 3].
        architecture: the target's class, None when unknown.
        num_layers: of the target, None when unknown.
        release: the SGLang release that serves.
    """

    def result(ids: tuple[int, ...] | None, problem: str = "", supported: bool = True) -> AuxEncoding:
        return AuxEncoding(ids, supported, not problem, problem, trained, architecture, num_layers)

    found = behaviour(architecture, release)
    if found is None:
        return result(None, "its class cannot capture", supported=False)
    default = trained is None
    if trained is None:
        if num_layers is None:
            problem = "" if found.default_shift == 0 else "the number of layers must be known for the default"
            return result(None, problem)
        trained = (2, num_layers // 2, num_layers - 3)
    if problem := _impossible(trained, num_layers):
        return result(None, problem)
    if default and found.captured(None, num_layers) == trained:
        return result(None)
    candidates = [ids for ids in _candidates(trained) if found.captured(ids, num_layers) == trained]
    if not candidates:
        return result(None, _reason(trained, found, num_layers))
    return result(max(candidates, key=lambda ids: _releases(result(ids))))


def exported_encoding(
    ids: tuple[int, ...] | None,
    trained: tuple[int, ...] | None,
    architecture: str | None,
    num_layers: int | None,
    release: str,
) -> AuxEncoding:
    """What ids that are written already make a target's class capture.

    Args:
        ids: as the export's config.json has them, None where it leaves SGLang's default.
        trained: ids trained on, None for the default, [2, n // 2, n - 3].
        architecture: the target's class, None when unknown.
        num_layers: of the target, None when unknown.
        release: of SGLang.
    """
    found = behaviour(architecture, release)
    encoding = AuxEncoding(ids, found is not None, True, "", trained, architecture, num_layers)
    if found is None or encoding.works_in(release):
        return encoding
    captured = found.captured(ids, num_layers)
    problem = f"those ids make it capture {list(captured)}" if captured else "it cannot capture those ids"
    return replace(encoding, exact=False, problem=problem)


def may_encode(ids: Sequence[int] | None, trained: tuple[int, ...] | None) -> bool:
    """Whether `encode_aux_layer_ids` may have answered `ids` for some target; a default may depend on its layers."""
    if trained is None:
        return ids is None or len(ids) == 3
    return ids is not None and tuple(ids) in _candidates(trained)


def _candidates(trained: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every rule either adds one to all or to none, decided by the first or the largest id; order is free."""
    bases = (tuple(i - 1 for i in trained), trained)
    moved = [(base[k], *base[:k], *base[k + 1 :]) for base in bases for k in range(1, len(base))]
    return [*bases, *moved]


def _releases(encoding: AuxEncoding) -> int:
    return sum(encoding.works_in(release) for release in RELEASES)


def _impossible(trained: tuple[int, ...], num_layers: int | None) -> str:
    if list(trained) != sorted(set(trained)):
        return "SGLang captures in layer order, and these are not ascending"
    if num_layers is not None and trained and trained[-1] > num_layers:
        return f"the verifier has only {num_layers} layers"
    if trained and trained[0] < 0:
        return "there is no layer below 0"
    return ""


def _reason(trained: tuple[int, ...], found: Behaviour, num_layers: int | None) -> str:
    if not found.embedding and trained[0] == 0:
        return "this class cannot capture the input of its first layer"
    if not found.final and trained[-1] == num_layers:
        return "this class cannot capture its final hidden state"
    return "this class shifts some lists of ids and not others"
