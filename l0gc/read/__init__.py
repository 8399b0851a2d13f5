"""Records out."""
