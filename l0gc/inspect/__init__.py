"""Show what holds M and why: status, explain, verify, doctor and report. This package does not change the bucket."""
