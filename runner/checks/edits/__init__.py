"""Lists the edits of a section that may mend it, those of one kind of mistake in each file."""
