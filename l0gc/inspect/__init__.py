"""What holds M and why, as status, explain, verify, doctor and report show it. Nothing here changes the bucket."""
