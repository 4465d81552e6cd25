"""The cone against published values: edge state, boundary layer, stability, growth; then triads and spectra."""

from dataclasses import replace

import numpy as np
import pytest

from vihmc.errors import InputError
from vihmc.paper.cone_flow import (
    GrowthTable,
    ThreeWaveSettings,
    cone_edge,
    generate,
    growth_table,
    log_spectra,
    solve_boundary_layer,
    solve_cone_flow,
)
from vihmc.paper.cone_flow.growth import DISTANCES, FREQUENCIES_KHZ, WAVENUMBERS
from vihmc.paper.cone_flow.stability import BULK, STOKES, collocation, spatial_mode, temporal_mode, wave_operator
from vihmc.paper.cone_flow.three_wave import exchange, inflow_amplitudes, inflow_energies, march

RANKINE = 5 / 9
MALIK_SUTHERLAND = 198.6 * RANKINE


@pytest.fixture(scope="module")
def flow():
    return solve_cone_flow()


@pytest.fixture(scope="module")
def table(flow):
    return growth_table(flow, distances=DISTANCES[::4])


def made_up_table(rate, slope=0.0):
    """All waves grow alike, linearly faster or slower along the cone."""
    shape = (len(DISTANCES), len(FREQUENCIES_KHZ), len(WAVENUMBERS))
    rates = np.broadcast_to((rate + slope * (DISTANCES - DISTANCES[0]))[:, None, None], shape)
    return GrowthTable(DISTANCES, FREQUENCIES_KHZ, WAVENUMBERS, rates, np.ones(shape), np.zeros(shape, dtype=bool))


def adiabatic_layer(*, mach, stagnation_temperature, **options):
    return solve_boundary_layer(mach=mach, edge_temperature=stagnation_temperature / (1 + 0.2 * mach**2), **options)


def operator_of(layer, *, num_points=121, height=100.0, **options):
    grid = collocation(num_points, height=height, half_height=layer.displacement_thickness)
    return wave_operator(layer, grid, **options)


def test_edge_of_the_cone_has_the_published_state():
    edge = cone_edge(6.0, 7.0)
    assert abs(edge.shock_angle_degrees - 11.936) < 5e-4
    assert abs(edge.mach - 5.3560) < 5e-5
    assert abs(edge.pressure_ratio - 1.9656) < 5e-5
    assert abs(edge.temperature_ratio - 1.2171) < 5e-5


def test_thin_cone_disturbs_nothing():
    edge = cone_edge(3.0, 0.5)
    assert abs(edge.mach - 3) < 0.02
    assert abs(edge.shock_angle_degrees - np.degrees(np.arcsin(1 / 3))) < 0.02


def test_blasius():
    layer = solve_boundary_layer(mach=0.0, edge_temperature=300.0)
    assert abs(layer.wall_curvature - 0.469600) < 5e-7
    assert abs(layer.displacement_thickness - 1.7208) < 5e-5


def test_crocco_and_busemann():
    y = np.linspace(0, 15, 60)
    profile = solve_boundary_layer(mach=3.0, edge_temperature=200.0, prandtl=1.0).profile(y)
    np.testing.assert_allclose(profile.temperature, 1 + 0.2 * 9 * (1 - profile.velocity**2), atol=1e-9)
    cold = solve_boundary_layer(mach=3.0, edge_temperature=200.0, prandtl=1.0, wall_temperature_ratio=1.5).profile(y)
    u = cold.velocity
    np.testing.assert_allclose(cold.temperature, 1.5 + (2.8 - 1.5) * u - 1.8 * u**2, atol=1e-9)
    # With another Prandtl number the relation does not hold: the check can fail.
    air = solve_boundary_layer(mach=3.0, edge_temperature=200.0, prandtl=0.72).profile(y)
    assert np.max(np.abs(air.temperature - (1 + 1.8 * (1 - air.velocity**2)))) > 0.05


def test_derivatives_of_a_profile_are_those_of_its_values(flow):
    y, h = np.linspace(0.5, 17, 30), 1e-4
    left, here, right = (flow.layer.profile(y + shift) for shift in (-h, 0.0, h))
    for order in (0, 1, 3, 4):
        difference = (right[order] - left[order]) / (2 * h)
        np.testing.assert_allclose(difference, here[order + 1], atol=2e-7)
    outer = flow.layer.profile(np.array([flow.layer.height + 1.0]))
    assert [float(values[0]) for values in outer] == [1, 0, 0, 1, 0, 0]


def test_the_derivative_of_a_collocation_is_exact_for_its_map():
    grid = collocation(60, height=50.0, half_height=5.0)
    assert grid.points[0] == 0
    assert abs(grid.points[-1] - 50) < 1e-9
    assert np.sum(grid.points < 5 + 1e-9) == 30
    wave = np.exp(-grid.points / 3)
    np.testing.assert_allclose(grid.derivative @ wave, -wave / 3, atol=1e-9)


def test_malik_case_3_temporal():
    # Mach 2.5, oblique wave. Malik's layer is 0.03 % thicker than ours; more points do not change our eigenvalue.
    layer = adiabatic_layer(
        mach=2.5, stagnation_temperature=600 * RANKINE, prandtl=0.7, sutherland_temperature=MALIK_SUTHERLAND
    )
    assert abs(layer.displacement_thickness / 4.2578 - 1) < 5e-4
    operator = operator_of(layer, num_points=101, reynolds=3000.0, spanwise_wavenumber=0.1, viscosity_ratio=BULK)
    mode = temporal_mode(operator, alpha=0.06, guess=0.037 + 0.0007j)
    assert mode.converged
    assert abs(mode.eigenvalue.real - 0.0367340) < 5e-7
    assert abs(mode.eigenvalue.imag - 0.0005840) < 6e-7
    # A wave to the left is the mirror image of one to the right.
    mirrored = operator_of(layer, num_points=101, reynolds=3000.0, spanwise_wavenumber=-0.1, viscosity_ratio=BULK)
    assert abs(temporal_mode(mirrored, alpha=0.06, guess=0.037 + 0.0007j).eigenvalue - mode.eigenvalue) < 1e-9


@pytest.mark.parametrize(("viscosity_ratio", "agrees"), [(BULK, True), (STOKES, False)])
def test_malik_case_6_spatial(viscosity_ratio, agrees):
    # Mach 4.5, second mode; the wrong second viscosity is off by a tenth of the growth rate.
    layer = adiabatic_layer(
        mach=4.5, stagnation_temperature=1100 * RANKINE, prandtl=0.7, sutherland_temperature=MALIK_SUTHERLAND
    )
    assert abs(layer.displacement_thickness / 9.3992 - 1) < 6e-4
    operator = operator_of(layer, reynolds=1500.0, viscosity_ratio=viscosity_ratio)
    mode = spatial_mode(operator, omega=0.23, guess=0.254 - 0.002j)
    assert mode.converged
    difference = mode.eigenvalue - (0.2534048 - 0.0024921j)
    assert (abs(difference.real) < 5e-6 and abs(difference.imag) < 2e-6) == agrees


@pytest.mark.parametrize(("viscosity_ratio", "agrees"), [(STOKES, True), (BULK, False)])
def test_balakumar_and_malik(viscosity_ratio, agrees):
    layer = adiabatic_layer(mach=4.5, stagnation_temperature=311.0, prandtl=0.72)
    operator = operator_of(layer, reynolds=1000.0, viscosity_ratio=viscosity_ratio)
    mode = spatial_mode(operator, omega=0.2, guess=0.22 - 0.003j)
    assert mode.converged
    difference = mode.eigenvalue - (0.220 - 0.003091j)
    assert (abs(difference.real) < 5e-4 and abs(difference.imag) < 5e-7) == agrees


def test_spatial_and_temporal_modes_are_the_same(flow):
    operator = operator_of(flow.layer, num_points=61, height=50.0, reynolds=1500.0, spanwise_wavenumber=0.05)
    spatial = spatial_mode(operator, omega=0.17, guess=0.17 / 0.905 - 0.002j)
    temporal = temporal_mode(operator, alpha=spatial.eigenvalue, guess=0.1702)
    assert spatial.converged
    assert abs(temporal.eigenvalue - 0.17) < 1e-9
    again = spatial_mode(operator, omega=0.1702, guess=spatial.eigenvalue, start=spatial)
    # From the vectors of a neighbour to the same branch: dα/dω is one over the group velocity.
    assert abs((again.eigenvalue - spatial.eigenvalue).real / 0.0002 - 1.1) < 0.3


def test_waves_grow_fastest_at_225_khz(table):
    assert table.num_replaced == 0
    middle = table.rates[1]
    frequency, wavenumber = np.unravel_index(middle.argmax(), middle.shape)
    assert table.frequencies_khz[frequency] == 225
    assert table.wavenumbers[wavenumber] == 0
    # The second mode: about 37/m, at nine tenths of the outer velocity, damped from 300 kHz on.
    assert abs(middle[frequency, 0] - 36.8) < 0.3
    assert 0.88 < table.phase_speeds[1, frequency, 0] < 0.94
    assert np.all(middle[FREQUENCIES_KHZ >= 300] < 0)
    # The layer thickens: the most amplified frequency falls along the cone as one over the root of the distance.
    first, last = (FREQUENCIES_KHZ[table.rates[i, :, 0].argmax()] for i in (0, 2))
    assert abs(first / last - np.sqrt(table.distances[2] / table.distances[0])) < 0.1
    # The first mode is oblique: waves around the cone grow at low frequency, plane ones do not.
    assert table.rates[1, 1, 1] > 3 > 0 > table.rates[1, 1, 0]


def test_growth_rates_are_resolved(flow, table):
    finer = growth_table(flow, distances=DISTANCES[4:5], wavenumbers=WAVENUMBERS[:1], num_points=129)
    difference = np.abs(finer.rates[0, :, 0] - table.rates[1, :, 0])
    assert np.max(difference[FREQUENCIES_KHZ <= 300]) < 0.05
    assert np.max(difference) < 0.5


def test_without_manglers_factor_the_fast_waves_are_elsewhere(flow):
    def rate_at_225(flow, distance=0.258):
        reynolds = flow.reynolds(distance)
        operator = operator_of(flow.layer, num_points=97, height=60.0, reynolds=reynolds, viscosity_ratio=BULK)
        omega = flow.angular_frequency(distance, frequency_khz=225.0)
        mode = spatial_mode(operator, omega=omega, guess=omega / 0.905 - 0.002j)
        return -mode.eigenvalue.imag / flow.length_scale(distance)

    assert abs(rate_at_225(flow) - 36.8) < 0.3
    assert rate_at_225(replace(flow, mangler_factor=1.0)) < 0


def test_a_table_goes_through_plain_arrays(table):
    again = GrowthTable.from_arrays(table.to_arrays())
    for name, values in table.to_arrays().items():
        np.testing.assert_array_equal(getattr(again, name), values)
    with pytest.raises(InputError, match="A growth table must hold"):
        GrowthTable.from_arrays({"rates": table.rates})


def test_damping_goes_on_beyond_the_table(table):
    frequencies = 25.0 * np.arange(1, 41)
    rates = table.rates_to(frequencies)
    np.testing.assert_array_equal(rates[:, :20], table.rates)
    # Converged values at the last station with 201 points.
    np.testing.assert_allclose(rates[2, [29, 39], 0], [-149.8, -210.3], rtol=0.125)
    np.testing.assert_allclose(rates[2, [29, 39], 3], [-153.9, -212.0], rtol=0.125)
    with pytest.raises(InputError, match="must begin with those of the table, 25"):
        table.rates_to(frequencies + 1)


def random_energies(num_inputs):
    energies = np.random.default_rng(0).lognormal(size=(num_inputs, 10, 41))
    energies[:, 4:7] = 0
    energies[:, :, 0] = 0
    return energies


def exchange_by_triads(energies, coupling):
    """The kinetic equation as it is written, one triad at a time."""
    frequency = np.arange(41) / 9
    rates = np.zeros_like(energies)
    for p in range(1, 40):
        for q in range(1, 41 - p):
            for a in range(-3, 4):
                for b in range(max(-3, -3 - a), min(3, 3 - a) + 1):
                    action_p, action_q = energies[a, p] / frequency[p], energies[b, q] / frequency[q]
                    action_sum = energies[a + b, p + q] / frequency[p + q]
                    strength = coupling * frequency[p] * frequency[q] * frequency[p + q]
                    rate = 0.5 * strength * (action_p * action_q - action_sum * (action_p + action_q))
                    rates[a + b, p + q] += frequency[p + q] * rate
                    rates[a, p] -= frequency[p] * rate
                    rates[b, q] -= frequency[q] * rate
    return rates


def test_exchange_is_the_sum_over_triads():
    energies = random_energies(1)
    expected = exchange_by_triads(energies[0], 0.7)
    np.testing.assert_allclose(exchange(energies, coupling=0.7)[0], expected, atol=1e-10 * np.abs(expected).max())


def test_exchange_conserves_energy():
    settings = ThreeWaveSettings()
    start = 100 * inflow_energies(np.zeros((2, 11)), settings)
    end = march(start, made_up_table(0.0), coupling=settings.coupling, relative_tolerance=1e-4, absolute_tolerance=1e-4)
    np.testing.assert_allclose(end.sum(axis=(2, 3)), np.repeat(start.sum(axis=(1, 2))[:, None], 4, axis=1), rtol=1e-11)
    # A part of it is where there was none.
    assert np.all(end[:, -1, :, 15:].sum(axis=(1, 2)) > 0.05 * start.sum(axis=(1, 2)))
    assert end.min() > -1e-3 * settings.noise_amplitude**2


def test_waves_alone_grow_exponentially():
    start = inflow_energies(np.random.default_rng(0).standard_normal((3, 11)), ThreeWaveSettings())
    stops = np.array([0.23, 0.316])
    end = march(
        start,
        made_up_table(30.0, slope=-100.0),
        coupling=0.0,
        stops=stops,
        relative_tolerance=1e-8,
        absolute_tolerance=1e-12,
    )
    for index, length in enumerate(stops - DISTANCES[0]):
        growth = np.exp(2 * (30 * length - 50 * length**2))
        np.testing.assert_allclose(end[:, index], growth * start, rtol=1e-6)


def test_shorter_steps_change_nothing(table):
    latents = 1.5 * np.random.default_rng(1).standard_normal((3, 11))
    exact, default, rough = (
        log_spectra(latents, table, replace(ThreeWaveSettings(), relative_tolerance=tolerance))
        for tolerance in (1e-7, ThreeWaveSettings().relative_tolerance, 1e-2)
    )
    assert np.max(np.abs(default - exact)) < 2e-4
    assert np.max(np.abs(default - exact)) < 0.2 * np.max(np.abs(rough - exact))


def test_amplitudes_are_lognormal():
    settings = ThreeWaveSettings()
    latents = np.random.default_rng(0).standard_normal((4000, 11))
    logs = np.log(inflow_amplitudes(latents, settings))
    assert logs.shape == (4000, 13, 4)
    np.testing.assert_allclose(
        logs.mean(axis=0), np.log(inflow_amplitudes(np.zeros((1, 11)), settings))[0], atol=5 / np.sqrt(4000)
    )
    assert abs(np.sqrt(logs.var(axis=0).mean()) / settings.log_amplitude_std - 1) < 0.06
    # The logarithms are linear in the latents, and all of those matter.
    assert np.linalg.matrix_rank(logs.reshape(4000, -1) - logs.reshape(4000, -1).mean(axis=0)) == 11
    with pytest.raises(InputError, match="`latents` must have 11 columns, got 3"):
        inflow_amplitudes(np.zeros((2, 3)), settings)


def test_spectra_are_of_the_kind_that_is_measured(table):
    data = generate(40, seed=0, table=table)
    assert data.inputs.shape == (40, 11)
    assert data.inputs.min() >= -3.4
    assert data.inputs.max() <= 3.1
    np.testing.assert_array_equal(data.locations[:3], [[0.241, 50], [0.241, 75], [0.241, 100]])
    np.testing.assert_array_equal(data.locations[19], [0.266, 50])
    spectra = data.spectra.reshape(40, 4, 19)
    assert -0.75 < spectra.min() < spectra.max() < 2.4
    mean, frequencies = spectra.mean(axis=0), data.locations[:19, 1]
    assert np.all(np.isin(frequencies[mean.argmax(axis=1)], [225, 250]))
    assert frequencies[mean[3].argmax()] == 225
    # The harmonic rises along the cone, and at its end stands out of what is beside it.
    harmonic = mean[:, frequencies == 450][:, 0]
    assert np.all(np.diff(harmonic) > 0)
    assert harmonic[3] > mean[3, frequencies == 375][0] + 0.5
    assert 0.1 < spectra.std(axis=0).mean() < 0.3


def test_spectra_depend_on_the_seed_and_on_nothing_else(table):
    one, same, other = (generate(3, seed=seed, table=table) for seed in (0, 0, 1))
    for first, second in zip(one, same, strict=True):
        np.testing.assert_array_equal(first, second)
    assert np.max(np.abs(one.spectra - other.spectra)) > 0.1
    more = generate(5, seed=0, table=table)
    np.testing.assert_array_equal(more.inputs[:3], one.inputs)
    np.testing.assert_allclose(more.spectra[:3], one.spectra, atol=1e-9)


def test_wrong_values_are_named(flow, table):
    with pytest.raises(InputError, match=r"`mach` must be greater than one, got 0.8"):
        cone_edge(0.8, 7.0)
    with pytest.raises(InputError, match=r"`half_angle_degrees` must allow an attached shock at Mach 2.0, got 60.0"):
        cone_edge(2.0, 60.0)
    with pytest.raises(InputError, match=r"`wall_temperature_ratio` must be positive, got -1.0"):
        solve_boundary_layer(mach=2.0, edge_temperature=200.0, wall_temperature_ratio=-1.0)
    with pytest.raises(InputError, match=r"`frequencies_khz` must hold 225.0"):
        growth_table(flow, frequencies_khz=np.array([100.0, 125.0]))
    with pytest.raises(InputError, match="`num_inputs` must be at least 1, got 0"):
        generate(0, seed=0, table=table)
