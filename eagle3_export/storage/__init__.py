"""Moves and publishes bytes: safetensors headers, clones and copies, atomic publication. Knows no models."""
