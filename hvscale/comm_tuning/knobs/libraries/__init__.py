"""The knobs of each communication library: one file each, which registers itself."""
