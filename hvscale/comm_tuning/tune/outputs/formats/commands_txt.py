"""commands.txt: a command for each launcher that can start the job with the settings."""

from hvscale.comm_tuning.tune.outputs.commands import commands
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register


def text(tuned: TunedJob) -> str:
    parts = [f"# {line.title}{': ' + line.note if line.note else ''}\n{line.text}\n" for line in commands(tuned)]
    return "\n".join(parts)


register(OutputFormat(file="commands.txt", what="the command for each launcher", text=text))
