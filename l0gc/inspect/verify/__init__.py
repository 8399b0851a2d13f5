"""Whether a bucket holds what its logs say: what is wrong, told from what is on its way. Nothing here changes anything."""
