"""`hvscale train --autotune`: the tuning of a training that any launcher started, inside a rank."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from hvscale.comm_tuning.autotune.job import STEPS, check_steps, keep
from hvscale.comm_tuning.autotune.memory import recall_all
from hvscale.comm_tuning.autotune.moves import live_moves
from hvscale.comm_tuning.autotune.rank_side.request import VARIABLE, RankRequest
from hvscale.comm_tuning.autotune.rank_side.sitecustomize import TuneHorovod
from hvscale.core.autotune_result import FILE, FOLDER
from hvscale.core.run_folder import RunFolder
from hvscale.launch import flavours
from hvscale.launch.options import LaunchOptions


class TunedTraining:
    """The tuning of this process's training. Only Horovod's own knobs can change here.

    The MPI library's need `hvscale launch --autotune`, which knows it before it starts.
    """

    def __init__(self, steps: int | None) -> None:
        """Attach the tuning to this process, before it imports Horovod.

        It does nothing in a single process, and where `hvscale launch --autotune` did it already.
        Raises RequestError for steps that are too few.
        """
        check_steps(steps or STEPS)
        self.folder: Path | None = None
        self.is_first = False
        place = flavours.launched_place()
        if place is None or VARIABLE in os.environ:
            return
        self.is_first = place[1] == 0
        self.folder = Path(tempfile.mkdtemp(prefix="hvscale-autotune-"))
        without_mpi = next(one for one in flavours.FLAVOURS.all().values() if not one.has_mpi)
        remembered = recall_all(_warn if self.is_first else lambda text: None)
        request = RankRequest(
            steps=steps or STEPS,
            folder=str(self.folder),
            library="",
            moves=live_moves(sys.argv, LaunchOptions(mpi=without_mpi.name), without_mpi.find({})),
            remembered=[
                {"fingerprint": entry.fingerprint.model_dump(mode="json"), "settings": entry.settings}
                for entry in remembered
                if entry.fingerprint.np == place[0]
            ],
        )
        os.environ[VARIABLE] = request.text()
        sys.meta_path.insert(0, TuneHorovod)

    def finish(self, run: Path) -> None:
        """Keep what was found, in the training's run folder and in the memory."""
        if self.folder is None:
            return
        found = self.folder / FILE
        if self.is_first and found.exists():
            (run / FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(found, run / FOLDER / FILE)
            folder = RunFolder(run)
            record = folder.read()
            options = LaunchOptions(np=record.np, mpi=record.library.flavour)
            _warn(keep(folder, record.command, options, record.library, _warn))
        self.close()

    def close(self) -> None:
        """Remove temporary files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _warn(text: str) -> None:
    sys.stderr.write(f"hvscale: {text}\n")
