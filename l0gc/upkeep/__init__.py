"""What keeps a quiet cluster moving."""
