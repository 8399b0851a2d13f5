"""Whether a bucket holds what its journals name. Work in progress is not a finding, and nothing here changes anything."""
