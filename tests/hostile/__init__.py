"""Input that wants to do harm: each ends soon, in little memory, with one sentence."""
