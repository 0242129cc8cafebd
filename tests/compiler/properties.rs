//! Properties of random values. A value that fails is shrunk.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use support::cases::{cases, seed};

/// Returns the runner of a number, which draws the value of that number. Another seed gives other values.
fn runner(number: u64) -> TestRunner {
    let config = Config { cases: 1, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed(1).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Returns the random value that belongs to a number.
pub fn draw<S: Strategy>(strategy: &S, number: u64) -> S::Value {
    strategy.new_tree(&mut runner(number)).expect("a value").current()
}

/// Checks a property of random values, and returns how many were checked. Each value depends on its number alone, not
/// on the other values. The small tier checks `few` of the numbers below `all`.
pub fn check<S: Strategy>(
    name: &str,
    few: usize,
    all: u64,
    strategy: &S,
    property: impl Fn(&S::Value) -> Result<(), String>,
) -> usize {
    let numbers = cases(name, few, 0..all);
    for &number in &numbers {
        match runner(number).run(strategy, |value| property(&value).map_err(TestCaseError::fail)) {
            Ok(()) => {}
            Err(TestError::Fail(reason, value)) => {
                let seed = seed(1);
                panic!("MESHLOOM_EVERY_CASE={name:?} MESHLOOM_SEED={seed}, number {number}: {value:#?}\n{reason}")
            }
            Err(TestError::Abort(reason)) => panic!("{reason}"),
        }
    }
    numbers.len()
}
