"""How long a launch waits for others, and the variables by which a site changes that."""

import math
import os

from hvscale.core.errors import RequestError

# 128 ranks on two busy cores: the first one begins 0.1 to 1.7 s after the launcher.
FIRST_RANK_SECONDS = 60.0
# Launchers start one agent for each node; ssh, `docker exec` and srun take up to a second each on a
# busy machine.
FIRST_RANK_SECONDS_PER_NODE = 2.0
FIRST_RANK_VARIABLE = "HVSCALE_FIRST_RANK_TIMEOUT"
ANSWER_SECONDS = 60.0
ANSWER_VARIABLE = "HVSCALE_ANSWER_TIMEOUT"


def first_rank_seconds(remote_nodes: int) -> float:
    """How long a launcher may take to start its first rank.

    Raises RequestError when the variable for it is not a number of seconds.
    """
    return seconds(FIRST_RANK_VARIABLE, FIRST_RANK_SECONDS + FIRST_RANK_SECONDS_PER_NODE * remote_nodes)


def answer_seconds() -> float:
    """How long a host, the Docker daemon or Slurm may take to answer before the ranks start.

    Raises RequestError when the variable for it is not a number of seconds.
    """
    return seconds(ANSWER_VARIABLE, ANSWER_SECONDS)


def check() -> None:
    """Raises RequestError when one of the variables is not a number of seconds."""
    first_rank_seconds(0)
    answer_seconds()


def seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RequestError(f"{variable}={text}: not a number of seconds; write for example {variable}=120, or unset it")
    return value
