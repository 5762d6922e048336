"""The compiler: one pass a file, in the order that `pipeline.py` names."""
