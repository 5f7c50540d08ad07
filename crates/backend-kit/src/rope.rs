//! The angles of ropes.

use lapidary_program::{AxialRopeSpec, RopeSpec};

/// `theta^(−2i/head_dim) / factor` for each pair that rotates.
pub fn rope_frequencies(spec: &RopeSpec) -> Vec<f32> {
    let frequency = |i: u32| {
        let exponent = -2.0 * f64::from(i) / f64::from(spec.head_dim);
        (spec.theta.powf(exponent) / spec.factor) as f32
    };
    (0..spec.rotated_pairs).map(frequency).collect()
}

/// The frequencies of one direction of an axial rope: those of a head of half the size.
pub fn axial_frequencies(spec: &AxialRopeSpec) -> Vec<f32> {
    let half = spec.head_dim / 2;
    let theta = spec.theta;
    rope_frequencies(&RopeSpec { head_dim: half, theta, rotated_pairs: half / 2, factor: 1.0 })
}

/// The cosine and the sine of each angle of a position.
pub fn angles(position: i32, frequencies: &[f32], cosines: &mut [f32], sines: &mut [f32]) {
    for (frequency, (c, s)) in frequencies.iter().zip(cosines.iter_mut().zip(sines)) {
        (*s, *c) = (position as f32 * frequency).sin_cos();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_by_pair_and_only_so_many_rotate() {
        let spec = RopeSpec { head_dim: 8, theta: 1e4, rotated_pairs: 3, factor: 2.0 };
        assert_eq!(rope_frequencies(&spec), [0.5, 0.05, 0.005]);
        let axial = axial_frequencies(&AxialRopeSpec { head_dim: 8, theta: 100.0 });
        assert_eq!(axial, [1.0, 0.1]);
    }

    #[test]
    fn angles_are_products() {
        let (mut cosines, mut sines) = ([0.0; 2], [0.0; 2]);
        angles(3, &[1.0, 0.5], &mut cosines, &mut sines);
        assert_eq!(cosines, [3f32.cos(), 1.5f32.cos()]);
        assert_eq!(sines, [3f32.sin(), 1.5f32.sin()]);
    }
}
