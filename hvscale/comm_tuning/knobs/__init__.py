"""One typed knob has one meaning and many spellings: each library's own, in one file of `libraries/` that registers itself."""
