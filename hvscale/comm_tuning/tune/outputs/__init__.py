"""The output files of a tuning study: settings files for each library, and a guide.

Each format is one file in `formats/`.
"""

from collections.abc import Collection
from pathlib import Path

from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.comm_tuning.tune.outputs.output_format import TunedJob, output_formats
from hvscale.core.run_folder import cannot_write, write_text


def write_outputs(
    folder: Path, document: TuneDocument, without: Collection[str] = (), removes_others: bool = True
) -> list[Path]:
    """Write every file that applies to the job, except those in `without`; return their paths.

    `removes_others`: the folder is the study's own, so files of an earlier call that no longer
    apply are removed. Without a proven gain the files set only what the study had fixed. Raises
    RequestError if the folder cannot be written.
    """
    tuned = TunedJob.of(folder.absolute(), document)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for output in output_formats():
            path = folder / output.file
            if output.file not in without and output.applies(tuned):
                write_text(path, output.text(tuned))
                written.append(path)
            elif removes_others:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return written
