"""Records in; self-contained HTML pages, and the parts that they are made of, out."""
