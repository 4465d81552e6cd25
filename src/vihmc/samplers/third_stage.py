"""The third stage as the pipeline runs it: chains on the selected parameters, or on all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config.method import SamplerConfig
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.shards import check_shards
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.samplers.bad_chains import find_bad_chains
from vihmc.samplers.chains import ChainJournal, Chains, Watch
from vihmc.samplers.kernel import StepInfo, Tuning
from vihmc.samplers.sample import sample
from vihmc.samplers.target import Target
from vihmc.types import Key

_OPERATIONS_AT_A_TIME = 2e10
_TYPICAL_STEPS = 1023
_POOLED_VALUES = 5e8
"""Numbers that the pooled draws of several fits may have, at least `_LEAST_POOLED` draws of every chain."""
_LEAST_POOLED = 50


@dataclass(frozen=True, eq=False)
class Sampled:
    """Chains on a subspace; those that went wrong are named and, if asked for, left out of `chains`."""

    subspace: Subspace
    chains: Chains
    all_chains: Chains
    tuning: Tuning
    bad_chains: dict[int, str]
    dropped: bool
    num_integrated: int = 0
    """Selected parameters of the output layer that were integrated out, and drawn afterwards."""
    targets: tuple[int, ...] | None = None
    """Number of the target of each of `chains`, where frozen parameters differ from target to target: one for each fit,
    or for each chain with a perturbed MAP. Draws then are of all parameters."""

    def __repr__(self) -> str:
        """What was sampled, and how the chains went."""
        count, total = self.subspace.num_selected, self.subspace.center.shape[0]
        bad = f"; failed: {', '.join(map(str, self.bad_chains))}" if self.bad_chains else ""
        return f"Sampled {count:,} of {total:,} parameters and scales\n  {self.chains!r}{bad}"

    @property
    def has_targets(self) -> bool:
        """Whether frozen parameters differ from chain to chain; draws then are of all parameters."""
        return self.targets is not None

    @property
    def space(self) -> Subspace:
        """What draws are of: the selected parameters, or all."""
        return whole_space(self.subspace.center) if self.has_targets else self.subspace

    @property
    def draws(self) -> np.ndarray:
        """All draws, one after the other."""
        return self.chains.positions.reshape(-1, self.space.num_selected)

    @property
    def selected_positions(self) -> np.ndarray:
        """Draws of the selected parameters alone: (chain, draw, selected)."""
        positions = self.chains.positions
        return positions[..., np.asarray(self.subspace.selected)] if self.has_targets else positions

    def spread(self, num_draws: int | None) -> tuple[Subspace, np.ndarray]:
        """What draws are of, and some of them, evenly spread; all of them if no number is given."""
        return self.space, spread_draws(self.chains, num_draws)

    @classmethod
    def pool(cls, fits: Sequence["Sampled"]) -> "Sampled":
        """The chains of several fits side by side, with draws of all parameters; of one fit, its own.

        Selected are the parameters that any fit selected. If a budget has ended the chains of some fits earlier than
        others, evenly spread draws of the longer ones are kept, so that all fits have the same weight. Of large models
        so many draws are kept as fit into a gigabyte or two.
        """
        if len(fits) == 1:
            return fits[0]
        first, num_chains = fits[0], sum(one.all_chains.num_chains for one in fits)
        most = int(_POOLED_VALUES // (num_chains * first.subspace.center.shape[0]))
        length = min(max(most, _LEAST_POOLED), *(one.chains.positions.shape[1] for one in fits))
        chains = Chains.beside([one.of_all_parameters(one.chains, length) for one in fits])
        are_all = all(one.chains is one.all_chains for one in fits)
        union = np.unique(np.concatenate([np.asarray(one.subspace.selected) for one in fits]))
        starts = np.cumsum([0, *(one.all_chains.num_chains for one in fits)])
        return cls(
            Subspace.of(union, first.subspace.center),
            chains,
            chains if are_all else Chains.beside([one.of_all_parameters(one.all_chains, length) for one in fits]),
            max((one.tuning for one in fits), key=lambda tuning: int(tuning.num_integration_steps)),
            {
                int(start) + chain: why
                for start, one in zip(starts, fits, strict=False)
                for chain, why in one.bad_chains.items()
            },
            any(one.dropped for one in fits),
            first.num_integrated,
            tuple(number for number, one in enumerate(fits) for _ in range(one.chains.num_chains)),
        )

    def of_all_parameters(self, chains: Chains, num_draws: int) -> Chains:
        """Some draws of every chain, evenly spread, with the frozen parameters in their places."""
        held = chains.spread(num_draws)
        return replace(held, positions=np.asarray(self.space.embed(jnp.asarray(held.positions))))


def sample_subspace(
    posterior: Posterior,
    q: MeanField,
    subspace: Subspace,
    config: SamplerConfig,
    rng_key: Key,
    *,
    frozen: Float[Array, "chains params"] | None = None,
    watch: Watch | None = None,
    on_steps: Callable[[str, int, StepInfo], None] | None = None,
    journal: ChainJournal | None = None,
) -> Sampled:
    """Sample the posterior of the selected parameters, given the others; with :func:`whole_space`, of all.

    Args:
        posterior: Model, prior, likelihood and data.
        q: The Gaussian approximation of the first stage, for starts and metric.
        subspace: The selected parameters, and values of the frozen parameters.
        config: Settings of the chains.
        rng_key: Random key.
        frozen: Values of the frozen parameters for each chain, where they differ.
        watch: Says when there are enough draws, if there is a budget.
        on_steps: Progress.
        journal: Where draws go, and where to go on from.
    """
    key_start, key_chains, key_metric, key_output = jax.random.split(rng_key, 4)
    target = Target.of(posterior, q, subspace, config, key_start=key_start, key_metric=key_metric, frozen=frozen)
    chains, tuning = sample(
        target.log_density,
        target.starts,
        config,
        key_chains,
        initial_var=target.initial_var,
        curvature=target.curvature,
        chunk_size=draws_at_a_time(posterior, config),
        watch=watch,
        finish=partial(target.finish, rng_key=key_output, dtype=np.dtype(q.mean.dtype)),
        on_steps=on_steps,
        journal=journal,
    )
    chosen, bad, dropped = choose_chains(chains, config)
    return Sampled(
        subspace,
        chosen,
        chains,
        tuning,
        bad,
        dropped,
        num_integrated=subspace.num_selected - target.starts.shape[1],
        targets=None
        if frozen is None
        else tuple(number for number in range(config.num_chains) if number not in bad or not dropped),
    )


def draws_at_a_time(posterior: Posterior, config: SamplerConfig) -> int:
    """Draws between two progress reports and checkpoints, about a second's worth: it never changes the draws."""
    per_gradient = 6.0 * posterior.num_network_rows * posterior.num_params
    per_draw = per_gradient * min(config.max_integration_steps, _TYPICAL_STEPS) * config.num_chains * config.thin
    return int(np.clip(_OPERATIONS_AT_A_TIME / per_draw, 1, 50))


def choose_chains(chains: Chains, config: SamplerConfig) -> tuple[Chains, dict[int, str], bool]:
    """Return the chains to use, those that went wrong, and whether they were left out."""
    bad = find_bad_chains(chains)
    good = [chain for chain in range(chains.num_chains) if chain not in bad]
    dropped = bool(config.drop_bad_chains and bad and good)
    return chains.keep(good) if dropped else chains, bad, dropped


def spread_draws(chains: Chains, num_draws: int | None) -> np.ndarray:
    """Some draws of all chains, evenly spread, one after the other; all of them if no number is given."""
    draws = chains.positions.reshape(-1, chains.positions.shape[-1])
    count = min(num_draws or len(draws), len(draws))
    return draws[np.linspace(0, len(draws) - 1, count).round().astype(int)]


def check_sampler(section: str, posterior: Posterior, config: SamplerConfig) -> None:
    """Refuse settings that do not fit the data, before anything has been computed."""
    if config.num_shards is not None:
        check_shards(f"{section}.num_shards", posterior.num_observations, config.num_shards)
