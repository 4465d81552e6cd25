"""A finished run on one page: summary, figures, HTML."""
