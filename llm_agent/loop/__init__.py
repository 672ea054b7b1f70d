"""The only floor that knows the order of things. `loop.py` tells the story of a run."""
