"""A damaged file of a training run, when it is resumed, evaluated or shown."""

import json
from pathlib import Path
from typing import Any

from fault_classes import FAULTS, FaultClass
from fault_classes._mutations import mutate
from fault_classes._originals import STEPS, TRAIN_SMALL, put_programs
from fault_classes._try import Answer, Try
from hvscale.core.errors import EXIT_DONE, EXIT_WRONG_REQUEST

# Checkpoints of the last steps; without the newest, training makes the steps after it again.
PATTERNS = ("checkpoints/*.ckpt", "checkpoints/*.ckpt", "steps.jsonl", "run.json", "model.pt", "result.json")
EVAL = ("eval", "trained", "--data", "images", "--image-size", 8, "--threads", 1, "--json")


def losses(run: Path) -> list[tuple[Any, ...]]:
    """Return step, loss, learning rate and images of each line of steps.jsonl."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["learning_rate"], line["images"]) for line in lines]


def check_training(one: Try, run: Path, whole: Path, name: str = "small") -> None:
    """Raises LostError unless a run has the losses and the model of an uninterrupted one."""
    one.require(losses(run) == losses(whole), f"the losses of the resumed {name} training differ")
    same_model(one, run, whole)


def same_model(one: Try, run: Path, whole: Path) -> None:
    """Raises LostError if the models of two runs differ; a run may have none."""
    import torch

    if (run / "model.pt").is_file():
        ours, theirs = (torch.load(folder / "model.pt", weights_only=True) for folder in (run, whole))
        same = ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
        one.require(same, f"the model of {run.name} differs from that of the uninterrupted training")


def attempt(one: Try) -> None:
    run, whole = one.copy("trained"), one.original("trained")
    put_programs(one.folder, one.original)
    action = one.random.choice(["resume", "resume", "evaluate", "watch", "runs"])
    if action == "resume":  # as a killed training left it: the last checkpoint is one of the middle
        for checkpoint in sorted(run.glob("checkpoints/*.ckpt"))[2:]:
            checkpoint.unlink()
    file, damage = mutate(run, (one.random.choice(PATTERNS),), one.random)
    one.disturbance = f"{file}: {damage}; {action}"
    if action == "resume":
        answer = one.run(*TRAIN_SMALL, "--run", "trained", "--resume", "auto")
        if answer.status == EXIT_DONE and not file.startswith("steps.jsonl"):
            check_training(one, run, whole)
        elif answer.status == EXIT_DONE:
            one.require((run / "steps.jsonl").read_text().splitlines()[-1].startswith("{"), "steps.jsonl is damaged")
            one.require(
                json.loads((run / "steps.jsonl").read_text().splitlines()[-1])["step"] == STEPS, "steps are missing"
            )
    elif action == "evaluate":
        one.copy("images")
        check_evaluation(one, one.run(*EVAL), damage)
    elif action == "watch":
        answer = one.run("watch", "trained", "--once", "--interval", 0.1)
        one.require(damage != "nothing" or answer.status == EXIT_DONE, f"failed without a fault: {answer.stderr}")
    else:
        one.run("runs", ".", "--json", statuses=(EXIT_DONE,)).document()


def check_evaluation(one: Try, answer: Answer, damage: str) -> None:
    """Raises LostError unless the result is that of the undamaged model, or an error."""
    one.require(damage != "nothing" or answer.status == EXIT_DONE, f"failed without a fault: {answer.stderr}")
    if answer.status == EXIT_DONE:
        answer.document()
        same_model(one, one.folder / "trained", one.original("trained"))
    else:
        one.require(answer.status == EXIT_WRONG_REQUEST, f"exit status {answer.status}")


FAULTS.register("mutated-training", FaultClass(attempt, tries=400, sample=6))
