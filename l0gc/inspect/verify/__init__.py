"""Check that a bucket holds what its journals list. Work in progress is not a finding, and nothing is changed."""
