//! The augmented Lagrangian of a packing (Hestenes 1969, Powell 1969): −Σ r, and for each constraint c ≤ 0 with
//! multiplier λ the term max(0, λ + μc)²/2μ. Variables are x₀ … x_{n−1}, y₀ …, r₀ …. Constraints: r_i + r_j − d_ij, the
//! four sides, −r_i.

/// Keeps the direction between two equal centres finite.
const DISTANCE_MIN: f64 = 1e-12;

/// Multipliers and penalty of one problem.
#[derive(Debug, Clone)]
pub struct Objective {
    n: usize,
    /// μ.
    pub penalty: f64,
    /// λ of each pair i < j, row by row; then of each circle left, right, lower, upper side and r ≥ 0.
    multipliers: Vec<f64>,
    /// Evaluations so far: the budget that arms are compared by.
    pub evaluations: u64,
}

impl Objective {
    /// n circles, all multipliers 0.
    pub fn new(n: usize, penalty: f64) -> Self {
        Self { n, penalty, multipliers: vec![0.0; n * (n - 1) / 2 + 5 * n], evaluations: 0 }
    }

    /// The value at `z`, and its gradient into `gradient`.
    pub fn evaluate(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        self.evaluations += 1;
        let (n, mu) = (self.n, self.penalty);
        let (xs, rest) = z.split_at(n);
        let (ys, rs) = rest.split_at(n);
        gradient.fill(0.0);
        gradient[2 * n..].fill(-1.0);
        let mut value = -rs.iter().sum::<f64>();
        let mut term = |pressure: f64| value += pressure * pressure / (2.0 * mu);
        let (pairs, sides) = self.multipliers.split_at(n * (n - 1) / 2);
        let mut pair = 0;
        for i in 0..n {
            for j in i + 1..n {
                let lambda = pairs[pair];
                pair += 1;
                let (dx, dy, sum) = (xs[i] - xs[j], ys[i] - ys[j], rs[i] + rs[j]);
                let (squared, reach) = (dx * dx + dy * dy, sum + lambda / mu);
                if reach <= 0.0 || squared >= reach * reach {
                    continue;
                }
                let distance = squared.sqrt().max(DISTANCE_MIN);
                let pressure = lambda + mu * (sum - distance);
                term(pressure);
                let (px, py) = (pressure * dx / distance, pressure * dy / distance);
                gradient[i] -= px;
                gradient[j] += px;
                gradient[n + i] -= py;
                gradient[n + j] += py;
                gradient[2 * n + i] += pressure;
                gradient[2 * n + j] += pressure;
            }
        }
        for (i, lambdas) in sides.chunks_exact(5).enumerate() {
            let (x, y, r) = (xs[i], ys[i], rs[i]);
            // Constraint, and the signs of its derivatives by x, y and r.
            let constraints = [
                (r - x, -1., 0., 1.),
                (x + r - 1., 1., 0., 1.),
                (r - y, 0., -1., 1.),
                (y + r - 1., 0., 1., 1.),
                (-r, 0., 0., -1.),
            ];
            for (lambda, (c, by_x, by_y, by_r)) in lambdas.iter().zip(constraints) {
                let pressure = lambda + mu * c;
                if pressure > 0.0 {
                    term(pressure);
                    gradient[i] += pressure * by_x;
                    gradient[n + i] += pressure * by_y;
                    gradient[2 * n + i] += pressure * by_r;
                }
            }
        }
        value
    }

    /// λ ← max(0, λ + μc) at `z`; returns the largest violation max(0, c).
    pub fn update_multipliers(&mut self, z: &[f64]) -> f64 {
        let (n, mu) = (self.n, self.penalty);
        let (xs, rest) = z.split_at(n);
        let (ys, rs) = rest.split_at(n);
        let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        let pairs = pairs.map(|(i, j)| rs[i] + rs[j] - (xs[i] - xs[j]).hypot(ys[i] - ys[j]));
        let sides = (0..n).flat_map(|i| {
            let (x, y, r) = (xs[i], ys[i], rs[i]);
            [r - x, x + r - 1.0, r - y, y + r - 1.0, -r]
        });
        let mut violation: f64 = 0.0;
        for (lambda, c) in self.multipliers.iter_mut().zip(pairs.chain(sides)) {
            *lambda = (*lambda + mu * c).max(0.0);
            violation = violation.max(c);
        }
        violation
    }
}
