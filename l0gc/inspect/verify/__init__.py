"""Whether a bucket holds what its journals say. What is under way is no finding, and nothing here changes anything."""
