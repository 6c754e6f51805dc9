"""A resolved mapping in; one frozen `Experiment` and its arrays out."""
