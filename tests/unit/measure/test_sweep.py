"""Sweeps: one server per depth, started and stopped here; the servers are stand-ins."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from pathlib import Path

import pytest

from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import MeasurementError, UsageError
from eagle3_export.measure import sweep as sweeping
from eagle3_export.measure.server_process import without_keys
from eagle3_export.measure.sweep import Sweep, running_server, sweep_depths
from tests.support.measuring import make_export, workload

REPOSITORY = Path(__file__).resolve().parents[3]


def stand_in(**changes):
    template = f"{sys.executable} -m tests.support.stand_in_server --port {{port}} {{speculative}}"
    options = {"template": template, "start_timeout": 60.0} | changes
    return Sweep(target="org/verifier", **options)


def speculative(draft):
    return lambda depth: ["--speculative-draft-model-path", str(draft), "--speculative-num-steps", str(depth)]


class TestSweep:
    def test_one_server_per_depth_and_a_baseline(self, draft, monkeypatch):
        monkeypatch.chdir(REPOSITORY)
        said = []
        result = sweep_depths(
            draft, [3, 1], workload(), stand_in(arguments=speculative(draft)), say=said.append
        )
        # depth K: of 2 + (K-1) + K steps one accepts 1…K-1 drafts each and K accept K: 12/7 at 3, 1/3 at 1
        lengths = [(m.num_steps, m.acceptance_length) for m in result.measurements]
        assert lengths == [(3, pytest.approx(1 + 12 / 7)), (1, pytest.approx(1 + 1 / 3))]
        assert result.baseline_tokens_per_second > 0
        assert all(m.speedup or "busy" in m.reasons["speedup"] for m in result.measurements)
        assert [m.num_steps for m in read_metadata(draft).measured.measurements] == [1, 3]
        assert "baseline" in said[0]
        json.dumps(result.as_dict(), allow_nan=False)

    def test_a_server_that_does_not_start_is_named_with_its_log(self, draft):
        failing = stand_in(
            arguments=speculative(draft),
            template=f"{sys.executable} -c 'raise SystemExit(\"no GPU\")' {{port}} {{speculative}}",
        )
        with pytest.raises(MeasurementError, match=r"(?s)ended with status 1.*no GPU"):
            sweep_depths(draft, [3], workload(), failing)

    def test_the_baseline_runs_in_the_dtype_that_the_draft_asks_for(self, draft, monkeypatch):
        monkeypatch.chdir(REPOSITORY)
        told = []

        @contextlib.contextmanager
        def spied(sweep, arguments):
            told.append(list(arguments))
            with running_server(sweep, [word for word in arguments if word not in dtype]) as url:
                yield url

        dtype = ["--dtype", "float32"]
        monkeypatch.setattr(sweeping, "running_server", spied)
        asked = stand_in(arguments=lambda depth: [*speculative(draft)(depth), *dtype])
        sweep_depths(draft, [3], workload(), asked)
        assert told[0] == dtype
        assert told[1][-2:] == dtype

    def test_a_server_that_stays_silent_is_stopped(self, draft):
        silent = stand_in(
            arguments=speculative(draft),
            template=f"{sys.executable} -c 'import time; time.sleep(600)' {{port}} {{speculative}}",
            start_timeout=0.2,
        )
        with pytest.raises(MeasurementError, match="did not answer"):
            sweep_depths(draft, [3], workload(), silent, baseline=False)

    def test_the_server_is_gone_afterwards(self, draft, monkeypatch):
        monkeypatch.chdir(REPOSITORY)
        with running_server(stand_in(arguments=speculative(draft)), []) as url:
            assert urllib.request.urlopen(url + "/health", timeout=10).status == 200
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url + "/health", timeout=10)

    @pytest.mark.parametrize("template", ["server {port}", "server {speculative}", "server"])
    def test_a_template_without_its_placeholders(self, draft, template):
        with pytest.raises(UsageError, match="launch template has no"):
            sweep_depths(draft, [3], workload(), stand_in(arguments=speculative(draft), template=template))

    @pytest.mark.parametrize("depths", [[], [0], [3, -1]])
    def test_depths_that_are_none(self, draft, depths):
        with pytest.raises(UsageError, match="depths of at least 1"):
            sweep_depths(draft, depths, workload(), stand_in(arguments=speculative(draft)))

    def test_a_pointer_that_moves_meanwhile_is_followed_once(self, draft, monkeypatch):
        monkeypatch.chdir(REPOSITORY)
        best = draft.parent / "best"
        best.symlink_to("0")
        other = make_export(draft.parent, "1")

        def move_best(said):
            if said.startswith("depth 1: starting"):
                best.unlink()
                best.symlink_to("1")

        sweep_depths(
            best, [3, 1], workload(), stand_in(arguments=speculative(draft)), baseline=False, say=move_best
        )
        assert [m.num_steps for m in read_metadata(draft).measured.measurements] == [1, 3]
        assert read_metadata(other).measured is None

    def test_a_draft_that_cannot_be_served_is_refused_before_a_server_starts(self, draft, monkeypatch):
        def refuse(depth):
            raise UsageError("not served")

        monkeypatch.setattr(sweeping, "running_server", lambda *_: pytest.fail("a server was started"))
        with pytest.raises(UsageError, match="not served"):
            sweep_depths(draft, [3], workload(), stand_in(arguments=refuse))

    def test_keys_appear_in_no_message_about_a_server(self, draft):
        script = (
            "import sys; print('ServerArgs(api_key=\\'"
            + "hidden"
            + "\\', tp_size=1)', sys.argv); sys.exit(1)"
        )
        failing = stand_in(
            arguments=speculative(draft),
            template=f'{sys.executable} -c "{script}" --api-key hidden {{port}} {{speculative}} the-key',
            api_key="the-key",
        )
        with pytest.raises(MeasurementError, match="ended with status 1") as caught:
            sweep_depths(draft, [3], workload(), failing)
        assert "the-key" not in str(caught.value)
        assert "api_key=[key]" in str(caught.value)
        assert "--api-key [key]" in str(caught.value)
        assert "hunter2" not in repr(stand_in(arguments=speculative(draft), api_key="hunter2"))

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("serve --api-key abc --port 1", "serve --api-key [key] --port 1"),
            ("serve --api-key=abc", "serve --api-key=[key]"),
            ("serve --admin-api-key 'a b'", "serve --admin-api-key [key]"),
            (
                "Args(api_key='a, b', x=1, admin_api_key=None)",
                "Args(api_key=[key], x=1, admin_api_key=[key])",
            ),
            ("nothing", "nothing"),
        ],
    )
    def test_keys_are_found_where_servers_show_them(self, text, shown):
        assert without_keys(text, None) == shown
