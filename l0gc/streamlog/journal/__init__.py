"""A partition: its window of epochs, its producers, its placeholders, kept in one shared log."""
