"""Records and plain data in; terminal, text and SVG out."""
