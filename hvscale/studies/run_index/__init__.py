"""The index of a folder of runs and studies: listing, page and removal."""
