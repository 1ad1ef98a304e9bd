"""Which GPUs each rank's program may use, and which its communication library: what is asked for
here is done in rank.py.
"""

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import DevicesAsked, Library
from hvscale.launch.flavours import FLAVOURS, Flavour

POLICIES = ("own", "all", "split")


def asked(policy: str, flavour: Flavour, library: Library) -> DevicesAsked:
    """What each rank is to do for `--devices POLICY`.

    own: CUDA_VISIBLE_DEVICES is the local rank's GPU alone. all: it stays as the caller has it, and
    the program selects. split: as own, and the library gets a list of all GPUs of its own. Raises
    RequestError for another policy, and for split where the library has no such list.
    """
    if policy not in POLICIES:
        raise RequestError(f"--devices {policy}: unknown; write one of {', '.join(POLICIES)}")
    if policy != "split":
        return DevicesAsked(policy=policy)
    variable = flavour.split_devices_variable(library)
    if variable is None:
        able = [one.own_device_list for one in FLAVOURS.all().values() if one.own_device_list]
        raise RequestError(
            f"--devices split: {flavour.name} {library.version} uses the GPUs that its process sees; only {' and '.join(able)} can do this. "
            "Use --devices all, and torch.cuda.set_device(hvd.local_rank()) in the program"
        )
    return DevicesAsked(policy=policy, library_variable=variable)
