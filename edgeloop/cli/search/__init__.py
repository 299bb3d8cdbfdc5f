"""search, searches, train-pareto: from a space to a front of trained models."""
