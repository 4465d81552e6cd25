import numpy as np
import pytest

from vihmc.config.method import SamplerConfig
from vihmc.diagnostics.convergence import Convergence, Transitions
from vihmc.diagnostics.modes import Modes
from vihmc.diagnostics.scores import Difference
from vihmc.diagnostics.verdict import ESS_LEAST, ESS_LIMIT, Evidence, Level, Rival, judge

NUM_CHAINS = 4
PLACES = ("x = 0", "x = 0.5", "x = 1")


def evidence(**changes):
    """Chains without fault, but for what is changed: a field of a part for all entries, or one of the evidence."""
    convergence = {"rhat": 1.005, "ess_bulk": 1000, "ess_tail": 900, "mcse_mean": 0.03, "mcse_relative": 0.03}
    transitions = {"acceptance": 0.8, "divergent_share": 0.0, "longest_share": 0.0, "ebfmi": 1.0, "energy_ess": 500.0}
    others = {
        "modes": Modes((tuple(range(NUM_CHAINS)),), 0.0, 0),
        "places": PLACES,
        "numbers": tuple(range(NUM_CHAINS)),
        "bad_chains": {},
        "dropped": False,
        "rivals": {},
    }

    def part(kind, values, count):
        values = {name: changes.get(name, value) for name, value in values.items()}
        return kind(**{name: np.broadcast_to(np.asarray(value, float), (count,)) for name, value in values.items()})

    return Evidence(
        part(Convergence, convergence, len(PLACES)),
        part(Transitions, transitions, len(changes.get("numbers", range(NUM_CHAINS)))),
        **others | {name: value for name, value in changes.items() if name in others},
    )


def test_a_good_run_is_trusted_and_its_slowest_prediction_named():
    level, sentence = judge("hmc", evidence(ess_bulk=[2000, 800, 1500]), SamplerConfig())
    assert level == Level.TRUST
    assert sentence == ("Trust these error bars. Slowest prediction: x = 0.5, R-hat 1.005, bulk ESS 800, tail ESS 900.")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"rhat": [1, np.nan, 1]}, Level.DO_NOT, "predictions are not finite at x = 0.5. Increase hmc.target"),
        ({"ess_bulk": 0, "rhat": np.inf}, Level.DO_NOT, "all draws of every prediction are equal. Increase hmc.target"),
        (
            {"bad_chains": {2: "it stands still"}},
            Level.DO_NOT,
            "chain 2 failed (it stands still). Increase hmc.target_acceptance from 0.8 to 0.9, or drop such chains "
            "with hmc.drop_bad_chains=true.",
        ),
        (
            {"bad_chains": {2: "it stands still"}, "dropped": True, "numbers": (0, 1, 3)},
            Level.MEAN_ONLY,
            "chain 2 failed (it stands still) and was dropped.",
        ),
        (
            {"bad_chains": {1: "it", 2: "it", 3: "it"}, "dropped": True, "numbers": (0,)},
            Level.DO_NOT,
            "chains 1, 2 and 3 failed (it) and were dropped.",
        ),
        (
            {"modes": Modes(((0, 2), (1, 3)), 12.34, 2), "rhat": 2},
            Level.DO_NOT,
            "chains 1 and 3 are in another mode than the rest (means differ by 12.3 std at x = 1). "
            "Increase hmc.num_warmup from 1000 to 2000.",
        ),
        ({"modes": Modes(((0, 1, 2), (3,)), 5, 0)}, Level.DO_NOT, "chain 3 is in another mode"),
        ({"modes": Modes(((0, 1), (2,), (3,)), 5, 0)}, Level.DO_NOT, "the chains are in 3 modes, of 2, 1, 1 chains"),
        ({"divergent_share": 0.05}, Level.DO_NOT, "5 % of the draws diverged. Increase hmc.target_acceptance from 0.8"),
        ({"divergent_share": [0, 0, 0, 0.004]}, Level.MEAN_ONLY, "0.1 % of the draws diverged. Increase"),
        (
            {"ebfmi": [1, 0.15, 1, 1], "energy_ess": 10.0},
            Level.MEAN_ONLY,
            "the energy of chain 1 performs a random walk (E-BFMI 0.15) and has crossed its range too seldom "
            "(effective sample size 40 over all chains). Increase hmc.num_draws from 1000 to 2500",
        ),
        ({"ebfmi": 0.1, "energy_ess": 5.0, "rhat": 1.2}, Level.DO_NOT, "performs a random walk"),
        ({"ebfmi": 0.1, "energy_ess": 50.0}, Level.TRUST, "Trust these"),
        (
            {"longest_share": 0.8, "rhat": 1.2},
            Level.DO_NOT,
            "80 % of their trajectories reached the maximum length. Increase hmc.max_integration_steps from 1023 to "
            "2047",
        ),
        (
            {"rhat": [1, 1.2, 1]},
            Level.DO_NOT,
            "Increase hmc.num_warmup from 1000 to 2000. Increase hmc.num_draws from 1000 to 2000",
        ),
        (
            {"rhat": [1, 1.2, 1], "ess_bulk": [500, 40, 500]},
            Level.DO_NOT,
            "the chains have not mixed. Increase hmc.num_warmup from 1000 to 2000. Increase hmc.num_draws from 1000 to "
            "10000. Slowest prediction: x = 0.5",
        ),
        ({"ess_bulk": ESS_LEAST - 1}, Level.DO_NOT, "the effective sample size is below 100. Increase hmc.num_draws"),
        (
            {"ess_bulk": ESS_LIMIT / 2},
            Level.MEAN_ONLY,
            "the effective sample size is below 400. Increase hmc.num_draws from 1000 to 2000",
        ),
        ({"ess_tail": 50}, Level.MEAN_ONLY, "sample size is below 400. Increase hmc.num_draws from 1000 to 8000"),
        (
            {"mcse_relative": 0.2},
            Level.DO_NOT,
            "error of a mean is 20 % of the std. Increase hmc.num_draws from 1000 to 4000",
        ),
        ({"numbers": (0,)}, Level.MEAN_ONLY, "a single chain cannot detect other modes. Increase hmc.num_chains"),
    ],
)
def test_what_is_wrong_is_named_with_the_setting_to_change(changes, level, words):
    verdict = judge("hmc", evidence(**changes), SamplerConfig())
    assert verdict.level == level
    assert words in verdict.sentence
    assert "\n" not in verdict.sentence


def test_the_gravest_finding_comes_first_and_a_cause_before_its_symptom():
    one_divergence_and_slow = evidence(divergent_share=0.001, ess_bulk=20)
    assert "effective sample size is below 100" in judge("hmc", one_divergence_and_slow, SamplerConfig()).sentence
    modes = evidence(modes=Modes(((0, 1, 2), (3,)), 5, 0), rhat=3, ess_bulk=5, longest_share=1)
    assert "another mode" in judge("hmc", modes, SamplerConfig()).sentence


def test_long_trajectories_that_do_their_work_are_no_fault():
    assert judge("hmc", evidence(longest_share=1.0), SamplerConfig()).level == Level.TRUST


def test_a_prediction_that_nothing_acts_on_is_no_fault_of_the_chains():
    values = evidence(
        ess_bulk=[1000, 0, 1000], ess_tail=[1000, 0, 1000], rhat=[1, np.inf, 1], mcse_relative=[0, np.inf, 0]
    )
    assert judge("hmc", values, SamplerConfig()).level == Level.TRUST


def test_the_remedy_fits_the_settings_and_the_stage():
    given_step = SamplerConfig(step_size=0.01, metric="q", num_warmup=0)
    assert "Decrease reference.step_size from 0.01 to 0.005" in (
        judge("reference", evidence(divergent_share=0.1), given_step).sentence
    )
    assert "Increase reference.num_warmup from 0 to 100" in judge("reference", evidence(rhat=2), given_step).sentence
    assert judge("reference", evidence(), given_step).sentence.startswith(
        "Trust the error bars of HMC on all parameters. Slowest"
    )
    short = judge("hmc", evidence(rhat=np.nan, ess_bulk=np.nan), SamplerConfig(num_draws=2))
    assert short.sentence == (
        "Do not trust these error bars: chains of 2 retained draws are too short to judge. Increase hmc.num_draws from "
        "2 to 400."
    )


def rival(excess, error, *, ours=-3.4):
    return Rival(ours, ours + excess, Difference(excess, error))


def test_a_simpler_predictor_that_is_better_is_named_with_both_numbers():
    rivals = {"ridge": rival(1.3, 0.1), "constant": rival(0.5, 0.1)}
    level, sentence = judge("hmc", evidence(rivals=rivals), SamplerConfig())
    assert level == Level.DO_NOT
    assert sentence.startswith(
        "Do not trust these error bars: ridge regression predicts the held-out data better (log predictive density "
        "-2.10 against -3.40 nats a value). Use a linear model, or get more data, or try another network."
    )


@pytest.mark.parametrize(
    ("excess", "error", "is_better"),
    [
        (0.1, 0.04, True),
        (0.1, 0.06, False),  # less than two standard errors
        (0.015, 0.001, False),  # less than anybody would notice
        (0.5, np.inf, False),  # a single row
        (np.inf, np.nan, True),  # a prediction that was impossible
        (np.nan, np.nan, False),
        (-0.5, 0.01, False),
    ],
)
def test_a_difference_must_be_large_and_certain(excess, error, is_better):
    assert rival(excess, error).is_better == is_better


def test_failed_chains_come_before_what_they_predict():
    values = evidence(rivals={"constant": rival(5.0, 0.1)}, rhat=2)
    assert "the chains have not mixed" in judge("hmc", values, SamplerConfig()).sentence


def test_a_few_slow_predictions_are_named_instead_of_failing_all():
    rhat, ess = np.full(40, 1.01), np.full(40, 900.0)
    rhat[7], ess[7] = 1.2, 30
    many = evidence(places=tuple(f"input {number}" for number in range(40)))
    found = many._replace(convergence=Convergence(rhat, ess, ess, np.full(40, 0.03), np.where(ess < 100, 0.2, 0.03)))
    level, sentence = judge("hmc", found, SamplerConfig())
    assert level == Level.EXCEPT
    assert sentence.startswith(
        "Trust these error bars except at 1 of 40 predictions, where they have not converged: input 7 (R-hat 1.20, "
        "ESS 30). Increase hmc.num_draws from 1000 to 14000."
    )
    rhat[[3, 11]] = 1.3  # three of forty are more than a twentieth
    assert judge("hmc", found, SamplerConfig()).level == Level.DO_NOT
