"""The demo: a small verifier, a draft trained for it, its exports served by SGLang. Start it with scripts/demo.sh."""
