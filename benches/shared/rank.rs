//! Measures how alike two orders are.

/// Spearman's rank correlation of pairs of numbers: 1 if both put them in one order, -1 if in opposite ones.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let places = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by(|&a, &b| of(&pairs[a]).total_cmp(&of(&pairs[b])));
        let mut places = vec![0.0; pairs.len()];
        order.iter().enumerate().for_each(|(place, &index)| places[index] = place as f64);
        places
    };
    let (first, second) = (places(&|pair| pair.0), places(&|pair| pair.1));
    let squares: f64 = first.iter().zip(&second).map(|(a, b)| (a - b) * (a - b)).sum();
    let count = pairs.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}
