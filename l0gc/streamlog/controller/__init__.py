"""The cluster: topics, producers and the epoch, kept in one shared log."""
