//! Help with misspelled names, for error messages.

/// Bytes of names that are compared, at most: the time is the product of two lengths.
const MOST_BYTES: usize = 200;

/// Names that a name is compared with, at most.
const MOST_NAMES: usize = 10_000;

/// The allowed name nearest to `name`, when one is near enough that it was probably meant.
pub fn nearest<'a>(name: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MOST_BYTES {
        return None;
    }
    let lowered = name.to_lowercase();
    let allowed = allowed.into_iter().take(MOST_NAMES).filter(|candidate| candidate.len() <= MOST_BYTES);
    allowed
        .map(|candidate| (strsim::damerau_levenshtein(&lowered, &candidate.to_lowercase()), candidate))
        // Less than a third of the letters may be wrong: "hed_dim" finds "head_dim", but "gpu" does not find "cpu".
        .filter(|(distance, candidate)| distance * 3 < candidate.chars().count().max(lowered.chars().count()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean "x"?)`, or nothing when no allowed name is near.
pub fn did_you_mean<'a>(name: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, allowed).map(|near| format!(" (did you mean \"{near}\"?)")).unwrap_or_default()
}

/// The allowed name that `name` is a slip of the pen away from. Stricter than [`nearest`], for where any name may
/// stand: `act_mpl` is `act_mlp`, but `activation_length` is not `activation_kv_length`, `q_lora` not `kv_lora`, and
/// `fc1` not `fc2`.
pub fn misspelled<'a>(name: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MOST_BYTES {
        return None;
    }
    let mut allowed = allowed.into_iter().take(MOST_NAMES).filter(|candidate| candidate.len() <= MOST_BYTES);
    allowed.find(|candidate| *candidate != name && is_slip(name, candidate))
}

/// Whether two names differ by separators alone, or by one letter of a word, or two of a long one.
fn is_slip(a: &str, b: &str) -> bool {
    let words = |name: &str| -> Vec<String> {
        let separated = name.split(|letter: char| !letter.is_alphanumeric());
        separated.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
    };
    let (a, b) = (words(a), words(b));
    a.concat() == b.concat() || a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || is_slip_of_word(a, b))
}

fn is_slip_of_word(a: &str, b: &str) -> bool {
    let letters = |word: &str| word.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>();
    let length = a.chars().count().max(b.chars().count());
    let slips = if length < 3 { 0 } else { 1 + length / 8 };
    // Numbered names are meant as they are.
    letters(a) != letters(b) && strsim::damerau_levenshtein(a, b) <= slips
}
