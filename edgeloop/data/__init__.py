"""Datasets: folders in the store, by versions, of which only what changed ever moves."""
