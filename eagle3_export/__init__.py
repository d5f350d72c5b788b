"""Publishes every EAGLE-3 draft that speculators saves as one that SGLang serves as trained."""

__version__ = "0.1.0"
