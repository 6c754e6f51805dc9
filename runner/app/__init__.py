"""Has the ways in, the command line, Python and pytest, and the flow of a run behind them."""
