//! The symptoms of a fault, and the comparison of two runs.

use std::fmt;

use meshloom::hlo::{DType, Literal};
use meshloom::pjrt::MemoryStats;
use serde::Serialize;

meshloom::hlo::words! {
    /// The kinds of symptoms, in the order in which they are looked for.
    pub enum Kind {
        Crash = "crash",
        Hang = "hang",
        Memory = "memory",
        NotFinite = "not-finite",
        Differs = "differs",
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Symptom {
    Crash {
        signal: i32,
        /// The plugin's last words: a check that failed, or nothing.
        said: Option<String>,
    },
    Hang {
        seconds: f64,
    },
    Memory {
        bytes: u64,
        limit: u64,
    },
    NotFinite {
        /// The first output that has one.
        output: usize,
        count: usize,
        of: usize,
    },
    Differs {
        /// The output that differs most.
        output: usize,
        /// The element that differs most, in row-major order.
        element: usize,
        found: f64,
        expected: f64,
        count: usize,
        of: usize,
    },
}

impl Symptom {
    pub fn kind(&self) -> Kind {
        match self {
            Symptom::Crash { .. } => Kind::Crash,
            Symptom::Hang { .. } => Kind::Hang,
            Symptom::Memory { .. } => Kind::Memory,
            Symptom::NotFinite { .. } => Kind::NotFinite,
            Symptom::Differs { .. } => Kind::Differs,
        }
    }

    /// Returns the text of the plugin's failed check, without its values; `None` for another symptom.
    pub fn check(&self) -> Option<&str> {
        let Symptom::Crash { said, .. } = self else { return None };
        place_of(said.as_deref()).map(|(_, check)| check)
    }

    /// Whether it is the same fault, as far as that can be told: another check that fails is another fault.
    pub fn is_like(&self, other: &Symptom) -> bool {
        match (self, other) {
            (Symptom::Crash { signal, said }, Symptom::Crash { signal: of_other, said: other }) => {
                signal == of_other && place_of(said.as_deref()) == place_of(other.as_deref())
            }
            (symptom, other) => symptom.kind() == other.kind(),
        }
    }
}

/// Returns the file and the condition of a failed check. The line number and the values differ with the plugin's
/// version and with sizes, so they are left out.
fn place_of(said: Option<&str>) -> Option<(&str, &str)> {
    let (place, check) = said?.split_once("] ")?;
    let (file, _) = place.split_whitespace().last()?.split_once(':')?;
    Some((file, check.split(" (").next().unwrap_or(check)))
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Symptom::Crash { signal, said: None } => write!(f, "the process ends by signal {signal}"),
            Symptom::Crash { signal, said: Some(said) } => {
                // The time and the number of the thread tell nothing.
                let said = said.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
                write!(f, "the process ends by signal {signal}: {said}")
            }
            Symptom::Hang { seconds } => write!(f, "it is not done after {seconds} s"),
            Symptom::Memory { bytes, limit } => {
                write!(f, "it needs {bytes} bytes on a device, and the limit is {limit}")
            }
            Symptom::NotFinite { output, count, of } => {
                write!(f, "output {output} has {count} of {of} elements that are not finite, though all inputs are")
            }
            Symptom::Differs { output, element, found, expected, count, of } => write!(
                f,
                "output {output} differs in {count} of {of} elements: element {element} is {}, expected {}",
                number(*found),
                number(*expected)
            ),
        }
    }
}

/// A number with as many digits as an `f32` has.
fn number(number: f64) -> String {
    let is_plain = number == 0.0 || !number.is_finite() || (1e-4..1e9).contains(&number.abs());
    if is_plain { (number as f32).to_string() } else { format!("{number:.6e}") }
}

/// The element of an output that is not a finite number, if there is one.
pub fn not_finite(outputs: &[Literal]) -> Option<Symptom> {
    outputs.iter().enumerate().filter(|(_, literal)| literal.ty().dtype.is_float()).find_map(|(output, literal)| {
        let numbers = literal.to_f64_vec();
        let count = numbers.iter().filter(|number| !number.is_finite()).count();
        (count > 0).then_some(Symptom::NotFinite { output, count, of: numbers.len() })
    })
}

/// The output that differs most from its reference, if one differs by more than `tolerance` times the largest number of
/// the reference. Integers differ if they are not equal. A NaN is equal to a NaN alone.
pub fn difference(found: &[Literal], expected: &[Literal], tolerance: f64) -> Option<Symptom> {
    let mut worst: Option<(f64, Symptom)> = None;
    for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
        let tolerance = match found.ty().dtype {
            dtype if !dtype.is_float() => 0.0,
            // Half a unit in the last place of a few operations.
            DType::BF16 => tolerance.max(0.03),
            DType::F16 => tolerance.max(0.005),
            DType::F8E4M3FN | DType::F8E5M2 => tolerance.max(0.3),
            _ => tolerance,
        };
        let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
        let finite = expected.iter().filter(|number| number.is_finite());
        let largest = finite.fold(0.0f64, |largest, number| largest.max(number.abs()));
        let bound = tolerance * largest;
        let mut count = 0;
        let mut largest: Option<(f64, usize)> = None;
        for (element, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let is_equal = found == expected || (found.is_nan() && expected.is_nan());
            let difference =
                if found.is_finite() && expected.is_finite() { (found - expected).abs() } else { f64::INFINITY };
            if is_equal || difference <= bound {
                continue;
            }
            count += 1;
            if largest.is_none_or(|(most, _)| difference > most) {
                largest = Some((difference, element));
            }
        }
        let Some((most, element)) = largest else { continue };
        let relative = if bound > 0.0 { most / bound } else { most };
        if worst.as_ref().is_none_or(|(before, _)| relative > *before) {
            let (of, value, wanted) = (found.len(), found[element], expected[element]);
            let symptom = Symptom::Differs { output, element, found: value, expected: wanted, count, of };
            worst = Some((relative, symptom));
        }
    }
    worst.map(|(_, symptom)| symptom)
}

pub(super) fn too_much_memory(memory: Option<MemoryStats>, limit: Option<u64>) -> Option<Symptom> {
    let bytes = u64::try_from(memory?.total()).unwrap_or(0);
    let limit = limit?;
    (bytes > limit).then_some(Symptom::Memory { bytes, limit })
}
