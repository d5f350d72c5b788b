"""Prompts in the forms in which people have them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.errors import UsageError
from eagle3_export.measure.prompt_forms import PROMPT_KEYS, Prompt, parse_prompt
from eagle3_export.measure.workload import Workload, dataset_prompts, read_prompts

HI = {"role": "user", "content": "Hi"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {}}],
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "1", "name": "add"}
ANSWER = {"role": "assistant", "content": "Hello"}
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ("one", Prompt(text="one")),
        ({"prompt": "one"}, Prompt(text="one")),
        ({"prompt": ["one"]}, Prompt(text="one")),
        ({"prompt": [HI]}, Prompt(messages=(HI,))),
        ({"prompt": [1, 2]}, Prompt(input_ids=(1, 2))),
        ({"turns": ["one", "two"]}, Prompt(text="one")),
        ({"input_ids": [1, 2]}, Prompt(input_ids=(1, 2))),
        ({"prompt_token_ids": [[1, 2]]}, Prompt(input_ids=(1, 2))),
        ([HI], Prompt(messages=(HI,))),
        ([1, 2], Prompt(input_ids=(1, 2))),
        ({"messages": [HI, ANSWER]}, Prompt(messages=(HI,))),
        ({"messages": [PARTS]}, Prompt(messages=(PARTS,))),
        ({"messages": [HI | {"name": "Ann"}]}, Prompt(messages=(HI | {"name": "Ann"},))),
        ({"messages": [HI, CALL, RESULT]}, Prompt(messages=(HI, CALL, RESULT))),
        ({"messages": [HI], "tools": TOOLS}, Prompt(messages=(HI,), chat_options={"tools": TOOLS})),
        ({"messages": json.dumps([HI])}, Prompt(messages=(HI,))),
        (
            {"custom_id": "1", "method": "POST", "body": {"model": "m", "messages": [HI], "tools": TOOLS}},
            Prompt(messages=(HI,), chat_options={"tools": TOOLS}),
        ),
        ({"body": {"prompt": "one"}}, Prompt(text="one")),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            Prompt(messages=(HI,)),
        ),
        ({"conversation": [{"from": "system", "value": "Be kind."}, {"from": "user", "value": "Hi"}]},
         Prompt(messages=({"role": "system", "content": "Be kind."}, HI))),
        ({"messages": None, "prompt": "one"}, Prompt(text="one")),
        ({"messages": [], "prompt": "one"}, Prompt(text="one")),
    ],
)  # fmt: skip
def test_forms(row: Any, prompt: Prompt) -> None:
    assert parse_prompt(row) == prompt


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (3, "not int '3'"),
        ("  ", "it is empty"),
        (None, "not nothing"),
        ({}, "none of the keys"),
        ({"prompt": ["one", "two"]}, "prompt: it holds 2 texts"),
        ({"prompt": 3}, "prompt: a text, messages or token ids were expected, not int '3'"),
        ({"input_ids": [1, "2"]}, "input_ids: entry 2 of the list is no token id: '2'"),
        ({"input_ids": [1, True]}, "entry 2 of the list is no token id"),
        ({"input_ids": [1, 2**31]}, "entry 2 of the list is no token id"),
        ({"messages": [HI, 3]}, "messages: turn 2 is int '3', not an object"),
        ({"messages": [{"role": 1}]}, "turn 1 has int '1' as its role"),
        ({"messages": [HI | {"content": 3}]}, "turn 1 has int '3' as its content"),
        ({"messages": [ANSWER]}, "only the assistant speaks"),
        ({"messages": "Hi"}, "not the JSON of a list of messages"),
        ({"conversations": [{"from": "Bard", "value": "Hi"}]}, "turn 1 is from 'Bard'"),
        ({"conversations": [{"from": "human", "value": None}]}, "turn 1 has nothing as its value"),
        ({"messages": [HI | {"content": [{1, 2}]}]}, "it cannot be sent as JSON"),
    ],
)
def test_what_is_no_prompt_is_told_why(row: Any, reason: str) -> None:
    found = parse_prompt(row)
    assert isinstance(found, str)
    assert reason in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "body", *PROMPT_KEYS]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_any_json_is_one_prompt_of_one_form_or_a_reason(row: Any) -> None:
    found = parse_prompt(row)
    if isinstance(found, str):
        assert found
        return
    forms = [form for form in (found.text, found.messages, found.input_ids) if form is not None]
    assert len(forms) == 1
    assert forms[0]
    json.dumps(forms, allow_nan=False)


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content", "expected"),
        [
            ("p.txt", "one\r\n\r\ntwo\n", [Prompt(text="one"), Prompt(text="two")]),
            ("p.jsonl", '"one"\n{"prompt": "two"}\n', [Prompt(text="one"), Prompt(text="two")]),
            ("p.JSONL", '\ufeff"one\u2028"\n', [Prompt(text="one\u2028")]),
            ("p.json", '["one", {"input_ids": [1, 2]}]', [Prompt("one"), Prompt(input_ids=(1, 2))]),
        ],
    )
    def test_kinds(self, tmp_path, name, content, expected):
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
        assert read_prompts(tmp_path / name) == expected

    def test_a_limit(self, tmp_path):
        (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
        assert len(read_prompts(tmp_path / "p.txt", limit=2)) == 2

    def test_a_bad_line_is_named_by_its_number_and_reason(self, tmp_path):
        (tmp_path / "p.jsonl").write_text('"one"\n\n{"messages": [{"role": "user", "content": 3}]}\n')
        with pytest.raises(UsageError, match=r"Line 3 of .* turn 1 has int '3' as its content"):
            read_prompts(tmp_path / "p.jsonl")

    @pytest.mark.parametrize("bad", ["{", '{"prompt": NaN}', "[" * 100_000, "9" * 5000])
    def test_a_line_that_is_no_json_is_named_by_its_number(self, tmp_path, bad):
        (tmp_path / "p.jsonl").write_text(f'"one"\n{bad}\n')
        with pytest.raises(UsageError, match=r"Line 2 of .* is no prompt"):
            read_prompts(tmp_path / "p.jsonl")

    def test_bad_entries_are_left_out_and_told_where_that_is_asked_for(self, tmp_path):
        (tmp_path / "p.jsonl").write_text('{\n"one"\n{"prompt": 3}\n"two"\n')
        left_out: list[str] = []
        assert read_prompts(tmp_path / "p.jsonl", left_out=left_out.append) == [Prompt("one"), Prompt("two")]
        assert [said.split(" of ")[0] for said in left_out] == ["Line 1", "Line 3"]

    def test_a_file_of_bad_entries_holds_no_prompts(self, tmp_path):
        (tmp_path / "p.jsonl").write_text("{\n")
        with pytest.raises(UsageError, match="holds no prompts"):
            read_prompts(tmp_path / "p.jsonl", left_out=lambda _: None)

    @given(st.sampled_from(["p.txt", "p.json", "p.jsonl"]), st.binary(max_size=60), st.booleans())
    def test_any_bytes_give_prompts_or_our_error(self, tmp_path_factory, name, content, skip):
        path = tmp_path_factory.mktemp("prompts") / name
        path.write_bytes(content)
        try:
            assert read_prompts(path, left_out=(lambda _: None) if skip else None)
        except UsageError as error:
            assert str(error)

    @pytest.mark.parametrize(
        "content", ["", "\n\n", "{}", "[1]", '[{"prompt": 3}]', '[{"input_ids": [1, "2"]}]', "[" * 100_000]
    )
    def test_what_is_no_list_of_prompts(self, tmp_path, content):
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(UsageError):
            read_prompts(tmp_path / "p.json")

    @pytest.mark.parametrize("name", ["missing.txt", "a\0b", "x" * 5000])
    def test_a_file_that_cannot_be_read(self, tmp_path, name):
        with pytest.raises(UsageError, match="cannot be read"):
            read_prompts(tmp_path / name)

    def test_a_data_set(self, tmp_path):
        datasets = pytest.importorskip("datasets")
        rows = datasets.Dataset.from_dict({"question": ["one", "", "two", "three"]})
        rows.to_parquet(tmp_path / "train.parquet")
        left_out: list[str] = []
        found = dataset_prompts(str(tmp_path), limit=2, left_out=left_out.append)
        assert found == [Prompt(text="one"), Prompt(text="two")]
        assert left_out == [f"Row 2 of {tmp_path}, split train is no prompt: question: it is empty."]
        with pytest.raises(UsageError, match="Row 2 of"):
            dataset_prompts(str(tmp_path), limit=2)
        with pytest.raises(UsageError, match="cannot be loaded"):
            dataset_prompts(str(tmp_path / "missing"))


def test_the_digest_is_of_the_prompts_and_not_of_where_they_came_from() -> None:
    prompts = [
        Prompt(text="a"),
        Prompt(messages=({"role": "user", "content": "b"},)),
        Prompt(input_ids=(1, 2)),
    ]
    digest = Workload(prompts, "a.txt").digest()
    assert digest == Workload(list(prompts), "b.txt", concurrency=8).digest()
    assert digest.startswith("sha256:")
    assert (
        len({digest, Workload(prompts[:2], "a.txt").digest(), Workload(prompts[::-1], "a.txt").digest()}) == 3
    )
    assert Workload([Prompt(text="\ud800")], "a.txt").digest()
