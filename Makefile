# What CI runs and what the README names. `make help` lists the targets.
.DEFAULT_GOAL := help
