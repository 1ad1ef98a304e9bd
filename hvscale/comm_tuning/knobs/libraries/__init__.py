"""The knobs of each communication library: one file per library, which registers itself."""
