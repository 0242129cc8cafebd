//! Pieces of HTML, with everything that comes from a program escaped.

use std::fmt::Write;

use serde::Serialize;

use crate::output::thousands;

/// Text, as it may stand in an element or in an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Neither may stand in HTML.
            character if character.is_control() && !character.is_whitespace() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Data for the script, in an element that a browser does not run.
pub fn json(id: &str, value: &impl Serialize) -> String {
    // What ends the element, or begins a comment in it, begins so.
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()).replace('<', "\\u003c");
    format!("<script type=\"application/json\" id=\"{id}\">{text}</script>\n")
}

/// At most so many characters: the start and the end of a longer text.
pub fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - (most - most / 2 - 1)).collect();
    format!("{head}…{tail}")
}

/// A path as far as it fits into so many characters, its last parts first: they say most.
pub fn fitting(path: &str, most: usize) -> String {
    if path.chars().count() <= most {
        return path.to_owned();
    }
    let ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
    match ends.filter(|end| !end.is_empty()).find(|end| end.chars().count() <= most) {
        Some(end) => end.to_owned(),
        None => {
            let last = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path);
            last.chars().take(most.saturating_sub(1)).chain(['…']).collect()
        }
    }
}

/// A part of the page: a heading, what it shows, and the thing itself.
pub fn section(id: &str, title: &str, lead: &str, body: &str) -> String {
    format!("<section id=\"{id}\"><h2>{}</h2>\n<p class=\"lead\">{lead}</p>\n{body}</section>\n", escape(title))
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    /// What it sorts by, and that it is a number.
    number: Option<f64>,
    /// A bar behind the number, from 0 to 1, and the color.
    bar: Option<(f64, String)>,
    code: bool,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A name in the program.
    pub fn code(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), code: true, ..Cell::default() }
    }

    pub fn number(value: f64, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), number: Some(value), ..Cell::default() }
    }

    pub fn with_bar(self, fraction: f64, color: &str) -> Cell {
        Cell { bar: Some((fraction.clamp(0.0, 1.0), color.to_owned())), ..self }
    }
}

/// A table of the first rows of `all`: the page can filter and sort those it has.
pub fn table(id: &str, columns: &[&str], rows: &[Vec<Cell>], all: usize) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    if rows.len() > 5 {
        let _ = writeln!(
            text,
            "<div class=\"tools\"><input type=\"search\" placeholder=\"filter\" aria-label=\"filter rows\" \
             data-table=\"{id}\"><span class=\"count\" id=\"{id}-count\">{} of {}</span></div>",
            rows.len(),
            thousands(all as u64)
        );
    }
    let _ = write!(text, "<div class=\"scroll\"><table id=\"{id}\"><thead><tr>");
    let numeric = |column: usize| rows.first().is_some_and(|row| row.get(column).is_some_and(|it| it.number.is_some()));
    for (index, column) in columns.iter().enumerate() {
        let class = if numeric(index) { " class=\"n\"" } else { "" };
        let _ = write!(text, "<th{class} tabindex=\"0\">{}</th>", escape(column));
    }
    text.push_str("</tr></thead><tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        row.iter().for_each(|cell| write_cell(&mut text, cell));
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
    if rows.len() < all {
        let _ = writeln!(
            text,
            "<p class=\"note\">{} more rows are not on this page.</p>",
            thousands((all - rows.len()) as u64)
        );
    }
    text
}

fn write_cell(text: &mut String, cell: &Cell) {
    let content = escape(&cell.text);
    // Paths break where they have parts.
    let content = if cell.code { format!("<code>{}</code>", content.replace('/', "/<wbr>")) } else { content };
    let bar = cell.bar.as_ref().map_or(String::new(), |(fraction, color)| {
        format!("<i class=\"bar\" style=\"width:{:.1}%;background:{color}\"></i>", fraction * 100.0)
    });
    let _ = match cell.number {
        Some(number) => write!(text, "<td class=\"n\" data-v=\"{number}\">{bar}<span>{content}</span></td>"),
        None if cell.code => write!(text, "<td>{bar}{content}</td>"),
        None => write!(text, "<td class=\"t\">{bar}{content}</td>"),
    };
}

/// The color of a mesh axis, or of several together, by the number of the axis; the sheet knows eight.
pub fn axis_color(number: usize) -> String {
    format!("var(--c{})", number % 8)
}

/// Round numbers for an axis from 0 to a largest value, about so many; with `power_of_two`, those that bytes are
/// counted in.
pub fn ticks(most: f64, count: usize, power_of_two: bool) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0];
    }
    let rough = most / count.max(1) as f64;
    let step = if power_of_two {
        rough.log2().ceil().exp2()
    } else {
        let power = 10f64.powf(rough.log10().floor());
        let leading = rough / power;
        power * [1.0, 2.0, 5.0].into_iter().find(|&round| leading <= round).unwrap_or(10.0)
    };
    (0..).map(|index| f64::from(index) * step).take_while(|&value| value <= most * 1.0001).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_program_is_markup() {
        assert_eq!(escape("<b a='\"'>&\u{1}\n"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\n");
        let text = json("d", &"</script><!--");
        assert_eq!(text, "<script type=\"application/json\" id=\"d\">\"\\u003c/script>\\u003c!--\"</script>\n");
        let cells = [vec![Cell::code("<i>"), Cell::number(2.0, "2<")]];
        let table = table("t", &["<x>", "n"], &cells, 1);
        assert!(
            table.contains("<code>&lt;i&gt;</code>") && table.contains("2&lt;") && table.contains("&lt;x&gt;"),
            "{table}"
        );
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 7), "abc…ijk");
        assert_eq!(fitting("layer/attention/dot", 40), "layer/attention/dot");
        assert_eq!(fitting("layer/attention/dot", 15), "attention/dot");
        assert_eq!(fitting("layer/attention/dot_general", 6), "dot_g…");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(9.0, 4, false), [0.0, 5.0]);
        assert_eq!(ticks(1.0, 5, false), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(1000.0, 4, true), [0.0, 256.0, 512.0, 768.0]);
        assert_eq!(ticks(0.0, 4, true), [0.0]);
        assert_eq!(ticks(f64::NAN, 4, true), [0.0]);
    }
}
