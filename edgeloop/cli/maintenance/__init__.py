"""store and secrets: whether what is kept is sound, and whether a secret got out."""
