//! Help with misspelled names, for error messages.

/// The allowed name nearest to `name`, when one is near enough that it was probably meant.
pub fn nearest<'a>(name: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lowered = name.to_lowercase();
    allowed
        .into_iter()
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
