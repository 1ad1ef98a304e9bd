"""Knobs, set by `hvscale launch --set` and read back from the libraries."""

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.errors import EXIT_WRONG_REQUEST
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.profiling.read.nccl_file import read_nccl_profile

NP = 2
# A value that differs from NCCL's default, for each of its knobs.
NCCL_KNOBS = {
    "nccl_algorithm": "ring",
    "nccl_protocol": "simple",
    "nccl_channels": "2",
    "nccl_buffer_size": "1M",
    "nccl_threads": "256",
    "cuda_ipc": "off",
    "registration_cache": "on",
    "socket_interfaces": "lo",
}
# Where Gloo starts the ranks, socket_interfaces is Gloo's.
INTERFACE = ("--env", "NCCL_SOCKET_IFNAME==lo")
# What NCCL must do with them, by the plug-in's records: knobs, algorithm, protocol, most channels.
EFFECTS = (
    ({"nccl_algorithm": "ring", "nccl_protocol": "simple", "nccl_channels": "1"}, b"RING", b"SIMPLE", 1),
    ({"nccl_algorithm": "ring", "nccl_protocol": "ll", "nccl_channels": "2"}, b"RING", b"LL", 2),
    ({"nccl_algorithm": "tree", "nccl_protocol": "ll", "nccl_channels": "2"}, b"TREE", b"LL", 2),
)
# NCCL reads these where the job gives it a reason, which this one may not do.
READ_AT_NEED = {
    "NCCL_P2P_DISABLE": "NCCL reads it for ranks of one host whose GPUs could reach each other",
    "NCCL_LOCAL_REGISTER": "NCCL reads it for buffers that the program registers",
}
HOROVOD_KNOBS = {"fusion_threshold": "1M", "cycle_time": "1", "cache_capacity": "64"}
MPI_KNOBS = {"allreduce_algorithm": "ring", "broadcast_algorithm": "binomial"}
UCX_KNOBS = {"cuda_ipc": "off", "registration_cache": "off"}


@step("knobs", "each knob of NCCL, UCX, MPI and Horovod, read back from the library", order=50, limit_seconds=80)
def knobs(context: StepContext) -> None:
    with context.claim("every NCCL knob is tried"):
        every_nccl_knob(context)
    with context.claim("NCCL reads its knobs"):
        nccl_reads(context)
    for number, (values, algorithm, protocol, channels) in enumerate(EFFECTS):
        with context.claim(f"NCCL obeys {text_of(values)}"):
            nccl_obeys(context, number, values, algorithm, protocol, channels)
    with context.claim("MPI reads its knobs"):
        of_mpi(context)
    with context.claim("Horovod knows its knobs"):
        of_horovod(context)
    with context.claim("UCX knows its knobs"):
        of_ucx(context)


def text_of(values: dict[str, str]) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in values.items())


def set_options(values: dict[str, str]) -> list[str]:
    return [word for knob, value in values.items() for word in ("--set", f"{knob}={value}")]


def every_nccl_knob(context: StepContext) -> None:
    """A knob that hvscale learns later must be tried here too."""
    rows = context.hvscale_json("knobs", "knobs", "nccl")["rows"]
    known = {row["knob"] for row in rows}
    context.hold(
        "every NCCL knob of hvscale is tried",
        known == NCCL_KNOBS.keys(),
        f"{len(known)} knobs",
        f"not tried: {', '.join(sorted(known - NCCL_KNOBS.keys())) or 'none'}",
        knobs=len(known),
    )


def nccl_reads(context: StepContext) -> None:
    """All NCCL knobs in one job; NCCL logs each variable that it reads."""
    mpi = context.launcher_beside_nccl
    command = context.program("messages", context.device, "all")
    run = context.launch("nccl", NP, command, *set_options(NCCL_KNOBS), *INTERFACE, mpi=mpi)
    record = run.read()
    requested = sorted(name for name in record.env_asked if name.startswith("NCCL_"))
    if not requested:
        raise CommandFailedError("hvscale set no NCCL variable", [])
    if context.needs_gpu(f"NCCL reads {len(requested)} variables: {', '.join(requested)}", "NCCL runs on GPUs only"):
        return
    ignored = not_applied(record, "NCCL")
    in_effect = settings(record, "NCCL")
    for name in requested:
        if name in READ_AT_NEED and name not in in_effect:
            context.not_possible(f"NCCL reads {name}", READ_AT_NEED[name])
            continue
        context.hold(
            f"NCCL reads {name}",
            name in in_effect,
            f"{name} = {in_effect.get(name, '')}",
            ignored.get(name, "NCCL's log does not name it"),
        )


def nccl_obeys(
    context: StepContext, number: int, values: dict[str, str], algorithm: bytes, protocol: bytes, channels: int
) -> None:
    """Record collectives, and compare what NCCL chose for all-reduces: no other has a tree.

    The others must not fail.
    """
    claim = f"NCCL obeys {text_of(values)}"
    mpi = context.launcher_beside_nccl
    command = context.program("messages", context.device, "all")
    run = context.launch(f"effect-{number}", NP, command, *set_options(values), verb="profile", mpi=mpi)
    if context.needs_gpu(claim, "NCCL runs on GPUs only"):
        return
    chosen = choices(run)
    context.hold(
        claim,
        bool(chosen) and all(found[:2] == (algorithm, protocol) and found[2] <= channels for found in chosen),
        "; ".join(f"{one.decode()} {other.decode()}, {count} channels" for one, other, count in sorted(chosen)),
        f"NCCL chose {sorted(chosen)}",
    )


def choices(run: RunFolder) -> set[tuple[bytes, bytes, int]]:
    """Algorithm, protocol and channels of each recorded all-reduce."""
    found = set()
    for file in sorted(run.hvprof.glob("nccl-*.hvn")):
        for record in read_nccl_profile(file).records:
            if record["function"] == b"AllReduce":
                found.add((bytes(record["algorithm"]), bytes(record["protocol"]), int(record["channels"])))
    return found


def of_mpi(context: StepContext) -> None:
    command = context.program("messages", "cpu", "all")
    run = context.launch("mpi", NP, command, *set_options(MPI_KNOBS))
    record = run.read()
    library = f"{record.library.flavour} {record.library.version}"
    requested = sorted(name for name in record.env_asked if not name.startswith("NCCL_") and name != "PYTHONPATH")
    ignored = {name: why for reported in record.settings_in_effect for name, why in reported.not_applied.items()}
    in_effect = {name: value for one in record.settings_in_effect for name, value in one.settings.items()}
    problems = [f"{name}: {ignored[name]}" for name in requested if name in ignored]
    context.hold(
        f"{library} reads {text_of(MPI_KNOBS)}",
        bool(requested) and not problems,
        f"{len(requested)} variables, {len(in_effect)} settings reported",
        "; ".join(problems) or "hvscale set no variable",
        variables=len(requested),
    )


def of_horovod(context: StepContext) -> None:
    command = context.program("horovod_collectives", context.device, 4096, 2)
    run = context.launch("horovod", NP, command, *set_options(HOROVOD_KNOBS))
    ignored = not_applied(run.read(), "Horovod")
    requested = [name for name in run.read().env_asked if name.startswith("HOROVOD_")]
    wrong = [one for one in context.rank_results(run, NP) if one["wrong"]]
    context.hold(
        f"Horovod knows {text_of(HOROVOD_KNOBS)}, and its results stay right",
        bool(requested) and not ignored and not wrong,
        ", ".join(sorted(requested)),
        "; ".join(f"{name}: {why}" for name, why in ignored.items()) or "a result is wrong",
    )


def of_ucx(context: StepContext) -> None:
    """Only where the MPI has UCX. It warns of a variable that it does not know."""
    words = context.hvscale_words("launch", NP, "ucx")
    command = [*words, "--transport", "ucx", *set_options(UCX_KNOBS), "--", *context.program("messages", "cpu", "all")]
    tried = context.run("ucx", command, statuses=(0, EXIT_WRONG_REQUEST))
    claim = f"UCX knows {text_of(UCX_KNOBS)}"
    if tried.status == EXIT_WRONG_REQUEST:
        context.not_possible(claim, tried.last_lines[-1].removeprefix("hvscale: "))
        return
    record = RunFolder(context.folder / "ucx").read()
    ignored = not_applied(record, "UCX")
    requested = sorted(name for name in record.env_asked if name.startswith("UCX_"))
    problems = [f"{name}: {why}" for name, why in ignored.items()]
    context.hold(claim, bool(requested) and not problems, ", ".join(requested), "; ".join(problems))


def settings(record: RunRecord, library: str) -> dict[str, str]:
    """The settings in effect that a library reported."""
    reports = [one for one in record.settings_in_effect if one.library.startswith(library)]
    return {name: value for one in reports for name, value in one.settings.items()}


def not_applied(record: RunRecord, library: str) -> dict[str, str]:
    reports = [one for one in record.settings_in_effect if one.library.startswith(library)]
    return {name: why for one in reports for name, why in one.not_applied.items()}
