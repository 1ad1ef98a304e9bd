"""openmpi-mca-params.conf: the parameters of Open MPI 4 and 5, for mca_base_param_files.

mpirun --tune reads another format.
"""

import shlex

from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register
from hvscale.launch.flavours.openmpi import PREFIX

FILE = "openmpi-mca-params.conf"
HEAD = """\
# For mpirun --mca mca_base_param_files FILE, or OMPI_MCA_mca_base_param_files=FILE under srun.
# It replaces $HOME/.openmpi/mca-params.conf and the system's file. To keep those, add them, separated by commas.
"""


def text(tuned: TunedJob) -> str:
    own, others = tuned.beginning(PREFIX), tuned.others(PREFIX)
    left = f"# Not parameters of Open MPI, so only env.sh sets them: {', '.join(others)}\n" if others else ""
    return HEAD + left + "".join(f"{name.removeprefix(PREFIX)} = {word}\n" for name, word in own.items())


def use(tuned: TunedJob) -> str:
    path = tuned.path(FILE)
    if "," not in path:
        return f"export OMPI_MCA_mca_base_param_files={shlex.quote(path)}"
    # Open MPI separates the names of files by commas, and quotes do not protect one.
    return f'cp {shlex.quote(path)} "$HOME/{FILE}" && export OMPI_MCA_mca_base_param_files="$HOME/{FILE}"'


register(
    OutputFormat(
        file=FILE,
        what="Open MPI's parameters",
        text=text,
        applies=lambda tuned: tuned.flavour == "openmpi",
        use=use,
    )
)
