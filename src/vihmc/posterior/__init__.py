"""The posterior: layout, prior and likelihood, subspaces, and what stages ask of its derivatives."""
