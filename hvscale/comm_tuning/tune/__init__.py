"""The search for settings that make a command faster, and the proof of the gain."""
