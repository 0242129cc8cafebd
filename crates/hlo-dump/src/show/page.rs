//! HLO text as a page: names lead to where they are defined, and light up wherever they are.

use std::collections::HashSet;
use std::fmt::Write;

use meshloom_hlo::analysis::communication;

use crate::report::html::escape;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub fn render(title: &str, text: &str) -> String {
    let mut page = String::with_capacity(3 * text.len());
    let title = escape(title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style></head>\n\
         <body><header><h1>{title}</h1><input id=\"find\" type=\"search\" placeholder=\"show lines with ...\"></header>\n<main>"
    );
    for block in text.split("\n\n") {
        let names = Names::of(block);
        for line in block.lines() {
            let class = if is_collective(line) { " class=\"moves\"" } else { "" };
            let _ = write!(page, "<div{class}>{}</div>", names.linked(line));
        }
        page.push_str("<div>&nbsp;</div>");
    }
    let _ = write!(page, "</main>\n<script>{SCRIPT}</script></body></html>\n");
    page
}

/// Whether the opcode before a line's first operand is that of a collective.
fn is_collective(line: &str) -> bool {
    let Some((_, value)) = line.split_once(" = ") else { return false };
    // A shape may be a tuple, in brackets itself.
    value.split(' ').filter_map(|word| word.split_once('(')).any(|(opcode, _)| communication(opcode).is_some())
}

/// The names that a block of text defines, which is a computation: other computations may have the same.
struct Names<'a> {
    computation: &'a str,
    instructions: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(block: &'a str) -> Names<'a> {
        let computation = block.lines().find_map(|line| defined(line, " (")).unwrap_or_default();
        Names { computation, instructions: block.lines().filter_map(|line| defined(line, " =")).collect() }
    }

    /// A line in which the name that it defines is an anchor, and other names lead to theirs.
    fn linked(&self, line: &str) -> String {
        let mut out = String::with_capacity(2 * line.len());
        let own = defined(line, " =").or_else(|| defined(line, " ("));
        let (mut rest, mut is_first) = (line, true);
        while let Some(at) = rest.find('%') {
            out.push_str(&escape(&rest[..at]));
            let (name, after) = name_at(&rest[at + 1..]);
            let key = match self.instructions.contains(name) {
                true => escape(&format!("{}/{name}", self.computation)),
                false => escape(name),
            };
            let shown = escape(name);
            let _ = match name {
                "" => write!(out, "%"),
                name if is_first && own == Some(name) => write!(out, "<a id=\"{key}\" class=\"def\">%{shown}</a>"),
                _ => write!(out, "<a href=\"#{key}\">%{shown}</a>"),
            };
            is_first = false;
            rest = after;
        }
        out.push_str(&escape(rest));
        if out.is_empty() { "&nbsp;".to_owned() } else { out }
    }
}

/// The name that a line defines, which this follows.
fn defined<'a>(line: &'a str, follows: &str) -> Option<&'a str> {
    let start = line.trim_start().trim_start_matches("ENTRY ").trim_start_matches("ROOT ");
    let (name, after) = name_at(start.strip_prefix('%')?);
    (after.starts_with(follows) && !name.is_empty()).then_some(name)
}

/// A name, and what is behind it.
fn name_at(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_alphanumeric() || "._-".contains(c))).unwrap_or(text.len()))
}
