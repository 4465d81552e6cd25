"""The scoreboard: every peer on the same data with the same clock, and the page that says how they compare.

    PYTHONPATH=benchmarks python -m scoreboard              run what is not stored yet, then write the page
    PYTHONPATH=benchmarks python -m scoreboard --table      write the page from stored results, and run nothing

data         tables of the UCI form, toy problems and operators, in standardised units
networks     the network that peers train, and how
scores       a predictive distribution, and its scores on test rows
peers/       an adapter for each peer: `predict(problem, seed=, share=)`
one          one peer on one split, in a process of its own
runner       all of them, each with a budget of wall time; results that are stored are not computed again
comparison   means, ranks and paired tests
page         the page and its figure
"""
