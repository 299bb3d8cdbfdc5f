"""Small tools that every room may use, each written once. Nothing here is public."""
