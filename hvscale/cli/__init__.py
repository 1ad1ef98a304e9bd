"""The commands, each in the file of its name, and what they share. They parse and print; the rooms
below decide.
"""

import gc
import os

# Both cost a tenth of every start: a garbage collection among the new modules, and pydantic's
# search for plug-ins in all packages. `main` lowers the threshold once the command is loaded.
gc.set_threshold(1_000_000)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
