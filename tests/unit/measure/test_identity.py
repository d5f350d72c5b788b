"""Whether a server runs the export: by digest, by path, or by the user's word."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle3_export.documents.json_files import read_metadata, to_json
from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.measurement import measure, record
from eagle3_export.measure.start_time import started_at
from eagle3_export.ports import free_port
from eagle3_export.storage.finite import digest_of_file
from tests.support.measuring import files_of, make_export, workload
from tests.support.stand_in_server import running, sglang

OWN, OTHER = f"draft-{'a' * 32}", f"draft-{'b' * 32}"


def with_digest(draft, digest):
    metadata = read_metadata(draft)
    weights = metadata.weights.model_copy(update={"digest": digest})
    (draft / "metadata.json").write_bytes(to_json(metadata.model_copy(update={"weights": weights})))


def answers(path, version="default", *, now=None, answered=None, **changes):
    """A server that was started with one weight_version and has another now."""
    said = sglang(path, weight_version=version, **changes)
    said["/model_info"] = {"weight_version": now or version}
    said["/generate"]["meta_info"]["weight_version"] = answered or now or version
    return said


def refused(draft, said, named, **options):
    before = files_of(draft)
    with running(said) as server, pytest.raises(MeasurementError, match=named) as caught:
        record(draft, measure(draft, server.url, workload(), **options))
    assert files_of(draft) == before
    return caught.value


class TestDigest:
    @pytest.mark.parametrize("path", ["/models/draft", "org/draft", "s3://bucket/draft", None])
    def test_a_server_that_names_it_needs_no_path(self, draft, path):
        with_digest(draft, OWN)
        said = answers("/elsewhere", now=f"epoch 3, {OWN}", speculative_draft_model_path=path)
        with running(said) as server:
            found = measure(draft, server.url, workload())
        assert (found.identified_by, found.served_as) == ("digest", path)

    def test_a_draft_that_was_swapped_for_another_is_not_this_one_although_the_path_is(self, draft):
        with_digest(draft, OWN)
        refused(draft, answers(str(draft), now=OTHER), OTHER)
        refused(draft, answers(str(draft), now=OTHER), OTHER, served_as=str(draft))

    def test_an_export_of_an_older_release_is_read(self, draft):
        save_file({"fc.weight": np.ones(8, np.float32)}, draft / "model.safetensors")
        own = digest_of_file(draft / "model.safetensors")
        with running(answers("/elsewhere", own)) as server:
            assert measure(draft, server.url, workload()).identified_by == "digest"
        refused(draft, answers("/elsewhere", OTHER), own)

    def test_a_swap_while_it_is_measured(self, draft):
        with_digest(draft, OWN)
        refused(draft, answers("/elsewhere", OWN, answered=OTHER), "replaced while it was measured")


class TestPath:
    def test_is_recorded(self, draft):
        with running(answers(str(draft))) as server:
            found = measure(draft, server.url, workload())
        assert (found.identified_by, found.served_as) == ("path", str(draft))

    def test_says_nothing_after_an_update(self, draft):
        refused(draft, answers(str(draft), now="step 7"), "updated since it started")
        with running(answers(str(draft), now="step 7")) as server:
            assert measure(draft, server.url, workload(), served_as=str(draft)).identified_by == "user"

    def test_a_version_that_the_server_was_started_with_is_no_update(self, draft):
        with running(answers(str(draft), "v2")) as server:
            assert measure(draft, server.url, workload()).identified_by == "path"

    @pytest.mark.parametrize(("seconds", "older"), [(-3600, True), (3600, False)])
    def test_a_server_that_is_older_than_what_lies_there(self, draft, seconds, older):
        said = answers(str(draft)) | {
            "/metrics": f"# HELP x\nprocess_start_time_seconds {time.time() + seconds}\n".encode()
        }
        if older:
            assert "still runs what lay there before" in refused(draft, said, "started at").why
        else:
            with running(said) as server:
                assert measure(draft, server.url, workload()).identified_by == "path"

    def test_copying_another_export_there_counts_as_publishing_it(self, draft, tmp_path):
        other = make_export(tmp_path / "other", "9")
        metadata = read_metadata(other).model_copy(update={"created_at": "2020-01-01T00:00:00+00:00"})
        (other / "metadata.json").write_bytes(to_json(metadata))
        (other / "model.safetensors").write_bytes(b"weights")
        shutil.copytree(other, draft, dirs_exist_ok=True)
        said = answers(str(draft)) | {"/metrics": f"process_start_time_seconds {time.time() - 60}\n".encode()}
        refused(draft, said, "started at")


class TestWord:
    @pytest.mark.parametrize("name", ["/models/draft", "org/draft", "s3://bucket/draft"])
    def test_it_is_recorded_as_such(self, draft, name):
        with running(answers(name)) as server:
            found = measure(draft, server.url, workload(), served_as=name + "/")
        assert (found.identified_by, found.served_as) == ("user", name)

    def test_it_has_to_be_what_the_server_says(self, draft):
        refused(draft, answers("/models/other"), "not /models/draft", served_as="/models/draft")

    def test_the_refusal_of_another_path_names_it(self, draft):
        assert (
            "--served-as /models/draft" in refused(draft, answers("/models/draft"), "runs the draft").remedy
        )


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
@pytest.mark.parametrize(("title", "known"), [("sglang.launch_server", True), ("tunnel", False)])
def test_the_start_of_a_server_on_this_machine_is_known_by_its_port(title, known):
    port, before = free_port(), time.time()
    command = [sys.executable, "-m", "tests.support.stand_in_server", "--port", str(port), title]
    process = subprocess.Popen(command)
    try:
        with Connection(f"http://127.0.0.1:{port}") as connection:
            while connection.get_if_any("/health") is None:
                assert process.poll() is None
                time.sleep(0.05)
            found = started_at(connection)
        # /proc counts from the boot, which it gives in whole seconds
        assert (found is not None and before - 2 < found < time.time() + 2) if known else found is None
    finally:
        process.kill()
        process.wait()
