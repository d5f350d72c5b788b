"""Measuring an export on a server that runs it, and choosing the draft depth from that."""
