"""Which ids in the config make SGLang capture the layers that a draft was trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packaging.version import Version

Capture = Callable[[Sequence[int], int | None], list[int]]


def _plus_one(ids: Sequence[int], num_layers: int | None) -> list[int]:
    return [i + 1 for i in ids]


def _plus_one_if_first_is_one(ids: Sequence[int], num_layers: int | None) -> list[int]:
    return [i + 1 for i in ids] if ids and ids[0] == 1 else list(ids)


def _as_is_if_last_is_final(ids: Sequence[int], num_layers: int | None) -> list[int]:
    return list(ids) if ids and max(ids) == num_layers else [i + 1 for i in ids]


_DEEPSEEK_LIKE = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "KimiK25ForConditionalGeneration",
    "KimiVLForConditionalGeneration",
)


def capture_rule(architecture: str | None, sglang_version: Version) -> Capture:
    """What `set_eagle3_layers_to_capture` of the target's class makes of the configured ids."""
    if architecture in _DEEPSEEK_LIKE and sglang_version >= Version("0.5.13"):
        return _plus_one_if_first_is_one
    if architecture == "GptOssForCausalLM" and sglang_version >= Version("0.5.17"):
        return _as_is_if_last_is_final
    return _plus_one


def encode_aux_layer_ids(
    trained: Sequence[int], architecture: str | None, num_layers: int | None, sglang_version: Version
) -> list[int] | None:
    """The ids to configure, or None where no list makes this class capture exactly `trained`."""
    if list(trained) != sorted(trained):
        return None
    capture = capture_rule(architecture, sglang_version)
    for candidate in ([i - 1 for i in trained], list(trained)):
        if sorted(capture(candidate, num_layers)) == list(trained):
            return candidate
    return None


@dataclass(frozen=True, slots=True)
class AuxEncoding:
    """The ids to write, and whether they work.

    Attributes:
        ids: for `eagle_aux_hidden_state_layer_ids`; None leaves SGLang's default, which is also speculators'.
        class_supported: the target's class captures aux hidden states in this release.
        exact: it then captures exactly the trained layers; advice says why not.
    """

    ids: list[int] | None
    class_supported: bool
    exact: bool
    advice: str
    trained: tuple[int, ...] | None
    architecture: str | None
    num_layers: int | None

    def works_in(self, release: str) -> bool:
        """Whether the same ids capture the same layers in another release."""
        if self.ids is None or self.trained is None:
            return self.trained is None
        capture = capture_rule(self.architecture, Version(release))
        return sorted(capture(self.ids, self.num_layers)) == list(self.trained)


def encode_for_target(
    trained: tuple[int, ...] | None, architecture: str | None, num_layers: int | None, release: str
) -> AuxEncoding:
    """Encodes the trained ids for a target class in one release."""
    if trained is None:
        return AuxEncoding(None, True, True, "", None, architecture, num_layers)
    ids = encode_aux_layer_ids(trained, architecture, num_layers, Version(release))
    return AuxEncoding(ids, True, ids is not None, "", trained, architecture, num_layers)
