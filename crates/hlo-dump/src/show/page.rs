//! HLO text as a page: names lead to their definitions, and light up wherever they are.

use std::collections::HashSet;

use maud::{Markup, PreEscaped, html};
use meshloom_analysis::communication;

use crate::markup::html;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The content of an empty line, which gives it its height.
const SPACE: PreEscaped<&str> = PreEscaped("&nbsp;");

pub fn render(title: &str, text: &str) -> String {
    html::document(html! {
        (html::DOCTYPE)
        html lang="en" {
            head { meta charset="utf-8"; title { (title) } style { (PreEscaped(STYLE)) } }
            body {
                header { h1 { (title) } input id="find" type="search" placeholder="show lines with ..."; }
                main {
                    @for block in text.split("\n\n") {
                        @let names = Names::of(block);
                        @for line in block.lines() {
                            div class=[is_collective(line).then_some("moves")] { (names.linked(line)) }
                        }
                        div { (SPACE) }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    })
}

/// Whether the opcode before a line's first operand is that of a collective.
fn is_collective(line: &str) -> bool {
    let Some((_, value)) = line.split_once(" = ") else { return false };
    // A shape may be a tuple, in brackets itself.
    value.split(' ').filter_map(|word| word.split_once('(')).any(|(opcode, _)| communication(opcode).is_some())
}

/// The names that a block of text defines. The block is a computation: other computations may have the same names.
struct Names<'a> {
    computation: &'a str,
    instructions: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(block: &'a str) -> Names<'a> {
        let computation = block.lines().find_map(|line| defined(line, " (")).unwrap_or_default();
        Names { computation, instructions: block.lines().filter_map(|line| defined(line, " =")).collect() }
    }

    /// Returns a line in which the name that it defines is an anchor, and other names lead to theirs.
    fn linked(&self, line: &str) -> Markup {
        let own = defined(line, " =").or_else(|| defined(line, " ("));
        let mut parts = line.split('%');
        let start = parts.next().unwrap_or_default();
        html! {
            @if line.is_empty() { (SPACE) }
            (start)
            @for (index, part) in parts.enumerate() {
                @let (name, after) = name_at(part);
                @let inside = self.instructions.contains(name).then(|| format!("{}/", self.computation));
                @let key = inside.unwrap_or_default() + name;
                @if name.is_empty() { "%" }
                @else if index == 0 && own == Some(name) { a id=(key) class="def" { "%" (name) } }
                @else { a href={ "#" (key) } { "%" (name) } }
                (after)
            }
        }
    }
}

/// Returns the name that a line defines, which `follows` comes after.
fn defined<'a>(line: &'a str, follows: &str) -> Option<&'a str> {
    let start = line.trim_start().trim_start_matches("ENTRY ").trim_start_matches("ROOT ");
    let (name, after) = name_at(start.strip_prefix('%')?);
    (after.starts_with(follows) && !name.is_empty()).then_some(name)
}

/// Splits text into a name and the rest.
fn name_at(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_alphanumeric() || "._-".contains(c))).unwrap_or(text.len()))
}
