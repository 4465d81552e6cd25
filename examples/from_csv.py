"""From a CSV file to predictions with error bars: the drag of a sphere, which drops where the flow turns turbulent."""

from pathlib import Path

import jax
import pandas as pd

import vihmc

table = pd.read_csv(Path(__file__).with_name("drag.csv"))
train, test = table.drop(table.index[::3]), table[::3]
x, y = ["speed (m/s)"], ["drag (N)"]
model = vihmc.MLP((1, 16, 1))
posterior = vihmc.Posterior.of(model, model.init(jax.random.key(0)), train[x], train[y], standardise=True)
result = vihmc.infer(posterior, validation=(test[x], test[y]))
print(result)
result.plot().savefig("drag.png", dpi=150)
