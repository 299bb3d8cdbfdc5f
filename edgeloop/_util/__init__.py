"""Small tools that belong to no room."""
