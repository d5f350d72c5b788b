"""How SGLang's target classes capture aux hidden states, release by release.

Written by `scripts/sglang_capabilities.py --all --write` from the wheels of sglang 0.4.10 to 0.5.23: each class's own
`set_eagle3_layers_to_capture` was run over many lists of ids. For each class: from which release on it behaves how
(names of `aux_layers.BEHAVIOURS`; None: it captures nothing).
"""

from __future__ import annotations

from collections.abc import Mapping

TARGET_CLASSES: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "ApertusForCausalLM": (
        ("0.5.3", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "BailingMoEForCausalLM": (("0.5.9", "plain"),),
    "BailingMoeForCausalLM": (("0.5.9", "plain"),),
    "BailingMoeV2ForCausalLM": (("0.5.9", "plain"),),
    "Cosmos3ForConditionalGeneration": (("0.5.20", "plain"),),
    "DeepseekV2ForCausalLM": (
        ("0.5.4.post2", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "DeepseekV32ForCausalLM": (
        ("0.5.4.post2", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "DeepseekV3ForCausalLM": (
        ("0.5.4.post2", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "ExaoneMoEForCausalLM": (
        ("0.5.9", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "ExaoneMoeForCausalLM": (("0.5.22", "plain"),),
    "Gemma3ForCausalLM": (("0.5.12", "plain, final"),),
    "Gemma3ForConditionalGeneration": (("0.5.12", "plain, final"),),
    "Gemma4ForCausalLM": (("0.5.12", "plain, final"),),
    "Gemma4ForConditionalGeneration": (("0.5.12", "plain, final"),),
    "Gemma4UnifiedForConditionalGeneration": (("0.5.13", "plain, final"),),
    "Glm4MoeForCausalLM": (
        ("0.5.5", "plain, no embedding"),
        ("0.5.21", "plain"),
    ),
    "Glm4MoeLiteForCausalLM": (
        ("0.5.8", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.21", "first is one"),
    ),
    "Glm5NextForConditionalGeneration": (("0.5.20", "plain"),),
    "GlmMoeDsaForCausalLM": (
        ("0.5.9", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "GptOssForCausalLM": (
        ("0.5.1", "plain, no embedding"),
        ("0.5.17", "largest is final"),
    ),
    "IQuestCoderForCausalLM": (
        ("0.5.8", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "InternLM3ForCausalLM": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "InternS1ProForConditionalGeneration": (("0.5.11", "plain"),),
    "InternS2MobiusForConditionalGeneration": (("0.5.18", "plain"),),
    "InternS2PreviewForConditionalGeneration": (("0.5.12", "plain"),),
    "KimiK25ForConditionalGeneration": (
        ("0.5.10", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "Llama4ForCausalLM": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.21", "plain"),
    ),
    "Llama4ForConditionalGeneration": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.21", "plain"),
    ),
    "LlamaForCausalLM": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "LongcatFlashForCausalLM": (
        ("0.5.6", "plain, no embedding"),
        ("0.5.21", "plain"),
    ),
    "MellumForCausalLM": (("0.5.16", "plain"),),
    "MiniMaxM2ForCausalLM": (
        ("0.5.5.post1", "plain, no embedding"),
        ("0.5.11", "plain"),
    ),
    "MiniMaxM3SparseForCausalLM": (
        ("0.5.18", "plain"),
        ("0.5.23", "plain, final"),
    ),
    "MiniMaxM3SparseForConditionalGeneration": (
        ("0.5.18", "plain, default + 1"),
        ("0.5.23", "plain, final, default + 1"),
    ),
    "Ministral3ForCausalLM": (
        ("0.5.6.post1", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "MistralForCausalLM": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "MistralLarge3ForCausalLM": (
        ("0.5.6.post1", "plain, no embedding"),
        ("0.5.13", "first is one, no embedding"),
        ("0.5.14", "first is one"),
    ),
    "Phi3ForCausalLM": (
        ("0.4.10", "plain, no embedding"),
        ("0.5.22", "plain"),
    ),
    "Qwen2ForCausalLM": (("0.5.2", "plain"),),
    "Qwen2MoeForCausalLM": (("0.5.2", "plain"),),
    "Qwen2_5_VLForConditionalGeneration": (("0.5.2", "plain"),),
    "Qwen3ForCausalLM": (("0.4.10", "plain"),),
    "Qwen3MoeForCausalLM": (("0.4.10", "plain"),),
    "Qwen3NextForCausalLM": (("0.5.9", "plain"),),
    "Qwen3VLForConditionalGeneration": (("0.5.11", "plain"),),
    "Qwen3VLMoeForConditionalGeneration": (("0.5.11", "plain"),),
    "Qwen3_5ForCausalLM": (("0.5.22", "plain"),),
    "Qwen3_5ForConditionalGeneration": (("0.5.11", "plain"),),
    "Qwen3_5MoeForCausalLM": (("0.5.22", "plain"),),
    "Qwen3_5MoeForConditionalGeneration": (("0.5.11", "plain"),),
    "Qwen4ExpForConditionalGeneration": (("0.5.20", "plain"),),
    "SarvamMoEForCausalLM": (("0.5.10", "plain"),),
}
