"""The search for settings that make a command faster: what may help, trials, and the proof of what was found."""
