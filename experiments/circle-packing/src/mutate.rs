//! Starting points: from nothing, and from a packing that was found. The mutations are the plain ones of basin
//! hopping; none knows what a good packing looks like.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use reef_verifier_circle_packing::Circle;

/// Radius at which a circle that was put somewhere new begins.
const RADIUS_NEW: f64 = 0.01;
/// Largest move of a centre when all are shaken: drawn from here, evenly in logarithm.
const SHAKE: (f64, f64) = (0.003, 0.1);

/// The generator of a seed.
pub fn generator(seed: u64) -> ChaCha12Rng {
    ChaCha12Rng::seed_from_u64(seed)
}

/// n small circles anywhere.
pub fn anywhere(rng: &mut ChaCha12Rng, n: usize) -> Vec<Circle> {
    let r = 0.25 / (n as f64).sqrt();
    (0..n).map(|_| Circle { x: rng.random_range(r..1.0 - r), y: rng.random_range(r..1.0 - r), r }).collect()
}

/// Puts one to three circles elsewhere, or shakes all, or exchanges the places of two.
pub fn mutated(rng: &mut ChaCha12Rng, parent: &[Circle]) -> Vec<Circle> {
    let mut circles = parent.to_vec();
    if circles.is_empty() {
        return circles;
    }
    let any = |rng: &mut ChaCha12Rng| rng.random_range(0..parent.len());
    match rng.random_range(0..3) {
        0 => {
            for _ in 0..rng.random_range(1..=3) {
                let moved = any(rng);
                circles[moved] = Circle { x: rng.random(), y: rng.random(), r: RADIUS_NEW };
            }
        }
        1 => {
            let (least, most) = (SHAKE.0.ln(), SHAKE.1.ln());
            let reach = rng.random_range(least..most).exp();
            for circle in &mut circles {
                circle.x = (circle.x + rng.random_range(-reach..reach)).clamp(0.0, 1.0);
                circle.y = (circle.y + rng.random_range(-reach..reach)).clamp(0.0, 1.0);
            }
        }
        _ => {
            let (a, b) = (any(rng), any(rng));
            (circles[a].r, circles[b].r) = (circles[b].r, circles[a].r);
        }
    }
    circles
}
