"""`--devices own|all|split`, as the ranks see it."""

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.errors import EXIT_WRONG_REQUEST

NP = 2
# In a dry run nothing looks at these numbers: two GPUs that a site might have assigned.
ASSIGNED = ("--env", "CUDA_VISIBLE_DEVICES=4,6")


@step("devices", "--devices own, all and split, seen from inside the ranks", order=40, limit_seconds=40)
def devices(context: StepContext) -> None:
    for policy, check in (("own", own), ("all", all_devices), ("split", split)):
        with context.claim(f"--devices {policy} selects the ranks' GPUs"):
            check(context)


def options(context: StepContext, policy: str) -> list[str]:
    return ["--devices", policy, *(() if context.on_gpu else ASSIGNED)]


def own(context: StepContext) -> None:
    offered = len(context.machine.gpus) if context.on_gpu else NP
    np = min(NP, offered)
    run = context.launch("own", np, context.program("devices"), *options(context, "own"))
    ranks = context.rank_results(run, np)
    visible = [str(rank["visible"]) for rank in ranks]
    context.hold(
        "--devices own: each rank sees one GPU, a different one",
        len(set(visible)) == np and not any("," in text for text in visible),
        f"CUDA_VISIBLE_DEVICES {' and '.join(visible)}",
        f"CUDA_VISIBLE_DEVICES {visible}",
    )
    if not context.needs_gpu("--devices own: PyTorch sees that GPU only", "PyTorch lists no GPU here"):
        ids = [one for rank in ranks for one in rank["ids"]]
        context.hold(
            "--devices own: PyTorch sees that GPU only",
            all(rank["count"] == 1 for rank in ranks) and len(set(ids)) == np,
            ", ".join(ids),
            f"GPUs of the ranks: {ids}",
        )
    more = context.run(
        "own-too-many",
        [
            *(context.hvscale_words("launch", offered + 1, "own-too-many")),
            *options(context, "own"),
            "--",
            *context.program("devices"),
        ],
        statuses=(3,),
    )
    context.hold(
        f"--devices own: {offered + 1} ranks on {offered} GPUs are refused with the reason",
        "has no GPU" in more.stderr,
        "local rank without a GPU: refused",
        "; ".join(more.last_lines),
    )


def all_devices(context: StepContext) -> None:
    run = context.launch("all", NP, context.program("devices"), *options(context, "all"))
    ranks = context.rank_results(run, NP)
    count = len(context.machine.gpus) if context.on_gpu else 0
    same = all(rank["visible"] == ranks[0]["visible"] and rank["ids"] == ranks[0]["ids"] for rank in ranks)
    context.hold(
        "--devices all: every rank sees all GPUs",
        same and all(rank["count"] == count for rank in ranks),
        f"{count} GPUs on each rank, CUDA_VISIBLE_DEVICES {ranks[0]['visible'] or 'not set'}",
        f"the ranks see {[rank['ids'] for rank in ranks]}",
        gpus=count,
    )


def split(context: StepContext) -> None:
    np = min(NP, len(context.machine.gpus)) if context.on_gpu else NP
    words = [
        *context.hvscale_words("launch", np, "split"),
        *options(context, "split"),
        "--",
        *context.program("devices"),
    ]
    tried = context.run("split", words, statuses=(0, EXIT_WRONG_REQUEST))
    if tried.status == EXIT_WRONG_REQUEST:
        reason = next((line for line in tried.stderr.splitlines() if "--devices split" in line), "")
        if not reason:
            raise CommandFailedError("--devices split was refused without a reason", tried.last_lines)
        context.not_possible(
            "--devices split: the program sees its GPU, the library all", reason.removeprefix("hvscale: ")
        )
        return
    folder = context.folder / "split"
    variable = context.read_json(folder / "run.json")["library_devices_variable"]
    environments = [context.read_json(folder / f"check-rank-{rank}.json") for rank in range(np)]
    visible = [str(one["visible"]) for one in environments]
    context.hold(
        "--devices split: the program sees its GPU, the library all",
        bool(variable) and len(set(visible)) == np and not any("," in text for text in visible),
        f"CUDA_VISIBLE_DEVICES {' and '.join(visible)}; the library reads {variable}",
        f"{variable}: {environments}",
    )
