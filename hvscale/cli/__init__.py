"""The commands, each in the file of its name with an `app`, and what they share: they parse and
print, and decide nothing.
"""

import gc
import os

# What imports would spend a tenth of every start with: looking for garbage among new modules, and
# for plug-ins of pydantic among all packages.
gc.set_threshold(50_000)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
