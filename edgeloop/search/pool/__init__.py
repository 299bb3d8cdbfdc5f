"""Candidates that are screened before any of them is trained."""
