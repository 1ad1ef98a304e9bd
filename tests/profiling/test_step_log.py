"""The step log in C: the same as in Python, and safe to call with anything."""

import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.built_library import built_library
from hvscale.profiling.record import STEP_LOG
from hvscale.profiling.record.rank_side.gradient_recorder import StepLog, step_log_class
from tests.native import FLAGS, NATIVE, SHARED_LIBRARY, sanitizer_runtime
from tests.profiling import step_logs

Load = Callable[[str], type[StepLog]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    def make(path: str) -> type[StepLog]:
        monkeypatch.setenv("HVSCALE_STEP_LOG", path)
        return step_log_class()

    return make


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    return step_logs.load_recorder()


@given(st.randoms(use_true_random=False), st.integers(1, 200))
def test_both_languages_note_the_same(recorder: ModuleType, draw: random.Random, calls: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVSCALE_STEP_LOG", str(built_library(STEP_LOG)))
        step_logs.compare(recorder, draw, calls)


def test_calls_that_make_no_sense_raise_an_exception(load: Load) -> None:
    step_logs.refuse(load(str(built_library(STEP_LOG)))())


def test_no_tensor_is_kept_and_no_type_beyond_the_log_s_end(load: Load) -> None:
    step_logs.check_references(load(str(built_library(STEP_LOG))))


def test_python_stands_in_for_a_library_that_cannot_be_loaded(load: Load, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_text("not a library")
    assert load(str(other)) is StepLog
    assert load(str(built_library("libhvbench.so"))) is StepLog
    assert load(str(tmp_path / "missing.so")) is StepLog


@pytest.mark.parametrize(("attribute", "value"), [("abiflags", "t"), ("version_info", (3, 9, 21, "final", 0))])
def test_other_pythons_do_not_load_the_library(
    load: Load, monkeypatch: pytest.MonkeyPatch, attribute: str, value: object
) -> None:
    monkeypatch.setattr(sys, attribute, value)
    assert load(str(built_library(STEP_LOG))) is StepLog


def test_address_sanitizer_finds_nothing(tmp_path: Path) -> None:
    runtime, library = sanitizer_runtime("libasan.so"), tmp_path / STEP_LOG
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        pytest.skip(f"no Python.h in {headers}")
    source = NATIVE / "gradients/step_log.c"
    flags = [*FLAGS, *SHARED_LIBRARY, "-fsanitize=address,undefined", "-isystem", headers]
    subprocess.run(["cc", *flags, "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, step_logs.__file__, "1"],
        env={
            **os.environ,
            "LD_PRELOAD": str(runtime),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
            "HVSCALE_STEP_LOG": str(library),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
    assert "runtime error" not in done.stderr
