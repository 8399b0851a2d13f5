"""The report: one HTML page that shows the state of a cluster's garbage to readers without a terminal."""
