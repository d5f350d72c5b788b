"""Which tensors SGLang's `load_weights` expects for a draft, from the parameters that it built."""

from __future__ import annotations

from collections.abc import Collection, Iterable

# SGLang stacks these (models/llama_eagle3.py, stacked_params_mapping)
STACKED = {
    ".qkv_proj.": (".q_proj.", ".k_proj.", ".v_proj."),
    ".gate_up_proj.": (".gate_proj.", ".up_proj."),
}
VOCABULARY_MAPS = ("d2t", "t2d")


def expected_keys(parameters: Iterable[str]) -> set[str]:
    """Keys that fill `parameters`, without the prefix `model.`, and with `layers.0` for `midlayer`.

    Weights and biases only: the scales of a draft that SGLang quantises itself come from no checkpoint.
    """
    keys: set[str] = set()
    for parameter in parameters:
        name = parameter.removeprefix("model.")
        if not name.endswith((".weight", ".bias")):
            continue
        stack = next((stack for stack in STACKED if stack in name), None)
        keys.update([name] if stack is None else [name.replace(stack, part) for part in STACKED[stack]])
    return keys


def refuse_unless_complete(
    keys: Collection[str], parameters: Collection[str], *, vocabulary_map: bool, embedding: bool
) -> None:
    """Refuses weights that leave a parameter unfilled or hold a tensor that no parameter takes.

    Args:
        keys: names of the tensors in the file.
        parameters: names of the model's parameters.
        vocabulary_map: whether the draft needs one (`d2t`).
        embedding: whether the draft needs its own; else SGLang puts the target's in its place.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    found = {key.removeprefix("model.").replace("midlayer.", "layers.0.") for key in keys}
    expected = expected_keys(parameters)
    missing = (expected | ({"d2t"} if vocabulary_map else set())) - found
    if not embedding:
        missing.discard("embed_tokens.weight")
    unknown = found - expected - set(VOCABULARY_MAPS)
    if not missing and not unknown:
        return
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    raise ValueError(
        f"The weights do not fit the draft that config.json describes ({'; '.join(problems)}). SGLang would "
        "leave missing parameters uninitialised and drop unknown tensors. Export the checkpoint again with "
        "eagle3-export."
    )
