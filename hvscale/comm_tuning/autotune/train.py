"""`hvscale train --autotune`: the tuning of a training that any launcher started, inside a rank."""

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from hvscale.comm_tuning.autotune.job import MAX_REMEMBERED, STEPS, check_steps, keep_result
from hvscale.comm_tuning.autotune.memory import recall_all
from hvscale.comm_tuning.autotune.moves import live_moves
from hvscale.comm_tuning.autotune.rank_side.agent import end_tuning
from hvscale.comm_tuning.autotune.rank_side.horovod_knobs import CYCLE, THRESHOLD
from hvscale.comm_tuning.autotune.rank_side.request import VARIABLE, RankRequest
from hvscale.comm_tuning.autotune.rank_side.sitecustomize import TuneHorovod
from hvscale.core.autotune_result import FOLDER, AutotuneResult, read_result_file
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, RunFolder
from hvscale.launch import flavours
from hvscale.launch.options import LaunchOptions


class TunedTraining:
    """The tuning of this process's training. Only Horovod's own knobs can change here.

    The MPI library's need `hvscale launch --autotune`, which knows it before it starts. An elastic
    job is tuned anew for each number of ranks, unless settings for it are remembered.
    """

    def __init__(self, steps: int | None) -> None:
        """Attach the tuning to this process, before it imports Horovod.

        It does nothing in a single process, and where `hvscale launch --autotune` did it already.
        Raises RequestError for steps that are too few.
        """
        check_steps(steps or STEPS)
        self.folder: Path | None = None
        place = flavours.launched_place()
        if place is None or VARIABLE in os.environ:
            return
        # Made when rank 0 writes into it: a rank that is killed leaves no empty folder.
        self.folder = Path(tempfile.gettempdir(), f"hvscale-autotune-{secrets.token_hex(8)}")
        is_elastic = bool(os.environ.get("HOROVOD_ELASTIC"))
        without_mpi = _without_mpi()
        # No launcher sets them by itself, and the trainer has not set its own default yet.
        of_user = tuple(name for name in (THRESHOLD, CYCLE) if name in os.environ)
        remembered = [
            entry
            for entry in recall_all(_warn if place[1] == 0 else lambda text: None)
            if is_elastic or entry.fingerprint.np == place[0]
        ]
        request = RankRequest(
            steps=steps or STEPS,
            folder=str(self.folder),
            library="",
            moves=live_moves(sys.argv, LaunchOptions(mpi=without_mpi.name, env=of_user), without_mpi.find({})),
            remembered=[entry.for_ranks() for entry in remembered[:MAX_REMEMBERED]],
        )
        os.environ[VARIABLE] = request.text()
        sys.meta_path.insert(0, TuneHorovod)

    def finish(self, run: Path | None, has_failed: bool) -> None:
        """Keep what was found, in the memory and in the training's run folder, if that is known.

        Only a process that was rank 0 has found something.
        """
        if self.folder is None:
            return
        end_tuning()  # a training that is shorter than its tuning ends it
        if run is None and "HVSCALE_RUN" in os.environ:
            run = Path(os.environ["HVSCALE_RUN"])
        for found in sorted(self.folder.glob("result*.json")):  # the last phase is the last one
            try:
                result = read_result_file(found)
                if result is not None:
                    self._keep(result, found, run, has_failed)
            except (ValueError, RequestError, OSError) as error:  # the training's own error comes first
                _warn(f"autotune: what was found is not kept: {error}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _keep(self, result: AutotuneResult, file: Path, run: Path | None, has_failed: bool) -> None:
        command = [Path(sys.argv[0]).name, *sys.argv[1:]]
        library = _without_mpi().find({})
        if result.fingerprint is not None and (known := flavours.recognize(result.fingerprint.library)):
            library = Library(flavour=known[0], version=known[1])
        folder = run.absolute() / FOLDER if run is not None and run.is_dir() else None
        if folder is not None:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / file.name)
            record = RunFolder(folder.parent).read()
            command, library = record.command, record.library
        np = result.fingerprint.np if result.fingerprint is not None else 1
        options = LaunchOptions(np=np, mpi=library.flavour)
        _warn(keep_result(result, folder, command, options, library, _warn, has_failed))


def _without_mpi() -> flavours.Flavour:
    return next(one for one in flavours.FLAVOURS.all().values() if not one.has_mpi)


def _warn(text: str) -> None:
    sys.stderr.write(f"hvscale: {text}\n")
