"""The views: each takes the open portal and returns plain values, for pages and the API alike.

Without an experiment, it is the one the portal was started for; an unknown one raises NotFound.
"""
