"""Show what holds M and why: status, explain, verify, doctor and report. Nothing here changes the bucket."""
