"""env.sh: the settings as environment variables, for any POSIX shell."""

import shlex
from collections.abc import Mapping

from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register

SHELLS_OWN = {"LD_PRELOAD": '"${LD_PRELOAD:+:$LD_PRELOAD}"'}  # the libraries that the shell preloads already


def text(tuned: TunedJob) -> str:
    head = "# Source it in the shell that starts the job: . ./env.sh\n"
    if not tuned.variables:
        return head + "# Nothing to set: see guide.md.\n"
    return head + exports(tuned.variables)


def exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(word)}{SHELLS_OWN.get(name, '')}\n" for name, word in variables.items())


register(
    OutputFormat(
        file="env.sh",
        what="all settings as environment variables",
        text=text,
        use=lambda tuned: f". {shlex.quote(tuned.path('env.sh'))}",
    )
)
