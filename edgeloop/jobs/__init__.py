"""Jobs: a script of yours, run somewhere else, with its data, and its results back here."""
