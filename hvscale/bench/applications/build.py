"""Builds a program with the MPI compiler of the job's flavour, once for each set of flags."""

import hashlib
import os
import re
import shlex
import subprocess
from pathlib import Path

from pydantic import BaseModel

from hvscale.bench.applications import PROGRAMS, Application
from hvscale.core.errors import RequestError
from hvscale.launch import flavours
from hvscale.launch.environment import job_environment
from hvscale.launch.options import LaunchOptions

COMMON = ("common.c", "common.h")
STANDARD = "-std=c11"  # also forbids fused multiply-add, so that vectorised and scalar code give the same bits
COMPILE_SECONDS = 300
LAST_LINES = 20


class Compiler(BaseModel):
    """`path`: the MPI compiler wrapper; `version`: the first line of its --version."""

    path: str
    version: str


def parse_flags(texts: list[str]) -> dict[str, list[str]]:
    """The words of each `--flags`, split as by a shell, by normalised text.

    Raises RequestError for a missing quote and for duplicates.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise RequestError(f"--flags {text!r}: {error}") from error
        if words in found.values():
            raise RequestError(f"--flags {text!r} is given twice; use --repeat for more measurements")
        found[shlex.join(words)] = words
    return found


def label(flags: str) -> str:
    """A readable folder name, unique for the flags."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", flags).strip("-.")[:40] or "none"
    return (
        readable
        if re.fullmatch(r"-[A-Za-z0-9.]+", flags)
        else f"{readable}-{hashlib.sha256(flags.encode()).hexdigest()[:6]}"
    )


def compiler_environment(options: LaunchOptions) -> dict[str, str]:
    """The compiler's environment: the same as the job's, so that `--env OMPI_CC=clang` works."""
    return job_environment(flavours.get(options.mpi), options.env)


def find_compiler(options: LaunchOptions) -> Compiler:
    """The mpicc next to the job's launcher. Raises RequestError, with how to install it, if there
    is none.
    """
    flavour = flavours.get(options.mpi)
    if flavour.soname is None:
        raise RequestError(
            f"--mpi {flavour.name} does not provide MPI, which these programs need: choose another --mpi"
        )
    environment = compiler_environment(options)
    library = flavour.find(environment)
    programs = Path(library.launcher or "").parent
    # If several MPIs share a folder, as on Debian, mpicc may belong to another MPI.
    for path in (programs / f"mpicc.{flavour.name}", programs / "mpicc"):
        if os.access(path, os.X_OK):
            return Compiler(path=str(path), version=version_of(path, environment))
    raise RequestError(
        f"no mpicc next to {library.launcher}: run `make setup`, install lib{flavour.name}-dev (Debian, Ubuntu), or load the cluster's MPI module"
    )


def version_of(compiler: Path, environment: dict[str, str]) -> str:
    done = run([str(compiler), "--version"], environment)
    lines = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode:
        raise RequestError(
            f"{compiler} finds no C compiler ({(lines or ['no output'])[-1]}): install one (Debian, Ubuntu: apt install gcc libc6-dev)"
        )
    return (lines or ["no output"])[0]


def source_hash(application: Application) -> str:
    """A hash of all sources of the program."""
    digest = hashlib.sha256()
    for name in (*application.sources, *COMMON):
        digest.update((PROGRAMS / name).read_bytes())
    return digest.hexdigest()[:16]


def build(application: Application, words: list[str], compiler: Compiler, options: LaunchOptions, folder: Path) -> Path:
    """Build the program in `folder` unless it exists. Raises RequestError, with the compiler's last
    lines, if the build fails.
    """
    program = folder / application.name
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{application.name}"
    sources = [str(PROGRAMS / name) for name in (*application.sources, COMMON[0])]
    done = run([compiler.path, STANDARD, *words, *sources, "-o", str(temporary), "-lm"], compiler_environment(options))
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:]
        raise RequestError(
            "\n    ".join(
                [f"--flags {shlex.join(words)!r}: {compiler.path} ended with status {done.returncode}:", *output]
            )
        )
    temporary.replace(program)
    return program


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{command[0]} cannot be run: {error}") from error
