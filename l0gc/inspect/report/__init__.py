"""The report: one HTML page that says how a cluster's garbage stands, for people who are not at a terminal."""
