// SPDX-License-Identifier: Apache-2.0
//! Constants of the model, and the version string that names every trajectory they produce.
//!
//! Source: Shiu et al. 2024, Nature 634:210, as the authors' Brian2 code states it. The three propagators are
//! literals: nothing transcendental runs at any time, so no two machines can disagree about them.

/// Ticks of simulated time in one second (dt = 0.1 ms).
pub const TICKS_PER_SECOND: u64 = 10_000;
/// Synaptic delay in ticks (1.8 ms). Also the length of the window in which no neuron can reach another.
pub const DELAY_TICKS: u64 = 18;
/// [`DELAY_TICKS`] for indexing.
pub const WINDOW: usize = DELAY_TICKS as usize;
/// Refractory period in ticks (2.2 ms) of a neuron that is not driven. Arrivals in it are dropped.
pub const REFRACTORY_TICKS: u8 = 22;
/// Resting potential in mV.
pub const V_REST_MV: f64 = -52.0;
/// Potential after a spike in mV. Equal to rest: a refractory neuron is a fixed point of the step.
pub const V_RESET_MV: f64 = -52.0;
/// Threshold in mV; a neuron spikes when v is strictly above it.
pub const V_THRESHOLD_MV: f64 = -45.0;
/// Synaptic weight of one contact in mV.
pub const WEIGHT_MV: f64 = 0.275;
/// What one event of the external drive adds to v, in mV (250 contacts).
pub const KICK_MV: f64 = 68.75;
/// exp(-0.1 ms / 20 ms): decay of v towards rest in one tick.
pub const A: f64 = 0.9950124791926823;
/// exp(-0.1 ms / 5 ms): decay of g in one tick.
pub const B: f64 = 0.9801986733067553;
/// What one mV of g adds to v in one tick.
pub const C: f64 = 0.004937935295309022;
/// Below this |g| (2^-60 mV) g becomes 0. `g * C` is then under half a unit in the last place of any v outside
/// (-32, 32) mV and g under half a unit of any weight, so neither v nor a spike can change; it lets a silent
/// neuron reach an exact fixed point, where it need not be stepped, in place of a subnormal that never dies.
pub const G_FLUSH_MV: f64 = 8.673617379884035e-19;

/// Name of the kernel: variant and every parameter that is not the variant's default.
///
/// It changes if and only if a trajectory could change.
pub fn kernel_version() -> &'static str {
    "shiu-0.1ms-f64"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propagators_are_the_exact_step() {
        assert_eq!(A, (-0.1f64 / 20.0).exp());
        assert_eq!(B, (-0.1f64 / 5.0).exp());
        let exact = (A - B) * 5.0 / (20.0 - 5.0);
        assert!((C - exact).abs() < 1e-17, "{C} against {exact}");
    }

    #[test]
    fn rest_and_reset_are_the_same_fixed_point() {
        assert_eq!(V_REST_MV, V_RESET_MV);
        assert_eq!(V_REST_MV + (V_RESET_MV - V_REST_MV) * A + 0.0 * C, V_RESET_MV);
    }

    #[test]
    fn flushing_g_cannot_move_v() {
        assert_eq!(G_FLUSH_MV, 2f64.powi(-60));
        for v in [-52.0, -45.0, -32.0, -64.0, -700.0, 37.0] {
            assert_eq!(v + G_FLUSH_MV * C, v);
            assert_eq!(v - G_FLUSH_MV * C, v);
        }
        assert_eq!(WEIGHT_MV + G_FLUSH_MV, WEIGHT_MV);
    }
}
