//! Chooses the products of options that a test runs.

use support::cases::{cases, every_case};

/// Returns the choices of one value of each option that a test runs; `sizes` has the numbers of values. In the small
/// tier these are few, which together have every pair of values of two options; otherwise all, or the share that the
/// variable names.
pub fn of_options<const N: usize>(name: &str, sizes: [usize; N]) -> Vec<[usize; N]> {
    let all = product(sizes);
    if every_case(name) { cases(name, all.len(), all) } else { covering(sizes, all) }
}

/// Returns the choices of two options, in such an order that the first `sizes[0]` have every value of both. The small
/// tier takes only these.
pub fn of_two(name: &str, sizes: [usize; 2]) -> Vec<[usize; 2]> {
    let of_first = |first: usize| (0..sizes[1]).map(move |shift| [first, (first + shift) % sizes[1]]);
    cases(name, sizes[0], (0..sizes[0]).flat_map(of_first))
}

fn product<const N: usize>(sizes: [usize; N]) -> Vec<[usize; N]> {
    let mut all = vec![[0; N]];
    for (option, &size) in sizes.iter().enumerate() {
        let with = |choice: [usize; N]| {
            (0..size).map(move |value| {
                let mut choice = choice;
                choice[option] = value;
                choice
            })
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all
}

/// Chooses, again and again, the choice with most of the pairs that are missing.
fn covering<const N: usize>(sizes: [usize; N], all: Vec<[usize; N]>) -> Vec<[usize; N]> {
    let options: Vec<(usize, usize)> = (0..N).flat_map(|one| (0..one).map(move |other| (other, one))).collect();
    let index = |choice: &[usize; N], (other, one): (usize, usize)| choice[other] * sizes[one] + choice[one];
    let mut missing: Vec<Vec<bool>> =
        options.iter().map(|&(other, one)| vec![true; sizes[other] * sizes[one]]).collect();
    let mut chosen = Vec::new();
    loop {
        let gain = |choice: &[usize; N]| {
            options.iter().zip(&missing).filter(|(pair, missing)| missing[index(choice, **pair)]).count()
        };
        // This is the first choice of those with the largest gain.
        let best = all.iter().rev().max_by_key(|choice| gain(choice)).expect("values of every option");
        if gain(best) == 0 {
            return chosen;
        }
        let best = *best;
        for (pair, missing) in options.iter().zip(&mut missing) {
            missing[index(&best, *pair)] = false;
        }
        chosen.push(best);
    }
}

#[test]
fn every_pair_is_chosen_by_few() {
    for (sizes, most) in [([5, 4, 4], 25), ([3, 3, 4], 13), ([4, 3, 4], 18), ([2, 2, 2], 4)] {
        let chosen = covering(sizes, product(sizes));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let mut pairs: Vec<(usize, usize)> = chosen.iter().map(|choice| (choice[one], choice[other])).collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len(), sizes[one] * sizes[other], "{sizes:?}: {chosen:?}");
        }
        assert!(chosen.len() <= most, "{sizes:?}: {}", chosen.len());
    }
}
