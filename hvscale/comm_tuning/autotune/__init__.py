"""Tunes a training job while it trains, and remembers the settings for its next start."""
