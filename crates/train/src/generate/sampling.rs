//! How the next token is drawn from logits.

use super::GenerateError;
use crate::random::uniform;

/// How tokens are drawn. Options apply in this order, each to what those before it left, as in transformers: the
/// temperature, `top_k`, `top_p`, `min_p`. Every option leaves at least the likeliest token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// The number that logits are divided by. With 1, tokens are drawn from the model's own distribution. With 0, the
    /// likeliest token is taken, and the first of equal ones.
    pub temperature: f64,
    /// The number of tokens with the highest logits that are kept, together with those that equal the last of them.
    pub top_k: Option<usize>,
    /// The sum of probabilities that the likeliest tokens must reach. From the least likely on, tokens whose sum is at
    /// most one less this number are left out (Holtzman et al., arXiv 1904.09751).
    pub top_p: Option<f64>,
    /// The probability, relative to that of the likeliest token, below which tokens are left out (Nguyen et al., arXiv
    /// 2407.01082).
    pub min_p: Option<f64>,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions { temperature: 1.0, top_k: None, top_p: None, min_p: None }
    }
}

impl SamplingOptions {
    /// Always the likeliest token.
    pub fn greedy() -> SamplingOptions {
        SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }
    }

    /// Checks that each option means something.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), GenerateError> {
        let refuse = |option, value: String, allowed| Err(GenerateError::Sampling { option, value, allowed });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("the temperature", self.temperature.to_string(), "a number of at least 0");
        }
        if self.top_k == Some(0) {
            return refuse("top-k", "0".to_owned(), "a number of tokens of at least 1; leave it out for all");
        }
        if let Some(top_p) = self.top_p.filter(|top_p| !(*top_p > 0.0 && *top_p <= 1.0)) {
            return refuse("top-p", top_p.to_string(), "a probability above 0, up to 1");
        }
        if let Some(min_p) = self.min_p.filter(|min_p| !(0.0..=1.0).contains(min_p)) {
            return refuse("min-p", min_p.to_string(), "a share from 0 to 1");
        }
        Ok(())
    }

    /// The tokens that may be drawn, by their numbers, and their probabilities.
    pub fn distribution(&self, logits: &[f32]) -> Vec<(usize, f64)> {
        if self.temperature == 0.0 {
            return likeliest(logits).map(|token| (token, 1.0)).into_iter().collect();
        }
        let mut kept: Vec<(usize, f64)> =
            logits.iter().enumerate().map(|(token, &logit)| (token, f64::from(logit) / self.temperature)).collect();
        if let Some(least) = self.top_k.and_then(|count| kth_highest(&kept, count)) {
            kept.retain(|(_, score)| *score >= least);
        }
        if let Some(top_p) = self.top_p {
            kept = within_sum(kept, top_p);
        }
        let mut shares = shares(&kept);
        if let Some(min_p) = self.min_p {
            let least = min_p * shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
            shares.retain(|(_, share)| *share >= least);
            let total: f64 = shares.iter().map(|(_, share)| share).sum();
            shares.iter_mut().for_each(|(_, share)| *share /= total);
        }
        shares
    }

    /// Draws a token; `state` is that of the row's random numbers. Returns `None` if no logit is a number.
    pub(super) fn draw(&self, logits: &[f32], state: &mut u64) -> Option<i32> {
        let best = likeliest(logits).filter(|&best| logits[best].is_finite())?;
        if self.temperature == 0.0 {
            return i32::try_from(best).ok();
        }
        let mut left = uniform(state);
        let mut drawn = best;
        for (token, share) in self.distribution(logits) {
            if share > 0.0 {
                drawn = token;
            }
            left -= share;
            if left <= 0.0 {
                break;
            }
        }
        i32::try_from(drawn).ok()
    }
}

/// The number of the highest logit, the first of equal ones. One that is NaN is the highest.
fn likeliest(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().rev().max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(token, _)| token)
}

fn kth_highest(scores: &[(usize, f64)], count: usize) -> Option<f64> {
    let mut numbers: Vec<f64> = scores.iter().map(|(_, score)| *score).collect();
    let place = count.min(numbers.len()).checked_sub(1)?;
    Some(*numbers.select_nth_unstable_by(place, |one, other| other.total_cmp(one)).1)
}

/// See [`SamplingOptions::top_p`].
fn within_sum(kept: Vec<(usize, f64)>, top_p: f64) -> Vec<(usize, f64)> {
    let mut ascending = shares(&kept);
    ascending.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let mut sum = 0.0;
    let left_out = ascending.iter().take_while(|(_, share)| {
        sum += share;
        sum <= 1.0 - top_p
    });
    let count = left_out.count().min(ascending.len().saturating_sub(1));
    let is_left_out: std::collections::HashSet<usize> = ascending[..count].iter().map(|(token, _)| *token).collect();
    kept.into_iter().filter(|(token, _)| !is_left_out.contains(token)).collect()
}

fn shares(scores: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let highest = scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<(usize, f64)> = scores.iter().map(|(token, score)| (*token, (score - highest).exp())).collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.into_iter().map(|(token, weight)| (token, weight / total)).collect()
}
