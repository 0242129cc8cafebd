//! The source of each row, by the weights of the sources.

/// The largest sum of the weights of all sources, counted in units of their last digit.
const MOST_UNITS: u64 = 1_000_000;

/// The decimal places that weights may have.
const PLACES: i32 = 6;

/// Rows of several sources by weights: for every number of rows from the first on, each source has given its share of
/// them to within one. It is a function of the row's number alone.
///
/// The weights are integers once they are multiplied by a power of ten, so the sources repeat after as many rows as
/// these add up to. Within this period, row `k` of a source with share `w` comes no earlier than position `k / w` and
/// before position `(k + 1) / w`, rounded up; such a schedule exists for any shares that add up to one, and taking the
/// row whose end comes first finds it (Baruah, Cohen, Plaxton and Varvel, "Proportionate progress", 1996).
#[derive(Debug)]
pub(crate) struct Mixture {
    /// For each position of the period, the source and how many rows it has given before in the period. Empty for one
    /// source.
    period: Vec<(u32, u32)>,
    /// The number of rows of the period that each source gives.
    units: Vec<u64>,
}

impl Mixture {
    /// Returns the mixture of this number of sources. Without weights, all sources count as one.
    ///
    /// # Errors
    /// The weights cannot be followed; the error is the reason.
    pub(crate) fn new(weights: &[f64], sources: usize) -> Result<Mixture, String> {
        if weights.is_empty() {
            return Ok(Mixture { period: Vec::new(), units: vec![1] });
        }
        if weights.len() != sources {
            return Err(format!("there must be as many as in data.sources, which has {sources}"));
        }
        let units = in_units(weights)?;
        let total: u64 = units.iter().sum();
        if total > MOST_UNITS {
            return Err(format!(
                "in units of their last digit they add up to {total}, but at most {MOST_UNITS} is possible; give them \
                 fewer digits"
            ));
        }
        Ok(Mixture { period: period(&units, total), units })
    }

    /// The number of sources.
    pub(crate) fn source_count(&self) -> usize {
        self.units.len()
    }

    /// The source of a row, and which row of the source it is.
    pub(crate) fn row(&self, row: u128) -> (usize, u128) {
        let length = self.period.len() as u128;
        match row.checked_rem(length) {
            None => (0, row),
            Some(position) => {
                let (source, before) = self.period[position as usize];
                let source = source as usize;
                (source, row / length * u128::from(self.units[source]) + u128::from(before))
            }
        }
    }
}

/// Weights as integers without a common divisor.
fn in_units(weights: &[f64]) -> Result<Vec<u64>, String> {
    let factor = 10f64.powi(PLACES);
    let unit = |&weight: &f64| {
        let scaled = weight * factor;
        let is_decimal = (scaled - scaled.round()).abs() <= 1e-9 * scaled.abs().max(1.0);
        match weight > 0.0 && weight <= 1e9 && is_decimal {
            true => Ok(scaled.round() as u64),
            false => Err(format!(
                "each must be more than 0, at most 1e9 and have at most {PLACES} decimals, unlike {weight}"
            )),
        }
    };
    let units = weights.iter().map(unit).collect::<Result<Vec<u64>, _>>()?;
    let divisor = units.iter().copied().fold(0, greatest_common_divisor);
    Ok(units.into_iter().map(|unit| unit / divisor.max(1)).collect())
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The sources of one period: at each position, of the rows that may come, the one that must come first.
fn period(units: &[u64], total: u64) -> Vec<(u32, u32)> {
    let mut given = vec![0u64; units.len()];
    let next = |position| {
        let may_come = |&(source, &unit): &(usize, &u64)| given[source] * total < (position + 1) * unit;
        let end = |(source, &unit): (usize, &u64)| (((given[source] + 1) * total).div_ceil(unit), source);
        let (_, source) = units.iter().enumerate().filter(may_come).map(end).min()?;
        given[source] += 1;
        Some((source as u32, (given[source] - 1) as u32))
    };
    // One may always come: the sources have given `position` rows, less than their shares of one more.
    (0..total).filter_map(next).collect()
}
