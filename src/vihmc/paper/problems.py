"""The paper's experiments as kinds of problem, by the names that the command knows them by."""

from vihmc.data.registry import ProblemKind
from vihmc.paper.settings import BurgersConfig, ConeConfig, SineConfig

_PRESETS = "vihmc.paper.presets"
_SINE = ProblemKind(SineConfig, "vihmc.paper.sine:build", _PRESETS)
_CONE = ProblemKind(ConeConfig, "vihmc.paper.cone:build", _PRESETS, "vihmc.paper.cone:resolve")
PROBLEMS = {
    "sine_small": _SINE,
    "sine_large": _SINE,
    "burgers": ProblemKind(BurgersConfig, "vihmc.paper.burgers:build", _PRESETS),
    "cone": _CONE,
    "cone_synthetic": _CONE,
}
