"""Predicted against served on a real language model. Start it with scripts/prove_replay.sh."""
