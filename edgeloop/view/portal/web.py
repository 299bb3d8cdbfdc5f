"""The pages: templates, static files and what fills them in."""
