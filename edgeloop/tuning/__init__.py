"""Tuning: what makes a model faster or more accurate on a chip, by its compiler and simulator."""
