//! Braces around anything, such as JSON.

/// The length of the `{...}` with balanced braces outside strings at the start of `text`, if there is one.
pub(crate) fn braced_length(text: &[u8]) -> Option<usize> {
    let mut depth = 0usize;
    let mut in_string = false;
    let mut bytes = text.iter().enumerate();
    while let Some((index, &byte)) = bytes.next() {
        match byte {
            b'\\' if in_string => {
                bytes.next();
            }
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
    }
    None
}
