"""Records in; pages of HTML that need nothing else, and what they are made of, out."""
